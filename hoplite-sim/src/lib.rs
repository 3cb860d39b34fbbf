//! Simulates clusters: the state machines of real stores and shards, over a model of the network.
//!
//! * [`campaign`]: a few nodes on which everything fails, thousands of times, and what must hold nevertheless.
//! * [`scale`]: collectives of thousands of nodes, and how long they take.
//!
//! Both are an application and a network for one `cluster`, which has one `clock`.
#![forbid(unsafe_code)]

pub mod campaign;
mod clock;
mod cluster;
mod random;
pub mod scale;
mod trace;

pub use cluster::{Counts, ShardLoad};
pub use trace::Trace;
