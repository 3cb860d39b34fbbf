//! Allreduce: everybody gets the reduction of everybody's object.
//!
//! The stores that have the sources make the target together, each its own copy, if they can; see `hoplite_core::collective`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hoplite_core::node::Reduce;
use hoplite_core::plan::collective::Collective;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::participant::{Joined, Participant, check, describe};
use crate::client::{Client, checked};
use crate::connection::{Connection, Description};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;

/// How soon the result of small sources is there.
const AT_ONCE: Duration = Duration::from_millis(10);
/// How long a source may take to be looked at when something is wrong. If it is not there any more, the error stands.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Reduces the objects of all participants, and returns the result to each of them, in a new vector. See
    /// [`Client::allreduce_into`].
    ///
    /// # Errors
    /// The same as that call's.
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
        let mut out = Vec::new();
        self.allreduce_to(target.as_ref(), sources, rank, Out::New(&mut out), options).await?;
        Ok(out)
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
    /// and one broadcast instead, 2S through each node, if the sources are small or on more than 256 nodes, or if a node fails
    /// meanwhile; or if the order is fixed. `hoplite stat TARGET` says what is done, or was: the schedule and why it was chosen, how
    /// far each node of a source is, and who is late, or why it was one reduce and one broadcast.
    ///
    /// The sources and the target stay; at other nodes than rank 0's the target is evictable, as any copy is that was got. Whoever
    /// knows that all participants have their result should [delete](Client::delete) them, for example one of them, after a
    /// later collective. Until then the target cannot be used again: give each round a target of its own.
    ///
    /// # Errors
    /// As for [`Client::reduce_with`] and [`Client::get`]; [`Error::BufferTooSmall`], before anything is reduced, unless another client has
    /// replaced the source that this one has put. `TypeMismatch`
    /// if participants ask for different things, which names both; up to 64 KiB in all, and with a fixed order, only for those
    /// who ask for something else than rank 0. Other participants have errors of their own, at the latest
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
        self.allreduce_to(target.as_ref(), sources, rank, Out::Given(out), options).await
    }

    async fn allreduce_to<I>(
        &self,
        target: &[u8],
        sources: I,
        rank: usize,
        mut out: Out<'_>,
        options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let (timeout, connection) = (options.timeout, &self.connection);
        let sources = checked(sources, connection.max_ids())?;
        let target = ObjectId::new(target)?;
        // Before the lock of what was put: the parent of a forked child may have held it.
        connection.check_usable()?;
        let all = async {
            let deadline = Deadline::after(timeout);
            let request = check(target, sources, rank, &options)?;
            let own = &request.sources[rank];
            let source = match connection.recent_puts().get(own) {
                None => describe(connection, own, deadline).await?,
                Some(remembered) => {
                    match run_unseen(connection, &request, rank, (remembered, deadline), &mut out).await? {
                        Unseen::Done(length) => return Ok(length),
                        Unseen::Unlike(source) => {
                            connection.recent_puts().forget(own);
                            source
                        }
                    }
                }
            };
            run(connection, &request, rank, (source, deadline), &mut out).await
        };
        connection.bounded(Operation::Reduce, timeout, all).await
    }
}

/// Where the result is to be.
enum Out<'a> {
    New(&'a mut Vec<u8>),
    Given(&'a mut [u8]),
}

impl Out<'_> {
    /// Room for so many bytes.
    fn room(&mut self, needed_bytes: u64) -> Result<&mut [u8]> {
        // It fits: the source, which is as long, is in the arena, which is mapped.
        let length = usize::try_from(needed_bytes).unwrap_or(usize::MAX);
        match self {
            Self::New(made) => {
                **made = vec![0; length];
                Ok(made)
            }
            Self::Given(given) => {
                let given_bytes = given.len() as u64;
                given.get_mut(..length).ok_or(Error::BufferTooSmall { needed_bytes, given_bytes })
            }
        }
    }
}

/// Does what the participant `rank` has to do, whose source is like `source`. Returns the length of the result.
async fn run(
    connection: &Arc<Connection>,
    request: &Reduce,
    rank: usize,
    (source, deadline): (Description, Deadline),
    out: &mut Out<'_>,
) -> Result<usize> {
    let allreduce = Participant::checked(Collective::Allreduce, request.clone(), rank, source, deadline)?;
    let out = out.room(allreduce.source_bytes())?;
    allreduce.run(connection, join(&allreduce, connection, out)).await?;
    Ok(out.len())
}

/// What came of an allreduce whose own source was not looked at before.
enum Unseen {
    /// The length of the result.
    Done(usize),
    /// The source is not as it was remembered, but like this.
    Unlike(Description),
}

/// As [`run`], but with a source that is only remembered. Looks at it if the result does not come at once, since it may have been
/// deleted, and if something is wrong, since another object may have its id.
async fn run_unseen(
    connection: &Arc<Connection>,
    request: &Reduce,
    rank: usize,
    (remembered, deadline): (Description, Deadline),
    out: &mut Out<'_>,
) -> Result<Unseen> {
    let look = || describe(connection, &request.sources[rank], deadline);
    let mut run = pin!(run(connection, request, rank, (remembered, deadline), out));
    let ended = match connection.within(AT_ONCE, &mut run).await {
        Some(ended) => ended,
        None => match select(&mut run, pin!(look())).await {
            Either::Left((ended, _)) => ended,
            Either::Right((source, _)) => match source? {
                source if source == remembered => return run.await.map(Unseen::Done),
                source => return Ok(Unseen::Unlike(source)),
            },
        },
    };
    match ended {
        Err(error) if is_about_sources(&error) => match connection.within(LOOK_TIMEOUT, pin!(look())).await {
            Some(Ok(source)) if source != remembered => Ok(Unseen::Unlike(source)),
            _ => Err(error),
        },
        ended => ended.map(Unseen::Done),
    }
}

/// Whether an error may come from a source that is not like the one that this client has put under its id.
const fn is_about_sources(error: &Error) -> bool {
    matches!(error, Error::BufferTooSmall { .. } | Error::Object(ObjectError::TypeMismatch { .. }))
}

/// Copies the target into `out` while it comes, however often it has to be begun anew.
async fn join(allreduce: &Participant, connection: &Arc<Connection>, out: &mut [u8]) -> Result<()> {
    let mut is_again = false;
    loop {
        let joined = allreduce.join(connection, is_again).await?;
        let (Joined::Object(reader) | Joined::Ranges(reader, _)) = &joined;
        if reader.size_bytes() != out.len() as u64 {
            let reason = "its size is not that of this participant's source".into();
            return Err(ObjectError::TypeMismatch { id: allreduce.target().clone(), reason }.into());
        }
        let (mut reader, order) = match joined {
            Joined::Object(reader) => return reader.read_whole(out, allreduce.deadline()).await,
            Joined::Ranges(reader, order) => (reader, order),
        };
        if order.iter().map(|range| range.length_bytes).sum::<u64>() != reader.size_bytes() {
            return Err(connection.unexpected());
        }
        match reader.read_ranges(&order, 0, out, allreduce.deadline()).await {
            Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
            ended => return ended,
        }
    }
}
