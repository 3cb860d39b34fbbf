use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::SpillFile;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::lifetime::Lifetime;
use crate::metadata::Metadata;
use crate::shard::ShardRun;

/// Object in a spill file, by the file's index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct SpilledObject {
    /// Record's offset in the file.
    pub offset_bytes: u64,
    /// Object.
    pub id: ObjectId,
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
    /// Rest of the time to live, if it runs.
    pub ends_in: Option<Duration>,
    /// `true` if this store deletes the object when its owner is gone.
    pub ends_with_owner: bool,
}

impl SpilledObject {
    /// Owner and time to live for which this store is responsible.
    pub(crate) fn lifetime(&self) -> Option<Arc<Lifetime>> {
        let Lifetime { owner, ttl } = self.metadata.lifetime.as_deref()?;
        let owner = owner.clone().filter(|_| self.ends_with_owner);
        Lifetime::of(owner, ttl.filter(|_| self.ends_in.is_some()))
    }
}

/// Spill files of killed stores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Runs of shards with which the killed stores had sessions.
    pub runs: Vec<ShardRun>,
    /// Complete files, moved to the directories of this run.
    pub files: Vec<RecoveredFile>,
}

/// Complete spill file of a killed store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredFile {
    /// The file. Its number is at least [`RecoveredFile::FIRST_NUMBER`].
    pub file: SpillFile,
    /// Length of the records and the header.
    pub length_bytes: u64,
    /// Objects that were not deleted, at most [`RecoveredFile::MAX_OBJECTS`].
    pub objects: Vec<SpilledObject>,
}

impl RecoveredFile {
    /// Smallest number of a recovered file, above the store's own numbers.
    pub const FIRST_NUMBER: u64 = 1 << 63;
    /// Most objects in one spill file.
    pub const MAX_OBJECTS: usize = 2000;
}

/// Reason why an object of a killed store does not come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unrecovered {
    /// Its time to live has passed.
    Expired,
    /// The files have two objects of this id.
    Ambiguous,
    /// A limit or a rule of this store forbids it.
    Refused(Error),
    /// The put was deleted: a shard that had listed it knows neither the put nor its loss.
    Deleted,
    /// The directory lists another put of the id.
    Conflict {
        /// Listed put.
        winner: PutId,
    },
}

impl fmt::Display for Unrecovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its time to live has passed"),
            Self::Ambiguous => f.write_str("the spill files have two puts of its id"),
            Self::Refused(error) => write!(f, "{error}"),
            Self::Deleted => f.write_str("it was deleted, or no shard remembers its loss"),
            Self::Conflict { winner } => write!(f, "the directory lists the newer put {winner}"),
        }
    }
}
