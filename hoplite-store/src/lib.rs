//! The node daemon: shares memory with the workers of its node, and moves objects between nodes.
//!
//! `hoplite_core::node` decides; `engine` performs the decisions. [`run()`] starts all parts. Bytes
//! come through `local`, the Unix socket of workers, and `data`, the TCP connections between
//! stores, into the memory in `copies`; `spill` moves cold copies to files. `session` exchanges
//! messages with the shards of the directory, through `outbox`; `embedded` runs a shard in the same
//! process.
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
mod shards;
mod spill;
mod traces;

pub use config::{ClientRules, Directory, LinkSettings, Prefault, SpillSettings, StoreConfig};
pub use error::StoreError;
pub use local::SocketError;
pub use run::{Addresses, Milestone, run};
pub use spill::SpillDirError;
