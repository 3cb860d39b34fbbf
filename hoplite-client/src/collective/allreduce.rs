//! Allreduce: everybody gets the reduction of everybody's object.
//!
//! The stores that have the sources make the target together, each its own copy, if they can; see `hoplite_core::collective`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hoplite_core::plan::collective::Collective;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::participant::{Joined, Participant, check, describe};
use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::{Connection, Description};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;
use crate::reader::to_index;

/// How soon the result of small sources is there in general: 16 participants on two cores need 7 ms for 32 KiB (docs/dev/benchmarks.md).
const AT_ONCE: Duration = Duration::from_millis(10);
/// The time that a source may take to be looked at when something is wrong. If it is not there any more, the error stands.
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
    /// replaced the source that this one has put by a longer one. `TypeMismatch`
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
        let timeout = options.timeout;
        let call = self.begin(timeout).await?;
        let connection = &call.connection;
        let sources = checked(sources, connection.max_ids())?;
        let target = ObjectId::new(target)?;
        // Before the lock of what was put: the parent of a forked child may have held it.
        connection.check_usable()?;
        let all = pin!(async {
            let deadline = Deadline::after(timeout);
            let request = check(target.clone(), sources.clone(), rank, &options)?;
            let own = &request.sources[rank];
            let is_good = |(size_bytes, dtype): &Description| {
                options.op.is_defined_for(*dtype) && out.check_room(*size_bytes).is_ok()
            };
            // If it is wrong, the source is looked at before anything is reduced.
            let remembered = connection.recent_puts().get(own).filter(is_good);
            let source = match remembered {
                Some(remembered) => remembered,
                None => describe(connection, own, deadline).await?,
            };
            out.check_room(source.0)?;
            let allreduce = Participant::checked(Collective::Allreduce, request, rank, source, deadline)?;
            let join = async {
                if remembered.is_none() {
                    return join(&allreduce, connection, &mut out).await;
                }
                join_unseen(&allreduce, connection, &mut out).await
            };
            allreduce.run(connection, join).await
        });
        let allreduce = pin!(connection.bounded(Operation::Reduce, timeout, all));
        let wait = Wait { operation: "allreduce", id: Some(&target), needs: &sources };
        call.run(wait, Repeat::Never, allreduce).await
    }
}

/// Where the result is to be.
enum Out<'a> {
    New(&'a mut Vec<u8>),
    Given(&'a mut [u8]),
}

impl Out<'_> {
    /// Checks that so many bytes have room.
    fn check_room(&self, needed_bytes: u64) -> Result<()> {
        match self {
            Self::Given(given) if (given.len() as u64) < needed_bytes => {
                Err(Error::BufferTooSmall { needed_bytes, given_bytes: given.len() as u64 })
            }
            _ => Ok(()),
        }
    }

    /// Room for so many bytes.
    fn room(&mut self, needed_bytes: u64) -> Result<&mut [u8]> {
        self.check_room(needed_bytes)?;
        // It fits: the source, which is as long, is in the arena, which is mapped.
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

/// As [`join`], of a participant whose source is only remembered. Looks at it if the result does not come at once, since it may have
/// been deleted, and if something is wrong, since another object may have its id: then it joins anew. What rank 0 coordinates meanwhile
/// does not depend on that.
async fn join_unseen(
    allreduce: &Participant,
    connection: &Arc<Connection>,
    out: &mut Out<'_>,
) -> Result<usize> {
    let look = || describe(connection, allreduce.source(), allreduce.deadline());
    let source = {
        let mut join = pin!(join(allreduce, connection, out));
        let ended = match connection.within(AT_ONCE, &mut join).await {
            Some(ended) => Ok(ended),
            None => match select(&mut join, pin!(look())).await {
                Either::Left((ended, _)) => Ok(ended),
                Either::Right((source, _)) => Err(source?),
            },
        };
        match ended {
            Ok(Err(error)) if matches!(error, Error::Object(ObjectError::TypeMismatch { .. })) => {
                match connection.within(LOOK_TIMEOUT, pin!(look())).await {
                    Some(Ok(source)) if source != allreduce.description() => source,
                    _ => return Err(error),
                }
            }
            Ok(ended) => return ended,
            Err(source) if source == allreduce.description() => return join.await,
            Err(source) => source,
        }
    };
    connection.recent_puts().forget(allreduce.source());
    join(&allreduce.with_source(source)?, connection, out).await
}

/// Copies the target into `out` while it comes, however often it has to be begun anew. Returns its length.
async fn join(allreduce: &Participant, connection: &Arc<Connection>, out: &mut Out<'_>) -> Result<usize> {
    let out = out.room(allreduce.source_bytes())?;
    let mut is_again = false;
    loop {
        let joined = allreduce.join(connection, is_again).await?;
        let (Joined::Object(reader) | Joined::Ranges(reader, _)) = &joined;
        if reader.size_bytes() != out.len() as u64 {
            let reason = "its size is not that of this participant's source".into();
            return Err(ObjectError::TypeMismatch { id: allreduce.target().clone(), reason }.into());
        }
        let (mut reader, order) = match joined {
            Joined::Object(reader) => {
                reader.read_whole(out, allreduce.deadline()).await?;
                return Ok(out.len());
            }
            Joined::Ranges(reader, order) => (reader, order),
        };
        if order.iter().map(|range| range.length_bytes).sum::<u64>() != reader.size_bytes() {
            return Err(connection.unexpected());
        }
        match reader.read_ranges(&order, 0, out, allreduce.deadline()).await {
            Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
            ended => return ended.map(|()| out.len()),
        }
    }
}
