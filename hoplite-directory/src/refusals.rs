use std::sync::atomic::AtomicU64;
use std::{fmt, io};

use hoplite_core::error::Error;
use hoplite_daemon::is_notable;

use crate::events::{EventKind, Events};

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Connections that ended half open: too slow, too many, or another protocol.
    pub(crate) connections: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) versions: AtomicU64,
    pub(crate) logins: AtomicU64,
}

impl Refusals {
    /// Counts the refusal of a peer without the token, or of another cluster or version.
    pub(crate) fn report(&self, events: &Events, peer: impl fmt::Display, error: &Error) {
        let (counter, kind) = match error {
            Error::VersionMismatch { .. } => (&self.versions, EventKind::Incompatible),
            _ => (&self.calls, EventKind::Stranger),
        };
        if is_notable(counter) {
            tracing::warn!(%peer, %error, "refused a peer of the control plane");
        }
        events.push_stranger(kind, format!("refused {peer}: {error}"));
    }

    /// Counts a failed TLS handshake.
    pub(crate) fn report_handshake(
        &self,
        events: &Events,
        peer: impl fmt::Display,
        error: &io::Error,
    ) {
        if is_notable(&self.connections) {
            tracing::warn!(%peer, %error, "a TLS handshake of the control plane failed");
        }
        events.push_stranger(EventKind::Stranger, format!("refused {peer}: {error}"));
    }
}
