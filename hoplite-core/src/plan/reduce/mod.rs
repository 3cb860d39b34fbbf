//! The shape of a reduce: the inputs of each node, and the order in which partial results reach the
//! receiver.
//!
//! Sources become ready in any order, and the plan grows with them. Each new [`Vertex`] takes in
//! some of the loose streams, which no vertex takes in yet. Its own stream is then loose. A
//! [`ReduceSchedule`] decides only the number of streams that a vertex takes in. Once enough
//! sources have joined, the receiver takes in all loose streams. It adds its own sources last,
//! because moving them would be a wasted transfer.
//!
//! If nodes are in groups such as racks, each group makes its own stream. Once all sources are
//! there, each group takes in the stream of the group before it. The links between groups carry one
//! object for each group except the receiver's.
//!
//! If stores report slow links, vertices exchange places within their group, so that fewer streams
//! use such links.
//!
//! Source: Hoplite, section 4.3 and appendix A.

mod cost;
mod rerouting;
mod schedule;
mod tree;

pub use cost::{choose, choose_for_groups, estimate};
pub use schedule::{Entry, ReduceSchedule};
pub use tree::{Tree, Vertex, VertexId};
