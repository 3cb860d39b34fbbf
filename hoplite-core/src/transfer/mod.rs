//! The rules of connections between daemons.

pub mod batch;
pub mod forwardable;
pub mod merge;
pub mod peer;
pub mod session;
pub mod stall;
