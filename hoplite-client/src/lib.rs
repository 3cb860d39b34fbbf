//! The client of a Hoplite store: puts, gets and deletes immutable objects in the memory that the node's workers share.
//!
//! Bytes never cross the socket. A put copies once, into the store's memory; a get returns a view of it.
//!
//! ```no_run
//! # async fn example() -> hoplite_client::Result<()> {
//! use std::time::Duration;
//!
//! use hoplite_client::{Client, default_socket_path};
//!
//! let client = Client::connect(default_socket_path()).await?;
//! client.put("greeting", b"hello").await?;
//! let view = client.get("greeting", Duration::from_secs(5)).await?;
//! assert_eq!(&view[..], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! * [`Client`] is asynchronous (tokio); [`blocking::Client`] is the same for threads.
//! * [`ObjectView`] reads in place, [`ObjectWriter`] and [`ObjectReader`] stream, [`LocationWatch`] follows locations.
//! * [`Client::reduce`], [`gather`](Client::gather), [`allgather`](Client::allgather),
//!   [`allreduce`](Client::allreduce), [`all_to_all`](Client::all_to_all) and [`barrier`](Client::barrier) are collectives.
//! * [`enter_trace`] and [`traced`] make calls in a trace of OpenTelemetry.
//! * [`Error`] says what went wrong; all errors have a stable [`ErrorCode`].
//!
//! # Collectives
//! There is no group to form, and no rendezvous: who takes part is known from the calls as they come.
//!
//! | collective | what every participant does |
//! | --- | --- |
//! | broadcast | one puts, all the others [get](Client::get): receivers that came earlier serve those that come later |
//! | reduce | each puts its own; one calls [`Client::reduce`] over all of them, or over the first so many |
//! | gather | each puts its own; one calls [`Client::gather`] |
//! | allgather | each puts its own and gathers all: [`Client::allgather`] |
//! | allreduce | each puts its own and calls [`Client::allreduce`] |
//! | all_to_all | each calls [`Client::all_to_all`] with a part for every one |
//! | barrier | each calls [`Client::barrier`] |
//!
//! All of them stream: a get of the target of a reduce, or another reduce over it, starts before the reduce is done.
//!
//! # Timeouts
//! A call whose caller names no timeout has [`default_timeout`]: 5 minutes, or what `HOPLITE_TIMEOUT` says. [`FOREVER`] waits for
//! ever. A call that has waited for 10 s sends one [`Notice`] to the listener of the [`ConnectOptions`], which says what is missing.
//!
//! # When a store is started anew
//! The next call of a [`Client`] connects again, and checks all that connecting checks. It waits for a store to come back for as
//! long as connecting may take (5 s); if none has, that call fails with [`Error::Connect`], and later calls try once each.
//! No call is performed twice: a call in flight fails with [`Error::ConnectionLost`], whose
//! [`is_retryable`](Error::is_retryable) says if the caller may make it again.
//!
//! | in use when the connection breaks | afterwards |
//! | --- | --- |
//! | get, wait, locate, list, gather, put, allgather | fails, retryable: to repeat it changes nothing more |
//! | delete, reduce, allreduce, reduce_scatter, all_to_all, barrier | fails, not retryable: the store may have performed it |
//! | [`ObjectView`] | stays readable; the object itself is gone if only this store had it |
//! | [`ObjectWriter`] | its next call fails; the object is aborted: create it again, and write all of it |
//! | [`ObjectReader`], [`LocationWatch`] | the next call fails, then the watch has ended: open another one |
//! | a collective of several participants | the others wait for this one until their timeout: begin a new round, of another name |
//!
//! Objects that only the store had are lost: where the directory lives on, a get says `ObjectLost`.
//!
//! # Processes
//! A connection belongs to the process that made it. After a `fork`, calls in the child fail with
//! [`Error::ForkedChild`], and what is dropped there changes nothing for the parent. While the child lives, it keeps the
//! socket open, so the store does not notice that the parent has ended: programs that fork should connect afterwards.
#![forbid(unsafe_code)]

mod client;
mod notice;
mod options;
mod timeout;

mod reader;
mod view;
mod writer;

mod collective;
mod location_watch;
mod many;
mod report;

mod arena;
mod begun;
mod connection;
mod deadline;
mod link;
mod progress;
mod reference;
mod trace;

mod error;

pub mod blocking;

#[cfg(test)]
mod tests;

pub use client::{Client, Page};
pub use error::{ConnectFailure, Error, ErrorCode, Loss, LostCall, Result};
pub use hoplite_core::error::Missing;
pub use hoplite_core::node::{ByteRange, LongWait as WaitingCall, ReduceOrder};
pub use hoplite_core::reduce::ReduceOp;
pub use hoplite_core::shard::{Location, LocationState, Locations, ObjectSummary, Retention};
pub use hoplite_core::trace::NotATraceparent;
pub use hoplite_core::{ClusterId, Dtype, Metadata, NodeId, ObjectId, PutId, TraceContext};
pub use hoplite_proto::socket_path::default_socket_path;
pub use hoplite_proto::socket_place::Distrust;
pub use location_watch::LocationWatch;
pub use notice::{LONG_WAIT, Listener, LongWait, Notice, StoreAfterLoss, log_notice};
pub use options::{
    AfterLoss, AllreduceOptions, Confirmation, ConnectOptions, DEFAULT_CONNECT_TIMEOUT, PutOptions,
    ReduceOptions,
};
pub use progress::{Progress, tracked};
pub use reader::ObjectReader;
pub use report::{
    AppliedPlaces, Description, Grant, MemberPosition, NodeStatus, PeerFault, PeerLink, PlaceKeys,
    ProbeReport, ReduceRecord, ShardStatus, Troubles,
};
pub use timeout::{
    DEFAULT_TIMEOUT, DEFAULT_TIMEOUT_TEXT, FOREVER, NotATimeout, TIMEOUT_VARIABLE, default_timeout,
    parse_timeout,
};
pub use trace::{EnteredTrace, enter_trace, traced};
pub use view::ObjectView;
pub use writer::ObjectWriter;
