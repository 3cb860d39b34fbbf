//! The parts that all daemons of Hoplite share: everything about the process, and nothing about
//! objects.
//!
//! * [`run`](run()): the life of a daemon's process, from its arguments to its exit code; start
//!   here.
//! * [`settings`]: flags, environment and a file, in the order of their precedence; [`Size`] and
//!   [`TimeSpan`].
//! * [`Security`]: access to the daemon; [`Credentials`]: proofs of membership between daemons;
//!   [`HalfOpen`]: a limit on peers without proof.
//! * [`http`]: an HTTP server; [`metrics`]: the metrics for Prometheus.
//! * [`Tracer`]: spans for collectors of OpenTelemetry.
//! * [`MemoryLimits`], [`raise_descriptor_limit`]: the limits of the system; [`Acceptor`]: accepts
//!   connections within them; [`Repeated`]: keeps the log short.
//! * [`EventLoop`]: a thread for small messages.
//! * [`Announcer`]: reports a daemon's addresses and readiness to the program that started it.
//! * [`launch`]: the counterpart of [`Announcer`], for programs that start daemons.
#![forbid(unsafe_code)]

mod run;

pub mod settings;
mod size;
mod time_span;

mod security;

mod accept;
mod accounts;
mod authority;
mod descriptors;
mod event_loop;
mod idle_socket;
mod socket;

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
pub use authority::{Authority, Issued, NotIssued};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use event_loop::{EventLoop, register};
pub use idle_socket::prepare_idle_socket;
pub use memory::MemoryLimits;
pub use notable::is_notable;
pub use repeated::Repeated;
pub use run::{Process, run};
pub use security::{
    CertificateFacts, Checked, Credentials, Damaged, FileError, HalfOpen, HalfOpenPlace, HelloFields, Hellos,
    MAX_PLAIN_BYTES, NONCE_BYTES, NotLoopback, Opener, Protocol, Prover, Purpose, Route, Sealer, SecretError,
    Security, SecurityError, TAG_BYTES, Tls, TlsError, TlsFiles, Token, TokenError, accept_tls,
    begins_with_byte_order_mark, cause, close_refused, handshake_error, nonce, opening, speaks_tls,
    tls_explanation,
};
pub use size::{NotASize, Size};
pub use socket::{DetachedSocket, InProcess, InProcessListener, Socket};
pub use time_span::{NotADuration, TimeSpan};
pub use traces::{Span, SpanKind, Tracer};
