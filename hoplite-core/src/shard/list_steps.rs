//! The steps of a change of the list of shards. `shards.rs` performs them.

use std::time::Duration;

use crate::placement::ShardList;
use crate::time::Time;

/// The time for which a shard keeps a proposal, unless it is committed or withdrawn.
pub const PROPOSAL_TTL: Duration = Duration::from_secs(30);
/// The time after its first proposal in which a coordinator may commit a list. Shorter than
/// [`PROPOSAL_TTL`], so that no shard has accepted another proposal when the commit arrives.
pub const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// A step of a change of the list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListStep {
    /// Accepts the list, until its commit, its withdrawal or [`PROPOSAL_TTL`].
    Propose(Proposal),
    /// Uses the list from now on.
    Commit(Proposal),
    /// Ends the proposal.
    Withdraw(Proposal),
}

/// The next list of shards, proposed by one coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The new list.
    pub list: ShardList,
    /// A random number, which names the coordinator's attempt.
    pub proposer: u64,
}

/// Decides if a coordinator commits its proposal, `elapsed` after the start: if a majority of `all`
/// shards has accepted it, or one of them with `force`.
pub fn may_commit(accepted: usize, all: usize, force: bool, elapsed: Duration) -> bool {
    let needed = if force { 1 } else { all / 2 + 1 };
    accepted >= needed && elapsed < COMMIT_LIMIT
}

/// A shard's knowledge of the list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownShards {
    /// The list in use; empty if it was never changed and no store is connected.
    pub list: ShardList,
    /// The number of connected stores.
    pub stores: usize,
    /// The number of connected stores that use an older list.
    pub outdated: usize,
    /// `true` until the stores should have published their copies at this shard.
    pub is_filling: bool,
    /// `true` if a store has been connected: the shard may remember old objects.
    pub has_served: bool,
}

#[derive(Debug, Default)]
pub(super) struct ListState {
    /// Version 0 and empty until the first change: then the lists of connected stores count.
    pub(super) list: ShardList,
    /// The proposal that the shard has accepted, and the time when it ends.
    pub(super) proposal: Option<(Proposal, Time)>,
}
