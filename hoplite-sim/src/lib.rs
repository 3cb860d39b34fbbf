//! Simulates clusters: real stores and shards over a model of the network.
//!
//! * [`campaign`]: thousands of runs of a few nodes with random failures, which check invariants.
//! * [`scale`]: collectives of thousands of nodes, and their times.
#![forbid(unsafe_code)]

pub mod campaign;
mod clock;
mod cluster;
mod random;
pub mod scale;
mod trace;

pub use cluster::{Counts, ShardLoad};
pub use trace::Trace;
