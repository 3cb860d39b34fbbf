//! Sessions with the shards, and their leases.
//!
//! A delete waits until each store with a copy has confirmed it, except for a store that was silent
//! for six seconds and then away for the grace period. A client may then put the id again. That
//! store, cut off or frozen, does not hear of this, but must not serve its old copy.
//!
//! Therefore each answered ping is a *lease*: until [`LEASE`] after the store has sent the ping,
//! the shard waits for this store. A store serves a local copy only with a lease of a shard that
//! knows the copy ([`returning`](super::returning)). The store checks this when a get arrives, so a
//! stopped process answers nothing before a shard has answered it again.
//!
//! A shard in the store's process stops and resumes with the store, so its lease lasts as long as
//! the session.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::session::LEASE;
use crate::shard::ShardRun;
use crate::time::Time;
use crate::version::Version;

/// Time for other shards to connect after the first one, and for stores to connect to a returned
/// shard: longer than the pause between two attempts.
pub(super) const SETTLING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct ShardSessions {
    shards: Vec<ShardSession>,
    /// After contact with all shards was lost: the time by which each reachable shard should
    /// reconnect.
    settled_at: Time,
}

#[derive(Debug, Clone, Copy)]
struct ShardSession {
    is_up: bool,
    version: Version,
    run: Option<ShardRun>,
    /// Time when the store sent the latest message that the shard has answered.
    heard_at: Time,
    heard_before: Time,
    is_first: bool,
    has_joined: bool,
    is_removed: bool,
    /// After a restart of the shard, the end of its previous run's leases.
    young_until: Option<Time>,
    /// Time by which all stores should have told a returned shard of the puts that ended without
    /// it.
    returned_until: Option<Time>,
}

impl ShardSession {
    const NONE: Self = Self {
        is_up: false,
        version: Version::OLDEST,
        run: None,
        heard_at: Time::ZERO,
        heard_before: Time::ZERO,
        is_first: true,
        has_joined: false,
        is_removed: false,
        young_until: None,
        returned_until: None,
    };
}

impl ShardSessions {
    pub(crate) fn new(count: usize) -> Self {
        Self { shards: vec![ShardSession::NONE; count], settled_at: Time::ZERO }
    }

    /// Adds a shard. Others are preferred at first, because the new shard does not know all copies.
    pub(crate) fn add(&mut self) {
        self.shards.push(ShardSession { has_joined: true, ..ShardSession::NONE });
    }

    pub(crate) fn remove(&mut self, shard: usize) {
        if let Some(session) = self.shards.get_mut(shard) {
            session.is_removed = true;
        }
    }

    pub(crate) fn is_removed(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|session| session.is_removed)
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn begin(
        &mut self,
        now: Time,
        shard: usize,
        run: ShardRun,
        asked_at: Time,
        version: Version,
    ) {
        if !(0..self.count()).any(|other| self.has_lease(now, other)) {
            self.settled_at = now + SETTLING;
        }
        let session = &mut self.shards[shard];
        let (heard_before, is_first) = (session.heard_at, session.run.is_none());
        let has_restarted = session.run.map_or(session.has_joined, |earlier| earlier != run);
        let young_until = if has_restarted { Some(now + LEASE) } else { session.young_until };
        let returned_until = (session.run == Some(run)).then_some(now + SETTLING);
        *session = ShardSession {
            is_up: true,
            version,
            run: Some(run),
            heard_at: asked_at,
            heard_before,
            is_first,
            young_until,
            returned_until,
            ..*session
        };
    }

    /// Returns the times at which a shard may become trusted. Call [`trust`](Self::trust) at each.
    pub(crate) fn doubted_until(&self, shard: usize) -> impl Iterator<Item = Time> + use<> {
        let session = self.shards.get(shard).copied();
        session
            .into_iter()
            .flat_map(|session| [session.young_until, session.returned_until])
            .flatten()
    }

    /// Returns `false` for a while after a restart: the shard does not know all copies yet, and
    /// other stores may serve under its previous run's leases.
    pub(crate) fn is_trusted(&self, shard: usize) -> bool {
        self.shards.get(shard).is_none_or(|session| session.young_until.is_none())
    }

    /// Returns `true` for a while after the shard was disconnected without a restart.
    pub(crate) fn has_just_returned(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|session| session.returned_until.is_some())
    }

    /// Ends the preference for other shards when due. Returns `true` for a change.
    pub(crate) fn trust(&mut self, now: Time, shard: usize) -> bool {
        let Some(session) = self.shards.get_mut(shard) else { return false };
        let doubts = [&mut session.young_until, &mut session.returned_until];
        doubts.map(|until| until.take_if(|until| *until <= now).is_some()).contains(&true)
    }

    pub(crate) fn end(&mut self, now: Time, shard: usize) {
        let session = &mut self.shards[shard];
        session.is_up = false;
        session.heard_at = session.heard_at.min(now);
    }

    pub(crate) fn answered(&mut self, now: Time, shard: usize, pinged_at: Time) -> bool {
        let had_expired = !self.has_lease(now, shard);
        let Some(session) = self.shards.get_mut(shard).filter(|session| session.is_up) else {
            return false;
        };
        session.heard_at = pinged_at.min(now);
        had_expired && self.has_lease(now, shard)
    }

    pub(crate) fn is_up(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|session| session.is_up)
    }

    pub(crate) fn are_all_up(&self) -> bool {
        self.shards.iter().all(|session| session.is_up || session.is_removed)
    }

    pub(crate) fn version(&self, shard: usize) -> Option<Version> {
        self.shards.get(shard).filter(|session| session.is_up).map(|session| session.version)
    }

    pub(crate) fn knows(&self, shard: usize, number: u32) -> bool {
        self.version(shard).is_some_and(|version| version.at_least(number))
    }

    /// Checks the version of a shard, if connected.
    ///
    /// # Errors
    /// [`Error::VersionMismatch`] with the shard's version as `ours`, because clients decode it
    /// with sides swapped.
    pub(crate) fn require(&self, shard: usize, number: u32) -> Result<()> {
        match self.version(shard) {
            Some(version) if !version.at_least(number) => {
                Err(Error::VersionMismatch { ours: version.number(), theirs: number })
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if a shard's deletes still wait for this store.
    pub(crate) fn has_lease(&self, now: Time, shard: usize) -> bool {
        self.shards
            .get(shard)
            .is_some_and(|session| session.is_up && now < session.heard_at + LEASE)
    }

    pub(crate) fn run(&self, shard: usize) -> Option<ShardRun> {
        self.shards.get(shard)?.run
    }

    pub(crate) const fn settled_at(&self) -> Time {
        self.settled_at
    }

    /// Returns the time since the shard's last answer before the present session.
    pub(crate) fn absence(&self, now: Time, shard: usize) -> Duration {
        self.shards.get(shard).map_or(Duration::MAX, |session| now.since(session.heard_before))
    }

    pub(crate) fn is_first(&self, shard: usize) -> bool {
        self.shards.get(shard).is_none_or(|session| session.is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(sessions: &mut ShardSessions, now: Time, asked_at: Time) {
        sessions.begin(now, 0, ShardRun(1), asked_at, Version::NEWEST);
    }

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_lease_lasts_from_the_time_of_the_ping_and_ends_with_the_session() {
        let mut sessions = ShardSessions::new(1);
        begin(&mut sessions, at(10), at(10));
        assert_eq!(sessions.version(0), Some(Version::NEWEST));
        assert!(sessions.has_lease(at(14), 0) && !sessions.has_lease(at(15), 0));
        assert!(!sessions.answered(at(13), 0, at(12)), "the lease was still valid");
        assert!(sessions.has_lease(at(16), 0) && !sessions.has_lease(at(17), 0));
        assert!(sessions.answered(at(20), 0, at(19)), "the lease had expired");
        assert!(!sessions.answered(at(40), 0, at(21)), "an answer that is too old renews nothing");
        sessions.answered(at(40), 0, at(40));
        sessions.end(at(41), 0);
        assert!(!sessions.has_lease(at(41), 0));
        assert_eq!(sessions.version(0), None);
        begin(&mut sessions, at(50), at(50));
        assert_eq!(sessions.settled_at(), at(52));
        assert_eq!(sessions.absence(at(51), 0), Duration::from_secs(11));
    }

    #[test]
    fn the_lease_of_a_shard_in_the_process_of_the_store_does_not_expire() {
        let mut sessions = ShardSessions::new(1);
        begin(&mut sessions, at(1), Time::NEVER);
        assert!(sessions.has_lease(at(1 << 40), 0));
        sessions.end(at(7), 0);
        begin(&mut sessions, at(1), Time::NEVER);
        assert_eq!(sessions.absence(at(9), 0), Duration::from_secs(2));
    }
}
