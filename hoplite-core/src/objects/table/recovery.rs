use super::super::context::Context;
use super::super::quotas::Payer;
use super::spill::NO_EXTENT;
use super::spills::{SpillStep, Spilled};
use super::{LocalCopy, Object, Phase, Table};
use crate::message::{CopyId, RecoveredFile, SpillRecord, SpilledObject};
use crate::shard::Retention;

impl Table {
    pub(crate) const fn spills(&self) -> bool {
        self.spills.is_some()
    }

    pub(crate) fn recover(
        &mut self,
        ctx: &mut Context,
        record: SpillRecord,
        object: SpilledObject,
    ) -> CopyId {
        let copy = CopyId(ctx.next_number());
        let SpilledObject { id, put, size_bytes, metadata, .. } = object;
        let object = Object { id: id.clone(), put, size_bytes, metadata };
        let mut local =
            LocalCopy::begin(object, NO_EXTENT, Phase::Complete).paid_by(Payer::Unknown);
        local.retention = Retention::Pinned;
        local.publication.recover();
        local.spilled = Some(Box::new(Spilled { record, step: SpillStep::Away, fault: None }));
        let previous = self.index.insert(id, copy);
        debug_assert!(previous.is_none(), "an id has one live copy");
        self.quotas.add(local.charge());
        self.copies.insert(copy, Box::new(local));
        if let Some(spills) = &mut self.spills {
            spills.status.objects += 1;
            spills.status.bytes += size_bytes;
            spills.status.recovered_objects += 1;
            spills.status.recovered_bytes += size_bytes;
        }
        copy
    }

    /// Takes over a killed store's spill file, or removes it if it holds no copies.
    pub(crate) fn adopt_file(
        &mut self,
        ctx: &mut Context,
        file: &RecoveredFile,
        copies: Vec<CopyId>,
    ) {
        let lengths =
            copies.iter().map(|copy| SpillRecord::length_bytes(self.copies[copy].size_bytes));
        let live_bytes = lengths.sum();
        if let Some(spills) = &mut self.spills {
            spills.adopt(ctx, file, copies, live_bytes);
        }
    }

    pub(crate) fn count_unrecovered(&mut self) {
        if let Some(spills) = &mut self.spills {
            spills.status.unrecovered_objects += 1;
        }
    }
}
