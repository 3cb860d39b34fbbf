use std::time::Duration;

use crate::collective::Collectives;
use crate::error::Missing;
use crate::id::ObjectId;
use crate::message::{CallKey, LongWait, PeerFault, Troubles};
use crate::missing::{Absent, Named};
use crate::objects::Objects;
use crate::objects::calls::Call;
use crate::objects::fetch::FetchStep;
use crate::objects::notice::SpaceWaiter;
use crate::objects::table::LocalCopy;
use crate::reduction::{MissingInputs, Reductions};
use crate::time::Time;

/// Time after which a waiting call is reported.
pub const LONG_WAIT: Duration = Duration::from_secs(10);
/// Most reported long waits.
pub const MAX_LONG_WAITS: usize = 16;

pub(super) struct View<'a> {
    pub(super) objects: &'a Objects,
    pub(super) reductions: &'a Reductions,
    pub(super) collectives: &'a Collectives,
}

impl View<'_> {
    pub(super) fn missing(&self, key: CallKey) -> Option<Missing> {
        match self.objects.calls.get(key)? {
            Call::Create(create) => {
                let (waiter, object) = (SpaceWaiter::Create(key), (&create.id, create.size_bytes));
                let room = self.objects.missing_of_room(&waiter, key.client, object);
                room.or_else(|| self.missing_of_object(&create.id))
            }
            Call::Seal { copy } => self.objects.missing_of_verdict(*copy),
            Call::Get { id, terms } => {
                let missing = self.missing_of_object(id);
                let is_unknown = matches!(missing, None | Some(Missing::Object { .. }));
                if terms.join.is_some() && is_unknown {
                    return Some(Missing::Coordinator { target: id.clone() });
                }
                missing
            }
            Call::Follow { copy } => self.missing_of_copy(self.objects.copies.get(copy)?),
            Call::Delete(delete) => self.objects.missing_of_delete(delete),
            call @ (Call::Locate { .. } | Call::Wait(_)) => {
                self.objects.missing_of_queries(&call.queries())
            }
            Call::Reduce { target, .. } => {
                let quota = self.missing_of_reduce(key, target);
                quota.or_else(|| self.missing_of_target(target))
            }
            Call::Inspect | Call::Drain | Call::Subscription { .. } => None,
        }
    }

    fn missing_of_object(&self, id: &ObjectId) -> Option<Missing> {
        let live = self.objects.copies.live(id).map(|(_, local)| local);
        if let Some(local) = live.filter(|local| !local.awaits_sender()) {
            return self.missing_of_copy(local);
        }
        if self.reductions.contains(id) || self.collectives.coordinator.contains(id) {
            return self.missing_of_target(id);
        }
        Some(self.objects.missing_of_fetch(id))
    }

    fn missing_of_copy(&self, local: &LocalCopy) -> Option<Missing> {
        let id = &local.id;
        if local.is_written() {
            return Some(Missing::Seal { id: id.clone() });
        }
        if local.is_combined() {
            return self.missing_of_target(id);
        }
        if let Some(from) = local.sender() {
            let fault = self.objects.faults.peer(&self.objects.ctx, from);
            return fault.or_else(|| Some(Missing::Bytes { id: id.clone(), from: from.clone() }));
        }
        if local.awaits_sender() {
            return self.missing_of_object(id);
        }
        let (copy, _) = self.objects.copies.live(id)?;
        if self.objects.copies.is_waiting_for_space(&SpaceWaiter::Load(copy)) {
            return Some(self.objects.copies.lacks_room(local.size_bytes));
        }
        self.objects.missing_of_verdict(copy)
    }

    /// Returns the memory or quota that a reduce's target awaits.
    fn missing_of_reduce(&self, key: CallKey, target: &ObjectId) -> Option<Missing> {
        let waiter = SpaceWaiter::Target(target.clone());
        let size_bytes = self.reductions.target_size(target)?;
        self.objects.missing_of_room(&waiter, key.client, (target, size_bytes))
    }

    fn missing_of_target(&self, target: &ObjectId) -> Option<Missing> {
        if self.objects.copies.is_waiting_for_space(&SpaceWaiter::Target(target.clone())) {
            return Some(self.objects.copies.lacks_room(self.reductions.target_size(target)?));
        }
        if let Some(absent) = self.collectives.coordinator.absent_sources(target) {
            let about = absent.values().next().unwrap_or(target);
            let refused = self.objects.faults.directory(&self.objects.ctx, about);
            return refused.or_else(|| participants(absent));
        }
        if let Some(nodes) = self.collectives.coordinator.unfinished_stores(target) {
            return self.objects.missing_of_stores(nodes);
        }
        let Some(missing_inputs) = self.reductions.missing_inputs(target) else {
            // The target is complete, and waits for the directory.
            return self.objects.missing_of_verdict(self.objects.copies.complete_copy(target)?);
        };
        let MissingInputs { absent, unusable, fetched, working } = missing_inputs;
        let room = |id: &ObjectId| match self.objects.fetches.step(id)? {
            FetchStep::WaitingForSpace { size_bytes } => {
                Some(self.objects.copies.lacks_room(size_bytes))
            }
            _ => None,
        };
        if let Some(missing) = fetched.iter().find_map(room) {
            return Some(missing);
        }
        let refused = |id: &ObjectId| self.objects.faults.directory(&self.objects.ctx, id);
        if let Some(missing) = absent.iter().map(|(_, id)| id).chain([target]).find_map(refused) {
            return Some(missing);
        }
        if !absent.is_empty() {
            if self.collectives.coordinator.participants(target).is_some() {
                return participants(absent);
            }
            let sources = Named::of(absent.into_iter().map(|(_, id)| id));
            return Some(Missing::Sources { sources });
        }
        if let Some(missing) =
            unusable.iter().find_map(|node| self.objects.faults.peer(&self.objects.ctx, node))
        {
            return Some(missing);
        }
        if let Some(id) = fetched.first() {
            return Some(self.objects.missing_of_fetch(id));
        }
        self.objects.missing_of_stores(if working.is_empty() { unusable } else { working })
    }

    pub(super) fn troubles(&self, now: Time) -> Troubles {
        let waits = || self.objects.calls.waiting_for(now, LONG_WAIT);
        let wait =
            |(key, operation, waited)| LongWait { operation, waited, missing: self.missing(key) };
        let peers = self.objects.faults.peers(now);
        Troubles {
            full_waiters: self.objects.copies.status().waiting_for_room,
            long_waits: waits().count(),
            waits: waits().take(MAX_LONG_WAITS).map(wait).collect(),
            shards: self.objects.faults.shards().collect(),
            spill: self.objects.copies.spill_troubles().collect(),
            peers: peers
                .map(|(node, fault)| PeerFault { node: node.clone(), fault: fault.clone() })
                .collect(),
            incompatible: self.objects.faults.incompatible(now).cloned(),
        }
    }
}

fn participants(absent: impl IntoIterator<Item = (usize, ObjectId)>) -> Option<Missing> {
    let absent = absent.into_iter().map(|(rank, source)| {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        Absent { rank, source }
    });
    let participants = Named::of(absent);
    (!participants.is_empty()).then_some(Missing::Participants { participants })
}
