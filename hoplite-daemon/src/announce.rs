//! How a daemon tells the program that started it where it is reached, and when it is ready.
//!
//! A daemon that is started with `--print-addresses` writes two lines to its standard output: its [`Addresses`], as JSON,
//! once it listens there; and [`READY`], once it has all that it needs: a store, a session with each shard of its
//! directory, and its memory, unless that is to be touched when it is used.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
}

/// Tells the program that started this daemon how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announcer {
    /// On standard output.
    Stdout,
    /// Not at all: nobody asked.
    Silent,
}

impl Announcer {
    /// The daemon can be reached from now on.
    pub fn listening(self, addresses: &Addresses) {
        match serde_json::to_string(addresses) {
            Ok(line) => self.say(&line),
            // A path that is not UTF-8.
            Err(error) => tracing::warn!(%error, "cannot print the addresses"),
        }
    }

    /// The daemon has all that it needs.
    pub fn ready(self) {
        self.say(READY);
    }

    fn say(self, line: &str) {
        let say = || {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()
        };
        match self {
            // The reader may have closed it after it has read enough.
            Self::Stdout => {
                if let Err(error) = say() {
                    tracing::debug!(%error, line, "nobody reads the announcement");
                }
            }
            Self::Silent => {}
        }
    }
}
