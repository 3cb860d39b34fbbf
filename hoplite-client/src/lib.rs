//! Client of a Hoplite store, whose workers share immutable objects in memory.
//!
//! The bytes of large objects never cross the socket. A put copies them once, into the store's
//! memory; a get returns a view of them.
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
//! * [`Client`] is asynchronous (tokio); [`blocking::Client`] has the same calls for threads.
//! * [`ObjectView`] reads in place, [`ObjectWriter`] and [`ObjectReader`] stream, [`LocationWatch`]
//!   follows locations.
//! * [`Client::reduce`], [`gather`](Client::gather), [`allgather`](Client::allgather),
//!   [`allreduce`](Client::allreduce), [`all_to_all`](Client::all_to_all) and
//!   [`barrier`](Client::barrier) are collectives.
//! * [`enter_trace`] and [`traced`] make calls in a trace of OpenTelemetry.
//! * [`Error`] describes a failure; all errors have a stable [`ErrorCode`].
//!
//! # Collectives
//! The calls name the participants: no group is formed.
//!
//! | collective | what every participant does |
//! | --- | --- |
//! | broadcast | one puts, all others [get](Client::get): early receivers send to later ones |
//! | reduce | each puts its own object; one calls [`Client::reduce`] over all of them, or over the first N |
//! | gather | each puts its own object; one calls [`Client::gather`] |
//! | allgather | each puts its own object and gathers all: [`Client::allgather`] |
//! | allreduce | each puts its own object and calls [`Client::allreduce`] |
//! | all_to_all | each calls [`Client::all_to_all`] with one part for each participant |
//! | barrier | each calls [`Client::barrier`] |
//!
//! All of them stream: a get of a reduce's target starts before the reduce is done.
//!
//! # Timeouts
//! The default is [`default_timeout`]: 5 minutes, or `HOPLITE_TIMEOUT`. [`FOREVER`] never expires.
//! After 10 s, a call sends one [`Notice`] to the listener of the [`ConnectOptions`].
//!
//! # When a store restarts
//! The next call reconnects, and waits for a store for the timeout of connecting (5 s). If no store
//! comes back, that call fails with [`Error::Connect`], and each later call tries once. A call in
//! flight fails with [`Error::ConnectionLost`]; [`is_retryable`](Error::is_retryable) tells if the
//! caller may repeat it.
//!
//! | in use when the connection breaks | afterwards |
//! | --- | --- |
//! | get, wait, locate, list, gather, put, allgather | fails, retryable: a repetition changes nothing |
//! | delete, reduce, allreduce, reduce_scatter, all_to_all, barrier | fails, not retryable: the store may have performed it |
//! | [`ObjectView`] | stays readable; the object itself is lost if only this store had it |
//! | [`ObjectWriter`] | its next call fails; the object is aborted: create it again, and write all of it |
//! | [`ObjectReader`], [`LocationWatch`] | the next call fails, and the watch ends: open another one |
//! | a collective of several participants | the others wait for this one until their timeout: begin a new round with a new name |
//!
//! Objects that only the store had are lost, and a get returns `ObjectLost`.
//!
//! # Processes
//! A connection belongs to its process: in a forked child, calls fail with [`Error::ForkedChild`].
//! Connect after forking: the child's copy of the socket hides the parent's end from the store.
#![forbid(unsafe_code)]

mod client;
mod lifetime;
mod notice;
mod options;
mod timeout;

mod reader;
mod view;
mod writer;

mod batch;
mod collective;
mod delete;
mod location_watch;
mod many;
mod quota;
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

pub use batch::{NewObject, Results, check_count};
pub use client::{Client, Page};
pub use delete::{DeleteOptions, Deletion};
pub use error::{ConnectFailure, Error, ErrorCode, Loss, LostCall, Result};
pub use hoplite_core::error::Missing;
pub use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
pub use hoplite_core::metadata::Replicas;
pub use hoplite_core::node::{
    ByteRange, DrainReport, DrainState, LifetimeReport, LongWait as WaitingCall, Ownerless, OwnerlessPage,
    ReduceOrder, SpillStatus, Unmoved,
};
pub use hoplite_core::quota::{Quota, QuotaExcess, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse};
pub use hoplite_core::reduce::ReduceOp;
pub use hoplite_core::shard::{
    DeleteWait, Location, LocationState, Locations, ObjectSummary, Origin, Retention,
};
pub use hoplite_core::trace::NotATraceparent;
pub use hoplite_core::{ClusterId, Dtype, Metadata, NodeId, ObjectId, PutId, TraceContext};
pub use hoplite_proto::socket_path::default_socket_path;
pub use hoplite_proto::socket_place::Distrust;
pub use location_watch::LocationWatch;
pub use notice::{LONG_WAIT, Listener, LongWait, Notice, StoreAfterLoss, log_notice};
pub use options::{
    AfterLoss, AllreduceOptions, Confirmation, ConnectOptions, DEFAULT_CONNECT_TIMEOUT, GetOptions,
    PutOptions, ReduceOptions,
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
