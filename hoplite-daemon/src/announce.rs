//! Announces a daemon's addresses and readiness to the program that started it.
//!
//! With `--print-addresses`, a daemon writes two lines to standard output: its [`Addresses`] as
//! JSON once it listens, and [`READY`] once it is complete. For a store this means a session with
//! each shard, and touched memory unless prefaulting is off.
//!
//! For a service manager, the first line ends the start. Workers can connect then, and their calls
//! wait. An unreachable directory must not block the boot of a machine.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::service_manager::notify;

/// The second line.
pub const READY: &str = "ready";

/// The addresses of a daemon. `None` for each service that it does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    /// The name of the node.
    pub node: Option<String>,
    /// The socket for the workers of the node.
    pub socket: Option<PathBuf>,
    /// The data plane.
    pub data: Option<SocketAddr>,
    /// The shard of the directory that runs in this process.
    pub directory: Option<SocketAddr>,
    /// The address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// The address of the dashboard.
    pub dashboard: Option<SocketAddr>,
}

/// Reports the progress of the start to the program that started this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcer {
    pub(crate) audience: Audience,
    pub(crate) metrics: Option<SocketAddr>,
}

/// The destination of the announcement, in addition to the service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Standard output.
    Stdout,
    /// None: the announcement was not requested.
    None,
}

impl Announcer {
    /// Announces the addresses. The daemon accepts connections from now on.
    pub fn listening(self, addresses: Addresses) {
        notify("READY=1\nSTATUS=waiting for the directory and for memory");
        match serde_json::to_string(&Addresses { metrics: self.metrics, ..addresses }) {
            Ok(line) => self.say(&line),
            // A path may be invalid UTF-8.
            Err(error) => tracing::warn!(%error, "cannot print the addresses"),
        }
    }

    /// Announces that the daemon has everything that it needs.
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
            // The reader may close the pipe after it has read enough.
            Audience::Stdout => {
                if let Err(error) = say() {
                    tracing::debug!(%error, line, "cannot print the announcement");
                }
            }
            Audience::None => {}
        }
    }
}
