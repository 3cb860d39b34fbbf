//! The shape of a reduce.
//!
//! Sources become ready in any order. A stream (partial result) without a consumer is *loose*. Each
//! new [`Vertex`] takes in some loose streams, whose number the [`ReduceSchedule`] decides; its own
//! stream is then loose. Once enough sources have joined, the receiver takes in all loose streams,
//! and its own sources last.
//!
//! Groups such as racks make separate streams, joined in the end, so links between groups carry one
//! object per group.

mod cost;
mod rerouting;
mod schedule;
mod tree;

pub use cost::{choose, choose_for_groups, estimate};
pub use schedule::{Entry, ReduceSchedule};
pub use tree::{Tree, Vertex, VertexId};
