//! What the fuzz targets in `targets/` do with the bytes that libFuzzer thinks up.
//!
//! * [`local`] and [`session`]: the decoders of the local and the control plane. No input makes them panic, and what
//!   they accept is encoded to something that they decode to the same value.
//! * [`data`]: the same for the frames of the data plane.
//! * [`dashboard`]: what the dashboard may be asked. No input makes it panic, and what it understands is bounded.
//! * [`shard`] and [`node`]: the state machines, which are given any sequence of events that their shells may give them.
//! * [`collective`]: a session of a collective, its coordinator's machine and its members', with any order of messages and failures.
//! * [`samples`]: valid messages to start from.
//!
//! `run.sh` builds and runs the targets.
#![forbid(unsafe_code)]

pub mod dashboard;
pub mod data;
pub mod local;
pub mod session;

pub mod collective;
pub mod node;
pub mod shard;

pub mod samples;

#[expect(dead_code, reason = "the tests of hoplite-core use the rest")]
#[path = "../../../hoplite-core/tests/node/checker.rs"]
mod checker;
