//! Errors that stop a store.

use std::io;
use std::net::SocketAddr;

use hoplite_core::error::Error;
use hoplite_core::placement::MAX_SHARDS;

use crate::local::SocketError;
use crate::spill::SpillDirError;

/// The reason for which a store cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address of the data plane, of the embedded directory, or of its dashboard.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The socket for workers cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A directory cannot have spill files.
    #[error(transparent)]
    Spill(#[from] SpillDirError),
    /// There is no memory for the arena.
    #[error("cannot make an arena of {memory_bytes} bytes")]
    Arena {
        /// The size asked for.
        memory_bytes: u64,
        /// The cause.
        #[source]
        source: hoplite_shm::Error,
    },
    /// A shard's address is malformed.
    #[error("{address:?} is not the address of a directory shard (HOST:PORT)")]
    ShardAddress {
        /// The text that is no address.
        address: String,
    },
    /// A shard is configured twice.
    #[error("the directory shard {address} is named more than once")]
    ShardTwice {
        /// The address that occurs twice.
        address: String,
    },
    /// More shards are configured than a cluster can have.
    #[error("a cluster has at most {MAX_SHARDS} directory shards")]
    TooManyShards,
    /// No shard is configured.
    #[error("at least one directory shard is needed")]
    NoShards,
    /// The address that other stores would use is unknown. Either the data plane listens on all
    /// addresses, or the advertised address has no port.
    #[error("other stores cannot reach {address}: set the address to advertise, with its port")]
    AdvertiseNeeded {
        /// The address that is not enough.
        address: SocketAddr,
    },
    /// The name to advertise cannot be looked up.
    #[error("cannot look up {name:?}, which is to be advertised (HOST:PORT)")]
    AdvertiseUnknown {
        /// The name.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificate of this store is not for the address at which other stores reach it.
    #[error("no other store could read from this one at {address}")]
    Certificate {
        /// The address that is advertised.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: Box<hoplite_net::TlsError>,
    },
    /// The embedded directory failed.
    #[error("the embedded directory failed")]
    Directory(#[source] hoplite_directory::DirectoryError),
    /// A shard refuses this store for good.
    #[error("the directory shard at {shard} refuses this store")]
    Refused {
        /// The address of the shard.
        shard: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The thread that serves the workers cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The operating system has no random numbers.
    #[error("the operating system has no random numbers")]
    Random(#[source] io::Error),
}
