//! Parts of a process that both daemons share. Start at [`run`](run()).
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
