//! What the tests that span crates share: real daemons as child processes, and the contents of what they move.
#![forbid(unsafe_code)]

use std::time::Duration;

pub mod cluster;
pub mod contents;
pub mod http;
pub mod links;
pub mod raw;

/// The time that the suite gives to anything that a test waits for.
///
/// It ends a test that would otherwise hang, and is far beyond what a busy machine needs. A test that measures time has a
/// limit of its own.
pub const PATIENCE: Duration = Duration::from_secs(300);
