//! Announces a daemon's addresses and readiness to the program that started it.
//!
//! With `--print-addresses`, a daemon prints its [`Addresses`] as JSON once it listens, and
//! [`READY`] once it is complete: a store has a session with each shard, and touched memory. For a
//! service manager, the first line ends the start, because an unreachable directory must not block
//! a boot.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::service_manager::notify;

/// The second line.
pub const READY: &str = "ready";

/// Addresses of a daemon; `None` for missing services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    /// The name of the node.
    pub node: Option<String>,
    /// The socket for workers.
    pub socket: Option<PathBuf>,
    /// The data plane.
    pub data: Option<SocketAddr>,
    /// The directory shard in this process.
    pub directory: Option<SocketAddr>,
    /// The address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// The address of the dashboard.
    pub dashboard: Option<SocketAddr>,
}

/// Reports the progress of the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcer {
    pub(crate) audience: Audience,
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    Stdout,
    None,
}

impl Announcer {
    /// The daemon accepts connections from now on.
    pub fn listening(self, addresses: Addresses) {
        notify("READY=1\nSTATUS=waiting for the directory and for memory");
        match serde_json::to_string(&Addresses { metrics: self.metrics, ..addresses }) {
            Ok(line) => self.say(&line),
            Err(error) => tracing::warn!(%error, "cannot print the addresses"),
        }
    }

    /// The daemon is complete.
    pub fn ready(self) {
        notify("STATUS=ready");
        self.say(READY);
    }

    fn say(self, line: &str) {
        let say = || {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()
        };
        match self.audience {
            // The reader may close the pipe.
            Audience::Stdout => {
                if let Err(error) = say() {
                    tracing::debug!(%error, line, "cannot print the announcement");
                }
            }
            Audience::None => {}
        }
    }
}
