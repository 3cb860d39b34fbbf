//! What the tests that span crates share: real daemons as child processes, and the contents of what they move.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod contents;
pub mod http;
pub mod links;
pub mod raw;
