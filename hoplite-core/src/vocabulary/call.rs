//! The calls and planes that errors name.

use std::fmt;

/// The blocking call that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Waiting for space, another put, or the directory.
    Put,
    /// Waiting for an object.
    Get,
    /// Waiting until all copies are dropped.
    Delete,
    /// Waiting for some of several objects.
    Wait,
    /// Waiting for a location.
    Locate,
    /// Waiting for sources or their combination.
    Reduce,
    /// Waiting for a daemon or a connection.
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

/// The plane of a malformed message.
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
