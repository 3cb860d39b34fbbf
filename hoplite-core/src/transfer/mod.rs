//! The rules of connections between daemons.
//!
//! * [`stall`] finds transfers that have stalled.
//! * [`batch`] chooses the messages that share a frame.
//! * [`peer`] and [`session`] have the time limits, and the retries of sessions.
//! * [`forwardable`] computes how much of an unfinished copy a node forwards.
//! * [`merge`] orders the frames of a stream that arrive over several connections.

pub mod batch;
pub mod forwardable;
pub mod merge;
pub mod peer;
pub mod session;
pub mod stall;
