//! Puts that both directory shards of their id must accept.
//!
//! In a network split, at most one side reaches both shards, so at most one put succeeds.

use super::Objects;
use super::table::LocalCopy;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{CallKey, CopyId};
use crate::metadata::Replicas;
use crate::version::Version;

impl Objects {
    fn shards_of(&self, id: &ObjectId) -> impl Iterator<Item = usize> {
        self.ctx.config().shards.replicas(id, |_| true)
    }

    /// Checks that a put with a quorum can get the votes of both shards.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if a shard cannot be reached. [`Error::VersionMismatch`] if it is too
    /// old.
    pub(crate) fn check_quorum(&self, id: &ObjectId, replicas: Replicas) -> Result<()> {
        for shard in self.shards_of(id).filter(|_| replicas.quorum) {
            if !self.ctx.is_up(shard) {
                let name = self.ctx.config().shards.name(shard);
                let what = format!("directory shard {name}, which the put needs for its quorum,");
                return Err(Error::Unavailable { what: what.into() });
            }
            self.ctx.sessions.require(shard, Version::WITH_TERMS)?;
        }
        Ok(())
    }

    pub(crate) fn has_quorum(&self, copy: CopyId) -> bool {
        !self.copies[&copy].metadata.replicas.quorum || self.is_accepted_by_both(copy)
    }

    pub(crate) fn is_accepted_by_both(&self, copy: CopyId) -> bool {
        let local = &self.copies[&copy];
        self.shards_of(&local.id).all(|shard| local.publication.is_accepted_by(shard))
    }

    pub(crate) fn awaits_quorum(&self, copy: CopyId, key: CallKey) -> bool {
        let waits =
            |local: &LocalCopy| local.publication.sealer() == Some(key) && !self.has_quorum(copy);
        self.copies.get(&copy).is_some_and(waits)
    }

    /// Fails a put that waits for both shards of its id if one is unreachable.
    pub(crate) fn reconsider_quorum(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        if !local.is_complete()
            || local.publication.sealer().is_none()
            || self.is_accepted_by_both(copy)
        {
            return;
        }
        if let Err(error) = self.check_quorum(&local.id, local.metadata.replicas) {
            self.take_back_put(copy, error);
        }
    }
}
