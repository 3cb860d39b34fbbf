//! Connections between Hoplite's daemons, and from tools to daemons.
//!
//! * `credentials`: the proofs of a program, and its requirements on peers.
//! * `token`: the secret that all daemons of a cluster share; `secret`: the secret of a user who
//!   names no token.
//! * `tls`: certificates and their acceptance; `facts`: facts stated in certificates; `authority`:
//!   creates certificates.
//! * `file`: reads secrets and certificates.
//! * `challenge`: proves to both sides of a connection that the other knows the token.
//! * `opening`: starts connections of the control plane; `record`: protects their bytes; `frames`:
//!   the messages of a direct connection.
//! * `channel`: connects stores and tools to shards; `socket`: the streams for this.
//! * `transport`: plain TCP and TLS of the data plane, from arena to socket to arena.
//! * `half_open`: bounds the unauthenticated connections; `refusal`: closes a refused connection.
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

pub use authority::{Authority, Issued, NotIssued};
pub use challenge::{HelloFields, Hellos, NONCE_BYTES, Prover, nonce};
pub use channel::{Route, cause, handshake_error, speaks_tls};
pub use credentials::{Credentials, SecurityError};
pub use facts::CertificateFacts;
pub use file::{FileError, begins_with_byte_order_mark};
pub use frames::{FrameReader, FrameWriter, frames};
pub use half_open::{HalfOpen, HalfOpenPlace, descriptor_limit};
pub use idle_socket::prepare_idle_socket;
pub use record::{Checked, Damaged, MAX_PLAIN_BYTES, Opener, Sealer};
pub use refusal::{accept_tls, close_refused};
pub use secret::SecretError;
pub use socket::{DetachedSocket, InProcess, InProcessListener, Socket};
pub use tls::{Protocol, Tls, TlsError, TlsFiles, tls_explanation};
pub use token::{Purpose, TAG_BYTES, Token, TokenError};
pub use transport::{Transport, TransportKind};
