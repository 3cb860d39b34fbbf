use std::collections::BTreeMap;

use super::super::idle::IdleCopies;
use super::super::notice::SpaceWaiter;
use super::super::quotas::{Account, Balance, Charge, Payer};
use super::Table;
use super::spills::Spills;
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

fn balance_of<'a>(
    balances: &'a mut BTreeMap<Account, Balance>,
    subject: &QuotaSubject,
    charge: Charge<'_>,
) -> Option<&'a mut Balance> {
    balances.get_mut(&charge.account_of(subject)?)
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
                let balances = self.balances(&subject);
                self.quotas.set(subject, limits, balances)
            }
            None => self.quotas.remove(subject),
        }
    }

    pub(crate) fn are_quotas_exact(&self) -> bool {
        let barred = self.spills.as_ref().map_or(0, |spills| spills.idle.barred().count());
        self.quotas.barred_copies() == barred
            && self.quotas.subjects().all(|subject| {
                self.balances(&subject).iter().all(|(account, (used, idle))| {
                    let expected = Some((*used, sums(idle)));
                    self.quotas.balance(account).map(|(used, idle)| (used, sums(idle))) == expected
                })
            })
    }

    pub(crate) fn barred_bytes(&self) -> u64 {
        self.spills.as_ref().map_or(0, |spills| spills.idle.barred_bytes())
    }

    /// Computes the use of each account of `subject`.
    fn balances(&self, subject: &QuotaSubject) -> BTreeMap<Account, Balance> {
        let accounts = self.quotas.accounts(subject).into_iter();
        let mut balances: BTreeMap<_, Balance> =
            accounts.map(|account| (account, Balance::default())).collect();
        for charge in self.charges() {
            if let Some((used, _)) = balance_of(&mut balances, subject, charge) {
                used.add(charge.used);
            }
        }
        let Some(Spills { idle, .. }) = self.spills.as_deref() else { return balances };
        let dirty = idle.dirty().chain(idle.barred()).map(|(copy, bytes)| (copy, bytes, false));
        let clean = idle.clean().map(|(copy, bytes)| (copy, bytes, true));
        for (copy, bytes, is_clean) in dirty.chain(clean) {
            let charge = self.copies[&copy].charge();
            if let Some((_, idle)) = balance_of(&mut balances, subject, charge) {
                idle.add(copy, bytes, is_clean);
            }
        }
        for (copy, _) in idle.barred() {
            let charge = self.copies[&copy].charge();
            if let Some((_, idle)) = balance_of(&mut balances, subject, charge) {
                idle.bar(copy);
            }
        }
        balances
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

    pub(crate) fn note_excess(&mut self, payer: Payer, id: &ObjectId, size_bytes: u64) {
        self.quotas.note_excess(charge_of(payer, id, size_bytes));
    }

    pub(crate) fn wait_for_quota(&mut self, waiter: SpaceWaiter) {
        self.space_waiters.remove(&waiter);
        self.quotas.wait(waiter);
    }
}
