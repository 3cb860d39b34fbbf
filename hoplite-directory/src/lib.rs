//! A shard of the directory as a gRPC server, stand-alone or embedded in a store.
//!
//! [`hoplite_core::shard::Shard`] makes all decisions; this crate carries its messages.
//!
//! * `server`: starts and stops everything; start reading here.
//! * `connection`: below gRPC: admits and ends connections; `guard`: refuses the calls of visitors.
//! * `service`: the calls.
//! * `session`: one session with a store: hello, then incoming messages; `direct`: the same over a
//!   direct connection.
//! * `owner`: the task that owns the shard.
//! * `send_queue`: outgoing messages.
//! * `batch`: the messages in one frame; `refusals`: counts the refused peers.
//! * `metrics` and `levels`: for Prometheus; `dashboard`: for people; `events`: recent events;
//!   `watch`: the load reports of stores; `history`: the last hour; `problems`: their causes and
//!   cures.
//! * `inspections`: answers for tools.
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
mod problems;
mod refusals;
mod send_queue;
mod traces;

mod inspections;

pub use connection::Listener;
pub use server::{DEFAULT_CLUSTER, DirectoryConfig, DirectoryError, Listeners, run};
