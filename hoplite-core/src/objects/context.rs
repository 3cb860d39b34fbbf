//! Context that a store's state machines share.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::batches::Batches;
use super::notice::{Deadline, Notice};
use super::shard_sessions::ShardSessions;
use crate::collective;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::limits::Limits;
use crate::message::{CallKey, ClientId, Effect, NodeConfig, Response, Urgency};
use crate::placement::{ShardList, ShardMapChange};
use crate::plan::link::LinkEstimate;
use crate::shard::{Placed, ToShard, UnpublishReason};
use crate::tally::Tally;
use crate::time::Time;
use crate::vocabulary::number::Numbers;

#[derive(Debug)]
pub(crate) struct Context {
    config: NodeConfig,
    now: Time,
    link: LinkEstimate,
    places_version: u64,
    slow_peers: Vec<NodeId>,
    effects: Vec<Effect>,
    notices: VecDeque<Notice>,
    deadlines: BTreeSet<(Time, Deadline)>,
    collectives: collective::Outbox,
    pub(crate) sessions: ShardSessions,
    numbers: Numbers,
    tally: Tally,
    is_shutting_down: bool,
    pub(super) batches: Batches,
    is_draining: bool,
    over_quota_puts: u64,
}

impl Context {
    pub(crate) fn new(config: NodeConfig) -> Self {
        Self {
            sessions: ShardSessions::new(config.shards.len()),
            numbers: Numbers::new(config.seed),
            config,
            now: Time::ZERO,
            link: LinkEstimate::default(),
            places_version: 0,
            slow_peers: Vec::new(),
            effects: Vec::new(),
            notices: VecDeque::new(),
            deadlines: BTreeSet::new(),
            collectives: collective::Outbox::default(),
            tally: Tally::default(),
            is_shutting_down: false,
            batches: Batches::default(),
            is_draining: false,
            over_quota_puts: 0,
        }
    }

    pub(crate) const fn config(&self) -> &NodeConfig {
        &self.config
    }

    pub(crate) fn adopt_shards(&mut self, list: &ShardList) -> Option<ShardMapChange> {
        let change = self.config.shards.adopt(list)?;
        for _ in &change.added {
            self.sessions.add();
        }
        for shard in &change.removed {
            self.sessions.remove(*shard);
        }
        Some(change)
    }

    pub(crate) const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    pub(crate) const fn node(&self) -> &NodeId {
        &self.config.node
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn of_collectives(&mut self) -> collective::Context<'_> {
        collective::Context {
            now: self.now,
            node: &self.config.node,
            link: self.link,
            preference: self.config.allreduce_schedule,
            numbers: &mut self.numbers,
            outbox: &mut self.collectives,
        }
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    pub(crate) const fn link(&self) -> LinkEstimate {
        self.link
    }

    pub(crate) fn set_link(&mut self, link: LinkEstimate) {
        self.link = LinkEstimate { uplink: self.link.uplink, ..link };
    }

    /// Sets this node's place, unless the known place has a newer version. Returns `true` for a
    /// change.
    pub(crate) fn be_placed(&mut self, placed: Placed) -> bool {
        let known = self.place();
        let place = match placed.version.cmp(&known.version) {
            Ordering::Less => return false,
            Ordering::Equal => known.or_larger(placed),
            Ordering::Greater => placed,
        };
        (self.places_version, self.config.path, self.link.uplink) =
            (place.version, place.path, place.uplink);
        place != known
    }

    pub(crate) const fn place(&self) -> Placed {
        Placed { version: self.places_version, path: self.config.path, uplink: self.link.uplink }
    }

    pub(crate) fn slow_peers(&self) -> &[NodeId] {
        &self.slow_peers
    }

    pub(crate) fn set_slow_peers(&mut self, peers: Vec<NodeId>) {
        self.slow_peers = peers;
    }

    pub(crate) const fn is_shutting_down(&self) -> bool {
        self.is_shutting_down
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    pub(crate) fn begin_shutdown(&mut self) {
        self.is_shutting_down = true;
    }

    /// Returns `true` if shards keep the bytes of complete objects of this size.
    pub(crate) fn is_inline(&self, size_bytes: u64) -> bool {
        size_bytes < self.config.limits.inline_below_bytes
    }

    pub(crate) fn is_small(&self, size_bytes: u64) -> bool {
        self.is_inline(size_bytes) || size_bytes < self.config.limits.confirmed_from_bytes
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(crate) fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        effects.append(&mut self.effects);
    }

    /// Answers a call that did not wait, or a subscription, which stays open.
    pub(crate) fn reply(&mut self, key: CallKey, response: Result<Response, Error>) {
        self.reply_after(Duration::ZERO, key, response);
    }

    pub(crate) fn reply_after(
        &mut self,
        waited: Duration,
        key: CallKey,
        response: Result<Response, Error>,
    ) {
        let CallKey { client, call, .. } = key;
        if client == ClientId::STORE {
            return self.notify(Notice::Answer(call, response));
        }
        match &response {
            Ok(Response::Object(_) | Response::Contents { .. }) => self.tally.got(waited),
            Ok(_) => {}
            Err(error) => {
                self.tally.failures += 1;
                self.over_quota_puts += u64::from(matches!(error, Error::QuotaExceeded(_)));
            }
        }
        if key.is_item() {
            if self.batches.answered(key, response) {
                self.notify(Notice::BatchAnswered(key.whole()));
            }
            return;
        }
        self.push(Effect::Reply { client, call, response });
    }

    pub(crate) const fn over_quota_puts(&self) -> u64 {
        self.over_quota_puts
    }

    pub(crate) const fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.notices.push_back(notice);
    }

    pub(crate) fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    pub(crate) fn schedule(&mut self, time: Time, deadline: Deadline) {
        if time != Time::NEVER {
            self.deadlines.insert((time, deadline));
        }
    }

    pub(crate) fn unschedule(&mut self, time: Time, deadline: Deadline) {
        self.deadlines.remove(&(time, deadline));
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let first = self.deadlines.first().map(|(time, _)| *time);
        first.into_iter().chain(self.collectives.next_deadline()).min()
    }

    pub(crate) fn next_due(&mut self) -> Option<Deadline> {
        self.deadlines.first().filter(|(time, _)| *time <= self.now)?;
        self.deadlines.pop_first().map(|(_, deadline)| deadline)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbers.next()
    }

    pub(crate) fn next_put(&mut self) -> PutId {
        self.numbers.next_put()
    }

    pub(crate) fn is_up(&self, shard: usize) -> bool {
        self.sessions.is_up(shard)
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.sessions.count()
    }

    /// Returns the first two connected shards in the hash order of `id`.
    pub(crate) fn responsible_shards(&self, id: &ObjectId) -> impl Iterator<Item = usize> {
        self.config.shards.replicas(id, |shard| self.sessions.is_up(shard))
    }

    /// Returns the connected shard that orders the puts of `id`. Shards that just restarted come
    /// last.
    pub(crate) fn first_shard(&self, id: &ObjectId) -> Option<usize> {
        self.responsible_shards(id).min_by_key(|shard| !self.sessions.is_trusted(*shard))
    }

    /// Returns the shard for reads of `id`. A shard that was disconnected may list puts deleted in
    /// that time, so other shards come first for a while.
    pub(crate) fn reading_shard(&self, id: &ObjectId) -> Option<usize> {
        let sessions = &self.sessions;
        let doubts =
            |shard: &usize| (!sessions.is_trusted(*shard), sessions.has_just_returned(*shard));
        self.responsible_shards(id).min_by_key(doubts)
    }

    pub(crate) fn tell_shard(&mut self, shard: usize, message: ToShard) {
        let urgency = match message {
            ToShard::Unpublish { reason: UnpublishReason::Evicted, .. } => Urgency::Deferrable,
            _ => Urgency::Prompt,
        };
        self.push(Effect::ToShard { shard, message, inline_from: None, urgency });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Uplink;
    use crate::placement::ShardMap;
    use crate::plan::collective::SchedulePreference;

    #[test]
    fn of_two_places_the_newer_counts_whichever_shard_says_it_last() {
        let mut ctx = Context::new(NodeConfig {
            node: NodeId::new("a").unwrap(),
            path: [0, 0, 9, 0],
            capacity_bytes: 0,
            limits: Limits::default(),
            shards: ShardMap::new(["shard:1"]),
            allreduce_schedule: SchedulePreference::Auto,
            replicas: 1,
            spill: None,
            serves_directory: false,
            seed: 1,
        });
        for (version, rack, permille) in [(4, 1, 500), (5, 2, 250), (4, 1, 500)] {
            ctx.be_placed(Placed {
                version,
                path: [0, 0, rack, 0],
                uplink: Uplink::measured(permille),
            });
        }
        assert_eq!((ctx.config().path, ctx.link().uplink), ([0, 0, 2, 0], Uplink::measured(250)));
        assert_eq!(ctx.place().version, 5);
        ctx.set_link(LinkEstimate { bytes_per_second: 7, ..LinkEstimate::default() });
        assert_eq!((ctx.link().bytes_per_second, ctx.link().uplink), (7, Uplink::measured(250)));
        ctx.be_placed(Placed { version: 6, path: [0; 4], uplink: Uplink::default() });
        assert_eq!((ctx.config().path, ctx.link().uplink), ([0; 4], Uplink::default()));
    }
}
