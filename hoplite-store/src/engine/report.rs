use std::sync::atomic::Ordering;

use hoplite_core::id::ObjectId;
use hoplite_core::load::{
    ClientLoad, LinkLoad, Load, MAX_CLIENT_BYTES, MAX_CLIENTS, MAX_LINKS, RailLoad, TransferLoad,
};
use hoplite_core::node::{ClientUse, CopyId, LifetimeReport};
use hoplite_core::text::{cut, size};

use super::Engine;
use crate::data::{RailReport, RailTable};

const MAX_NAMED_HOLDERS: usize = 3;

impl Engine {
    pub(crate) fn holders(&self) -> String {
        let (status, holders, troubles) = {
            let state = self.lock();
            (state.node.status(), state.node.holders(), state.node.troubles(self.now()))
        };
        let name = |client| {
            let answers = self.clients.get(&client);
            answers.map_or_else(|| "a client".to_owned(), |answers| answers.client().to_owned())
        };
        let kept_bytes = status.pinned_bytes.saturating_sub(holders.pinned_bytes);
        let named = holders.clients.iter().take(MAX_NAMED_HOLDERS).map(|holder| {
            format!(
                "{} holds {} in {} objects",
                name(holder.client),
                size(holder.bytes),
                holder.copies
            )
        });
        let mut parts =
            vec![format!("objects that were put and not deleted take {}", size(kept_bytes))];
        parts.extend(named);
        match holders.clients.len().saturating_sub(MAX_NAMED_HOLDERS) {
            0 => {}
            more => parts.push(format!("and {more} other clients hold some")),
        }
        if holders.barred_bytes > 0 {
            let barred = size(holders.barred_bytes);
            parts.push(format!("{barred} of objects exceed a quota of disk and stay in memory"));
        }
        let spill = troubles.spill.iter();
        parts.extend(
            spill.map(|trouble| format!("spilling to {}: {}", trouble.directory, trouble.fault)),
        );
        parts.join(", ")
    }

    pub(crate) fn lifetime(&self, id: &ObjectId) -> Option<LifetimeReport> {
        self.lock().node.lifetime(id, self.now())
    }

    pub(crate) fn client_loads(&self) -> Vec<ClientLoad> {
        let uses = self.lock().node.client_uses();
        let describe = |used: ClientUse| {
            let name = cut(self.clients.get(&used.client)?.client().to_owned(), MAX_CLIENT_BYTES);
            let (references, calls) = (used.references as u64, used.calls as u64);
            Some(ClientLoad {
                name,
                references,
                bytes: used.bytes,
                held_bytes: used.held_bytes,
                calls,
            })
        };
        uses.into_iter().filter_map(describe).take(MAX_CLIENTS).collect()
    }

    pub(crate) fn rails(&self) -> &RailTable {
        self.bulk.puller.rails()
    }

    pub(crate) fn max_lanes(&self) -> usize {
        self.bulk.puller.max_lanes()
    }

    /// Load report for the dashboard. `shards_up` is in the order of the shards' names.
    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        let shards = state.node.shards();
        let mut order: Vec<usize> = shards.listed().collect();
        order.sort_by_key(|shard| shards.name(*shard));
        let load = state.node.load(self.now());
        let pulled: Vec<(CopyId, ObjectId)> =
            state.node.pulled().map(|(copy, id)| (copy, id.clone())).collect();
        let up = order.iter().map(|shard| state.sessions.get(*shard).is_some_and(Option::is_some));
        let shards_up = up.collect();
        drop(state);
        let transfers = pulled.into_iter().filter_map(|(copy, id)| {
            let live = self.copies.get(copy)?;
            let (size_bytes, valid_bytes) = (live.size_bytes(), live.valid_bytes());
            Some(TransferLoad { id, size_bytes, valid_bytes, rate: 0 })
        });
        Load {
            clients: self.clients() as u64,
            sent_bytes: self.metrics.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.metrics.received_bytes.load(Ordering::Relaxed),
            shards_up,
            transfers: transfers.collect(),
            links: self.metrics.links().into_iter().take(MAX_LINKS).map(LinkLoad::from).collect(),
            rails: self.rails().reports().into_iter().map(RailLoad::from).collect(),
            failed_routes: small(self.rails().failed_routes()),
            ..load
        }
    }
}

impl From<RailReport> for RailLoad {
    fn from(rail: RailReport) -> Self {
        Self {
            address: rail.address,
            sent_bytes: rail.sent_bytes,
            received_bytes: rail.received_bytes,
            send_rate: 0,
            receive_rate: 0,
            failed_routes: small(rail.failed_routes),
        }
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
