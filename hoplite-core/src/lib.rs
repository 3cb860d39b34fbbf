//! The decisions of Hoplite, without any I/O.
//!
//! Everything here is a pure state machine or a value type: events and the current [`Time`] go in,
//! effects come out. There are no sockets, clocks, tasks, locks, log lines or random numbers, so
//! the same code runs in the daemons, under property tests and in the simulation.
//!
//! Modules import modules of lower levels only. From the lowest to the highest:
//!
//! 1. [`vocabulary`]: names, errors, limits, places, links, messages of stores and shards.
//! 2. [`extent`]: the arena's allocator. [`reduce`]: kernels. [`topology`]: the cost of links,
//!    groups of close nodes. [`transfer`]: the rules of connections.
//! 3. [`plan`]: the choice of senders, chains, schedules, block sizes and lanes.
//! 4. [`shard`]: a directory shard, which knows copies and chooses senders.
//! 5. [`collective`]: collectives that several stores perform together.
//! 6. `message`: the events and effects of a store, and the requests of its clients.
//! 7. `objects`: a store's copies, references, eviction, transfers and publications.
//! 8. `reduction`: reduces that a store coordinates, and hops that it performs.
//! 9. [`node`]: the state machine of a store.
#![forbid(unsafe_code)]

pub mod vocabulary;

pub mod extent;
pub mod reduce;
pub mod topology;
pub mod transfer;

pub mod plan;

pub mod shard;

pub mod collective;

mod message;

mod objects;

mod reduction;

pub mod node;

pub use transfer::{batch, merge, peer, session, stall};
pub use vocabulary::{
    block, checksum, dtype, error, fault, id, lifetime, limits, link, load, metadata, missing,
    placement, problem, quota, tally, text, time, trace, version,
};

pub use error::{Error, ErrorCode, Operation, Result};
pub use id::{ClusterId, NodeId, ObjectId, PutId};
pub use limits::Limits;
pub use metadata::Metadata;
pub use time::Time;
pub use trace::TraceContext;
pub use version::Version;
pub use vocabulary::dtype::Dtype;
