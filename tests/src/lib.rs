//! What the tests that span crates share: real daemons as child processes, and the deterministic simulation.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod contents;
pub mod raw;
pub mod simulation;
