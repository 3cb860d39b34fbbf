//! Announces a daemon's addresses and readiness to the program that started it.
//!
//! With `--print-addresses`, a daemon prints its [`Addresses`] as JSON once it listens, and
//! [`READY`] once a store has a session with each shard and has touched its memory. To a service
//! manager, a listening daemon counts as started: an unreachable directory must not block a boot.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::service_manager::notify;

/// Line that a ready daemon prints.
pub const READY: &str = "ready";

/// Addresses of a daemon; `None` for absent services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Addresses {
    pub node: Option<String>,
    /// Socket for clients.
    pub socket: Option<PathBuf>,
    /// Address of the data plane, for other stores.
    pub data: Option<SocketAddr>,
    /// Address of the directory shard in this process.
    pub directory: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub dashboard: Option<SocketAddr>,
}

/// Tells the starting program and the service manager the progress of the start.
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
    /// Reports that the daemon listens on `addresses`.
    pub fn listening(self, addresses: Addresses) {
        notify("READY=1\nSTATUS=waiting for the directory and for memory");
        match serde_json::to_string(&Addresses { metrics: self.metrics, ..addresses }) {
            Ok(line) => self.print(&line),
            Err(error) => tracing::warn!(%error, "cannot print the addresses"),
        }
    }

    /// Reports that the daemon is ready.
    pub fn ready(self) {
        notify("STATUS=ready");
        self.print(READY);
    }

    fn print(self, line: &str) {
        let print = || {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()
        };
        match self.audience {
            // Printing fails if the starting program has closed the pipe.
            Audience::Stdout => {
                if let Err(error) = print() {
                    tracing::debug!(%error, line, "cannot print the announcement");
                }
            }
            Audience::None => {}
        }
    }
}
