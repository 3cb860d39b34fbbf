//! Steps of changing the list of the directory's shards. `shards.rs` performs them.

use std::time::Duration;

use crate::placement::ShardList;
use crate::time::Time;

/// Time for which a shard keeps a proposed list, unless it is committed or withdrawn.
pub const PROPOSAL_TTL: Duration = Duration::from_secs(30);
/// Time in which a coordinator (the store that changes the list) may commit, from its first
/// proposal on: shorter than [`PROPOSAL_TTL`], so that no shard has accepted another proposal by
/// then.
pub const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// A step of changing the list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListStep {
    /// The shard accepts the list, and refuses others until this one is committed or withdrawn, or
    /// [`PROPOSAL_TTL`] is over.
    Propose(Proposal),
    /// The shard now uses the list.
    Commit(Proposal),
    /// The shard forgets the proposal.
    Withdraw(Proposal),
}

/// A list of shards, proposed by a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Proposal {
    pub list: ShardList,
    /// A random number that names the coordinator's attempt.
    pub proposer: u64,
}

/// Returns `true` if a coordinator may commit, `elapsed` after its first proposal: a majority of
/// `all` shards has accepted the proposal, or with `force`, one shard.
pub fn may_commit(accepted: usize, all: usize, force: bool, elapsed: Duration) -> bool {
    let needed = if force { 1 } else { all / 2 + 1 };
    accepted >= needed && elapsed < COMMIT_LIMIT
}

/// A shard's knowledge of the list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct KnownShards {
    /// List in use; empty if it was never changed and no store is connected.
    pub list: ShardList,
    pub stores: usize,
    /// Number of connected stores with an older list.
    pub outdated: usize,
    /// `true` after the shard's start, while stores may still publish their copies.
    pub is_filling: bool,
    /// `true` if a store has ever been connected, so the shard may know objects.
    pub has_served: bool,
}

#[derive(Debug, Default)]
pub(super) struct ListState {
    /// Committed list. Until the first change it is empty with version 0, and the shard uses
    /// the list of a connected store.
    pub(super) list: ShardList,
    /// Accepted proposal, and the time at which the shard forgets it.
    pub(super) proposal: Option<(Proposal, Time)>,
}
