//! How a daemon tells the program that started it where it is reached, and when it is ready.
//!
//! A daemon that is started with `--print-addresses` writes two lines to its standard output: its [`Addresses`], as JSON,
//! once it listens there; and [`READY`], once it has all that it needs: a store, a session with each shard of its
//! directory, and its memory, unless that is to be touched when it is used.
//!
//! A service manager hears of the first of these as the end of the start: workers can connect from then on, and their calls
//! wait for the rest. Where its directory is unreachable, the start of a machine must not hang.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::service_manager::notify;

/// The second line.
pub const READY: &str = "ready";

/// Where a daemon is reached. What it does not have is absent.
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
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where the dashboard is.
    pub dashboard: Option<SocketAddr>,
}

/// Tells the program that started this daemon how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcer {
    pub(crate) audience: Audience,
    pub(crate) metrics: Option<SocketAddr>,
}

/// Where the announcement goes, beside the service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// To standard output.
    Stdout,
    /// Nowhere: nobody has asked for it.
    None,
}

impl Announcer {
    /// The daemon can be reached from now on.
    pub fn listening(self, addresses: Addresses) {
        notify("READY=1\nSTATUS=waiting for the directory and for memory");
        match serde_json::to_string(&Addresses { metrics: self.metrics, ..addresses }) {
            Ok(line) => self.say(&line),
            // A path that is not UTF-8.
            Err(error) => tracing::warn!(%error, "cannot print the addresses"),
        }
    }

    /// The daemon has all that it needs.
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
            // The reader may have closed it after it has read enough.
            Audience::Stdout => {
                if let Err(error) = say() {
                    tracing::debug!(%error, line, "nobody reads the announcement");
                }
            }
            Audience::None => {}
        }
    }
}
