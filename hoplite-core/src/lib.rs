//! The decisions of Hoplite, without any I/O.
//!
//! Everything here is a pure state machine or a value type: events and the current [`Time`] go in, effects come out.
//! There are no sockets, clocks, tasks, locks, log lines or random numbers in this crate, so the same code runs in the
//! daemons, under property tests and in the deterministic simulation.
//!
//! * [`shard`]: one shard of the directory, which knows where the copies of objects are and who may pull from whom.
//! * [`node`]: one store's object table: copies, references, eviction, pulls, publications.
//! * [`plan`]: the orderings that both consult, such as sender selection.
//! * [`collective`]: collectives that several stores perform together.
//! * [`reduce`]: the operations of a reduce and their kernels.
//! * [`topology`]: what links cost, and which order of ranks makes collectives cheap on them.
//! * [`stall`]: when a transfer has stalled.
//! * [`placement`]: which shards are responsible for an id.
//! * [`session`]: how a store keeps its sessions with the shards.
//! * [`batch`]: which messages of a session share a frame.
//! * [`load`]: what a store tells those who watch the cluster.
//! * [`fault`]: failures that repeat: which are news for the log, and which are shown.
//! * [`peer`]: how long one store waits for another.
//! * [`missing`]: the thing that a call waited for when its time ran out.
//! * [`text`]: what of a text disturbs a terminal.
//! * [`trace`]: to which trace a call belongs.
#![forbid(unsafe_code)]

pub mod block;
pub mod checksum;
pub mod error;
pub mod extent;
pub mod id;
pub mod limits;
pub mod metadata;
pub mod missing;
pub mod reduce;
pub mod text;
pub mod time;
pub mod trace;

pub mod placement;
pub mod plan;
pub mod topology;

pub mod batch;
pub mod collective;
pub mod fault;
pub mod load;
pub mod node;
pub mod peer;
pub mod session;
pub mod shard;
pub mod stall;

pub use error::{Error, ErrorCode, Operation, Result};
pub use id::{ClusterId, NodeId, ObjectId, PutId};
pub use limits::Limits;
pub use metadata::{Dtype, Metadata};
pub use time::Time;
pub use trace::TraceContext;
