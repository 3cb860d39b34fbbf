use std::io;
use std::net::{IpAddr, SocketAddr};

use hoplite_core::error::Error;
use hoplite_core::placement::MAX_SHARDS;
use hoplite_core::plan::rails::MAX_RAILS;

use crate::local::SocketError;
use crate::spill::SpillDirError;

/// A reason why a store cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    #[error("cannot listen on {address}")]
    Listen {
        /// Address of the data plane, of the embedded directory, or of its dashboard.
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Spill(#[from] SpillDirError),
    #[error("cannot make an arena of {memory_bytes} bytes")]
    Arena {
        memory_bytes: u64,
        #[source]
        source: hoplite_shm::Error,
    },
    #[error("{address:?} is not the address of a directory shard (HOST:PORT)")]
    ShardAddress { address: String },
    #[error("the directory shard {address} is named more than once")]
    ShardTwice { address: String },
    #[error("a cluster has at most {MAX_SHARDS} directory shards")]
    TooManyShards,
    #[error("at least one directory shard is needed")]
    NoShards,
    /// The address to advertise to other stores is unusable: it is `0.0.0.0` or `[::]`, or its port
    /// is zero.
    #[error("other stores cannot reach {address}: set the address to advertise, with its port")]
    AdvertiseNeeded { address: SocketAddr },
    #[error("cannot look up {name:?}, which is to be advertised (HOST:PORT)")]
    AdvertiseUnknown {
        name: String,
        #[source]
        source: io::Error,
    },
    /// Two addresses of the store belong to one network card.
    #[error("{ip} is named twice: name one address for each network card")]
    SameCard { ip: IpAddr },
    #[error("other hosts cannot reach loopback: do not mix it with other addresses")]
    MixedLoopback,
    #[error(
        "advertise one name for each of the {addresses} addresses to listen on, or none: got {names}"
    )]
    AdvertiseCount { names: usize, addresses: usize },
    /// One listener cannot tell the cards of several names apart.
    #[error("no network card of this host has {address}: listen on one address for each card")]
    ForeignAddress { address: SocketAddr },
    #[error("a store has at most {MAX_RAILS} addresses, one for each network card")]
    TooManyAddresses,
    #[error("no other store could read from this one at {address}")]
    Certificate {
        address: SocketAddr,
        #[source]
        source: Box<hoplite_net::TlsError>,
    },
    #[error("the embedded directory failed")]
    Directory(#[source] hoplite_directory::DirectoryError),
    /// The shard will always refuse this store.
    #[error("the directory shard at {shard} refuses this store")]
    Refused {
        shard: String,
        #[source]
        source: Error,
    },
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("the operating system has no random numbers")]
    Random(#[source] io::Error),
}
