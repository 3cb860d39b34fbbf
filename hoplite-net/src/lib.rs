//! Connections between daemons, and from tools to daemons.
//!
//! * `credentials`: the secrets of a program: the cluster's `token` or the user's `secret`, and
//!   certificates (`tls`, `facts`, `authority`). `file` reads them.
//! * `opening`: starts connections of the control plane with a `challenge`. `record` protects their
//!   bytes; `frames` are messages of direct connections.
//! * `channel`: connects to shards over a `socket`.
//! * `transport`: TCP and TLS of the data plane, from arena to arena.
//! * `half_open`: bounds unauthenticated connections. `refusal`: closes refused ones.
#![forbid(unsafe_code)]

mod credentials;
mod secret;
mod token;

mod authority;
mod facts;
mod file;
mod tls;

mod challenge;
mod channel;
mod frames;
pub mod opening;
mod record;

mod idle_socket;
mod socket;
mod transport;

mod half_open;
mod refusal;

pub use authority::{Authority, IssueError, IssuedCertificate};
pub use challenge::{HelloFields, Hellos, NONCE_BYTES, Prover, nonce};
pub use channel::{Route, cause, handshake_error, speaks_tls};
pub use credentials::{Credentials, SecurityError};
pub use facts::CertificateFacts;
pub use file::{FileError, begins_with_byte_order_mark};
pub use frames::{FrameReader, FrameWriter, frames};
pub use half_open::{HalfOpen, HalfOpenSlot, descriptor_limit};
pub use idle_socket::prepare_idle_socket;
pub use record::{Checked, DamagedRecord, MAX_PLAIN_BYTES, Opener, Sealer};
pub use refusal::{accept_tls, close_refused};
pub use secret::SecretError;
pub use socket::{DetachedSocket, InProcess, InProcessListener, Socket};
pub use tls::{Protocol, Tls, TlsError, TlsFiles, tls_explanation};
pub use token::{Purpose, TAG_BYTES, Token, TokenError};
pub use transport::{AcknowledgementWatch, Transport, TransportKind};
