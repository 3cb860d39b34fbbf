//! A shard of the directory as a gRPC server, stand-alone or embedded in a store.
//!
//! [`hoplite_core::shard::Shard`] decides; this crate carries its messages. Start at `server`.
//! `connection` admits and ends connections; `session` and `direct` read messages, `owner` owns the
//! shard, and `send_queue` has outgoing messages. For people: `dashboard`, load reports in `watch`,
//! the last hour in `history`, and `problems`.
#![forbid(unsafe_code)]

mod server;

mod batch;
mod connection;
mod direct;
mod guard;
mod service;
mod session;
mod watch;

mod owner;

mod dashboard;
mod events;
mod history;
mod levels;
mod metrics;
mod past;
mod pauses;
mod problems;
mod refusals;
mod send_queue;
mod traces;

mod inspections;

pub use connection::Listener;
pub use server::{DEFAULT_CLUSTER, DirectoryConfig, DirectoryError, Listeners, run};
