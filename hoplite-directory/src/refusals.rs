//! Counts and reports the peers that are refused.

use std::fmt;
use std::sync::atomic::AtomicU64;

use hoplite_core::error::Error;
use hoplite_daemon::is_notable;

use crate::events::{EventKind, Events};

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Connections that ended half open, because they took too long, were too many, or spoke another protocol.
    pub(crate) connections: AtomicU64,
    /// Connections and calls without the right token.
    pub(crate) calls: AtomicU64,
    /// Connections and sessions of programs without a common version of the protocol.
    pub(crate) versions: AtomicU64,
    /// Wrong tokens at the dashboard.
    pub(crate) logins: AtomicU64,
}

impl Refusals {
    /// Notes the refusal of a peer without the right token, or of another cluster or version.
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
}
