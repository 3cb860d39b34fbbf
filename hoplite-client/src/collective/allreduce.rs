//! Allreduce: everybody gets the reduction of everybody's object.
//!
//! A reduce followed by a broadcast takes 2S through a node in the middle of both chains. So a large object is divided into
//! as many segments as there are participants, of which each reduces one, and all of them are got by all: reduce-scatter
//! and allgather, as in a ring, but over whichever participants are there first. The bound is that of
//! Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use hoplite_core::block::BLOCK_BYTES;
use hoplite_core::node::{self, ByteRange};
use hoplite_core::plan::blocks::MIN_BLOCK_BYTES;
use hoplite_core::{Dtype, Error as ObjectError, ObjectId, Operation};
use tokio::sync::Semaphore;

use super::gather::{Place, into_places, no_such_rank};
use super::reduce::reduce;
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::{AllreduceOptions, ReduceOptions};
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
    /// **Small objects**, those below [`AllreduceOptions::segmented_from_bytes`], or of fewer than three participants: rank
    /// 0 reduces the sources into `target`, which all get while it grows. Each node sends and receives at most 2S.
    ///
    /// **Large objects** are divided into one segment for each participant, of whole blocks of 4 KiB, the first ones a
    /// block longer where that does not come out even. Rank r reduces segment r of all sources, its own last, into the
    /// object that is called like the target with `/r` after it; all get all of the segments. Steps: n-1 in the chains of the
    /// reduces, n-1 in those of the broadcasts, which overlap. Each node receives 2S(n-1)/n bytes. It sends as many, unless
    /// some are only called when others have their result: what those need, each node that has it sends.
    ///
    /// The sources, and the target or its segments, stay. [`allreduce_ids`] names the latter. Whoever
    /// knows that all participants have their result should [delete](Client::delete) them, for example one of them, after a
    /// later collective. Until then the target cannot be used again: give each round a target of its own.
    ///
    /// # Errors
    /// As for [`Client::reduce_with`] and [`Client::get`], as soon as one part fails; [`Error::BufferTooSmall`], before
    /// anything is reduced. Other participants have errors of their own, at the latest `Timeout`. `InvalidId` if the
    /// names of the segments are too long; `InvalidRequest` if there is no such rank.
    ///
    /// # Cancel safety
    /// Cancelled, or after an error, the participant's reduce has ended; others that need it fail. What was complete stays.
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

/// The ids under which an allreduce of so many participants may leave its result: the target, and its segments. To be
/// deleted when all participants have got it; it is no error to delete those that are not there.
///
/// # Errors
/// `InvalidId` if the names of the segments are too long.
pub fn allreduce_ids(target: impl AsRef<[u8]>, participants: usize) -> Result<Vec<ObjectId>> {
    let target = ObjectId::new(target)?;
    let segments = if participants < SEGMENTED_FROM_PARTICIPANTS { 0 } else { participants };
    let segments = (0..segments).map(|rank| segment_id(&target, rank)).collect::<Result<Vec<_>>>()?;
    Ok([target].into_iter().chain(segments).collect())
}

/// With two participants, both schedules move S in and S out of each node; the one without segments has fewer parts.
const SEGMENTED_FROM_PARTICIPANTS: usize = 3;

/// What a relay waits for before it passes anything on: the shortest block, and half of one until it has its turn.
const SHORT_BLOCK_BYTES: u64 = MIN_BLOCK_BYTES + MIN_BLOCK_BYTES / 2;

/// From which size on segments are faster.
///
/// n segments save 2S/n of the 2S that pass each node in one chain. But n chains share each link, so that a block takes n times
/// as long, in each of the n-1 hops of a reduce and the n-1 of a broadcast: 2 (n-1) (n-1) blocks. How fast the links are does
/// not matter, which is as well: all participants must come to the same.
fn worthwhile_from_bytes(participants: usize) -> u64 {
    let participants = participants as u64;
    let hops = participants.saturating_sub(1);
    participants.saturating_mul(hops).saturating_mul(hops).saturating_mul(SHORT_BLOCK_BYTES)
}

fn segment_id(target: &ObjectId, rank: usize) -> Result<ObjectId> {
    Ok(ObjectId::new([target.as_bytes(), format!("/{rank}").as_bytes()].concat())?)
}

/// One participant's view of an allreduce.
#[derive(Debug)]
struct Allreduce {
    sources: Vec<ObjectId>,
    rank: usize,
    size_bytes: u64,
    parts: Vec<Part>,
    options: AllreduceOptions,
    deadline: Deadline,
}

/// A part of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// The object that it becomes.
    id: ObjectId,
    /// Which of the participants reduces it.
    rank: usize,
    /// Which part of the sources; not empty, unless it is all of them.
    range: ByteRange,
}

impl Allreduce {
    /// Learns from the participant's own source what all of them are like, and divides the work.
    async fn prepare(
        connection: &Arc<Connection>,
        target: ObjectId,
        sources: Vec<ObjectId>,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Self> {
        let deadline = Deadline::after(options.timeout);
        let own = sources.get(rank).ok_or_else(no_such_rank)?.clone();
        // Also those that reduce nothing, and would wait in vain for somebody who is refused.
        node::Reduce {
            target: target.clone(),
            sources: sources.clone(),
            count: sources.len(),
            op: options.op,
            order: options.order,
            range: None,
            timeout: options.timeout,
        }
        .check()?;
        let (size_bytes, dtype) = {
            let source = ObjectReader::open(connection, own.clone(), deadline.left()).await?;
            (source.size_bytes(), source.metadata().dtype)
        };
        if !options.op.is_defined_for(dtype) {
            return Err(undefined(own, dtype, &options));
        }
        let parts = parts(&target, size_bytes, sources.len(), options.segmented_from_bytes)?;
        Ok(Self { sources, rank, size_bytes, parts, options, deadline })
    }

    /// Does this participant's part, and gets all of them into `out`, which is as long as a source.
    async fn run(&self, connection: &Arc<Connection>, mut out: &mut [u8]) -> Result<()> {
        let next_rank = (self.rank + 1) % self.sources.len().max(1);
        let (mut next, mut others) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let length = usize::try_from(part.range.length_bytes).unwrap_or(usize::MAX);
            let (place, rest) = out.split_at_mut(length);
            out = rest;
            let places = if part.rank == next_rank { &mut next } else { &mut others };
            places.push((part.id.clone(), place));
        }
        let gets = get_all(connection, others, next, self.deadline);
        let Some(own) = self.parts.iter().find(|part| part.rank == self.rank) else { return gets.await };
        let AllreduceOptions { op, order, .. } = self.options;
        let timeout = self.deadline.left();
        let options = ReduceOptions { op, order, timeout, ..ReduceOptions::default() };
        let reduce = if own.range.length_bytes == self.size_bytes {
            reduce(connection, own.id.clone(), self.sources.clone(), options)
        } else {
            let sources = own_last(&self.sources, self.rank);
            reduce(connection, own.id.clone(), sources, ReduceOptions { range: Some(own.range), ..options })
        };
        // The gets are sent first, so that whoever hears of this participant's part knows that it has asked for the others.
        match select(pin!(gets), pin!(reduce)).await {
            Either::Left((Ok(()), reduce)) => reduce.await.map(drop),
            Either::Left((Err(error), reduce)) => {
                if is_end_of(&own.id, &error) {
                    // That is a consequence: the reduce is about to say why.
                    reduce.await?;
                }
                Err(error)
            }
            Either::Right((reduced, gets)) => {
                reduced?;
                gets.await
            }
        }
    }
}

/// Gets each part into its place; the one that the participant with the next rank makes when all others have begun.
///
/// The receivers of a part form a chain in the order in which they ask, and the last one of them sends nothing. If that was
/// the same participant for all parts, the others would send n S/n bytes. When all other parts have begun, everybody has
/// asked for the next one already, so each participant is the last in one chain and sends (n-1) S/n.
async fn get_all(
    connection: &Arc<Connection>,
    others: Vec<Place<'_>>,
    next: Vec<Place<'_>>,
    deadline: Deadline,
) -> Result<()> {
    let begun = Semaphore::new(0);
    // As many as there are ids in a request at most.
    let awaited = u32::try_from(others.len()).unwrap_or(u32::MAX);
    let last = async {
        // It fails if it is closed, which it never is.
        let _all = begun.acquire_many(awaited).await;
        into_places(connection, next, &begun, deadline).await
    };
    tokio::try_join!(into_places(connection, others, &begun, deadline), last).map(drop)
}

/// Whether the object that this participant makes has ended before its time.
fn is_end_of(id: &ObjectId, error: &Error) -> bool {
    match error {
        Error::Object(ObjectError::ObjectLost { id: ended } | ObjectError::Deleted { id: ended }) => {
            ended == id
        }
        _ => false,
    }
}

fn undefined(id: ObjectId, dtype: Dtype, options: &AllreduceOptions) -> Error {
    let reason = format!("{} is not defined for elements of type {dtype}", options.op).into();
    ObjectError::TypeMismatch { id, reason }.into()
}

/// Divides the result among the participants, in the order of their ranks; all of them come to the same.
fn parts(
    target: &ObjectId,
    size_bytes: u64,
    participants: usize,
    segmented_from_bytes: Option<u64>,
) -> Result<Vec<Part>> {
    let from_bytes = segmented_from_bytes.unwrap_or_else(|| worthwhile_from_bytes(participants)).max(1);
    if participants < SEGMENTED_FROM_PARTICIPANTS || size_bytes < from_bytes {
        let range = ByteRange { offset_bytes: 0, length_bytes: size_bytes };
        return Ok(vec![Part { id: target.clone(), rank: 0, range }]);
    }
    let ranges = ranges(size_bytes, participants).into_iter().enumerate();
    ranges
        .filter(|(_, range)| range.length_bytes > 0)
        .map(|(rank, range)| Ok(Part { id: segment_id(target, rank)?, rank, range }))
        .collect()
}

/// Divides `size_bytes` into `count` ranges of whole blocks, of which the first ones are a block longer where that does
/// not come out even; the last one that is not empty has the rest.
///
/// A block holds a whole number of elements of any type, since their sizes are powers of two.
fn ranges(size_bytes: u64, count: usize) -> Vec<ByteRange> {
    let count = count as u64;
    let blocks = size_bytes.div_ceil(BLOCK_BYTES);
    // Blocks before range `index`.
    let before = |index: u64| index * (blocks / count) + index.min(blocks % count);
    let start = |index| size_bytes.min(before(index) * BLOCK_BYTES);
    (0..count)
        .map(|index| ByteRange { offset_bytes: start(index), length_bytes: start(index + 1) - start(index) })
        .collect()
}

/// The sources in the order of the ranks, beginning after `rank`, so that its own comes last, and each segment goes
/// round the participants in another rotation.
fn own_last(sources: &[ObjectId], rank: usize) -> Vec<ObjectId> {
    let mut rotated = sources.to_vec();
    rotated.rotate_left((rank + 1) % sources.len().max(1));
    rotated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> ObjectId {
        ObjectId::new(text).unwrap()
    }

    proptest! {
        #[test]
        fn ranges_cover_everything_once_in_whole_blocks(
            size_bytes in prop_oneof![0_u64..100_000, 0_u64..1 << 40, (0_u64..1 << 20).prop_map(|n| n * BLOCK_BYTES)],
            count in 1_usize..300,
        ) {
            let ranges = ranges(size_bytes, count);
            prop_assert_eq!(ranges.len(), count);
            let mut end = 0;
            for range in &ranges {
                prop_assert_eq!(range.offset_bytes, end);
                end += range.length_bytes;
                prop_assert!(range.offset_bytes % BLOCK_BYTES == 0 || range.length_bytes == 0);
            }
            prop_assert_eq!(end, size_bytes);
            let longest = ranges.iter().map(|range| range.length_bytes).max().unwrap();
            let shortest = ranges.iter().map(|range| range.length_bytes).min().unwrap();
            // A block that is not full counts as one.
            prop_assert!(longest - shortest < 2 * BLOCK_BYTES);
        }

        #[test]
        fn every_byte_belongs_to_one_participant(
            size_bytes in 0_u64..100_000,
            participants in 1_usize..40,
            from in prop_oneof![Just(None), Just(Some(0)), Just(Some(1 << 20)), (0_u64..100_000).prop_map(Some)],
        ) {
            let parts = parts(&id("t"), size_bytes, participants, from).unwrap();
            prop_assert_eq!(parts.iter().map(|part| part.range.length_bytes).sum::<u64>(), size_bytes);
            prop_assert!(parts.iter().all(|part| part.rank < participants));
            let left = allreduce_ids("t", participants).unwrap();
            prop_assert!(parts.iter().all(|part| left.contains(&part.id)));
            let is_segmented = participants >= 3 && size_bytes >= from.unwrap_or(worthwhile_from_bytes(participants)).max(1);
            prop_assert_eq!(parts == [Part {
                id: id("t"), rank: 0, range: ByteRange { offset_bytes: 0, length_bytes: size_bytes },
            }], !is_segmented);
        }
    }

    #[test]
    fn every_element_size_divides_a_block() {
        assert!(Dtype::ALL.iter().all(|dtype| BLOCK_BYTES.is_multiple_of(dtype.size_bytes())));
    }

    #[test]
    fn ten_blocks_and_a_bit_among_four() {
        let ranges: Vec<_> = ranges(10 * BLOCK_BYTES + 8, 4)
            .iter()
            .map(|range| (range.offset_bytes / BLOCK_BYTES, range.length_bytes))
            .collect();
        assert_eq!(ranges, [(0, 12_288), (3, 12_288), (6, 12_288), (9, 4104)]);
    }

    #[test]
    fn the_own_source_comes_last() {
        let sources: Vec<_> = ["a", "b", "c"].map(id).into();
        assert_eq!(own_last(&sources, 0), ["b", "c", "a"].map(id));
        assert_eq!(own_last(&sources, 1), ["c", "a", "b"].map(id));
        assert_eq!(own_last(&sources, 2), ["a", "b", "c"].map(id));
    }

    #[test]
    fn names_of_segments_are_ids() {
        assert_eq!(allreduce_ids("t", 2).unwrap(), [id("t")]);
        assert_eq!(allreduce_ids("t", 3).unwrap(), ["t", "t/0", "t/1", "t/2"].map(id));
        assert!(allreduce_ids("x".repeat(253), 10).is_ok());
        assert!(allreduce_ids("x".repeat(253), 11).is_err());
    }
}
