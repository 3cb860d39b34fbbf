//! Allreduce: everybody gets the reduction of everybody's object.
//!
//! Every participant joins: it asks its store for the target. Rank 0 also asks its store to coordinate, which has the stores
//! that have the sources make the target together, each its own copy, if it can; see `hoplite_core::collective`.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use hoplite_core::collective::Agreement;
use hoplite_core::node::{self, Reduce, Response};
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::gather::no_such_rank;
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;
use crate::reader::ObjectReader;

impl Client {
    /// Reduces the objects of all participants, and returns the result to each of them, in a new vector. See
    /// [`Client::allreduce_into`].
    ///
    /// # Errors
    /// As there.
    pub async fn allreduce<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Vec<u8>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let timeout = options.timeout;
        let sources = checked(sources, self.connection.max_ids())?;
        let target = ObjectId::new(target)?;
        let all = async {
            let allreduce = Allreduce::prepare(&self.connection, target, sources, rank, options).await?;
            // It fits: the source, which is as long, is in the arena, which is mapped.
            let mut out = vec![0; usize::try_from(allreduce.size_bytes).unwrap_or(usize::MAX)];
            allreduce.run(&self.connection, &mut out).await?;
            Ok(out)
        };
        self.connection.bounded(Operation::Reduce, timeout, all).await
    }

    /// Reduces the objects of all participants, and copies the result into the front of each one's `out`. Returns its
    /// length.
    ///
    /// There is one source for each participant: equally shaped arrays. Every participant calls this with the same
    /// `target`, the same list of sources in the same order, the same options and its own `rank`, its index in that list. It
    /// puts `sources[rank]` on its own node, before or after. Participants join in any order, each in its own time; there
    /// is no group to form. All of them get the same bits. On arithmetic and rounding see [`Client::reduce_with`].
    ///
    /// The stores of the sources make the target together, each its own copy, in as many steps as are expected to be fastest;
    /// the result is copied out while it comes. Each node sends and receives 2S(n-1)/n bytes. It is one reduce at rank 0's node
    /// and one broadcast instead, 2S through each node, if the sources are small, do not all come in time, or are on more than 256
    /// nodes, or if a node fails meanwhile; or if the order is fixed. `hoplite stat TARGET` at rank 0's node says what was done,
    /// and why.
    ///
    /// The sources and the target stay; at other nodes than rank 0's the target is evictable, as any copy is that was got. Whoever
    /// knows that all participants have their result should [delete](Client::delete) them, for example one of them, after a
    /// later collective. Until then the target cannot be used again: give each round a target of its own.
    ///
    /// # Errors
    /// As for [`Client::reduce_with`] and [`Client::get`]; [`Error::BufferTooSmall`], before anything is reduced. `TypeMismatch`
    /// if participants ask for different things, which names both. Other participants have errors of their own, at the latest
    /// `Timeout`. `InvalidRequest` if there is no such rank.
    ///
    /// # Cancel safety
    /// Cancelled, or after an error, rank 0's reduce has ended, and others that need it fail. If it is that of another rank, only
    /// its own call is gone. What was complete stays.
    pub async fn allreduce_into<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        out: &mut [u8],
        options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let timeout = options.timeout;
        let sources = checked(sources, self.connection.max_ids())?;
        let target = ObjectId::new(target)?;
        let all = async {
            let allreduce = Allreduce::prepare(&self.connection, target, sources, rank, options).await?;
            let (needed_bytes, given_bytes) = (allreduce.size_bytes, out.len() as u64);
            let length = usize::try_from(needed_bytes).unwrap_or(usize::MAX);
            let out = out.get_mut(..length).ok_or(Error::BufferTooSmall { needed_bytes, given_bytes })?;
            allreduce.run(&self.connection, out).await?;
            Ok(length)
        };
        self.connection.bounded(Operation::Reduce, timeout, all).await
    }
}

/// One participant's view of an allreduce.
#[derive(Debug)]
struct Allreduce {
    request: Reduce,
    rank: usize,
    size_bytes: u64,
    deadline: Deadline,
}

impl Allreduce {
    /// Learns from the participant's own source what all of them are like.
    async fn prepare(
        connection: &Arc<Connection>,
        target: ObjectId,
        sources: Vec<ObjectId>,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Self> {
        let AllreduceOptions { op, order, timeout } = options;
        let deadline = Deadline::after(timeout);
        let own = sources.get(rank).ok_or_else(no_such_rank)?.clone();
        let request = Reduce { target, count: sources.len(), sources, op, order, range: None, timeout };
        // Also those that coordinate nothing, and would wait in vain for the one who is refused.
        request.check()?;
        let (size_bytes, dtype) = {
            let source = ObjectReader::open(connection, own.clone(), deadline.left()).await?;
            (source.size_bytes(), source.metadata().dtype)
        };
        if !op.is_defined_for(dtype) {
            let reason = format!("{op} is not defined for elements of type {dtype}").into();
            return Err(ObjectError::TypeMismatch { id: own, reason }.into());
        }
        Ok(Self { request, rank, size_bytes, deadline })
    }

    /// Gets the result into `out`, which is as long as a source, and coordinates the others if it is this participant's task.
    async fn run(&self, connection: &Arc<Connection>, out: &mut [u8]) -> Result<()> {
        let join = self.join(connection, out);
        if self.rank > 0 {
            return join.await;
        }
        match select(pin!(join), pin!(self.coordinate(connection))).await {
            Either::Left((Ok(()), coordinate)) => coordinate.await,
            Either::Left((Err(error), coordinate)) => {
                if is_end_of(&self.request.target, &error) {
                    // That is a consequence: the coordinator is about to say why.
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
        let request = node::Request::Allreduce(Reduce { timeout, ..self.request.clone() });
        match connection.call_node(request, Operation::Reduce, timeout).await? {
            Response::Reduced { .. } => Ok(()),
            _ => Err(connection.unexpected()),
        }
    }

    /// Copies the target into `out` while it comes, however often it has to be begun anew.
    async fn join(&self, connection: &Arc<Connection>, out: &mut [u8]) -> Result<()> {
        let agreement = Agreement::of(&self.request);
        let mut is_again = false;
        loop {
            let (target, timeout) = (self.request.target.clone(), self.deadline.left());
            let request = node::Request::Join { target, agreement, is_again, timeout };
            let (view, order) = match connection.call_node(request, Operation::Reduce, timeout).await? {
                Response::Object(view) => (view, None),
                Response::Ranges { view, order } => (view, Some(order)),
                _ => return Err(connection.unexpected()),
            };
            let mut reader = ObjectReader::over(connection, view)?;
            if reader.size_bytes() != out.len() as u64 {
                let reason = "its size is not that of this participant's source".into();
                return Err(ObjectError::TypeMismatch { id: self.request.target.clone(), reason }.into());
            }
            let Some(order) = order else { return reader.read_whole(out, self.deadline).await };
            match reader.read_ranges(&order, out, self.deadline).await {
                Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
                ended => return ended,
            }
        }
    }
}

/// Whether the target has ended before its time.
fn is_end_of(id: &ObjectId, error: &Error) -> bool {
    match error {
        Error::Object(ObjectError::ObjectLost { id: ended } | ObjectError::Deleted { id: ended }) => {
            ended == id
        }
        _ => false,
    }
}
