use hoplite_core::Operation;
use hoplite_core::error::Plane;
use hoplite_core::node::{self, Inspection};
use hoplite_core::placement::ShardChange;
use hoplite_proto::local::{self, Request};
use hoplite_proto::{error, v1};

use crate::begun::REPORT_TIMEOUT;
use crate::client::Client;
use crate::error::Result;

/// Directory's shards, as the store and each shard know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryShards {
    /// Number of changes since the configured list.
    pub version: u64,
    /// Shards, sorted by address.
    pub shards: Vec<DirectoryShard>,
}

/// A shard of the directory's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryShard {
    /// Address that the stores use.
    pub address: String,
    /// State, or the reason why the shard does not answer.
    pub state: std::result::Result<DirectoryShardState, hoplite_core::Error>,
}

/// A shard's answer about its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryShardState {
    /// Version of the list that the shard uses.
    pub version: u64,
    /// Connected stores.
    pub stores: u64,
    /// Connected stores that use an older list than the shard.
    pub outdated: u64,
    /// `true` until the stores should have told the shard their objects.
    pub is_filling: bool,
}

impl DirectoryShards {
    /// Returns `true` if every shard that answers uses this list, has told it to its stores, knows
    /// their objects, and has as many stores as the other shards. Then the next change may follow,
    /// unless a new shard does not answer.
    pub fn are_settled(&self) -> bool {
        let states = || self.shards.iter().filter_map(|shard| shard.state.as_ref().ok());
        let most = states().map(|state| state.stores).max().unwrap_or(0);
        let is_settled = |state: &DirectoryShardState| {
            let is_known = state.outdated == 0 && state.stores == most;
            state.version == self.version && is_known && !state.is_filling
        };
        states().all(is_settled)
    }

    /// Returns `true` if the shard at this address is in the list and answers.
    pub fn answers(&self, address: &str) -> bool {
        self.shards.iter().any(|shard| shard.address == address && shard.state.is_ok())
    }
}

impl From<v1::DirectoryShards> for DirectoryShards {
    fn from(shards: v1::DirectoryShards) -> Self {
        let shard = |shard: v1::directory_shards::Shard| DirectoryShard {
            address: shard.address,
            state: match shard.state {
                Some(state) => Ok(DirectoryShardState {
                    version: state.list.map_or(0, |list| list.version),
                    stores: state.stores,
                    outdated: state.outdated,
                    is_filling: state.is_filling,
                }),
                None => Err(error::decode(shard.error.unwrap_or_default(), Plane::Local)),
            },
        };
        let mut listed: Vec<DirectoryShard> = shards.shards.into_iter().map(shard).collect();
        listed.sort_by(|one, other| one.address.cmp(&other.address));
        Self { version: shards.list.map_or(0, |list| list.version), shards: listed }
    }
}

impl Client {
    /// Describes the directory's shards, and the progress of the latest change of their list.
    ///
    /// # Errors
    /// `VersionMismatch` if the store's protocol is older than version 10. See [`Client`].
    pub async fn shards(&self) -> Result<DirectoryShards> {
        let call = self.begin_report().await?;
        match call.report("shards", None, Inspection::Shards).await? {
            local::Response::Shards(shards) => Ok((*shards).into()),
            _ => Err(call.connection.unexpected()),
        }
    }

    /// Adds a shard to the directory, or removes one. Returns once the store uses the new list. The
    /// other stores follow; before the next change, wait until [`DirectoryShards::are_settled`].
    ///
    /// A majority of the present shards must accept the change. With `force`, one shard suffices:
    /// use it only if the other shards will never come back.
    ///
    /// # Errors
    /// `InvalidRequest` for an invalid address; for a new shard that is listed or has served stores
    /// already; for a shard to remove that is not listed or is the last one; and during another
    /// change. `Unavailable` if the new shard or a majority is out of reach. `ShardListMismatch` if
    /// the directory has a newer list. `PermissionDenied` unless the client is root or the store's
    /// user. `VersionMismatch` if the protocol of the store, a shard or another store is older than
    /// version 10.
    pub async fn change_shards(&self, change: ShardChange, force: bool) -> Result<DirectoryShards> {
        let call = self.begin_report().await?;
        let connection = &call.connection;
        let request = node::Request::Inspect(Inspection::ChangeShards { change, force });
        match connection.call(Request::Node(request), Operation::Connect, REPORT_TIMEOUT).await? {
            local::Response::Shards(shards) => Ok((*shards).into()),
            _ => Err(connection.unexpected()),
        }
    }
}
