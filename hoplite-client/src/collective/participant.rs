//! A participant requests the target (the result) from its store. Rank 0's store also coordinates
//! the stores.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use hoplite_core::collective::Agreement;
use hoplite_core::dtype::Dtype;
use hoplite_core::node::{self, ByteRange, Reduce, Response};
use hoplite_core::plan::collective::Collective;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::gather::no_such_rank;
use crate::connection::{Connection, Description};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;
use crate::reader::{ObjectReader, to_index};

#[derive(Debug)]
pub(super) struct Participant {
    pub(super) kind: Collective,
    pub(super) request: Reduce,
    pub(super) rank: usize,
    pub(super) source_bytes: u64,
    pub(super) dtype: Dtype,
    pub(super) deadline: Deadline,
}

#[derive(Debug)]
pub(super) enum Joined {
    Object(ObjectReader),
    /// Target of a running exchange, and the order in which its ranges become valid.
    Ranges(ObjectReader, Vec<ByteRange>),
}

pub(super) enum Out<'a> {
    New(&'a mut Vec<u8>),
    Given(&'a mut [u8]),
}

impl Out<'_> {
    pub(super) fn check_room(&self, needed_bytes: u64) -> Result<()> {
        match self {
            Self::Given(given) if (given.len() as u64) < needed_bytes => {
                Err(Error::BufferTooSmall { needed_bytes, given_bytes: given.len() as u64 })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn room(&mut self, needed_bytes: u64) -> Result<&mut [u8]> {
        self.check_room(needed_bytes)?;
        let length = to_index(needed_bytes);
        match self {
            Self::New(made) => {
                **made = vec![0; length];
                Ok(made)
            }
            Self::Given(given) => Ok(&mut given[..length]),
        }
    }
}

/// Every participant checks the arguments, so that none waits for a refused rank 0.
pub(super) fn check(
    target: ObjectId,
    sources: Vec<ObjectId>,
    rank: usize,
    &AllreduceOptions { op, order, timeout }: &AllreduceOptions,
) -> Result<Reduce> {
    if rank >= sources.len() {
        return Err(no_such_rank());
    }
    let request = Reduce {
        target,
        count: sources.len(),
        sources,
        op,
        order,
        range: None,
        replicas: 0,
        timeout,
    };
    request.check()?;
    Ok(request)
}

pub(super) async fn describe(
    connection: &Arc<Connection>,
    source: &ObjectId,
    deadline: Deadline,
) -> Result<Description> {
    let source = ObjectReader::open(connection, source.clone(), deadline.left()).await?;
    Ok((source.size_bytes(), source.metadata().dtype))
}

impl Participant {
    pub(super) async fn prepare(
        connection: &Arc<Connection>,
        kind: Collective,
        target: ObjectId,
        sources: Vec<ObjectId>,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Self> {
        let deadline = Deadline::after(options.timeout);
        let request = check(target, sources, rank, &options)?;
        let source = describe(connection, &request.sources[rank], deadline).await?;
        Self::checked(kind, request, rank, source, deadline)
    }

    pub(super) fn checked(
        kind: Collective,
        request: Reduce,
        rank: usize,
        (source_bytes, dtype): Description,
        deadline: Deadline,
    ) -> Result<Self> {
        let op = request.op;
        if kind.properties().combines && !op.is_defined_for(dtype) {
            let reason = format!("{op} is not defined for elements of type {dtype}").into();
            return Err(
                ObjectError::TypeMismatch { id: request.sources[rank].clone(), reason }.into()
            );
        }
        Ok(Self { kind, request, rank, source_bytes, dtype, deadline })
    }

    pub(super) fn with_source(&self, source: Description) -> Result<Self> {
        Self::checked(self.kind, self.request.clone(), self.rank, source, self.deadline)
    }

    pub(super) const fn target(&self) -> &ObjectId {
        &self.request.target
    }

    pub(super) fn source(&self) -> &ObjectId {
        &self.request.sources[self.rank]
    }

    pub(super) const fn description(&self) -> Description {
        (self.source_bytes, self.dtype)
    }

    pub(super) async fn run<T>(
        &self,
        connection: &Arc<Connection>,
        join: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.rank > 0 {
            return join.await;
        }
        match select(pin!(join), pin!(self.coordinate(connection))).await {
            Either::Left((Ok(got), coordinate)) => coordinate.await.map(|()| got),
            Either::Left((Err(error), coordinate)) => {
                if self.is_end(&error) {
                    coordinate.await?;
                }
                Err(error)
            }
            Either::Right((coordinated, join)) => {
                coordinated?;
                join.await
            }
        }
    }

    async fn coordinate(&self, connection: &Arc<Connection>) -> Result<()> {
        let timeout = self.deadline.left();
        let request =
            node::Request::Collective(self.kind, Reduce { timeout, ..self.request.clone() });
        match connection.call_node(request, Operation::Reduce, timeout).await? {
            Response::Reduced { .. } => Ok(()),
            _ => Err(connection.unexpected()),
        }
    }

    /// Joins the collective at this node's store. `is_again` is `true` if an earlier join failed
    /// with `Superseded`.
    pub(super) async fn join(
        &self,
        connection: &Arc<Connection>,
        is_again: bool,
    ) -> Result<Joined> {
        let agreement = Agreement::of(self.kind, &self.request);
        let (target, timeout) = (self.request.target.clone(), self.deadline.left());
        let source_bytes = self.source_bytes;
        let request = node::Request::Join { target, agreement, is_again, source_bytes, timeout };
        match connection.call_node(request, Operation::Reduce, timeout).await? {
            Response::Object(view) => Ok(Joined::Object(ObjectReader::over(connection, view)?)),
            Response::Ranges { view, order } => {
                Ok(Joined::Ranges(ObjectReader::over(connection, view)?, order))
            }
            _ => Err(connection.unexpected()),
        }
    }

    /// Returns `None` if the target is empty: the participant then gets its parts without the
    /// exchange.
    pub(super) async fn join_parts(
        &self,
        connection: &Arc<Connection>,
        is_again: bool,
    ) -> Result<Option<(ObjectReader, Vec<ByteRange>)>> {
        match self.join(connection, is_again).await? {
            Joined::Ranges(reader, order) => Ok(Some((reader, order))),
            Joined::Object(reader) if reader.size_bytes() == 0 => Ok(None),
            Joined::Object(_) => {
                Err(ObjectError::AlreadyExists { id: self.target().clone() }.into())
            }
        }
    }

    fn is_end(&self, error: &Error) -> bool {
        match error {
            Error::Object(
                ObjectError::ObjectLost { id }
                | ObjectError::Deleted { id }
                | ObjectError::TypeMismatch { id, .. },
            ) => *id == self.request.target,
            _ => false,
        }
    }
}
