//! The calls and the planes that errors name.

use std::fmt;

/// The blocking call that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Waiting for space, for another put of the same id, or for the directory.
    Put,
    /// Waiting for an object to appear or to arrive.
    Get,
    /// Waiting for all copies to be dropped.
    Delete,
    /// Waiting for some of several objects.
    Wait,
    /// Waiting for a location.
    Locate,
    /// Waiting for sources, or for their combination.
    Reduce,
    /// Waiting for a daemon to answer or to accept a connection.
    Connect,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Wait => "wait",
            Self::Locate => "locate",
            Self::Reduce => "reduce",
            Self::Connect => "connect",
        })
    }
}

/// The plane on which something malformed was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Client to store, Unix socket.
    Local,
    /// Store to shard, gRPC.
    Control,
    /// Store to store, TCP.
    Data,
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Control => "control",
            Self::Data => "data",
        })
    }
}
