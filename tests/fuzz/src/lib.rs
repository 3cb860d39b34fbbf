//! The work of the fuzz targets in `targets/`, which `run.sh` builds and runs.
//!
//! Decoders ([`local`], [`session`], [`data`], [`dashboard`]) must not panic, and accepted values
//! must be bounded and survive a round trip. State machines ([`shard`], [`node`], [`collective`],
//! [`lanes`]) get any events that their shells permit.
#![forbid(unsafe_code)]

pub mod dashboard;
pub mod data;
pub mod local;
pub mod session;

pub mod collective;
pub mod lanes;
pub mod node;
pub mod shard;

pub mod samples;

#[expect(dead_code, reason = "the tests of hoplite-core use the rest")]
#[path = "../../../hoplite-core/tests/node/checker.rs"]
mod checker;
