//! Shards and stores that refuse this store, or are unreachable.

use super::context::Context;
use crate::error::{Error, Missing};
use crate::fault::{FAULT_TTL, Fault, PeerFaults};
use crate::id::{NodeId, ObjectId};
use crate::message::ShardFault;
use crate::placement::REPLICAS;
use crate::time::Time;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Each shard's latest fault; `None` while connected.
    shards: Vec<Option<Fault>>,
    peers: PeerFaults,
    incompatible: Option<Fault>,
}

impl Faults {
    pub(crate) fn shard_failed(&mut self, ctx: &Context, shard: usize, error: Error) {
        if shard >= ctx.shard_count() || ctx.is_up(shard) || ctx.sessions.is_removed(shard) {
            return;
        }
        self.shards.resize(ctx.shard_count(), None);
        let since = self.shards[shard].as_ref().map_or(ctx.now(), |fault| fault.since);
        self.shards[shard] = Some(Fault { error, since, at: ctx.now() });
    }

    pub(crate) fn shard_reached(&mut self, shard: usize) {
        if let Some(fault) = self.shards.get_mut(shard) {
            *fault = None;
        }
    }

    pub(crate) fn peer_failed(&mut self, ctx: &Context, peer: &NodeId, error: Error) {
        self.peers.failed(ctx.now(), peer, error);
    }

    pub(crate) fn peer_reached(&mut self, peer: &NodeId) {
        self.peers.reached(peer);
    }

    pub(crate) fn refused_version(&mut self, ctx: &Context, error: Error) {
        let since = self.incompatible(ctx.now()).map_or(ctx.now(), |fault| fault.since);
        self.incompatible = Some(Fault { error, since, at: ctx.now() });
    }

    pub(crate) fn incompatible(&self, now: Time) -> Option<&Fault> {
        self.incompatible.as_ref().filter(|fault| now.since(fault.at) <= FAULT_TTL)
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardFault> {
        let faults = self.shards.iter().enumerate();
        faults.filter_map(|(shard, fault)| Some(ShardFault { shard, fault: fault.clone()? }))
    }

    pub(crate) fn peers(&self, now: Time) -> impl Iterator<Item = (&NodeId, &Fault)> {
        self.peers.recent(now)
    }

    pub(crate) fn peer(&self, ctx: &Context, node: &NodeId) -> Option<Missing> {
        let fault = self.peers.of(ctx.now(), node)?;
        Some(Missing::Peer { node: node.clone(), reason: Box::new(fault.error.clone()) })
    }

    pub(crate) fn directory(&self, ctx: &Context, id: &ObjectId) -> Option<Missing> {
        if ctx.first_shard(id).is_some() {
            return None;
        }
        let ranked = ctx.config().shards.ranked(id);
        let known = |shard: &usize| self.shards.get(*shard).is_some_and(Option::is_some);
        let named = ranked.iter().take(REPLICAS).find(|shard| known(shard)).or(ranked.first())?;
        let fault = self.shards.get(*named).and_then(Option::as_ref);
        let reason = fault.map_or(Error::unavailable("it"), |fault| fault.error.clone());
        let address = ctx.config().shards.name(*named).to_owned();
        Some(Missing::Shard { address, reason: Box::new(reason) })
    }
}
