//! The publication of one copy: the shards that know it, and their verdicts on its put.

use std::net::SocketAddr;
use std::time::Duration;

use super::fetch::back_off;
use crate::id::{NodeId, PutId};
use crate::message::CallKey;
use crate::shard::{Replication, ShardRun};
use crate::time::Time;

/// So often a copy is published again before a shard is told to forget the put that is in its way. Until then, the store
/// of that put should have withdrawn it, if it is there.
const DISPUTES: u32 = 3;

/// Another put of the same id, and its holder.
pub(crate) type Rival = (PutId, (NodeId, SocketAddr));

/// The view that one shard has of a copy. An object has few of them, and a store a million objects.
#[derive(Debug)]
struct ShardView {
    shard: usize,
    /// The latest run of the shard that is sure to have listed the put.
    listed_in: Option<ShardRun>,
    /// `true` if the shard was told of the copy in its present session.
    is_told: bool,
    /// `true` while the shard has yet to confirm the put.
    is_unverified: bool,
    /// `true` if the shard has accepted the put in its present session.
    has_accepted: bool,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Publication {
    /// The shards that know something of the copy.
    shards: Vec<ShardView>,
    /// Another put of the id that was first. The store compares the two once this copy is complete.
    pub(crate) rival: Option<Rival>,
    /// The call that waits for the verdict.
    pub(crate) sealer: Option<CallKey>,
    /// `true` once some shard was told of the copy.
    was_told: bool,
    /// The shard that was told that it is the first connected shard of the object.
    lead: Option<usize>,
    /// The copies of the object, as that shard has told.
    pub(crate) replication: Option<Box<Replication>>,
    /// The time to publish it again, because a shard disagreed; and how often that was needed.
    republish_at: Option<Time>,
    disputes: u32,
    /// The deciding shard has accepted it since it was last published because of a dispute.
    is_confirmed: bool,
}

impl Publication {
    fn view(&self, shard: usize) -> Option<&ShardView> {
        self.shards.iter().find(|view| view.shard == shard)
    }

    fn view_mut(&mut self, shard: usize) -> &mut ShardView {
        let index = self.shards.iter().position(|view| view.shard == shard).unwrap_or_else(|| {
            // An object has two shards, mostly.
            self.shards.reserve_exact(if self.shards.is_empty() { 2 } else { 1 });
            let (listed_in, is_told, is_unverified, has_accepted) = (None, false, false, false);
            self.shards.push(ShardView { shard, listed_in, is_told, is_unverified, has_accepted });
            self.shards.len() - 1
        });
        &mut self.shards[index]
    }

    /// The shards that were told of the copy in their present session.
    pub(crate) fn known_at(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().filter(|view| view.is_told).map(|view| view.shard)
    }

    /// Returns `true` if a shard was told of the copy in its present session.
    pub(crate) fn is_known_at(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.is_told)
    }

    /// A shard knows the copy.
    pub(crate) fn is_known_to(&mut self, shard: usize) {
        self.was_told = true;
        self.view_mut(shard).is_told = true;
    }

    /// A shard is asked if the put still exists. The copy is known to the shard.
    pub(crate) fn verify_at(&mut self, shard: usize) {
        self.view_mut(shard).is_unverified = true;
    }

    /// Returns `true` if a shard has yet to confirm that the put still exists.
    pub(crate) fn is_unverified_at(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.is_unverified)
    }

    /// A shard has confirmed that the put exists, or knows nothing of the put. Returns `true` if the copy waited for that.
    pub(crate) fn verified(&mut self, shard: usize) -> bool {
        let view = self.shards.iter_mut().find(|view| view.shard == shard);
        view.is_some_and(|view| std::mem::take(&mut view.is_unverified))
    }

    /// This run of a shard lists the put, and the copy may be sure of it.
    pub(crate) fn is_listed_by(&mut self, shard: usize, run: ShardRun) {
        self.view_mut(shard).listed_in = Some(run);
    }

    /// A shard does not list the put.
    pub(crate) fn is_not_listed_by(&mut self, shard: usize) {
        self.view_mut(shard).listed_in = None;
    }

    /// Returns `true` if this run of a shard has listed the put.
    pub(crate) fn was_listed_by(&self, shard: usize, run: Option<ShardRun>) -> bool {
        run.is_some() && self.view(shard).is_some_and(|view| view.listed_in == run)
    }

    /// The shards that have listed the put in any run.
    pub(crate) fn witnesses(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().filter(|view| view.listed_in.is_some()).map(|view| view.shard)
    }

    /// Returns `true` once some shard was told of the copy.
    pub(crate) const fn was_told(&self) -> bool {
        self.was_told
    }

    /// The connected shards that would tell the store of the end of the put.
    pub(crate) fn watched_by(&self) -> impl Iterator<Item = usize> {
        let watching = self.shards.iter().filter(|view| view.is_told && !view.is_unverified);
        watching.map(|view| view.shard)
    }

    /// Returns `true` if the store has lost contact with all shards that knew the copy, and none has confirmed since then
    /// that the put still exists.
    pub(crate) fn is_returning(&self) -> bool {
        self.was_told && self.watched_by().next().is_none()
    }

    /// A session with a shard came or went: one that is new knows nothing, even if the same shard was there before.
    pub(crate) fn session_changed(&mut self, shard: usize) {
        if let Some(view) = self.shards.iter_mut().find(|view| view.shard == shard) {
            (view.is_told, view.is_unverified, view.has_accepted) = (false, false, false);
        }
        if self.lead == Some(shard) {
            self.set_lead(None);
        }
    }

    /// The shard that was told that it is the first connected shard of the object.
    pub(crate) const fn lead(&self) -> Option<usize> {
        self.lead
    }

    /// Another shard was told so. What the earlier one has told counts no more.
    pub(crate) fn set_lead(&mut self, lead: Option<usize>) {
        (self.lead, self.replication) = (lead, None);
    }

    /// Returns `true` if shards know this put, and there is no rival.
    pub(crate) fn is_only_known_put(&self) -> bool {
        self.known_at().next().is_some() && self.rival.is_none()
    }

    /// Returns `true` if a shard has accepted the put in its present session.
    pub(crate) fn is_accepted_by(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.has_accepted)
    }

    /// A shard has accepted the put, which counts as long as it decides.
    pub(crate) fn accept(&mut self, shard: usize) {
        self.view_mut(shard).has_accepted = true;
    }

    /// The deciding shard has accepted the put, so the rival is gone, or never was first at this
    /// shard. The rival is forgotten, because two equal puts could otherwise each take the name of
    /// the other.
    pub(crate) fn settle(&mut self) {
        self.rival = None;
        self.is_confirmed = true;
    }

    /// The copy belongs to another put now, which no shard has accepted from this store.
    pub(crate) fn rename(&mut self) {
        for view in &mut self.shards {
            (view.has_accepted, view.listed_in) = (false, None);
        }
        self.set_lead(None);
    }

    /// The deciding shard knows another put. Another shard may have accepted this one while that shard was away.
    pub(crate) fn contest(&mut self) {
        for view in &mut self.shards {
            view.has_accepted = false;
        }
        self.is_confirmed = false;
    }

    /// Notes a dispute with a shard. Returns the time at which the copy is published again, unless
    /// that is planned already.
    pub(crate) fn dispute(&mut self, now: Time) -> Option<Time> {
        if self.republish_at.is_some() {
            return None;
        }
        self.disputes = self.disputes.saturating_add(1);
        let pause: Duration = back_off(self.disputes.saturating_add(1));
        self.republish_at = Some(now + pause);
        self.republish_at
    }

    /// Returns `true` if shards have disagreed about it.
    pub(crate) const fn is_disputed(&self) -> bool {
        self.disputes > 0
    }

    /// Returns `true` if a put that is in its way is a remainder: it has lost at the shard that decides, or is gone there, and has not
    /// been withdrawn.
    pub(crate) const fn has_outlasted_rivals(&self) -> bool {
        self.is_confirmed && self.disputes >= DISPUTES
    }

    /// It is published again now.
    pub(crate) fn begin_again(&mut self) {
        self.set_lead(None);
        self.republish_at = None;
        self.is_confirmed = false;
    }

    /// Cancels the planned publication. Returns its time.
    pub(crate) fn take_republish_time(&mut self) -> Option<Time> {
        self.republish_at.take()
    }
}
