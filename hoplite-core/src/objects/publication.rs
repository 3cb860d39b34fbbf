//! Publication of one copy: the shards that know it, and their verdicts on its put.

use std::net::SocketAddr;
use std::time::Duration;

use super::fetch::back_off;
use crate::id::{NodeId, PutId};
use crate::message::{CallKey, ClientId};
use crate::shard::{Replication, ShardRun};
use crate::time::Time;

/// Number of conflicting publications, over more than five seconds, after which the store tells a
/// shard to forget the other put. The other store should withdraw its put within two seconds of a
/// shard's return.
const DISPUTES: u32 = 9;

/// Boxed, because few puts have a rival.
pub(crate) type Rival = Box<(PutId, (NodeId, SocketAddr))>;

/// One shard's knowledge of the copy. Small, because a store may have a million objects.
#[derive(Debug)]
struct ShardView {
    shard: u32,
    /// Latest run of the shard that has certainly recorded the put.
    listed_in: Option<ShardRun>,
    is_told: bool,
    /// `true` until the shard confirms that the put was not deleted while contact was lost.
    is_unverified: bool,
    has_accepted: bool,
}

impl ShardView {
    fn new(shard: usize) -> Self {
        let shard = u32::try_from(shard).expect("a directory has few shards");
        Self { shard, listed_in: None, is_told: false, is_unverified: false, has_accepted: false }
    }

    const fn shard(&self) -> usize {
        self.shard as usize
    }
}

#[derive(Debug, Default)]
struct Dispute {
    publications: u32,
    republish_at: Option<Time>,
}

#[derive(Debug, Default)]
pub(crate) struct Publication {
    shards: Vec<ShardView>,
    /// Earlier put of the id at another store. Its bytes are compared once this copy is complete.
    pub(crate) rival: Option<Rival>,
    /// Call that waits for the put's acceptance. Boxed, because few puts wait.
    sealer: Option<Box<CallKey>>,
    was_told: bool,
    /// One shard that orders other stores to make further copies.
    lead: Option<usize>,
    pub(crate) replication: Option<Box<Replication>>,
    /// `true` while a repeated put waits for the number of stores, to learn if they suffice.
    pub(crate) counts_nodes: bool,
    /// Boxed, because few puts are disputed.
    dispute: Option<Box<Dispute>>,
    is_confirmed: bool,
    pub(crate) writer: Option<ClientId>,
    was_accepted: bool,
    is_recovered: bool,
}

impl Publication {
    fn view(&self, shard: usize) -> Option<&ShardView> {
        self.shards.iter().find(|view| view.shard() == shard)
    }

    fn view_mut(&mut self, shard: usize) -> &mut ShardView {
        let index =
            self.shards.iter().position(|view| view.shard() == shard).unwrap_or_else(|| {
                // A push would reserve memory for four shards.
                self.shards.reserve_exact(1);
                self.shards.push(ShardView::new(shard));
                self.shards.len() - 1
            });
        &mut self.shards[index]
    }

    pub(crate) fn known_at(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().filter(|view| view.is_told).map(ShardView::shard)
    }

    pub(crate) fn is_known_at(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.is_told)
    }

    pub(crate) fn is_known_to(&mut self, shard: usize) {
        self.was_told = true;
        self.view_mut(shard).is_told = true;
    }

    pub(crate) fn verify_at(&mut self, shard: usize) {
        self.view_mut(shard).is_unverified = true;
    }

    pub(crate) fn is_unverified_at(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.is_unverified)
    }

    /// Notes a shard's confirmation of the put. Returns `true` if it was needed.
    pub(crate) fn verified(&mut self, shard: usize) -> bool {
        let view = self.shards.iter_mut().find(|view| view.shard() == shard);
        view.is_some_and(|view| std::mem::take(&mut view.is_unverified))
    }

    pub(crate) fn is_listed_by(&mut self, shard: usize, run: ShardRun) {
        self.view_mut(shard).listed_in = Some(run);
    }

    pub(crate) fn is_not_listed_by(&mut self, shard: usize) {
        self.view_mut(shard).listed_in = None;
    }

    pub(crate) fn was_listed_by(&self, shard: usize, run: Option<ShardRun>) -> bool {
        run.is_some() && self.view(shard).is_some_and(|view| view.listed_in == run)
    }

    /// Returns the shards that proved to have recorded the put, even in earlier runs.
    pub(crate) fn witnesses(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().filter(|view| view.listed_in.is_some()).map(ShardView::shard)
    }

    /// Marks a copy from a killed store's spill files. A shard must confirm its put before the copy
    /// is served.
    pub(crate) const fn recover(&mut self) {
        (self.is_recovered, self.was_told) = (true, true);
    }

    pub(crate) const fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    pub(crate) const fn was_told(&self) -> bool {
        self.was_told
    }

    pub(crate) fn watched_by(&self) -> impl Iterator<Item = usize> {
        let watching = self.shards.iter().filter(|view| view.is_told && !view.is_unverified);
        watching.map(ShardView::shard)
    }

    /// Returns `true` if contact with all shards that knew the copy was lost, and none has
    /// confirmed it since.
    pub(crate) fn is_returning(&self) -> bool {
        self.was_told && self.watched_by().next().is_none()
    }

    pub(crate) fn session_changed(&mut self, shard: usize) {
        if let Some(view) = self.shards.iter_mut().find(|view| view.shard() == shard) {
            (view.is_told, view.is_unverified, view.has_accepted) = (false, false, false);
        }
        if self.lead == Some(shard) {
            self.set_lead(None);
        }
    }

    pub(crate) const fn lead(&self) -> Option<usize> {
        self.lead
    }

    /// Sets the lead, and drops the previous lead's reports.
    pub(crate) fn set_lead(&mut self, lead: Option<usize>) {
        (self.lead, self.replication) = (lead, None);
    }

    pub(crate) fn is_only_known_put(&self) -> bool {
        self.known_at().next().is_some() && self.rival.is_none()
    }

    pub(crate) fn is_accepted_by(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.has_accepted)
    }

    /// Notes a shard's acceptance. It counts for a quorum, and if the shard orders the id's puts.
    pub(crate) fn accept(&mut self, shard: usize) {
        self.view_mut(shard).has_accepted = true;
    }

    /// The id's first shard has accepted this put. Forgets the earlier one: otherwise two stores
    /// could each rename their put to the other's.
    pub(crate) fn settle(&mut self) {
        self.rival = None;
        (self.is_confirmed, self.was_accepted) = (true, true);
    }

    pub(crate) const fn was_accepted(&self) -> bool {
        self.was_accepted
    }

    /// Forgets verdicts, because the copy gets the id of an equal put.
    pub(crate) fn rename(&mut self) {
        for view in &mut self.shards {
            (view.has_accepted, view.listed_in) = (false, None);
        }
        self.set_lead(None);
    }

    /// Discards all acceptances, because the id's first shard now lists another put.
    pub(crate) fn contest(&mut self) {
        for view in &mut self.shards {
            view.has_accepted = false;
        }
        self.is_confirmed = false;
    }

    /// Returns the time to publish the disputed put again, unless one is set.
    pub(crate) fn dispute(&mut self, now: Time) -> Option<Time> {
        let dispute = self.dispute.get_or_insert_default();
        if dispute.republish_at.is_some() {
            return None;
        }
        dispute.publications = dispute.publications.saturating_add(1);
        let pause: Duration = back_off(dispute.publications.saturating_add(1));
        dispute.republish_at = Some(now + pause);
        dispute.republish_at
    }

    pub(crate) const fn is_disputed(&self) -> bool {
        self.dispute.is_some()
    }

    /// Returns `true` after [`DISPUTES`] conflicts.
    pub(crate) fn is_disputed_for_long(&self) -> bool {
        self.dispute.as_ref().is_some_and(|dispute| dispute.publications >= DISPUTES)
    }

    /// Returns `true` if the id's first shard has accepted this put, but other shards have disputed
    /// it for long.
    pub(crate) fn has_outlasted_rivals(&self) -> bool {
        self.is_confirmed && self.is_disputed_for_long()
    }

    /// Returns `true` if a shard that knows the put has not accepted it.
    pub(crate) fn lacks_acceptances(&self) -> bool {
        self.shards.iter().any(|view| view.is_told && !view.has_accepted)
    }

    pub(crate) fn begin_again(&mut self) {
        self.set_lead(None);
        self.take_republish_time();
        self.is_confirmed = false;
    }

    pub(crate) fn take_republish_time(&mut self) -> Option<Time> {
        self.dispute.as_mut()?.republish_at.take()
    }

    pub(crate) fn sealer(&self) -> Option<CallKey> {
        self.sealer.as_deref().copied()
    }

    pub(crate) fn set_sealer(&mut self, key: CallKey) {
        self.sealer = Some(Box::new(key));
    }

    pub(crate) fn take_sealer(&mut self) -> Option<CallKey> {
        self.sealer.take().map(|key| *key)
    }
}
