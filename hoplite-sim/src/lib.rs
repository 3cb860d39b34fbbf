//! Simulates clusters: the state machines of real stores and shards, over a model of the network.
//!
//! * [`campaign`]: a few nodes on which everything fails, thousands of times, and what must hold nevertheless.
//! * [`scale`]: collectives of thousands of nodes, and how long they take.
#![forbid(unsafe_code)]

pub mod campaign;
pub mod scale;
