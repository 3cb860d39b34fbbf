//! The data plane: moves the bytes of objects between stores over TCP, from shared memory to shared
//! memory.
//!
//! A receiver connects to a sender, or takes an idle connection, and sends `Pull`. The sender
//! answers with blocks as they become valid, then `End`. The data plane makes no decisions: the
//! sender queries a [`ServeSource`].
//!
//! A hop (the combination that one node, its host, computes for a reduce) has a separate
//! connection. The coordinator sends `Combine` and later `Release`, and the host reports.

mod pull;
mod puller;
mod server;
mod stream;

mod lanes;

mod collective;

mod probe;

mod config;
mod metrics;
mod serving;
mod spilled;

mod combine;
mod direct;
mod host;
mod input;

mod call;
mod digest;
mod drain;
mod keepalive;

mod connection;
mod cut;
mod faults;
mod handshake;
mod pool;
mod rails;
mod route;

#[cfg(test)]
mod tests;

pub(crate) use config::{DataConfig, SMALL_BYTES};
pub(crate) use metrics::DataMetrics;
pub(crate) use serving::{Found, HopHost, HopRequest, Hosted, ServeRequest, ServeSource, Served};

pub(crate) use collective::{Decisions, Enlisted, Exchange, MemberHost};
pub(crate) use combine::{CombineRequest, CombineSource};
pub(crate) use pool::Peer;
pub(crate) use probe::{SurveyTally, Surveyor};
pub(crate) use pull::{CompareRequest, PullRequest};
pub(crate) use puller::Puller;
pub(crate) use rails::{RailReport, RailTable};
pub(crate) use server::run;
