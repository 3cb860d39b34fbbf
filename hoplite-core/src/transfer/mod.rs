//! The rules of connections between daemons: stalled transfers, batches, time limits, retries, and
//! the order of frames.

pub mod batch;
pub mod forwardable;
pub mod merge;
pub mod peer;
pub mod session;
pub mod stall;
