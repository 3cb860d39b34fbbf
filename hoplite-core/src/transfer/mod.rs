//! The rules of connections between daemons: when a transfer has stalled, which messages share a frame, how long one side
//! waits for the other, and when a session is tried again: [`stall`], [`batch`], [`peer`] and [`session`]. [`forwardable`] computes how much
//! of an unfinished copy a node forwards.

pub mod batch;
pub mod forwardable;
pub mod peer;
pub mod session;
pub mod stall;
