//! Client of a Hoplite store: a node's daemon that shares immutable objects between processes.
//!
//! The bytes of large objects never cross the socket. A put copies them once, into the store's
//! memory; a get returns a view.
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
//! Each call names its participants; no group is created beforehand. A broadcast is one put and
//! many gets of an object: early receivers send to later ones.
//!
//! All collectives stream: a get of a reduce's target starts before the reduce is done.
//!
//! # Timeouts
//! The default is [`default_timeout`]: 5 minutes, or `HOPLITE_TIMEOUT`. [`FOREVER`] never expires.
//! A call that has waited for 10 s sends one [`Notice`] to the listener of the [`ConnectOptions`].
//!
//! # When a store restarts
//! The next call reconnects, and waits for up to 5 s (the timeout of connecting) for a store. If
//! none comes back, that call fails with [`Error::Connect`], and each later call tries once.
//!
//! A call in flight fails with [`Error::ConnectionLost`]. [`Error::is_retryable`] is `true` if a
//! repetition changes nothing. It is `false` for deletes, reduces, barriers and the collectives
//! that reduce or exchange parts, because the store may have performed them.
//!
//! Views stay readable. Writers, readers and watches end: open new ones. Objects that only this
//! store had are lost: a get returns `ObjectLost`. Other participants of a collective wait until
//! their timeout: begin a new round with a new name.
//!
//! # Processes
//! A connection belongs to its process: in a forked child, calls fail with [`Error::ForkedChild`].
//! Connect after forking: the store cannot see the parent's end while a child has a copy of the
//! socket.
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
mod drain;
mod location_watch;
mod many;
mod quota;
mod report;
mod shards;

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
pub use begun::REPORT_TIMEOUT;
pub use client::{Client, Page};
pub use delete::{DeleteOptions, Deletion};
pub use error::{ConnectFailure, Error, ErrorCode, Loss, LostCall, Result};
pub use hoplite_core::error::Missing;
pub use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
pub use hoplite_core::metadata::Replicas;
pub use hoplite_core::node::{
    ByteRange, DrainReport, DrainState, LifetimeReport, LongWait as WaitingCall, Ownerless,
    OwnerlessPage, ReduceOrder, SpillStatus, Unmoved,
};
pub use hoplite_core::placement::ShardChange;
pub use hoplite_core::quota::{
    Quota, QuotaExcess, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse,
};
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
    ProbeReport, RailStatus, ReduceRecord, ShardStatus, Troubles,
};
pub use shards::{DirectoryShard, DirectoryShardState, DirectoryShards};
pub use timeout::{
    DEFAULT_TIMEOUT, DEFAULT_TIMEOUT_TEXT, FOREVER, NotATimeout, TIMEOUT_VARIABLE, default_timeout,
    parse_timeout,
};
pub use trace::{EnteredTrace, enter_trace, traced};
pub use view::ObjectView;
pub use writer::ObjectWriter;
