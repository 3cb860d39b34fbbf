//! Allreduce: the stores of the sources make the target together (`hoplite_core::collective`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hoplite_core::plan::collective::Collective;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::participant::{Joined, Out, Participant, check, describe};
use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::{Connection, Description};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;

/// Time after which a participant without a result queries its source: longer than a fast
/// allreduce.
const AT_ONCE: Duration = Duration::from_millis(10);
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Acts as [`Client::allreduce_into`], but returns a new vector.
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

    /// Reduces the objects of all participants, and copies the result into the front of `out` at
    /// each. Returns its length.
    ///
    /// Every participant calls this with the same `target`, sources and options, and its own
    /// `rank`: its index in the sources. Only the timeout may differ. The participant puts
    /// `sources[rank]` on its own node, before or after the call. All sources have the same shape
    /// and type. All participants get the same bits. For arithmetic see [`Client::reduce_with`].
    ///
    /// The stores use the schedule with the shortest expected time. Each node sends and receives
    /// 2S(n-1)/n bytes for sources of S bytes. The result is copied out while it arrives.
    ///
    /// One reduce at rank 0's node and one broadcast replace the schedule for small sources, a
    /// fixed order, or more than 256 nodes, or after a node fails. Then 2S bytes pass through each
    /// node. `hoplite stat TARGET` shows the schedule, its reason, and the progress.
    ///
    /// The sources and the target stay. [Delete](Client::delete) them when all participants have
    /// their result. Only rank 0's node is sure to keep the target until then. Each allreduce needs
    /// a new target.
    ///
    /// # Errors
    /// The errors of [`Client::reduce_with`] and [`Client::get`]. [`Error::BufferTooSmall`],
    /// usually before anything is reduced. `TypeMismatch` if participants request different things:
    /// for up to 64 KiB in all, or with a fixed order, only participants that differ from rank 0
    /// get it, and the others fail at the latest with `Timeout`. `InvalidRequest` for a bad rank.
    ///
    /// # Cancel safety
    /// If rank 0's call ends, the reduce ends, and participants that still need it fail. Another
    /// rank ends only its own call. Complete objects stay.
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
        mut options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let call = self.begin(&mut options.timeout).await?;
        let timeout = options.timeout;
        let connection = &call.connection;
        let sources = checked(sources, connection.max_ids())?;
        let target = ObjectId::new(target)?;
        connection.check_usable()?;
        let all = pin!(async {
            let deadline = Deadline::after(timeout);
            let request = check(target.clone(), sources.clone(), rank, &options)?;
            let own = &request.sources[rank];
            let is_good = |(size_bytes, dtype): &Description| {
                options.op.is_defined_for(*dtype) && out.check_room(*size_bytes).is_ok()
            };
            // A wrong description of the source must not start a reduce.
            let remembered = connection.recent_puts().get(own).filter(is_good);
            let source = match remembered {
                Some(remembered) => remembered,
                None => describe(connection, own, deadline).await?,
            };
            out.check_room(source.0)?;
            let allreduce =
                Participant::checked(Collective::Allreduce, request, rank, source, deadline)?;
            let join = async {
                if remembered.is_none() {
                    return join(&allreduce, connection, &mut out).await;
                }
                join_unseen(&allreduce, connection, &mut out).await
            };
            allreduce.run(connection, join).await
        });
        let allreduce = pin!(connection.bounded(Operation::Allreduce, timeout, all));
        let wait = Wait { operation: "allreduce", id: Some(&target), needs: &sources };
        call.run(wait, Repeat::Never, allreduce).await
    }
}

/// Joins with the size and type with which this rank put its source. If the result is late or does
/// not fit, queries the source and joins again.
async fn join_unseen(
    allreduce: &Participant,
    connection: &Arc<Connection>,
    out: &mut Out<'_>,
) -> Result<usize> {
    let look = || describe(connection, allreduce.source(), allreduce.deadline);
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

/// Joins, and copies the result into `out`; repeats both if the reduce restarts.
async fn join(
    allreduce: &Participant,
    connection: &Arc<Connection>,
    out: &mut Out<'_>,
) -> Result<usize> {
    let out = out.room(allreduce.source_bytes)?;
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
                reader.read_whole(out, allreduce.deadline).await?;
                return Ok(out.len());
            }
            Joined::Ranges(reader, order) => (reader, order),
        };
        if order.iter().map(|range| range.length_bytes).sum::<u64>() != reader.size_bytes() {
            return Err(connection.unexpected());
        }
        match reader.read_ranges(&order, 0, out, allreduce.deadline).await {
            Err(Error::Object(ObjectError::Superseded { .. })) => is_again = true,
            ended => return ended.map(|()| out.len()),
        }
    }
}
