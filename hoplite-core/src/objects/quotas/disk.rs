//! Quotas of disk. A copy that exceeds one is barred: it stays in memory.

use std::collections::BTreeMap;

use super::{Account, Charge, Payer, Quotas};
use crate::message::CopyId;

/// More than the difference between a copy's memory and its record in a file.
const MEMORY_BEYOND: u64 = 128;

impl Quotas {
    /// Bars an idle copy for which the quota of `account` lacks room.
    pub(crate) fn bar(&mut self, account: &Account, charge: Charge<'_>, copy: CopyId) {
        self.change(charge, |entry| {
            entry.idle.bar(copy);
        });
        if let Some(entry) = self.entry_mut(account) {
            entry.barred.insert((charge.used.memory_bytes, copy));
        }
    }

    /// Lets puts try again for whose memory the copy may be spilled now.
    pub(crate) fn readmit(&mut self, charge: Charge<'_>, copy: CopyId) {
        let (mut is_awaited, retries) = (false, self.retries);
        self.change(charge, |entry| {
            entry.idle.readmit(copy);
            entry.barred.remove(&(charge.used.memory_bytes, copy));
            is_awaited |= entry.awaited_in == Some(retries);
        });
        self.has_new_room |= is_awaited;
    }

    pub(crate) fn barred_copies(&self) -> usize {
        let clients = self.clients.values().filter_map(|client| client.entry.as_ref());
        let entries = self.users.values().chain(self.prefixes.values()).chain(clients);
        entries.map(|entry| entry.barred.len()).sum()
    }

    /// Returns barred copies that may fit their quotas of disk now, the smallest of each quota.
    pub(crate) fn take_readmitted(&mut self) -> Vec<CopyId> {
        let mut readmitted = std::mem::take(&mut self.readmitted);
        if std::mem::take(&mut self.has_new_disk) {
            let clients = self.clients.values_mut().filter_map(|client| client.entry.as_mut());
            for entry in self.users.values_mut().chain(self.prefixes.values_mut()).chain(clients) {
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
    /// The account whose quota of disk lacks room for it.
    pub(crate) fn plan_record(
        &self,
        planned: &mut BTreeMap<Account, u64>,
        copy: Charge<'_>,
        length_bytes: u64,
    ) -> Result<(), Account> {
        if self.is_empty() || copy.payer == Payer::Nobody {
            return Ok(());
        }
        let limited = self.accounts_of(copy).into_iter().filter_map(|account| {
            let entry = self.entry(&account).filter(|entry| entry.limits.disk_bytes.is_some())?;
            Some((account, entry.disk_room()))
        });
        let limited: Vec<_> = limited.collect();
        for (account, room_bytes) in &limited {
            if planned.get(account).copied().unwrap_or(0) + length_bytes > *room_bytes {
                return Err(account.clone());
            }
        }
        for (account, _) in limited {
            *planned.entry(account).or_default() += length_bytes;
        }
        Ok(())
    }
}
