//! Simulates clusters: real stores and shards over a model of the network.
//!
//! * [`campaign`]: a few nodes with random failures, thousands of times, and invariants.
//! * [`scale`]: collectives of thousands of nodes, and their times.
//!
//! Both run on one `cluster`, which has one `clock`.
#![forbid(unsafe_code)]

pub mod campaign;
mod clock;
mod cluster;
mod random;
pub mod scale;
mod trace;

pub use cluster::{Counts, ShardLoad};
pub use trace::Trace;
