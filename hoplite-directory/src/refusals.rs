//! Counts and reports the peers that are refused.

use std::fmt;
use std::sync::atomic::AtomicU64;

use hoplite_daemon::is_notable;

use crate::events::Events;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Connections that ended half open, because they took too long, were too many, or spoke another protocol.
    pub(crate) connections: AtomicU64,
    /// Connections and calls without the right token.
    pub(crate) calls: AtomicU64,
    /// Wrong tokens at the dashboard.
    pub(crate) logins: AtomicU64,
}

impl Refusals {
    pub(crate) fn report(&self, events: &Events, peer: impl fmt::Display, reason: &str) {
        if is_notable(&self.calls) {
            tracing::warn!(%peer, reason, "refused a peer of the control plane");
        }
        events.push_stranger(format!("refused {peer}: {reason}"));
    }
}
