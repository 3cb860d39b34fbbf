//! Drain of a store: its pinned copies move to other stores before it stops.
//!
//! 1. The store tells its shards that it drains ([`ToShard::Drain`]), and makes one shard
//!    responsible for each pinned copy ([`ToShard::Lead`]). It refuses new puts, and serves reads.
//! 2. The shards order other stores to keep the objects (`shard/replicas.rs`). Once enough copies
//!    exist, the store unpins its copy.
//! 3. The drain ends when no pinned copy is left, and all earlier calls and puts have ended. The
//!    process then stops the store.
//!
//! A drain fails at its deadline, or at once without another store. The store then accepts puts
//! again, unless the process stops it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Objects;
use super::draining::Drain;
use super::notice::Deadline;
use crate::error::Result;
use crate::message::{
    CallKey, CopyId, DrainReport, DrainState, Effect, MAX_UNMOVED, Response, Unmoved,
};
use crate::shard::{Obstacle, Replication, ToShard};
use crate::version::Version;

impl Objects {
    /// Begins a drain, or sets a new deadline for the present one. Answers `caller` at its end.
    pub(crate) fn drain(&mut self, caller: Option<CallKey>, timeout: Duration) {
        let now = self.ctx.now();
        let deadline = now + timeout;
        if let Some(drain) = self.drain.as_mut().filter(|drain| drain.state == DrainState::Draining)
        {
            drain.callers.extend(caller);
            self.ctx.unschedule(drain.deadline, Deadline::Drain);
            drain.deadline = deadline;
            self.ctx.schedule(deadline, Deadline::Drain);
            return;
        }
        self.ctx.schedule(deadline, Deadline::Drain);
        self.drain = Some(Drain {
            state: DrainState::Draining,
            began: now,
            deadline,
            callers: caller.into_iter().collect(),
            left: BTreeMap::new(),
            without_node: 0,
            moved_objects: 0,
            moved_bytes: 0,
            held_objects: 0,
            short_objects: 0,
            last: None,
        });
        self.ctx.set_draining(true);
        for shard in 0..self.ctx.shard_count() {
            self.tell_drain(shard);
        }
        for copy in self.copies.live_copies() {
            self.copies.publication_mut(copy).set_lead(None);
            self.note_left(copy);
            self.tell_lead(copy);
        }
    }

    pub(crate) fn tell_drain(&mut self, shard: usize) {
        if self.ctx.is_up(shard) {
            let is_draining = self.ctx.is_draining();
            self.ctx.tell_shard(shard, ToShard::Drain { is_draining });
        }
    }

    pub(crate) fn note_left(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let has_to_move =
            local.is_pinned() && local.is_complete() && local.is_public && local.is_live();
        if let Some(drain) = self.drain.as_mut().filter(|_| has_to_move) {
            drain.left.entry(copy).or_default();
        }
    }

    pub(crate) fn forget_left(&mut self, copy: CopyId) {
        if let Some(drain) = &mut self.drain {
            drain.remove(copy);
        }
    }

    /// Unpins a copy if enough other stores have a pinned one. Otherwise notes why no further copy
    /// is made.
    pub(crate) fn drain_told(&mut self, shard: usize, copy: CopyId, news: &Replication) {
        // Before a shard knows of the drain, its reports count this store's copy too.
        let may_be_early = self.ctx.sessions.knows(shard, Version::WITH_TERMS) && !news.is_draining;
        let Some(drain) = self.drain.as_mut().filter(|_| !may_be_early) else { return };
        let Some(left) = drain.left.get(&copy).copied() else { return };
        let local = &self.copies[&copy];
        let wanted = u32::try_from(local.metadata.replicas.to_keep()).unwrap_or(u32::MAX);
        let is_safe = news.copies >= wanted.min(news.nodes).max(1);
        if !is_safe {
            // If other stores exist, one may still make a copy.
            let obstacle =
                news.obstacle.filter(|obstacle| *obstacle != Obstacle::NoNode || news.nodes == 0);
            return drain.set_obstacle(copy, obstacle);
        }
        drain.remove(copy);
        if left.is_reported {
            drain.moved_objects += 1;
            drain.moved_bytes += local.size_bytes;
        } else {
            drain.held_objects += 1;
        }
        drain.short_objects += u64::from(news.copies < wanted);
        self.copies.unpin(&mut self.ctx, copy);
        self.publish(copy);
    }

    /// Ends the drain once all objects have moved, or no other store can keep them. `is_busy`: this
    /// store takes part in reduces or collectives.
    pub(crate) fn settle_drain(&mut self, is_busy: bool) {
        let Some(drain) = self.drain.as_ref().filter(|drain| drain.state == DrainState::Draining)
        else {
            return;
        };
        if !drain.left.is_empty() {
            if drain.without_node == drain.left.len() {
                self.end_drain(DrainState::Failed);
            }
            return;
        }
        let is_unpublished = self.ctx.shard_count() > 0 && self.copies.is_any_written();
        if !is_busy && !is_unpublished && !self.calls.has_open_since(drain.began) {
            self.end_drain(DrainState::Drained);
        }
    }

    /// At the deadline, a drain fails only if objects are left.
    pub(crate) fn drain_expired(&mut self) {
        let Some(drain) = self.drain.as_ref().filter(|drain| drain.state == DrainState::Draining)
        else {
            return;
        };
        let state = if drain.left.is_empty() { DrainState::Drained } else { DrainState::Failed };
        self.end_drain(state);
    }

    fn end_drain(&mut self, state: DrainState) {
        let Some(mut drain) = self.drain.take() else { return };
        self.ctx.unschedule(drain.deadline, Deadline::Drain);
        drain.state = state;
        let callers = std::mem::take(&mut drain.callers);
        self.drain = Some(drain);
        let report = self.drain_report();
        if let Some(drain) = &mut self.drain {
            drain.last = Some(report.clone());
            drain.left.clear();
        }
        if state == DrainState::Failed {
            self.ctx.set_draining(false);
            for shard in 0..self.ctx.shard_count() {
                self.tell_drain(shard);
            }
        }
        for key in callers {
            self.finish(key, Ok(Response::Drain(report.clone())));
        }
        // Last, because the process then stops.
        self.ctx.push(Effect::DrainEnded { report });
    }

    pub(crate) fn forget_drain_caller(&mut self, key: CallKey) {
        if let Some(drain) = &mut self.drain {
            drain.callers.remove(&key);
        }
    }

    pub(crate) fn drain_report(&self) -> DrainReport {
        let serves_directory = self.ctx.config().serves_directory;
        let Some(drain) = &self.drain else {
            return DrainReport { serves_directory, ..DrainReport::default() };
        };
        if let Some(last) = &drain.last {
            return last.clone();
        }
        let left =
            || drain.left.iter().filter_map(|(copy, why)| Some((self.copies.get(copy)?, why)));
        let unmoved = left().take(MAX_UNMOVED).map(|(local, why)| Unmoved {
            id: local.id.clone(),
            size_bytes: local.size_bytes,
            obstacle: why.obstacle,
        });
        DrainReport {
            state: drain.state,
            moved_objects: drain.moved_objects,
            moved_bytes: drain.moved_bytes,
            held_objects: drain.held_objects,
            short_objects: drain.short_objects,
            left_objects: left().count() as u64,
            left_bytes: left().map(|(local, _)| local.size_bytes).sum(),
            open_calls: self.calls.open_since(drain.began) as u64,
            serves_directory,
            unmoved: unmoved.collect(),
        }
    }

    pub(crate) fn check_accepts_puts(&self) -> Result<()> {
        if self.ctx.is_draining() { Err(crate::Error::Draining) } else { Ok(()) }
    }
}
