//! A shard of the directory as a gRPC server, stand-alone or embedded in a store.
//!
//! All decisions are those of [`hoplite_core::shard::Shard`]; this crate carries messages to it and from it.
//!
//! * `server`: what runs, and how it stops; start here.
//! * `connection`: below gRPC: lets connections in, and ends them; `guard`: refuses the calls of visitors.
//! * `service`: the calls.
//! * `session`: one session with a store: hello, then messages in; `direct`: the same messages over a direct connection.
//! * `owner`: the task that owns the shard, and the only one that touches it.
//! * `send_queue`: messages out.
//! * `batch`: the messages of a store in one frame; `refusals`: counts the peers that are refused.
//! * `metrics` and `levels`: what Prometheus is told; `dashboard`: what people see; `events`: what has happened lately; `watch`: how the
//!   stores are.
//! * `inspections`: what tools see.
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
mod levels;
mod metrics;
mod refusals;
mod send_queue;
mod traces;

mod inspections;

pub use connection::Listener;
pub use server::{DEFAULT_CLUSTER, DirectoryConfig, DirectoryError, Listeners, run};
