//! Allreduce: everybody gets the reduction of everybody's object.
//!
//! The stores that have the sources make the target together, each its own copy, if they can; see `hoplite_core::collective`.

use std::sync::Arc;

use hoplite_core::plan::collective::Collective;
use hoplite_core::{Error as ObjectError, ObjectId, Operation};

use super::participant::{Joined, Participant};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::options::AllreduceOptions;

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
        let timeout = options.timeout;
        let sources = checked(sources, self.connection.max_ids())?;
        let target = ObjectId::new(target)?;
        let all = async {
            let allreduce =
                Participant::prepare(&self.connection, Collective::Allreduce, target, sources, rank, options)
                    .await?;
            // It fits: the source, which is as long, is in the arena, which is mapped.
            let mut out = vec![0; usize::try_from(allreduce.source_bytes()).unwrap_or(usize::MAX)];
            allreduce.run(&self.connection, join(&allreduce, &self.connection, &mut out)).await?;
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
    /// and one broadcast instead, 2S through each node, if the sources are small or on more than 256 nodes, or if a node fails
    /// meanwhile; or if the order is fixed. `hoplite stat TARGET` says what is done, or was: the schedule and why it was chosen, how
    /// far each node of a source is, and who is late, or why it was one reduce and one broadcast.
    ///
    /// The sources and the target stay; at other nodes than rank 0's the target is evictable, as any copy is that was got. Whoever
    /// knows that all participants have their result should [delete](Client::delete) them, for example one of them, after a
    /// later collective. Until then the target cannot be used again: give each round a target of its own.
    ///
    /// # Errors
    /// As for [`Client::reduce_with`] and [`Client::get`]; [`Error::BufferTooSmall`], before anything is reduced. `TypeMismatch`
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
        let timeout = options.timeout;
        let sources = checked(sources, self.connection.max_ids())?;
        let target = ObjectId::new(target)?;
        let all = async {
            let allreduce =
                Participant::prepare(&self.connection, Collective::Allreduce, target, sources, rank, options)
                    .await?;
            let (needed_bytes, given_bytes) = (allreduce.source_bytes(), out.len() as u64);
            let length = usize::try_from(needed_bytes).unwrap_or(usize::MAX);
            let out = out.get_mut(..length).ok_or(Error::BufferTooSmall { needed_bytes, given_bytes })?;
            allreduce.run(&self.connection, join(&allreduce, &self.connection, out)).await?;
            Ok(length)
        };
        self.connection.bounded(Operation::Reduce, timeout, all).await
    }
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
