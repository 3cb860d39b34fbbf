//! The node daemon: shares memory with the workers of its node, and moves objects between nodes.
//!
//! [`run()`] is the table of contents. `hoplite_core::node` decides; this crate performs the
//! decisions:
//!
//! * `engine`: performs the decisions.
//! * `local`: the Unix socket on which workers reach the store.
//! * `data`: the TCP connections over which stores exchange bytes.
//! * `embedded`: a shard of the directory in the same process.
//! * `advertised`: where other stores reach this one.
//! * `session`: the sessions with the shards of the directory; `outbox`: their queues; `report`: load reports for
//!   tools that watch the cluster.
//! * `metrics`: the metrics for Prometheus.
//! * `spill`: the files to which cold objects move when the arena is full.
//! * `copies`: the memory of the copies, and the tasks that wait for their bytes.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    expect(clippy::duplicate_mod, reason = "the tests of the data plane run over each transport")
)]

mod advertised;
mod config;
mod copies;
mod data;
mod embedded;
mod engine;
mod error;
mod local;
mod metrics;
mod outbox;
mod prefault;
mod report;
mod run;
mod session;
mod shard_link;
mod spill;
mod traces;

pub use config::{ClientRules, Directory, LinkSettings, Prefault, SpillSettings, StoreConfig};
pub use error::StoreError;
pub use local::SocketError;
pub use run::{Addresses, Milestone, run};
pub use spill::SpillDirError;
