//! Single objects of a store: copies, gets, puts, deletes, publication and memory.
//!
//! [`Objects`] knows nothing of reduces and collectives. It informs their machines through a
//! [`Notice`](notice::Notice), which [`node`](crate::node) delivers.
//!
//! | files | tasks |
//! | --- | --- |
//! | `requests`, `calls`, `missing`, `holders` | begin and end calls, and explain their waits |
//! | `batch`, `batches` | collect the answers of a batch |
//! | `gets`, `fetch` | answer gets, and fetch objects |
//! | `deletes`, `deletion` | delete objects |
//! | `put`, `verdicts`, `conflicts` | puts, and their conflicts |
//! | `copies`, `table` | copies, their memory and their users |
//! | `combine`, `combinations` | combine copies into others |
//! | `publish`, `publication`, `recent_ends` | tell the directory of copies and their ends |
//! | `shard_sessions`, `returning` | decide if a copy may be served, and how it returns to the directory |
//! | `quorum` | puts that both shards of an id must accept |
//! | `endings`, `lifetimes`, `owners` | end objects with their time to live or owner |
//! | `replicas`, `orders` | keep copies for shards, and let puts wait for copies elsewhere |
//! | `quotas`, `charges` | limit the objects of a user or a prefix |
//! | `spill` | move pinned copies to files and back |
//! | `recovery`, `witnesses` | recover objects of killed stores from their files |
//! | `drain`, `draining` | move all pinned copies to other stores |
//! | `directory`, `queries`, `faults` | query the shards, and handle their messages |
//! | `context`, `notice` | time, effects, deadlines and notices |

mod batch;
mod batches;
pub(crate) mod calls;
mod charges;
pub(crate) mod combinations;
mod combine;
mod conflicts;
pub(crate) mod context;
mod copies;
mod deletes;
mod deletion;
mod directory;
mod drain;
mod draining;
mod endings;
mod faults;
pub(crate) mod fetch;
pub(crate) mod gather;
mod gatherings;
mod gets;
mod holders;
pub(crate) mod idle;
mod lifetimes;
mod missing;
pub(crate) mod notice;
mod orders;
mod owners;
mod publication;
mod publish;
mod put;
pub(crate) mod queries;
mod queue;
mod quorum;
pub(crate) mod quotas;
mod recent_ends;
mod recovery;
mod replicas;
mod requests;
pub(crate) mod returning;
mod shard_sessions;
pub(crate) mod spill;
pub(crate) mod table;
mod verdicts;
mod witnesses;

use crate::message::{NodeConfig, NodeStatus};
use calls::Calls;
use combinations::{Combinations, Ended};
use conflicts::Conflicts;
use context::Context;
use draining::Drain;
use faults::Faults;
use fetch::Fetches;
use gatherings::Gatherings;
pub use holders::{ClientUse, Holder, Holders};
use lifetimes::Lifetimes;
use orders::Orders;
use queries::Queries;
use recent_ends::RecentEnds;
use table::Table;
use witnesses::Witnesses;

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) ctx: Context,
    pub(crate) copies: Table,
    pub(crate) calls: Calls,
    pub(crate) fetches: Fetches,
    pub(crate) combinations: Combinations,
    ended_combinations: Ended,
    pub(crate) faults: Faults,
    pub(crate) lifetimes: Lifetimes,
    gatherings: Gatherings,
    queries: Queries,
    recent_ends: RecentEnds,
    witnesses: Witnesses,
    orders: Orders,
    drain: Option<Drain>,
    put_conflicts: u64,
    pub(crate) conflicts: Conflicts,
}

impl Objects {
    pub(crate) fn new(config: NodeConfig) -> Self {
        let mut copies = Table::new(config.capacity_bytes);
        config.spill.clone().into_iter().for_each(|spill| copies.spill_to(spill));
        Self {
            copies,
            ctx: Context::new(config),
            calls: Calls::default(),
            fetches: Fetches::default(),
            combinations: Combinations::default(),
            ended_combinations: Ended::default(),
            faults: Faults::default(),
            lifetimes: Lifetimes::default(),
            gatherings: Gatherings::default(),
            queries: Queries::default(),
            recent_ends: RecentEnds::default(),
            witnesses: Witnesses::default(),
            orders: Orders::default(),
            drain: None,
            put_conflicts: 0,
            conflicts: Conflicts::default(),
        }
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let (expired, abandoned) = self.lifetimes.ended();
        NodeStatus {
            expired,
            abandoned,
            put_conflicts: self.put_conflicts,
            combinations: self.combinations.len(),
            place: self.ctx.place(),
            is_draining: self.ctx.is_draining(),
            over_quota_puts: self.ctx.over_quota_puts(),
            ..self.copies.status()
        }
    }
}
