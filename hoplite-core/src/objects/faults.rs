//! Shards and stores that refuse this store, or cannot be reached.

use super::context::Context;
use crate::error::{Error, Missing};
use crate::fault::{FAULT_TTL, Fault, PeerFaults};
use crate::id::{NodeId, ObjectId};
use crate::message::ShardFault;
use crate::placement::REPLICAS;
use crate::time::Time;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// By the number of the shard; none while a session with it is up.
    shards: Vec<Option<Fault>>,
    peers: PeerFaults,
    /// The last refusal of a client or store of an incompatible version.
    incompatible: Option<Fault>,
}

impl Faults {
    /// A session with a shard has ended, or did not come about.
    pub(crate) fn shard_failed(&mut self, ctx: &Context, shard: usize, error: Error) {
        if shard >= ctx.shard_count() || ctx.is_up(shard) {
            return;
        }
        self.shards.resize(ctx.shard_count(), None);
        let since = self.shards[shard].as_ref().map_or(ctx.now(), |fault| fault.since);
        self.shards[shard] = Some(Fault { error, since, at: ctx.now() });
    }

    /// A session with a shard is up.
    pub(crate) fn shard_reached(&mut self, shard: usize) {
        if let Some(fault) = self.shards.get_mut(shard) {
            *fault = None;
        }
    }

    /// The data plane could not connect to a store.
    pub(crate) fn peer_failed(&mut self, ctx: &Context, peer: &NodeId, error: Error) {
        self.peers.failed(ctx.now(), peer, error);
    }

    /// The data plane has connected to a store.
    pub(crate) fn peer_reached(&mut self, peer: &NodeId) {
        self.peers.reached(peer);
    }

    /// Notes that a client or store was refused, because its version is incompatible.
    pub(crate) fn refused_version(&mut self, ctx: &Context, error: Error) {
        let since = self.incompatible(ctx.now()).map_or(ctx.now(), |fault| fault.since);
        self.incompatible = Some(Fault { error, since, at: ctx.now() });
    }

    /// The last refusal because of an incompatible version, if it is recent.
    pub(crate) fn incompatible(&self, now: Time) -> Option<&Fault> {
        self.incompatible.as_ref().filter(|fault| now.since(fault.at) <= FAULT_TTL)
    }

    /// The shards that are not connected.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardFault> {
        let faults = self.shards.iter().enumerate();
        faults.filter_map(|(shard, fault)| Some(ShardFault { shard, fault: fault.clone()? }))
    }

    /// The stores that could not be reached lately.
    pub(crate) fn peers(&self, now: Time) -> impl Iterator<Item = (&NodeId, &Fault)> {
        self.peers.recent(now)
    }

    /// Returns the reason for which a store cannot be asked, if that is so.
    pub(crate) fn peer(&self, ctx: &Context, node: &NodeId) -> Option<Missing> {
        let fault = self.peers.of(ctx.now(), node)?;
        Some(Missing::Peer { node: node.clone(), reason: Box::new(fault.error.clone()) })
    }

    /// Returns the reason for which no shard can be asked about an object, if that is so.
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
