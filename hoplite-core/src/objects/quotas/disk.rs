//! Quotas of disk: copies that must stay in memory are barred from spilling.

use std::collections::BTreeMap;

use super::{Charge, Payer, Quotas};
use crate::message::CopyId;
use crate::quota::QuotaSubject;

/// More than the difference between a copy's memory and its record in a file.
const MEMORY_BEYOND: u64 = 128;

impl Quotas {
    /// Bars an idle copy for which the quota of `subject` lacks room.
    pub(crate) fn bar(&mut self, subject: &QuotaSubject, charge: Charge<'_>, copy: CopyId) {
        self.change(charge, |entry| entry.idle.bar(copy));
        if let Some(entry) = self.entry_mut(subject) {
            entry.barred.insert((charge.used.memory_bytes, copy));
        }
    }

    pub(crate) fn readmit(&mut self, charge: Charge<'_>, copy: CopyId) {
        self.change(charge, |entry| {
            entry.idle.readmit(copy);
            entry.barred.remove(&(charge.used.memory_bytes, copy));
        });
    }

    pub(crate) fn barred_copies(&self) -> usize {
        let entries = self.users.values().chain(self.prefixes.values());
        entries.map(|entry| entry.barred.len()).sum()
    }

    /// Returns barred copies that may fit their quotas of disk now, the smallest of each quota.
    pub(crate) fn take_readmitted(&mut self) -> Vec<CopyId> {
        let mut readmitted = std::mem::take(&mut self.readmitted);
        if std::mem::take(&mut self.has_new_disk) {
            for entry in self.users.values_mut().chain(self.prefixes.values_mut()) {
                if std::mem::take(&mut entry.has_new_disk) {
                    let mut room_bytes = entry.disk_room();
                    readmitted.extend(entry.barred.iter().map_while(|(bytes, copy)| {
                        room_bytes = room_bytes.checked_sub(bytes.saturating_sub(MEMORY_BEYOND))?;
                        Some(*copy)
                    }));
                }
            }
        }
        readmitted
    }

    /// Adds a copy's record to a batch's `planned` bytes.
    ///
    /// # Errors
    /// The quota whose disk lacks room for it.
    pub(crate) fn plan_record(
        &self,
        planned: &mut BTreeMap<QuotaSubject, u64>,
        copy: Charge<'_>,
        length_bytes: u64,
    ) -> Result<(), QuotaSubject> {
        if self.is_empty() || copy.payer == Payer::Nobody {
            return Ok(());
        }
        let limited = self.subjects_of(copy).into_iter().filter_map(|subject| {
            let entry = self.entry(&subject).filter(|entry| entry.limits.disk_bytes.is_some())?;
            Some((subject, entry.disk_room()))
        });
        let limited: Vec<_> = limited.collect();
        for (subject, room_bytes) in &limited {
            if planned.get(subject).copied().unwrap_or(0) + length_bytes > *room_bytes {
                return Err(subject.clone());
            }
        }
        for (subject, _) in limited {
            *planned.entry(subject).or_default() += length_bytes;
        }
        Ok(())
    }
}
