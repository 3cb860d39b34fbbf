//! The clients whose references alone keep room in use. A full store names them to a caller that
//! found no room.

use std::collections::{BTreeMap, BTreeSet};

use super::Objects;
use crate::message::ClientId;

/// The number of references that are looked at: all that one client may hold by default. It bounds the time that a full store spends
/// on an explanation.
const MAX_LOOKED_AT: usize = 1 << 16;

/// The room that one client keeps in use by references alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The client.
    pub client: ClientId,
    /// The number of copies that it refers to, and that would be freed or evictable without references.
    pub copies: usize,
    /// The size of these copies. A copy to which several clients refer counts for each of them.
    pub bytes: u64,
}

/// The room that is in use only because clients refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    /// The clients that refer to copies which are deleted or could be evicted, those with most bytes first.
    pub clients: Vec<Holder>,
    /// The size of those copies that were pinned and are deleted.
    pub deleted_bytes: u64,
}

/// The references and the open calls of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientUse {
    /// The client.
    pub client: ClientId,
    /// The number of copies to which it refers.
    pub references: usize,
    /// The size of these copies.
    pub bytes: u64,
    /// The size of the copies that would be freed or evictable without references.
    pub held_bytes: u64,
    /// The number of open calls.
    pub calls: usize,
}

impl Objects {
    /// Returns the references and calls of the clients that have any, those with most bytes first.
    pub(crate) fn client_uses(&self) -> Vec<ClientUse> {
        let mut found: BTreeMap<ClientId, ClientUse> = BTreeMap::new();
        let calls = self.calls.clients().map(|client| (client, self.calls.open_calls(client)));
        for (client, calls) in calls.filter(|(client, _)| *client != ClientId::STORE) {
            found.insert(client, ClientUse { client, references: 0, bytes: 0, held_bytes: 0, calls });
        }
        for (client, copy) in self.calls.all_references().take(MAX_LOOKED_AT) {
            let (Some(client), Some(local)) = (found.get_mut(&client), self.copies.get(&copy)) else {
                continue;
            };
            client.references += 1;
            client.bytes += local.extent.length_bytes;
            if !(local.is_written() || local.is_live() && local.is_pinned()) {
                client.held_bytes += local.extent.length_bytes;
            }
        }
        let mut clients: Vec<ClientUse> = found.into_values().collect();
        clients.sort_by_key(|client| (std::cmp::Reverse(client.bytes), client.client));
        clients
    }

    /// Returns the clients that refer to copies which are deleted or could be evicted.
    pub(crate) fn holders(&self) -> Holders {
        let mut deleted = BTreeSet::new();
        let mut deleted_bytes = 0;
        let mut found: BTreeMap<ClientId, Holder> = BTreeMap::new();
        for (client, copy) in self.calls.all_references().take(MAX_LOOKED_AT) {
            let Some(local) = self.copies.get(&copy) else { continue };
            if client == ClientId::STORE || local.is_written() || (local.is_live() && local.is_pinned()) {
                continue;
            }
            let holder = found.entry(client).or_insert(Holder { client, copies: 0, bytes: 0 });
            holder.copies += 1;
            holder.bytes += local.extent.length_bytes;
            if local.is_pinned() && deleted.insert(copy) {
                deleted_bytes += local.extent.length_bytes;
            }
        }
        let mut clients: Vec<Holder> = found.into_values().collect();
        clients.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.client));
        Holders { clients, deleted_bytes }
    }
}
