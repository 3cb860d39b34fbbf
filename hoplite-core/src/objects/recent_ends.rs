//! Messages to shards about ended puts.
//!
//! A shard that was away must hear of them. Otherwise it would serve the bytes of a deleted small
//! object for ever, and treat a repeated reduce's target as a conflicting put.

use std::collections::VecDeque;
use std::time::Duration;

use crate::id::{ObjectId, PutId};
use crate::shard::ToShard;
use crate::time::Time;

/// Most kept messages: some seconds of a busy store's ends.
const MAX_RECENT_ENDS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct RecentEnds(VecDeque<(Time, ToShard)>);

impl RecentEnds {
    pub(crate) fn push(&mut self, now: Time, message: ToShard) {
        if self.0.len() >= MAX_RECENT_ENDS {
            self.0.pop_front();
        }
        self.0.push_back((now, message));
    }

    pub(crate) fn of(&self, id: &ObjectId, put: PutId) -> Option<&ToShard> {
        let is_meant = |message: &&ToShard| match message {
            ToShard::Forget { id: of, put: ended }
            | ToShard::Unpublish { id: of, put: ended, .. } => (of, *ended) == (id, put),
            _ => false,
        };
        self.0.iter().map(|(_, message)| message).find(is_meant)
    }

    pub(crate) fn latest(&self, now: Time, age: Duration) -> impl Iterator<Item = &ToShard> {
        self.0.iter().filter(move |(time, _)| now.since(*time) <= age).map(|(_, message)| message)
    }

    pub(crate) fn forget_older(&mut self, now: Time, age: Duration) {
        while self.0.front().is_some_and(|(time, _)| now.since(*time) > age) {
            self.0.pop_front();
        }
    }
}
