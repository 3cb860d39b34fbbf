//! Recovery of killed stores' objects from spill files.
//!
//! 1. With `--recover`, the store gives each complete spill file an index
//!    (`Effect::IndexSpillFile`), and retires a record there once no copy needs it.
//! 2. A later run reads the indices before clients and shards connect (`Event::Recover`). Each
//!    object becomes a pinned copy that is only in its file.
//! 3. The copy *returns* ([`returning`](super::returning)): the store serves it only after a shard
//!    has confirmed the put.
//!
//! # Safety
//!
//! The store drops a recovered copy in any doubt:
//!
//! * A shard that had a session with the killed store, and is one of the first two shards of the
//!   id, is a witness of the put. It rejects a put that it neither lists nor remembers as lost.
//! * Without a connected witness, the store waits two seconds after the first session. Stores with
//!   newer puts can publish first.
//! * Before its acceptance, the copy loses every conflict, even against an equal put.
//!
//! A deleted object can still come back if all witnesses were restarted since the kill, and its
//! record was not retired: the delete came while no store ran, or milliseconds before the kill.

use std::time::Duration;

use super::Objects;
use crate::error::Error;
use crate::message::{
    CopyId, Effect, Recovered, RecoveredFile, SpillFile, SpillRecord, SpilledObject, Unrecovered,
};
use crate::placement::REPLICAS;
use crate::shard::UnpublishReason;

impl Objects {
    pub(crate) fn index(&mut self, file: SpillFile, places: &[(CopyId, u64)]) {
        let described =
            places.iter().filter_map(|(copy, offset)| self.describe_spilled(*copy, *offset));
        let objects: Vec<SpilledObject> = described.collect();
        if !objects.is_empty() {
            self.ctx.push(Effect::IndexSpillFile { file, objects });
        }
    }

    /// Describes a copy for a recovery; `None` if a shard has its bytes, no shard has accepted its
    /// put, or it is being deleted.
    fn describe_spilled(&self, copy: CopyId, offset_bytes: u64) -> Option<SpilledObject> {
        let local = &self.copies[&copy];
        let is_known = local.publication.was_accepted() || local.publication.is_recovered();
        let is_kept = is_known && !self.ctx.is_inline(local.size_bytes);
        let ending = self.lifetimes.endings.get(&copy);
        if !is_kept || !local.is_live() || ending.is_some_and(|ending| ending.is_over) {
            return None;
        }
        let due = ending.and_then(|ending| ending.due);
        Some(SpilledObject {
            offset_bytes,
            id: local.id.clone(),
            put: local.put,
            size_bytes: local.size_bytes,
            metadata: local.metadata.to_metadata(),
            ends_in: due.map(|due| due.since(self.ctx.now())),
            ends_with_owner: ending.is_some_and(|ending| ending.lifetime.owner.is_some()),
        })
    }

    pub(crate) fn recover(&mut self, recovered: Recovered) {
        if !self.copies.spills() {
            return;
        }
        self.witnesses.runs.extend(recovered.runs);
        for mut file in recovered.files {
            let objects = std::mem::take(&mut file.objects);
            self.recover_file(&file, objects);
        }
        self.witnesses.ambiguous.clear();
    }

    fn recover_file(&mut self, file: &RecoveredFile, objects: Vec<SpilledObject>) {
        let mut found = Vec::new();
        for object in objects {
            let record = SpillRecord { file: file.file, offset_bytes: object.offset_bytes };
            found.push((record, self.recover_object(record, object)));
        }
        // A later object of the file with the same id may have dropped an earlier copy.
        let live = |copy: Option<CopyId>| copy.filter(|copy| self.copies.is_live(*copy));
        let copies: Vec<CopyId> = found.iter().filter_map(|(_, copy)| live(*copy)).collect();
        let dropped =
            found.iter().filter(|(_, copy)| live(*copy).is_none()).map(|(record, _)| *record);
        let dropped: Vec<SpillRecord> = dropped.collect();
        if !copies.is_empty() {
            dropped
                .into_iter()
                .for_each(|record| self.ctx.push(Effect::RetireSpillRecord { record }));
        }
        self.copies.adopt_file(&mut self.ctx, file, copies);
    }

    /// Returns `None` for an object that cannot be recovered, or already was.
    fn recover_object(&mut self, record: SpillRecord, object: SpilledObject) -> Option<CopyId> {
        let (id, lifetime, ends_in) = (object.id.clone(), object.lifetime(), object.ends_in);
        if let Some((other, local)) = self.copies.live(&id) {
            // A compaction that the kill interrupted has left two records of the same put.
            if local.put == object.put {
                return None;
            }
            self.witnesses.ambiguous.insert(id);
            self.drop_recovered(other, Unrecovered::Ambiguous);
        }
        if let Err(reason) = self.check_recovered(&object) {
            self.not_recovered(&object, reason);
            return None;
        }
        let copy = self.copies.recover(&mut self.ctx, record, object);
        if let Some(lifetime) = lifetime {
            self.lifetimes.begin(&mut self.ctx, copy, lifetime, ends_in);
        }
        Some(copy)
    }

    fn check_recovered(&self, object: &SpilledObject) -> Result<(), Unrecovered> {
        let SpilledObject { id, size_bytes, metadata, ends_in, .. } = object;
        if self.witnesses.ambiguous.contains(id) {
            return Err(Unrecovered::Ambiguous);
        }
        if *ends_in == Some(Duration::ZERO) {
            return Err(Unrecovered::Expired);
        }
        let limit = self.ctx.limits().max_objects;
        if self.copies.status().copies >= limit {
            return Err(Unrecovered::Refused(Error::limit_exceeded(
                "objects of a store",
                limit as u64,
            )));
        }
        self.check_incoming(id, *size_bytes, metadata).map_err(Unrecovered::Refused)
    }

    fn not_recovered(&mut self, object: &SpilledObject, reason: Unrecovered) {
        self.copies.count_unrecovered();
        self.ctx.push(Effect::Unrecovered { id: object.id.clone(), put: object.put, reason });
    }

    /// Notes that a shard listed a recovered put, if the killed store had a session with this run
    /// of the shard.
    pub(crate) fn recognize(&mut self, copy: CopyId, shard: usize) {
        if !self.copies[&copy].publication.is_recovered() {
            return;
        }
        let Some(run) =
            self.ctx.sessions.run(shard).filter(|run| self.witnesses.runs.contains(run))
        else {
            return;
        };
        let shards = &self.ctx.config().shards;
        // If the list of shards was changed, a responsible shard may never have known the put, and
        // would wrongly report its delete.
        if shards.version() > 0 {
            return;
        }
        let ranked = shards.ranked(&self.copies[&copy].id);
        if ranked.iter().take(REPLICAS).any(|responsible| *responsible == shard) {
            self.copies.publication_mut(copy).is_listed_by(shard, run);
        }
    }

    pub(crate) fn is_in_doubt(&self, copy: CopyId) -> bool {
        let publication = &self.copies[&copy].publication;
        publication.is_recovered() && !publication.was_accepted()
    }

    pub(crate) fn drop_recovered(&mut self, copy: CopyId, reason: Unrecovered) {
        let local = &self.copies[&copy];
        let (id, put) = (local.id.clone(), local.put);
        self.copies.count_unrecovered();
        self.ctx.push(Effect::Unrecovered { id: id.clone(), put, reason });
        self.abandon(copy, Error::ObjectLost { id: id.clone() }, UnpublishReason::Evicted);
        self.wake(&id);
    }
}
