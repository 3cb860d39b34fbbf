//! Shared parts of the tests across crates. Functions panic if anything fails or takes too long.
#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "most names of helpers say it")]

use std::time::Duration;

pub mod cluster;
pub mod contents;
pub mod http;
pub mod links;
pub mod raw;
pub mod split;

/// Limits every wait, so that a hanging test ends.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);
