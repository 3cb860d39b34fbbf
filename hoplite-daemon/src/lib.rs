//! The parts that all daemons of Hoplite share: everything about the process, nothing about
//! objects.
//!
//! * [`run`](run()): the life of a daemon's process, from arguments to exit code; start here.
//! * [`settings`]: flags, environment and a file; [`Size`] and [`TimeSpan`].
//! * [`Security`]: the settings of access to the daemon.
//! * [`http`]: an HTTP server; [`metrics`]: the metrics for Prometheus.
//! * [`Tracer`]: spans for collectors of OpenTelemetry.
//! * [`MemoryLimits`], [`raise_descriptor_limit`]: limits of the system; [`Acceptor`]: accepts
//!   connections within them; [`Repeated`]: keeps the log short.
//! * [`EventLoop`]: a thread for small messages; [`random_number`]: tells runs of daemons apart.
//! * [`Announcer`]: reports addresses and readiness to the starting program; [`launch`]: its
//!   counterpart.
#![forbid(unsafe_code)]

mod run;

pub mod settings;
mod size;
mod time_span;

mod security;

mod accept;
mod accounts;
mod descriptors;
mod event_loop;

mod heap;
pub mod http;
mod logging;
mod memory;
pub mod metrics;
mod parent;
mod service_manager;
mod signals;
mod traces;

mod notable;
mod random;
mod recent;
mod repeated;

mod announce;
pub mod launch;

pub use accept::Acceptor;
pub use accounts::{Group, NoSuchAccount, User};
pub use announce::{Addresses, Announcer, READY};
pub use descriptors::raise_descriptor_limit;
pub use event_loop::{EventLoop, register};
pub use memory::MemoryLimits;
pub use notable::is_notable;
pub use random::random_number;
pub use recent::recent_log_lines;
pub use repeated::Repeated;
pub use run::{Process, run};
pub use security::{NotLoopback, Security};
pub use service_manager::extend_stop_timeout;
pub use size::{NotASize, Size};
pub use time_span::{NotADuration, TimeSpan};
pub use traces::{Span, SpanKind, Tracer};
