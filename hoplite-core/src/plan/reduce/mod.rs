//! The shape of a reduce: which node combines what, and in which order partial results travel to the receiver.
//!
//! Sources become ready in any order, and the plan grows with them: each new [`Vertex`] takes in some of the streams
//! that nothing takes in yet, and is such a stream itself from then on. How many it takes in is all that a
//! [`Schedule`] decides. Once enough sources have joined, the receiver takes in what is left, and its own sources last,
//! since to move them would be a wasted transfer.
//!
//! Source: Hoplite, section 4.3 and appendix A.

mod cost;
mod schedule;
mod tree;

pub use cost::{choose, estimate};
pub use schedule::Schedule;
pub use tree::{Tree, Vertex, VertexId};
