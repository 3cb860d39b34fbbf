//! The work of the fuzz targets in `targets/` on bytes from libFuzzer.
//!
//! * [`local`] and [`session`]: the decoders of the local and the control plane. No input may cause
//!   a panic, and accepted values must survive a round trip.
//! * [`data`]: the same for the frames of the data plane.
//! * [`dashboard`]: requests to the dashboard. No input may cause a panic, and parsed values must
//!   be bounded.
//! * [`shard`] and [`node`]: the state machines, with any sequence of events that their shells
//!   permit.
//! * [`collective`]: a collective attempt: the machines of its coordinator and members, with any
//!   order of messages and failures.
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
