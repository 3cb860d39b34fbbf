//! The shape of a reduce: which node combines what, and in which order partial results travel to the receiver.
//!
//! Sources become ready in any order, and the plan grows with them: each new [`Vertex`] takes in some of the streams
//! that nothing takes in yet, and is such a stream itself from then on. How many it takes in is all that a
//! [`ReduceSchedule`] decides. Once enough sources have joined, the receiver takes in what is left, and its own sources last,
//! since to move them would be a wasted transfer.
//!
//! Where nodes are in groups, such as racks, each group makes a stream of its own, and takes in that of the group before it once
//! all sources are there. The links that groups share are crossed by one object for each group but the receiver's.
//!
//! Where stores say that links are slow, vertices change places within their group, so that fewer streams go over such links.
//!
//! Source: Hoplite, section 4.3 and appendix A.

mod cost;
mod detours;
mod schedule;
mod tree;

pub use cost::{choose, choose_for_groups, estimate};
pub use schedule::{Entry, ReduceSchedule};
pub use tree::{Tree, Vertex, VertexId};
