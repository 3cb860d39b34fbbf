use super::super::idle::IdleCopies;
use super::super::notice::SpaceWaiter;
use super::super::quotas::{Charge, Payer, use_of};
use super::Table;
use crate::error::Result;
use crate::extent::{Extent, HEADER_BYTES, allocated_bytes};
use crate::id::ObjectId;
use crate::message::CopyId;
use crate::quota::{Quota, QuotaExcess, QuotaLimits, QuotaSubject, QuotaUse};

const fn charge_of(payer: Payer, id: &ObjectId, size_bytes: u64) -> Charge<'_> {
    let memory_bytes = allocated_bytes(HEADER_BYTES.saturating_add(size_bytes));
    Charge { payer, id, used: QuotaUse { memory_bytes, disk_bytes: 0, objects: 1 } }
}

fn sums(idle: &IdleCopies) -> [u64; 3] {
    [idle.dirty_bytes(), idle.barred_bytes(), idle.clean_bytes()]
}

impl Table {
    fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.copies.values().map(|local| local.charge()).chain(self.quotas.reserved())
    }

    /// Sets a quota's limits, and computes its use from all copies. Without limits, removes the
    /// quota.
    pub(crate) fn set_quota(
        &mut self,
        subject: QuotaSubject,
        limits: Option<QuotaLimits>,
    ) -> Result<Quota> {
        match limits {
            Some(limits) => {
                let used = use_of(&subject, self.charges());
                let idle = self.idle_of(&subject);
                self.quotas.set(subject, limits, (used, idle))
            }
            None => self.quotas.remove(subject),
        }
    }

    pub(crate) fn are_quotas_exact(&self) -> bool {
        let barred = self.spills.as_ref().map_or(0, |spills| spills.idle.barred().count());
        self.quotas.barred_copies() == barred
            && self.quotas.list().all(|quota| {
                quota.used == use_of(&quota.subject, self.charges())
                    && self.quotas.idle(&quota.subject).map(sums)
                        == Some(sums(&self.idle_of(&quota.subject)))
            })
    }

    fn idle_of(&self, subject: &QuotaSubject) -> IdleCopies {
        let mut idle = IdleCopies::default();
        let Some(spills) = &self.spills else { return idle };
        let is_of = |copy: CopyId| self.copies[&copy].charge().is_of(subject);
        for (copy, bytes) in spills.idle.dirty().chain(spills.idle.barred()) {
            if is_of(copy) {
                idle.add(copy, bytes, false);
            }
        }
        spills.idle.barred().for_each(|(copy, _)| idle.bar(copy));
        for (copy, bytes) in spills.idle.clean().filter(|(copy, _)| is_of(*copy)) {
            idle.add(copy, bytes, true);
        }
        idle
    }

    pub(crate) fn make_quota_room(
        &mut self,
        payer: Payer,
        id: &ObjectId,
        size_bytes: u64,
    ) -> Option<CopyId> {
        self.spills.as_ref()?;
        self.quotas.make_room(charge_of(payer, id, size_bytes))
    }

    pub(crate) fn check_quota(
        &self,
        payer: Payer,
        id: &ObjectId,
        size_bytes: u64,
    ) -> Result<(), QuotaExcess> {
        self.quotas.check(charge_of(payer, id, size_bytes))
    }

    pub(crate) fn reserve_quota(&mut self, payer: Payer, id: &ObjectId, room: Extent) {
        let used = QuotaUse { memory_bytes: room.length_bytes, disk_bytes: 0, objects: 1 };
        self.quotas.reserve(Charge { payer, id, used });
    }

    /// Lets copies be spilled again whose quotas of disk may have room for them.
    pub(super) fn readmit_barred(&mut self) {
        for copy in self.quotas.take_readmitted() {
            if let (Some(spills), Some(local)) = (&mut self.spills, self.copies.get(&copy)) {
                spills.idle.readmit(copy);
                self.quotas.readmit(local.charge(), copy);
            }
        }
    }

    pub(crate) fn wait_for_quota(&mut self, waiter: SpaceWaiter) {
        self.space_waiters.remove(&waiter);
        self.quotas.wait(waiter);
    }
}
