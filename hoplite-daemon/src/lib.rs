//! What the daemons of Hoplite share: everything about a process of the operating system, and nothing about objects.
//!
//! * [`run`](run()): the life of a daemon's process, from its arguments to its exit code; start here.
//! * [`settings`]: flags, environment and a file, in the order of their precedence; [`Size`] and [`TimeSpan`].
//! * [`Security`]: the settings about who may reach the daemon.
//! * [`http`]: how a daemon serves HTTP; [`metrics`]: what it tells Prometheus there.
//! * [`Tracer`]: what it tells collectors of OpenTelemetry.
//! * [`MemoryLimits`], [`raise_descriptor_limit`]: what the system lets the process have; [`Acceptor`]: takes connections as
//!   far as that allows; [`Repeated`]: keeps the log short.
//! * [`EventLoop`]: a thread for small messages.
//! * [`Announcer`]: how a daemon tells the program that started it where it is reached, and when it is ready.
//! * [`launch`]: the other side of that, for programs that start daemons.
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
pub use repeated::Repeated;
pub use run::{Process, run};
pub use security::{NotLoopback, Security};
pub use size::{NotASize, Size};
pub use time_span::{NotADuration, TimeSpan};
pub use traces::{Span, SpanKind, Tracer};
