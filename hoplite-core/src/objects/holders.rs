//! Reasons why memory stays in use. A full store names them in its errors.

use std::collections::{BTreeMap, BTreeSet};

use super::Objects;
use super::table::LocalCopy;
use crate::message::ClientId;

/// Most references that one report examines, to bound its time.
const MAX_EXAMINED: usize = 1 << 16;

/// Memory in use because of one client's references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Holder {
    pub client: ClientId,
    /// Copies that would be free, evictable or spillable without references.
    pub copies: usize,
    /// Size of `copies`. A copy counts for each client that refers to it.
    pub bytes: u64,
}

/// Memory in use only because of clients' references, or because of quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    /// Clients with references to copies that are deleted, evictable or spillable, most bytes
    /// first.
    pub clients: Vec<Holder>,
    /// Bytes of the pinned copies of `clients`, each counted once.
    pub pinned_bytes: u64,
    /// Bytes of copies that stay in memory because they exceed a quota of disk.
    pub barred_bytes: u64,
}

/// One client's references and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ClientUse {
    pub client: ClientId,
    pub references: usize,
    pub bytes: u64,
    /// Size of copies that would be free, evictable or spillable without references.
    pub held_bytes: u64,
    pub calls: usize,
}

impl Objects {
    pub(crate) fn client_uses(&self) -> Vec<ClientUse> {
        let mut found: BTreeMap<ClientId, ClientUse> = BTreeMap::new();
        let calls = self.calls.clients().map(|client| (client, self.calls.open_calls(client)));
        for (client, calls) in calls.filter(|(client, _)| *client != ClientId::STORE) {
            found.insert(
                client,
                ClientUse { client, references: 0, bytes: 0, held_bytes: 0, calls },
            );
        }
        for (client, copy) in self.calls.all_references().take(MAX_EXAMINED) {
            let (Some(client), Some(local)) = (found.get_mut(&client), self.copies.get(&copy))
            else {
                continue;
            };
            client.references += 1;
            client.bytes += local.extent.length_bytes;
            if self.is_held_by_references(local) {
                client.held_bytes += local.extent.length_bytes;
            }
        }
        let mut clients: Vec<ClientUse> = found.into_values().collect();
        clients.sort_by_key(|client| (std::cmp::Reverse(client.bytes), client.client));
        clients
    }

    pub(crate) fn holders(&self) -> Holders {
        let mut pinned = BTreeSet::new();
        let mut pinned_bytes = 0;
        let mut found: BTreeMap<ClientId, Holder> = BTreeMap::new();
        for (client, copy) in self.calls.all_references().take(MAX_EXAMINED) {
            let Some(local) = self.copies.get(&copy) else { continue };
            if client == ClientId::STORE || !self.is_held_by_references(local) {
                continue;
            }
            let holder = found.entry(client).or_insert(Holder { client, copies: 0, bytes: 0 });
            holder.copies += 1;
            holder.bytes += local.extent.length_bytes;
            if local.is_pinned() && pinned.insert(copy) {
                pinned_bytes += local.extent.length_bytes;
            }
        }
        let mut clients: Vec<Holder> = found.into_values().collect();
        clients.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.client));
        Holders { clients, pinned_bytes, barred_bytes: self.copies.barred_bytes() }
    }

    fn is_held_by_references(&self, local: &LocalCopy) -> bool {
        let stays = local.is_live() && local.is_pinned() && !self.copies.spills();
        !local.is_written() && !stays
    }
}
