//! A shard's list of the directory's shards.
//!
//! Operators change the list by one shard at a time. A store, the *coordinator*, first proposes the
//! new list to the shards of the old one. Once a majority has accepted, it commits the list at
//! every shard. A shard accepts one proposal at a time, so of two coordinators at most one gets a
//! majority, unless a shard restarts and forgets a proposal. Then two different lists may have the
//! same version, and shards refuse stores that use the other list. A proposal ends after
//! [`PROPOSAL_TTL`], in case its coordinator has died.
//!
//! A shard sends the committed list to its stores, which send it to shards that restarted or missed
//! the change.
//!
//! The old and the new list have at least one shard of each id in common, which sees the puts and
//! deletes of all stores during the change. Like a restarted shard, a shard that joins holds
//! deletes of unknown ids, and declares nothing lost, until the stores have published their copies.

use super::list_steps::{KnownShards, ListState, ListStep, PROPOSAL_TTL, Proposal};
use super::nodes::NodeIndex;
use super::{Effect, Shard, Turn};
use crate::error::{Error, Result};
use crate::placement::ShardList;
use crate::time::Time;
use crate::version::Version;
use crate::vocabulary::directory::{NodeInfo, ToStore};

impl Shard {
    /// Performs a step of changing the list of shards, and appends the effects.
    ///
    /// # Errors
    /// [`Error::ShardListMismatch`] if the shard's list is newer, or is a different list of the
    /// same version. [`Error::InvalidRequest`] if another proposal is under way, or the list
    /// differs by more than one shard. [`Error::VersionMismatch`] if a connected store is too old
    /// to change its list.
    pub fn change_list(
        &mut self,
        now: Time,
        step: ListStep,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        self.turn(now, effects, |shard, turn| match step {
            ListStep::Propose(proposal) => shard.propose(turn.now, proposal),
            ListStep::Commit(proposal) => shard.commit(turn, proposal),
            ListStep::Withdraw(proposal) => {
                shard.list.proposal.take_if(|(pending, _)| *pending == proposal);
                Ok(())
            }
        })
    }

    /// Returns the shard's knowledge of the list.
    pub fn known_shards(&self, now: Time) -> KnownShards {
        let list = self.shard_list().cloned().unwrap_or_default();
        let connected = || self.nodes.iter().filter(|record| record.is_connected());
        let outdated = connected().filter(|record| record.info.shards.version() < list.version());
        KnownShards {
            stores: connected().count(),
            outdated: outdated.count(),
            is_filling: now < self.deletes_from,
            has_served: !self.nodes.is_unused(),
            list,
        }
    }

    /// List in use, if a store is connected or the list was changed.
    pub fn shard_list(&self) -> Option<&ShardList> {
        if self.list.list.version() > 0 {
            return Some(&self.list.list);
        }
        self.nodes.iter().find(|record| record.is_connected()).map(|record| &record.info.shards)
    }

    fn propose(&mut self, now: Time, proposal: Proposal) -> Result<()> {
        self.check_next(&proposal.list)?;
        if let Some((pending, until)) = &self.list.proposal
            && *pending != proposal
            && now < *until
        {
            let reason = format!(
                "another change of the directory's shards is under way, to {}",
                pending.list
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        self.list.proposal = Some((proposal, now + PROPOSAL_TTL));
        Ok(())
    }

    fn commit(&mut self, turn: &mut Turn<'_>, proposal: Proposal) -> Result<()> {
        if self.list.list == proposal.list {
            return Ok(());
        }
        self.propose(turn.now, proposal.clone())?;
        self.begin_to_fill(turn.now, &proposal.list);
        self.adopt_list(turn, proposal.list);
        Ok(())
    }

    fn check_next(&self, next: &ShardList) -> Result<()> {
        let Some(list) = self.shard_list() else { return Ok(()) };
        if next.version() <= list.version() {
            return Err(mismatch(next, list));
        }
        let connected = || self.nodes.iter().filter(|record| record.is_connected());
        let mut lists =
            connected().map(|record| &record.info.shards).filter(|_| list.version() == 0);
        if !next.is_one_change_from(list) || !lists.all(|list| next.is_one_change_from(list)) {
            return Err(Error::invalid_request(
                "a new list differs by one shard from the list of each store, in the same spelling",
            ));
        }
        connected().try_for_each(|record| record.info.version.require(Version::WITH_SHARD_CHANGES))
    }

    /// Returns the reason to refuse a store's list. Until operators first change the list, all
    /// connected stores need the same list. Afterwards, the shard sends a store with an older list
    /// the newer one, unless its protocol version is too old.
    pub(super) fn list_mismatch(&self, info: &NodeInfo) -> Option<Error> {
        let (known, theirs) = (&self.list.list, &info.shards);
        if theirs.version() < known.version() {
            return info.version.require(Version::WITH_SHARD_CHANGES).err();
        }
        if theirs.version() > known.version() {
            return None;
        }
        let in_use = if known.version() > 0 {
            known
        } else {
            let mut connected = self.nodes.iter().filter(|record| record.is_connected());
            &connected.find(|record| record.info.node != info.node)?.info.shards
        };
        (!in_use.agrees_with(theirs)).then(|| mismatch(theirs, in_use))
    }

    pub(super) fn list_learnt(&mut self, turn: &mut Turn<'_>, index: NodeIndex, list: ShardList) {
        if list.version() == self.list.list.version() && list != self.list.list {
            return;
        }
        if let Some(record) = self.nodes.get_mut(index) {
            record.info.shards = list.clone();
        }
        self.adopt_list(turn, list);
        self.tell_list(turn, index);
    }

    fn adopt_list(&mut self, turn: &mut Turn<'_>, list: ShardList) {
        if list.version() <= self.list.list.version() {
            return;
        }
        self.list = ListState { list, proposal: None };
        let nodes: Vec<NodeIndex> = self.nodes.indices().collect();
        for index in nodes {
            self.tell_list(turn, index);
        }
    }

    /// Begins the warm-up if no store has connected before and operators have changed the list,
    /// because the shard then joins a directory with objects.
    pub(super) fn begin_to_fill(&mut self, now: Time, list: &ShardList) {
        if list.version() > 0 && self.nodes.is_unused() {
            (self.warm_until, self.deletes_from) = self.config.warm_up_from(now);
        }
    }

    fn tell_list(&self, turn: &mut Turn<'_>, index: NodeIndex) {
        let list = &self.list.list;
        let is_outdated = |info: &NodeInfo| {
            info.shards.version() < list.version()
                && info.version.at_least(Version::WITH_SHARD_CHANGES)
        };
        if self.nodes.get(index).is_some_and(|record| is_outdated(&record.info)) {
            self.send(turn, index, ToStore::Shards(list.clone()));
        }
    }
}

fn mismatch(refused: &ShardList, in_use: &ShardList) -> Error {
    Error::ShardListMismatch { refused: refused.to_string(), in_use: in_use.to_string() }
}
