//! What an open call waits for: the cause of a timeout, and what people see of a call that waits for long.

use std::time::Duration;

use super::calls::{Call, CallKey, DeleteCall};
use super::fetch::FetchStep;
use super::reduce::Lack;
use super::table::{LocalCopy, SpaceWaiter};
use super::{CopyId, LongWait, Node, PeerFault, Troubles};
use crate::error::Error;
use crate::error::Missing;
use crate::id::{NodeId, ObjectId};
use crate::missing::{Absent, Named};
use crate::shard::RequestId;
use crate::time::Time;

/// A call that has waited for so long is shown to people.
pub const LONG_WAIT: Duration = Duration::from_secs(10);
/// Most long waits that a store shows.
pub const MAX_LONG_WAITS: usize = 16;

impl Node {
    /// The thing that a call waits for, if this store knows it.
    pub(super) fn missing(&self, key: CallKey) -> Option<Missing> {
        match self.calls.get(key)? {
            Call::Create(create) => {
                if self.copies.is_waiting_for_space(&SpaceWaiter::Create(key)) {
                    return Some(self.copies.lacks_room(create.size_bytes));
                }
                self.missing_of_object(&create.id)
            }
            Call::Seal { copy } => self.missing_of_verdict(*copy),
            Call::Get { id, join, .. } => {
                let missing = self.missing_of_object(id);
                let is_unknown = matches!(missing, None | Some(Missing::Object { .. }));
                if join.is_some() && is_unknown {
                    return Some(Missing::Coordinator { target: id.clone() });
                }
                missing
            }
            Call::Follow { copy } => self.missing_of_copy(self.copies.get(copy)?),
            Call::Delete(delete) => self.missing_of_delete(delete),
            Call::Locate { ask, .. } => {
                let id = self.asks.id((*ask)?)?;
                let directory = self.faults.directory(&self.ctx, id);
                directory.or_else(|| Some(Missing::Object { id: id.clone() }))
            }
            Call::Reduce { target, .. } => self.missing_of_target(target),
            Call::Wait(wait) => {
                let mut asked = wait.asks().filter_map(|ask| self.asks.id(ask));
                let refused = asked.clone().find_map(|id| self.faults.directory(&self.ctx, id));
                refused.or_else(|| Some(Missing::Object { id: asked.next()?.clone() }))
            }
            Call::Inspect | Call::Subscription { .. } => None,
        }
    }

    /// The error of a question to which no shard has answered.
    pub(super) fn no_answer(&self, key: CallKey) -> Error {
        match self.missing(key) {
            Some(Missing::Shard { address, reason }) => unavailable(&address, &reason),
            _ => Error::unavailable("the directory"),
        }
    }

    /// The error of a question about an object that no shard can be asked.
    pub(super) fn no_shard(&self, id: &ObjectId) -> Error {
        match self.faults.directory(&self.ctx, id) {
            Some(Missing::Shard { address, reason }) => unavailable(&address, &reason),
            _ => Error::unavailable("the directory"),
        }
    }

    /// The thing that those who want an object wait for.
    fn missing_of_object(&self, id: &ObjectId) -> Option<Missing> {
        let live = self.copies.live(id).map(|(_, local)| local);
        if let Some(local) = live.filter(|local| !local.awaits_sender()) {
            return self.missing_of_copy(local);
        }
        if self.reductions.contains(id) || self.collectives.contains(id) {
            return self.missing_of_target(id);
        }
        Some(self.missing_of_fetch(id))
    }

    /// The thing that the fetch of an object waits for.
    fn missing_of_fetch(&self, id: &ObjectId) -> Missing {
        if let Some(FetchStep::WaitingForSpace { size_bytes }) = self.fetches.step(id) {
            return self.copies.lacks_room(size_bytes);
        }
        let avoided = self.fetches.avoided(id);
        let refused = avoided.iter().rev().find_map(|node| self.faults.peer(&self.ctx, node));
        if let Some(missing) = refused.or_else(|| self.faults.directory(&self.ctx, id)) {
            return missing;
        }
        match avoided.last() {
            Some(from) => Missing::Bytes { id: id.clone(), from: from.clone() },
            None => Missing::Object { id: id.clone() },
        }
    }

    /// The thing that a copy of this store waits for.
    fn missing_of_copy(&self, local: &LocalCopy) -> Option<Missing> {
        let id = &local.id;
        if local.is_written() {
            return Some(Missing::Seal { id: id.clone() });
        }
        if local.is_combined() {
            return self.missing_of_target(id);
        }
        if let Some(from) = local.sender() {
            let fault = self.faults.peer(&self.ctx, from);
            return fault.or_else(|| Some(Missing::Bytes { id: id.clone(), from: from.clone() }));
        }
        if local.awaits_sender() {
            return self.missing_of_object(id);
        }
        let (copy, _) = self.copies.live(id)?;
        self.missing_of_verdict(copy)
    }

    /// The thing that a put waits for whose bytes are all here.
    fn missing_of_verdict(&self, copy: CopyId) -> Option<Missing> {
        let local = self.copies.get(&copy)?;
        if let Some(missing) = self.faults.directory(&self.ctx, &local.id) {
            return Some(missing);
        }
        if let Some((_, (holder, _))) = local.publication().rival() {
            let fault = self.faults.peer(&self.ctx, holder);
            return fault.or_else(|| Some(Missing::Stores { nodes: Named::of([holder.clone()]) }));
        }
        let address = self.ctx.config().shards.name(self.ctx.first_shard(&local.id)?).to_owned();
        Some(Missing::Answer { address })
    }

    fn missing_of_delete(&self, delete: &DeleteCall) -> Option<Missing> {
        let refused = |ask: RequestId| self.faults.directory(&self.ctx, self.asks.id(ask)?);
        if let Some(missing) = delete.asks().find_map(refused) {
            return Some(missing);
        }
        let (shard, _) = delete.asks().find_map(|ask| self.asks.sitting(ask))?;
        Some(Missing::Answer { address: self.ctx.config().shards.name(shard).to_owned() })
    }

    /// The thing that a reduce or a collective waits for that this store coordinates.
    fn missing_of_target(&self, target: &ObjectId) -> Option<Missing> {
        if self.copies.is_waiting_for_space(&SpaceWaiter::Target(target.clone())) {
            return Some(self.copies.lacks_room(self.reductions.target_size(target)?));
        }
        if let Some(absent) = self.collectives.absent_sources(target) {
            let about = absent.values().next().unwrap_or(target);
            let refused = self.faults.directory(&self.ctx, about);
            return refused.or_else(|| participants(absent));
        }
        if let Some(nodes) = self.collectives.unfinished_stores(target) {
            return self.missing_of_stores(nodes);
        }
        let Some(lack) = self.reductions.lack(target) else {
            // It stands, and waits for the directory.
            return self.missing_of_verdict(self.copies.complete_copy(target)?);
        };
        let Lack { absent, unusable, fetched, working } = lack;
        let room = |id: &ObjectId| match self.fetches.step(id)? {
            FetchStep::WaitingForSpace { size_bytes } => Some(self.copies.lacks_room(size_bytes)),
            _ => None,
        };
        if let Some(missing) = fetched.iter().find_map(room) {
            return Some(missing);
        }
        let refused = |id: &ObjectId| self.faults.directory(&self.ctx, id);
        if let Some(missing) = absent.iter().map(|(_, id)| id).chain([target]).find_map(refused) {
            return Some(missing);
        }
        if !absent.is_empty() {
            if self.collectives.agreement(target).is_some() {
                return participants(absent);
            }
            let sources = Named::of(absent.into_iter().map(|(_, id)| id));
            return Some(Missing::Sources { sources });
        }
        if let Some(missing) = unusable.iter().find_map(|node| self.faults.peer(&self.ctx, node)) {
            return Some(missing);
        }
        if let Some(id) = fetched.first() {
            return Some(self.missing_of_fetch(id));
        }
        self.missing_of_stores(if working.is_empty() { unusable } else { working })
    }

    fn missing_of_stores(&self, nodes: Vec<NodeId>) -> Option<Missing> {
        let fault = nodes.iter().find_map(|node| self.faults.peer(&self.ctx, node));
        let nodes = Named::of(nodes);
        fault.or_else(|| (!nodes.is_empty()).then_some(Missing::Stores { nodes }))
    }

    /// What goes wrong at this store at `now`, for people.
    pub fn troubles(&self, now: Time) -> Troubles {
        let waits = || self.calls.waiting_for(now, LONG_WAIT);
        let wait = |(key, operation, waited)| LongWait { operation, waited, missing: self.missing(key) };
        let peers = self.faults.peers(now);
        Troubles {
            full_waiters: self.copies.status().waiting_for_room,
            long_waits: waits().count(),
            waits: waits().take(MAX_LONG_WAITS).map(wait).collect(),
            shards: self.faults.shards().collect(),
            peers: peers
                .map(|(node, fault)| PeerFault { node: node.clone(), fault: fault.clone() })
                .collect(),
        }
    }
}

fn unavailable(address: &str, reason: &Error) -> Error {
    Error::Unavailable { what: format!("directory shard {address} ({reason})").into() }
}

fn participants(absent: impl IntoIterator<Item = (usize, ObjectId)>) -> Option<Missing> {
    let absent = absent.into_iter().map(|(rank, source)| {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        Absent { rank, source }
    });
    let participants = Named::of(absent);
    (!participants.is_empty()).then_some(Missing::Participants { participants })
}
