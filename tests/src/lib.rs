//! Shared parts of the tests that span crates: real daemons as child processes, and the contents of
//! their objects.
//!
//! Functions panic if a daemon, a client or the operating system does not behave as expected, or
//! takes too long.
#![forbid(unsafe_code)]

use std::time::Duration;

pub mod cluster;
pub mod contents;
pub mod http;
pub mod links;
pub mod raw;

/// The time limit of every wait in the suite.
///
/// It ends a test that hangs, and is far longer than a busy machine needs. A test that measures
/// time has its own limit.
pub const PATIENCE: Duration = Duration::from_secs(300);
