//! Spills idle copies of quotas for puts that lack memory.

use std::ops::Bound;

use super::super::idle::IdleCopies;
use super::{Account, Charge, Quotas};
use crate::message::CopyId;

/// Least share of a quota's memory that is spilled at once: an eighth.
const SPILLS_PER_QUOTA: u64 = 8;

impl Quotas {
    /// Makes room for a put that lacks memory. Returns a copy whose memory the caller must free, or
    /// notes how much to spill. Does nothing if all idle copies together would free too little.
    pub(crate) fn make_room(&mut self, put: Charge<'_>) -> Option<CopyId> {
        let needed_bytes = put.used.memory_bytes;
        let is_first = self.waiters.is_empty();
        let (mut fits, mut clean) = (true, None);
        let mut lacking = Vec::new();
        for account in self.accounts_of(put) {
            let Some(entry) = self.entry_mut(&account) else { continue };
            let lacking_bytes = entry.lacking_bytes(needed_bytes);
            if lacking_bytes == 0 {
                continue;
            }
            let awaited_bytes = entry.awaited_bytes.filter(|_| !is_first).unwrap_or(needed_bytes);
            entry.awaited_bytes = Some(awaited_bytes.min(needed_bytes));
            fits &= lacking_bytes <= entry.movable_bytes();
            clean = clean.or(entry.idle.clean().next());
            // More than it lacks, because the next put may follow soon.
            let limit_bytes = entry.limits.memory_bytes.unwrap_or(0);
            lacking.push((account, lacking_bytes.max(limit_bytes / SPILLS_PER_QUOTA)));
        }
        if !fits {
            return None;
        }
        if clean.is_none() {
            for (account, spilled_bytes) in lacking {
                let bytes = self.to_spill.entry(account).or_default();
                *bytes = spilled_bytes.max(*bytes);
            }
        }
        clean.map(|(copy, _)| copy)
    }

    /// Accounts, their idle copies, and the number of bytes to spill of them, beginning after the
    /// account that was spilled last.
    pub(crate) fn to_spill(&self) -> impl Iterator<Item = (&Account, &IdleCopies, u64)> {
        let after = self.last_spilled.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let until = self.last_spilled.as_ref().map(|last| self.to_spill.range(..=last));
        let accounts = self.to_spill.range((after, Bound::Unbounded));
        accounts
            .chain(until.into_iter().flatten())
            .filter_map(|(account, bytes)| Some((account, &self.entry(account)?.idle, *bytes)))
            .filter(|(_, idle, _)| idle.has_dirty())
    }

    pub(crate) fn spills_for(&mut self, account: Account) {
        self.last_spilled = Some(account);
    }

    pub(crate) fn begins_to_spill(&mut self, copy: Charge<'_>) {
        let spilled_bytes = copy.used.memory_bytes;
        self.to_spill.retain(|account, bytes| {
            *bytes = bytes.saturating_sub(if copy.is_of(account) { spilled_bytes } else { 0 });
            *bytes > 0
        });
    }

    /// Lists an idle copy, and lets puts try again if that can help one.
    pub(crate) fn add_idle(&mut self, charge: Charge<'_>, copy: CopyId, is_clean: bool) {
        let mut helps = false;
        self.change(charge, |entry| {
            let earlier_bytes = entry.movable_bytes();
            entry.idle.add(copy, charge.used.memory_bytes, is_clean);
            let lacking_bytes = entry.awaited_bytes.map(|bytes| entry.lacking_bytes(bytes));
            // If the idle copies sufficed before, the store spills them already.
            helps |= lacking_bytes.is_some_and(|bytes| {
                bytes <= entry.movable_bytes() && (is_clean || bytes > earlier_bytes)
            });
        });
        self.has_new_room |= helps;
    }
}
