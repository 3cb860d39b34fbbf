//! Merges the listings of several shards.

use std::cmp::Reverse;

use crate::placement::REPLICAS;
use crate::vocabulary::directory::Locations;

/// Most bytes of a page, far below the limit of an answer.
pub const MAX_PAGE_BYTES: usize = 4 << 20;

/// A page of a listing: objects by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub objects: Vec<Locations>,
    /// `true` if more objects follow.
    pub more: bool,
}

impl Page {
    /// Merges the pages of all shards; `None` stands for a shard without an answer.
    ///
    /// Returns `None` if more than `REPLICAS - 1` shards are missing, because [`REPLICAS`] shards
    /// know each object. The merged page ends where the first unfinished page ends, because the
    /// caller continues after its last object.
    pub fn merge(pages: Vec<Option<Self>>, limit: usize) -> Option<Self> {
        let unreachable = pages.iter().filter(|page| page.is_none()).count();
        if unreachable == pages.len() || unreachable >= REPLICAS {
            return None;
        }
        let pages: Vec<Self> = pages.into_iter().flatten().collect();
        let unfinished = pages.iter().filter(|page| page.more);
        let horizon =
            unfinished.filter_map(|page| page.objects.last()).map(|last| last.id.clone()).min();
        let mut more = pages.iter().any(|page| page.more);
        let mut objects: Vec<Locations> = pages.into_iter().flat_map(|page| page.objects).collect();
        objects.retain(|object| horizon.as_ref().is_none_or(|horizon| object.id <= *horizon));
        objects.sort_by(|one, other| one.id.cmp(&other.id));
        objects.dedup_by(|next, kept| {
            let is_same = next.id == kept.id;
            if is_same {
                keep_older(kept, next);
            }
            is_same
        });
        more |= objects.len() > limit;
        objects.truncate(limit);
        Some(Self { objects, more })
    }

    /// Cuts the page to `limit_bytes`. Keeps the first object, because the caller continues after
    /// the last one.
    pub fn cut(mut self, limit_bytes: usize, size_bytes: impl Fn(&Locations) -> usize) -> Self {
        let mut taken_bytes = 0;
        let fits = |object: &&Locations| {
            taken_bytes += size_bytes(object);
            taken_bytes <= limit_bytes
        };
        let count = self.objects.iter().take_while(fits).count().max(1);
        self.more |= count < self.objects.len();
        self.objects.truncate(count);
        self
    }
}

/// Keeps the higher age of an object, because a restarted shard reports a lower age, and the latest
/// use.
fn keep_older(kept: &mut Locations, other: &mut Locations) {
    if let (Some(kept), Some(other)) = (&mut kept.object, &mut other.object)
        && other.put == kept.put
    {
        // Only the shard that granted a transfer knows of it.
        let unused = [&kept.origin, &other.origin]
            .into_iter()
            .flatten()
            .filter_map(|origin| origin.unused)
            .min();
        if other.origin.as_ref().map(|origin| origin.age)
            > kept.origin.as_ref().map(|origin| origin.age)
        {
            kept.origin = other.origin.take();
        }
        if let Some(origin) = &mut kept.origin {
            origin.unused = unused;
        }
    }
}

/// Returns the index of the answer that knows most about an object, because a restarted shard may
/// lack it. `answers` are in the order of the id's shards; an answer is `None` if its shard failed.
/// On ties, the first answer wins, because its shard chose the senders.
pub fn best_informed<'a>(
    answers: impl IntoIterator<Item = Option<&'a Locations>>,
) -> Option<usize> {
    let answers = answers.into_iter().enumerate();
    let known = answers.filter_map(|(index, answer)| {
        let answer = answer?;
        let is_there = answer.object.as_ref().map(|object| !object.lost);
        Some((is_there, answer.is_available(), Reverse(index)))
    });
    known.max().map(|(.., Reverse(index))| index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Metadata;
    use crate::id::{NodeId, ObjectId, PutId};
    use crate::shard::{ObjectSummary, Origin};

    fn page(ids: &[&str], more: bool) -> Page {
        let found = |id: &&str| Locations {
            id: ObjectId::try_from(*id).unwrap(),
            object: None,
            locations: Vec::new(),
        };
        Page { objects: ids.iter().map(found).collect(), more }
    }

    fn merge(pages: Vec<Page>, limit: usize) -> Page {
        Page::merge(pages.into_iter().map(Some).collect(), limit).unwrap()
    }

    #[test]
    fn a_page_ends_where_the_first_unfinished_shard_does() {
        let pages =
            vec![page(&["a", "c", "x"], false), page(&["a", "b"], true), page(&["b", "c"], true)];
        assert_eq!(merge(pages, 10), page(&["a", "b"], true));
        assert_eq!(
            merge(vec![page(&["a", "c"], false), page(&["b"], false)], 10),
            page(&["a", "b", "c"], false)
        );
        assert_eq!(
            merge(vec![page(&["a", "c"], false), page(&["b"], false)], 2),
            page(&["a", "b"], true)
        );
    }

    #[test]
    fn one_shard_may_be_unreachable_unless_it_is_the_only_one() {
        let some = || Some(page(&["a"], false));
        assert_eq!(Page::merge(vec![some(), None, some()], 10), some());
        assert_eq!(Page::merge(vec![some(), None, None], 10), None);
        assert_eq!(Page::merge(vec![None], 10), None);
        assert_eq!(Page::merge(vec![], 10), None);
    }

    #[test]
    fn the_origin_comes_from_the_shard_that_knows_the_object_for_longer() {
        let known = |creator, seconds| {
            let (creator, age) = (NodeId::new(creator).unwrap(), Duration::from_secs(seconds));
            let mut page = page(&["a"], false);
            page.objects[0].object = Some(ObjectSummary {
                put: PutId(1),
                size_bytes: 1,
                metadata: Metadata::default(),
                inline: false,
                lost: false,
                origin: Some(Origin { creator, age, unused: None }),
            });
            page
        };
        let (restarted, other) = (known("receiver", 5), known("creator", 50));
        assert_eq!(merge(vec![restarted.clone(), other.clone()], 10), other);
        assert_eq!(merge(vec![other.clone(), restarted], 10), other);
    }

    #[test]
    fn the_answer_of_the_shard_that_knows_more_counts() {
        let unknown =
            || Locations { id: ObjectId::new("x").unwrap(), object: None, locations: Vec::new() };
        let known = |lost, inline| {
            let (put, metadata) = (PutId(1), Metadata::default());
            let object = ObjectSummary { put, size_bytes: 1, metadata, inline, lost, origin: None };
            Locations { object: Some(object), ..unknown() }
        };
        let best =
            |answers: &[Option<Locations>]| best_informed(answers.iter().map(Option::as_ref));
        assert_eq!(best(&[None, None]), None);
        assert_eq!(best(&[None, Some(unknown())]), Some(1));
        assert_eq!(best(&[Some(unknown()), Some(unknown())]), Some(0));
        assert_eq!(best(&[Some(unknown()), Some(known(true, false))]), Some(1));
        assert_eq!(best(&[Some(known(true, false)), Some(known(false, false))]), Some(1));
        assert_eq!(best(&[Some(known(false, false)), Some(known(false, true))]), Some(1));
        assert_eq!(best(&[Some(known(false, true)), Some(known(false, true))]), Some(0));
    }

    #[test]
    fn a_truncated_page_keeps_at_least_one_object() {
        let whole = || page(&["a", "b", "c"], false);
        let one = |_: &Locations| 10;
        assert_eq!(whole().cut(30, one), whole());
        assert_eq!(whole().cut(20, one), page(&["a", "b"], true));
        assert_eq!(whole().cut(19, one), page(&["a"], true));
        assert_eq!(whole().cut(0, one), page(&["a"], true));
        assert_eq!(page(&[], false).cut(0, one), page(&[], false));
    }
}
