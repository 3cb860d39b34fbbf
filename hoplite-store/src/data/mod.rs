//! The data plane: moves the bytes of objects between stores over TCP, from arena to socket to arena.
//!
//! A receiver connects to a sender, or takes an idle connection from its pool, and sends `Pull`. The sender answers with
//! blocks of whatever is valid, as it becomes valid, then `End`; the connection can then be used again. Which copy goes
//! where is decided elsewhere: the sender asks a [`ServeSource`], the receiver is told a [`PullRequest`].
//!
//! A hop of a reduce is a connection of its own, on which the coordinator says `Combine` and later `Release`, and the
//! host how far it is; the host asks a [`HopHost`]. Whoever combines is the receiver of pulls that go into a computation
//! instead of a copy: a [`CombineRequest`] says which.
//!
//! A [`Surveyor`] has the stores measure the links between them.

mod pull;
mod server;
mod stream;

mod collective;

mod probe;

mod config;
mod metrics;
mod serving;

mod combine;
mod direct;
mod host;
mod input;

mod call;
mod digest;
mod keepalive;

mod connection;
mod faults;
mod handshake;
mod plain;
mod pool;
mod tls;
mod transport;

#[cfg(test)]
mod tests;

pub(crate) use self::transport::TransportKind;
pub(crate) use config::{DataConfig, SMALL_BYTES};
pub(crate) use metrics::DataMetrics;
pub(crate) use serving::{HopHost, HopRequest, Hosted, ServeRequest, ServeSource, Served};

pub(crate) use collective::{Decisions, Enlisted, Exchange, MemberHost};
pub(crate) use combine::{CombineRequest, CombineSource};
pub(crate) use pool::Peer;
pub(crate) use probe::{SurveyTally, Surveyor};
pub(crate) use pull::{CompareRequest, PullRequest, Puller};
pub(crate) use server::run;
