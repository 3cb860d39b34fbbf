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
        self.quotas.list().all(|quota| {
            quota.used == use_of(&quota.subject, self.charges())
                && self.quotas.idle_bytes(&quota.subject) == self.idle_of(&quota.subject).bytes()
        })
    }

    fn idle_of(&self, subject: &QuotaSubject) -> IdleCopies {
        let mut idle = IdleCopies::default();
        let Some(spills) = &self.spills else { return idle };
        let dirty = spills.idle.dirty().map(|copy| (copy, false));
        for ((copy, bytes), is_clean) in dirty.chain(spills.idle.clean().map(|copy| (copy, true))) {
            if self.copies[&copy].charge().is_of(subject) {
                idle.add(copy, bytes, is_clean);
            }
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

    pub(crate) fn wait_for_quota(&mut self, waiter: SpaceWaiter) {
        self.space_waiters.remove(&waiter);
        self.quotas.wait(waiter);
    }
}
