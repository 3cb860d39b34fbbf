//! Calls and connections (planes) that errors name.

use std::fmt;

/// Kind of a call that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Waits for memory, another put of the id, or the directory.
    Put,
    /// Waits for an object.
    Get,
    /// Waits until all stores have dropped their copies.
    Delete,
    /// Waits until enough of several objects exist.
    Wait,
    /// Waits until some node has the object.
    Locate,
    /// Waits for sources or their combination.
    Reduce,
    /// Waits for a daemon or a connection.
    Connect,
    /// Waits for the participants' arrays.
    Allreduce,
    /// Waits for the participants' arrays.
    ReduceScatter,
    /// Waits for the participants' objects.
    Allgather,
    /// Waits for the parts that participants send to this one.
    AllToAll,
    /// Waits for several objects.
    Gather,
    /// Waits for all participants to arrive.
    Barrier,
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
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Allgather => "allgather",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Barrier => "barrier",
        })
    }
}

/// Kind of connection that carried a malformed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Client to store, Unix socket.
    Local,
    /// Store to shard, direct connection or gRPC.
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
