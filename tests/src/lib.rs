//! What the tests that span crates share: real daemons as child processes, the deterministic simulation of failures, and
//! that of thousands of nodes.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod contents;
pub mod raw;
pub mod scale;
pub mod simulation;
