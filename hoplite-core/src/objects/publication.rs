//! Publication of one copy: the shards that know it, and their verdicts on its put.

use std::net::SocketAddr;
use std::time::Duration;

use smallvec::SmallVec;

use super::fetch::back_off;
use crate::id::{NodeId, PutId};
use crate::message::CallKey;
use crate::shard::{Replication, ShardRun};
use crate::time::Time;

/// Number of conflicting publications after which the store tells a shard to forget the other put.
/// They take over five seconds. The other store should withdraw its put within two seconds of a
/// shard's return.
const DISPUTES: u32 = 9;

pub(crate) type Rival = Box<(PutId, (NodeId, SocketAddr))>;

/// One shard's knowledge of the copy. Small, because a store may have a million objects.
#[derive(Debug)]
struct ShardView {
    shard: u32,
    is_listed: bool,
    /// If `is_listed`, latest run of the shard that has certainly recorded the put.
    run: ShardRun,
    is_told: bool,
    /// `true` until the shard confirms that the put was not deleted while contact was lost.
    is_unverified: bool,
    has_accepted: bool,
}

fn shard_number(shard: usize) -> u32 {
    u32::try_from(shard).expect("a directory has few shards")
}

impl ShardView {
    fn new(shard: usize) -> Self {
        let shard = shard_number(shard);
        let run = ShardRun(0);
        let (is_listed, is_told, is_unverified, has_accepted) = (false, false, false, false);
        Self { shard, is_listed, run, is_told, is_unverified, has_accepted }
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

/// Facts that few puts have.
#[derive(Debug, Default)]
struct Exceptions {
    rival: Option<Rival>,
    sealer: Option<CallKey>,
    replication: Option<Box<Replication>>,
    dispute: Option<Box<Dispute>>,
}

impl Exceptions {
    const fn are_none(&self) -> bool {
        let Self { rival, sealer, replication, dispute } = self;
        rival.is_none() && sealer.is_none() && replication.is_none() && dispute.is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Publication {
    shards: SmallVec<[ShardView; 1]>,
    exceptions: Option<Box<Exceptions>>,
    /// One shard that orders other stores to make further copies.
    lead: Option<u32>,
    was_told: bool,
    /// `true` while a repeated put waits for the number of stores, to learn if they suffice.
    pub(crate) counts_nodes: bool,
    is_confirmed: bool,
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
        let view = self.view_mut(shard);
        (view.is_listed, view.run) = (true, run);
    }

    pub(crate) fn is_not_listed_by(&mut self, shard: usize) {
        self.view_mut(shard).is_listed = false;
    }

    pub(crate) fn was_listed_by(&self, shard: usize, run: Option<ShardRun>) -> bool {
        self.view(shard).is_some_and(|view| view.is_listed && run == Some(view.run))
    }

    /// Shards that proved to have recorded the put, even in earlier runs.
    pub(crate) fn witnesses(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().filter(|view| view.is_listed).map(ShardView::shard)
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
        if self.lead() == Some(shard) {
            self.set_lead(None);
        }
    }

    pub(crate) fn lead(&self) -> Option<usize> {
        self.lead.map(|lead| lead as usize)
    }

    pub(crate) fn set_lead(&mut self, lead: Option<usize>) {
        self.lead = lead.map(shard_number);
        self.take(|exceptions| exceptions.replication.take());
    }

    fn exceptions_mut(&mut self) -> &mut Exceptions {
        self.exceptions.get_or_insert_default()
    }

    fn take<T>(&mut self, take: impl FnOnce(&mut Exceptions) -> Option<T>) -> Option<T> {
        let taken = take(self.exceptions.as_mut()?);
        self.exceptions.take_if(|exceptions| exceptions.are_none());
        taken
    }

    /// Earlier put of the id at another store, compared once this copy is complete.
    pub(crate) fn rival(&self) -> Option<&Rival> {
        self.exceptions.as_ref()?.rival.as_ref()
    }

    pub(crate) fn set_rival(&mut self, rival: Rival) {
        self.exceptions_mut().rival = Some(rival);
    }

    pub(crate) fn take_rival(&mut self) -> Option<Rival> {
        self.take(|exceptions| exceptions.rival.take())
    }

    pub(crate) fn replication(&self) -> Option<&Replication> {
        self.exceptions.as_ref()?.replication.as_deref()
    }

    pub(crate) fn set_replication(&mut self, replication: Replication) {
        self.exceptions_mut().replication = Some(Box::new(replication));
    }

    pub(crate) fn is_only_known_put(&self) -> bool {
        self.known_at().next().is_some() && self.rival().is_none()
    }

    pub(crate) fn is_accepted_by(&self, shard: usize) -> bool {
        self.view(shard).is_some_and(|view| view.has_accepted)
    }

    /// Notes a shard's acceptance. It counts for a quorum, and if the shard orders the id's puts.
    pub(crate) fn accept(&mut self, shard: usize) {
        self.view_mut(shard).has_accepted = true;
    }

    /// Forgets the earlier put, because the id's first shard has accepted this one: otherwise two
    /// stores could each rename their put to the other's.
    pub(crate) fn settle(&mut self) {
        self.take_rival();
        (self.is_confirmed, self.was_accepted) = (true, true);
    }

    pub(crate) const fn was_accepted(&self) -> bool {
        self.was_accepted
    }

    /// Forgets verdicts, because the copy gets the id of an equal put.
    pub(crate) fn rename(&mut self) {
        for view in &mut self.shards {
            (view.has_accepted, view.is_listed) = (false, false);
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
        let dispute = self.exceptions_mut().dispute.get_or_insert_default();
        if dispute.republish_at.is_some() {
            return None;
        }
        dispute.publications = dispute.publications.saturating_add(1);
        let pause: Duration = back_off(dispute.publications.saturating_add(1));
        dispute.republish_at = Some(now + pause);
        dispute.republish_at
    }

    fn dispute_so_far(&self) -> Option<&Dispute> {
        self.exceptions.as_ref()?.dispute.as_deref()
    }

    pub(crate) fn is_disputed(&self) -> bool {
        self.dispute_so_far().is_some()
    }

    pub(crate) fn is_disputed_for_long(&self) -> bool {
        self.dispute_so_far().is_some_and(|dispute| dispute.publications >= DISPUTES)
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
        self.exceptions.as_mut()?.dispute.as_mut()?.republish_at.take()
    }

    pub(crate) fn sealer(&self) -> Option<CallKey> {
        self.exceptions.as_ref()?.sealer
    }

    pub(crate) fn set_sealer(&mut self, key: CallKey) {
        self.exceptions_mut().sealer = Some(key);
    }

    pub(crate) fn take_sealer(&mut self) -> Option<CallKey> {
        self.take(|exceptions| exceptions.sealer.take())
    }
}
