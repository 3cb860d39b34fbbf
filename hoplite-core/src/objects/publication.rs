//! What the directory knows of one copy, and thinks of its put.

use std::net::SocketAddr;
use std::time::Duration;

use super::fetch::back_off;
use crate::id::{NodeId, PutId};
use crate::message::CallKey;
use crate::time::Time;

/// So often a copy is published again before a shard is told to forget the put that is in its way. Until then, the store
/// of that put should have withdrawn it, if it is there.
const DISPUTES: u32 = 3;

/// Another put of the same id, and who has it.
pub(crate) type Rival = (PutId, (NodeId, SocketAddr));

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Publication {
    /// The shards that have accepted the put in their present session.
    accepted_by: Vec<usize>,
    /// Another put of the id was first; whether it is equal is found out once this copy is complete.
    rival: Option<Rival>,
    /// The call that waits for the verdict.
    sealer: Option<CallKey>,
    /// The shards that were told of the copy in their present session.
    known_at: Vec<usize>,
    /// The time to publish it again, because a shard disagreed; and how often that was needed.
    republish_at: Option<Time>,
    disputes: u32,
    /// The deciding shard has accepted it since it was last published because of a dispute.
    is_confirmed: bool,
}

impl Publication {
    /// The shards that were told of the copy in their present session.
    pub(crate) fn known_at(&self) -> &[usize] {
        &self.known_at
    }

    /// A shard knows the copy.
    pub(crate) fn is_known_to(&mut self, shard: usize) {
        if !self.known_at.contains(&shard) {
            self.known_at.push(shard);
        }
    }

    /// A session with a shard came or went: one that is new knows nothing, even if the same shard was there before.
    pub(crate) fn session_changed(&mut self, shard: usize) {
        self.known_at.retain(|known| *known != shard);
        self.accepted_by.retain(|other| *other != shard);
    }

    /// Returns `true` if shards know this put, and no other of its id.
    pub(crate) fn is_only_known_put(&self) -> bool {
        !self.known_at.is_empty() && self.rival.is_none()
    }

    pub(crate) const fn rival(&self) -> Option<&Rival> {
        self.rival.as_ref()
    }

    pub(crate) fn set_rival(&mut self, rival: Rival) {
        self.rival = Some(rival);
    }

    pub(crate) fn take_rival(&mut self) -> Option<Rival> {
        self.rival.take()
    }

    /// The call that waits for the verdict.
    pub(crate) const fn sealer(&self) -> Option<CallKey> {
        self.sealer
    }

    pub(crate) fn set_sealer(&mut self, key: CallKey) {
        self.sealer = Some(key);
    }

    pub(crate) fn take_sealer(&mut self) -> Option<CallKey> {
        self.sealer.take()
    }

    /// Returns `true` if a shard has accepted the put in its present session.
    pub(crate) fn is_accepted_by(&self, shard: usize) -> bool {
        self.accepted_by.contains(&shard)
    }

    /// A shard has accepted the put, which counts as long as it decides.
    pub(crate) fn accept(&mut self, shard: usize) {
        if !self.is_accepted_by(shard) {
            self.accepted_by.push(shard);
        }
    }

    /// The deciding shard has accepted the put. What it was to be compared with is gone, or never was the first at this shard:
    /// without forgetting that, two equal puts could each take the name of the other.
    pub(crate) fn settle(&mut self) {
        self.rival = None;
        self.is_confirmed = true;
    }

    /// The copy is one of another put now, which nobody has accepted from this store.
    pub(crate) fn rename(&mut self) {
        self.accepted_by.clear();
    }

    /// The deciding shard knows another put. Another shard may have accepted this one while that shard was away.
    pub(crate) fn contest(&mut self) {
        self.accepted_by.clear();
        self.is_confirmed = false;
    }

    /// A shard disagrees: answers after which pause the copy is to be published again, unless that is planned.
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
        self.republish_at = None;
        self.is_confirmed = false;
    }

    /// It is not to be published again any more; answers when it was to be.
    pub(crate) fn take_republish_time(&mut self) -> Option<Time> {
        self.republish_at.take()
    }
}
