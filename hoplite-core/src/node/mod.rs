//! One store's object table, as a pure state machine.
//!
//! A [`Node`] owns the decisions of a store: where in the arena a copy goes and what is evicted for it, which client
//! holds which references, what is published to which shard, when an object is fetched and what happens when a pull
//! fails. It owns no bytes, sockets or clocks: [`Event`]s go in, [`Effect`]s come out, in the order in which the shell
//! must perform them.
//!
//! Its parts own what they decide about, and nobody else changes that: the `table` of copies, open `calls`, `fetch`es, the
//! questions to the directory (`asks`), what that knows of each copy (`publication`), combinations (`combine`), hops that are
//! performed here (`hop`), reductions (`reduce`) and
//! collectives (`collectives`). All share a `context`. This file routes events to them; what follows for
//! the others is done in `requests`, `gets`, `put`, `copies`, `publish`, `shards` and `reducing`.
//!
//! # Invariants
//! * An extent is freed only when no client references the copy, no serve reads it and no pull writes it.
//! * At most one copy of an id is in the index; a copy leaves the index once (deleted, lost, lost a conflict, evicted)
//!   and never comes back.
//! * Every `StartPull` is followed by one `PullEnded` before its memory is used for anything else.
//! * Every request but those documented as not answered is answered exactly once (a subscription: any number of times),
//!   unless its client is gone.

mod asks;
mod calls;
mod collectives;
mod combine;
mod context;
mod copies;
mod faults;
mod fetch;
mod gets;
mod holders;
mod hop;
mod inspect;
mod message;
mod missing;
mod passable;
mod publication;
mod publish;
mod put;
mod queue;
mod recent_ends;
mod reduce;
mod reducing;
mod requests;
mod shards;
mod table;

pub use message::*;
pub use missing::{LONG_WAIT, MAX_LONG_WAITS};
pub use passable::{is_news, passable};

use crate::collective::Collectives;
pub use crate::collective::{Position, ReduceRecord};
use crate::error::Error;
pub use crate::fault::Fault;
use crate::id::{NodeId, ObjectId, PutId};
use crate::limits::Limits;
use crate::placement::ShardMap;
use crate::plan::collective::SchedulePreference;
use crate::shard::Placed;
use crate::time::Time;
use crate::topology::place::Path;
use asks::Asks;
use calls::{CallKey, Calls};
use combine::Combinations;
use context::{Context, Deadline, Notice};
use faults::Faults;
use fetch::Fetches;
pub use holders::{Holder, Holders};
use hop::{HopOwner, Hostings};
use recent_ends::RecentEnds;
use reduce::Reductions;
use table::Table;

/// What a [`Node`] is told at its start.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The name of this node.
    pub node: NodeId,
    /// The groups of nodes that it is in.
    pub path: Path,
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// The limits to enforce.
    pub limits: Limits,
    /// The shards of the directory.
    pub shards: ShardMap,
    /// The schedules that this node may choose for the allreduces that it coordinates.
    pub allreduce_schedule: SchedulePreference,
    /// Makes the [`PutId`]s of this run differ from those of every other run and node.
    pub seed: u64,
}

/// What is in a store, for status reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// How much of it is free.
    pub free_bytes: u64,
    /// How much holds pinned copies.
    pub pinned_bytes: u64,
    /// How much could be evicted at once.
    pub evictable_bytes: u64,
    /// The number of copies.
    pub copies: usize,
    /// How many pulls are under way.
    pub pulls: usize,
    /// How much is set aside for targets of reduces that have not begun to grow.
    pub reserved_bytes: u64,
    /// How many reduces this store coordinates.
    pub reductions: usize,
    /// The number of hops that it performs, for itself or others, failed ones included that were not released yet.
    pub hops: usize,
    /// The number of copies that were evicted so far.
    pub evictions: u64,
    /// The number of puts that met another put of the same id, so far.
    pub put_conflicts: u64,
    /// The number of hops that are performed for its reduces, here or elsewhere.
    pub directed_hops: usize,
    /// How many combinations are under way.
    pub combinations: usize,
    /// How many calls, fetches, hops and reduces wait for room.
    pub waiting_for_room: usize,
    /// Where it is, and by which version of the measured places; of version zero if it was told none.
    pub place: Placed,
}

/// The object table of one store. See the [module documentation](self).
#[derive(Debug)]
pub struct Node {
    ctx: Context,
    copies: Table,
    calls: Calls,
    fetches: Fetches,
    combinations: Combinations,
    hostings: Hostings,
    reductions: Reductions,
    collectives: Collectives,
    asks: Asks,
    recent_ends: RecentEnds,
    faults: Faults,
    put_conflicts: u64,
}

impl Node {
    /// An empty store.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            copies: Table::new(config.capacity_bytes),
            ctx: Context::new(config),
            calls: Calls::default(),
            fetches: Fetches::default(),
            combinations: Combinations::default(),
            hostings: Hostings::default(),
            reductions: Reductions::default(),
            collectives: Collectives::default(),
            asks: Asks::default(),
            recent_ends: RecentEnds::default(),
            faults: Faults::default(),
            put_conflicts: 0,
        }
    }

    /// Takes in what happened at `now` and appends what is to be done to `effects`.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.ctx.advance(now);
        match event {
            Event::Request { client, call, request } => self.request(CallKey { client, call }, request),
            Event::Followed { client, call, progress } => {
                self.followed(CallKey { client, call }, progress);
            }
            Event::Inspected { client, call } => self.inspected(CallKey { client, call }),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ShardUp { shard } => {
                self.faults.shard_reached(shard);
                self.shard_changed(shard, true);
            }
            Event::ShardDown { shard } => self.shard_changed(shard, false),
            Event::ShardFailed { shard, error } => self.faults.shard_failed(&self.ctx, shard, error),
            Event::PeerFailed { peer, error } => self.faults.peer_failed(&self.ctx, &peer, error),
            Event::PeerReached { peer } => self.faults.peer_reached(&peer),
            Event::FromShard { shard, message } => self.shard_said(shard, message),
            Event::PullEnded { pull, valid_bytes, outcome } => self.pull_ended(pull, valid_bytes, outcome),
            Event::ServeRequested { serve, peer, id, put, awaits_hop: false } => {
                self.serve_receiver(serve, &peer, &id, put);
            }
            Event::ServeRequested { serve, id, put, awaits_hop: true, .. } => {
                let is_expected = !self.collectives.has_ended(put);
                self.copies.serve(&mut self.ctx, serve, &id, put, is_expected);
            }
            Event::ServeEnded { serve } => self.copies.end_serve(&mut self.ctx, serve),
            Event::Compared { copy, equal } => self.compared(copy, equal),
            Event::CombineEnded { combine, valid_bytes, outcome } => {
                self.combine_ended(combine, valid_bytes, outcome);
            }
            Event::HopRequested { hosting, hop } => {
                self.hostings.accept(&mut self.ctx, HopOwner::Elsewhere(hosting), hop);
                self.begin_hop(HopOwner::Elsewhere(hosting));
            }
            Event::HopReleased { hosting } => {
                self.hostings.release(&mut self.ctx, &mut self.copies, HopOwner::Elsewhere(hosting));
            }
            Event::HopReported { hop, report } => {
                self.reductions.hop_reported(&mut self.ctx, &self.copies, hop, report);
                self.perform_actions();
            }
            Event::Collective(event) => self.collectives.apply(self.ctx.of_collectives(), event),
            Event::Measured { link } => self.ctx.set_link(link),
            Event::SlowLinks { peers } => self.has_slow_links(peers),
            Event::Tick => {}
            Event::ShutDown => self.shut_down(),
        }
        self.perform_collectives();
        self.expire();
        loop {
            self.deliver_notices();
            if !self.retry_space() {
                break;
            }
        }
        self.ctx.take_effects(effects);
    }

    /// Returns the time at which [`Event::Tick`] is due, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.ctx.next_deadline().into_iter().chain(self.collectives.next_deadline()).min()
    }

    /// What is in the store now.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            reductions: self.reductions.len() + self.collectives.coordinated(),
            hops: self.hostings.len() + self.collectives.memberships(),
            put_conflicts: self.put_conflicts,
            directed_hops: self.reductions.hop_count() + self.collectives.enlistments(),
            combinations: self.combinations.len(),
            place: self.ctx.place(),
            ..self.copies.status()
        }
    }

    /// Which object a copy is of, and which put, as long as its space is not free.
    pub fn object_of(&self, copy: CopyId) -> Option<(&ObjectId, PutId)> {
        self.copies.get(&copy).map(|copy| (&copy.id, copy.put))
    }

    /// How the latest reduce of this target went that this store coordinated, if it remembers.
    pub fn reduce_record(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.reductions.record(target)
    }

    fn deliver_notices(&mut self) {
        loop {
            self.perform_collectives();
            let Some(notice) = self.ctx.next_notice() else { return };
            match notice {
                Notice::Answer(call, response) => self.source_fetched(call, response),
                Notice::Report(hop, report) => {
                    self.reductions.hop_reported(&mut self.ctx, &self.copies, hop, report);
                    self.perform_actions();
                }
                Notice::Changed(id) => self.changed(&id),
                Notice::TargetGone(target, copy, error) => {
                    self.reductions.target_gone(&mut self.ctx, &self.copies, &target, copy, error);
                    self.perform_actions();
                }
                Notice::Deleted(id) => self.collectives.target_deleted(self.ctx.of_collectives(), &id),
                Notice::ReduceAnswered(key, target, error) => {
                    self.collectives.call_ended(self.ctx.of_collectives(), key, &target, error.as_ref());
                }
                Notice::ReduceUnwanted(key, target) => {
                    let error = Error::ObjectLost { id: target.clone() };
                    self.collectives.call_ended(self.ctx.of_collectives(), key, &target, Some(&error));
                    self.reductions.call_ended(&mut self.ctx, &self.copies, key, &target);
                    self.perform_actions();
                }
            }
        }
    }

    fn expire(&mut self) {
        while let Some(deadline) = self.ctx.next_due() {
            match deadline {
                Deadline::Call(key) => self.call_expired(key),
                Deadline::Retry(id) => self.retry_fetch(&id),
                Deadline::Republish(copy) => self.publish_again(copy),
                Deadline::Hop(owner) => self.hostings.expired(&mut self.ctx, &mut self.copies, owner),
                Deadline::Reduce(target) => self.reconsider_reduce(&target),
            }
        }
        self.collectives.expire(self.ctx.of_collectives());
    }

    fn shut_down(&mut self) {
        self.ctx.begin_shutdown();
        for key in self.calls.keys() {
            self.finish(key, Err(Error::ShuttingDown));
        }
        self.hostings.shut_down(&mut self.ctx, &mut self.copies);
        self.collectives.shut_down(self.ctx.of_collectives());
        self.perform_collectives();
        for copy in self.copies.live_copies() {
            self.withdraw(copy);
        }
    }
}
