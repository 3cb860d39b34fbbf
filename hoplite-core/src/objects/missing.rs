//! Causes of waits, for timeouts and reports.

use super::Objects;
use super::deletion::DeleteCall;
use super::fetch::FetchStep;
use crate::error::{Error, Missing};
use crate::id::{NodeId, ObjectId};
use crate::message::{CallKey, CopyId};
use crate::missing::Named;
use crate::shard::RequestId;

impl Objects {
    pub(crate) fn no_answer(&self, key: CallKey) -> Error {
        let query = self.calls.get(key).and_then(|call| call.queries().first().copied());
        let id = query.and_then(|query| self.queries.id(query));
        id.map_or_else(|| Error::unavailable("the directory"), |id| self.no_shard(id))
    }

    pub(crate) fn no_shard(&self, id: &ObjectId) -> Error {
        match self.faults.directory(&self.ctx, id) {
            Some(Missing::Shard { address, reason }) => {
                Error::Unavailable { what: format!("directory shard {address} ({reason})").into() }
            }
            _ => Error::unavailable("the directory"),
        }
    }

    pub(crate) fn missing_of_query(&self, query: RequestId) -> Option<Missing> {
        let id = self.queries.id(query)?;
        let refused = self.faults.directory(&self.ctx, id);
        Some(refused.unwrap_or_else(|| Missing::Object { id: id.clone() }))
    }

    pub(crate) fn missing_of_queries(&self, queries: &[RequestId]) -> Option<Missing> {
        let mut missing = queries.iter().filter_map(|query| self.missing_of_query(*query));
        let refused = missing.clone().find(|missing| !matches!(missing, Missing::Object { .. }));
        refused.or_else(|| missing.next())
    }

    pub(crate) fn missing_of_fetch(&self, id: &ObjectId) -> Missing {
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

    pub(crate) fn missing_of_verdict(&self, copy: CopyId) -> Option<Missing> {
        let local = self.copies.get(&copy)?;
        if let Some(missing) = self.faults.directory(&self.ctx, &local.id) {
            return Some(missing);
        }
        if let Some((_, (holder, _))) = local.publication.rival().map(|rival| &**rival) {
            let fault = self.faults.peer(&self.ctx, holder);
            return fault.or_else(|| Some(Missing::Stores { nodes: Named::of([holder.clone()]) }));
        }
        if self.is_accepted(copy) && local.metadata.replicas.to_await() > 1 {
            let wanted = local.metadata.replicas.to_await() as u64;
            let present = self.present_copies(copy) as u64;
            return Some(Missing::Replicas { id: local.id.clone(), wanted, present });
        }
        let address = self.ctx.config().shards.name(self.ctx.first_shard(&local.id)?).to_owned();
        Some(Missing::Answer { address })
    }

    pub(crate) fn missing_of_delete(&self, delete: &DeleteCall) -> Option<Missing> {
        let absent = delete.absent();
        if !absent.is_empty() {
            return Some(Missing::Stores { nodes: absent });
        }
        let refused =
            |query: &RequestId| self.faults.directory(&self.ctx, self.queries.id(*query)?);
        if let Some(missing) = delete.queries.iter().find_map(refused) {
            return Some(missing);
        }
        let waiting = delete.queries.iter().find_map(|query| self.queries.sitting(*query));
        let shard =
            waiting.map(|(shard, _)| shard).or_else(|| delete.awaited_shard(&self.ctx.sessions))?;
        Some(Missing::Answer { address: self.ctx.config().shards.name(shard).to_owned() })
    }

    pub(crate) fn missing_of_stores(&self, nodes: Vec<NodeId>) -> Option<Missing> {
        let fault = nodes.iter().find_map(|node| self.faults.peer(&self.ctx, node));
        let nodes = Named::of(nodes);
        fault.or_else(|| (!nodes.is_empty()).then_some(Missing::Stores { nodes }))
    }
}
