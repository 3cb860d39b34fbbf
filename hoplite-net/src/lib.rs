//! Connections between the daemons of Hoplite, and of tools to them.
//!
//! * `credentials`: what a program proves, and demands of others.
//! * `token`: a secret that all daemons of a cluster share; `secret`: the secret of a user who names no token.
//! * `tls`: certificates, and whose are accepted; `facts`: what certificates say of themselves; `authority`: makes them.
//! * `file`: reads secrets and certificates.
//! * `challenge`: how both sides of a connection prove that they know the token.
//! * `opening`: how connections of the control plane begin; `record`: how their bytes are protected; `frames`: the messages
//!   of a direct connection.
//! * `channel`: how stores and tools connect to shards; `socket`: what they connect with.
//! * `transport`: plain TCP and TLS of the data plane, from arena to socket to arena.
//! * `half_open`: bounds the connections that have not proven anything yet; `refusal`: ends one whose peer is refused.
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
