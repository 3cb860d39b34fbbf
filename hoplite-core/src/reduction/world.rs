use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::hosting::Hostings;
use super::records::Records;
use crate::id::{NodeId, ObjectId};
use crate::message::{CallId, Effect, Hop, HopId, HopOwner};
use crate::objects::Objects;
use crate::plan::reduce::VertexId;
use crate::time::Time;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectedHop {
    pub(super) target: ObjectId,
    pub(super) vertex: VertexId,
    is_here: bool,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) hops: BTreeMap<HopId, DirectedHop>,
    pub(super) fetches: BTreeMap<CallId, (ObjectId, usize)>,
    pub(super) records: Records,
    pub(super) hostings: Hostings,
}

pub(super) struct World<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) shared: &'a mut Shared,
}

impl World<'_> {
    pub(super) fn now(&self) -> Time {
        self.objects.ctx.now()
    }

    pub(super) fn begin_hop(
        &mut self,
        target: &ObjectId,
        vertex: VertexId,
        (node, address): (NodeId, SocketAddr),
        spec: Hop,
    ) -> HopId {
        let hop = HopId(self.objects.ctx.next_number());
        let is_here = node == *self.objects.ctx.node();
        self.shared.hops.insert(hop, DirectedHop { target: target.clone(), vertex, is_here });
        if is_here {
            self.shared.hostings.accept(self.objects, HopOwner::Here(hop), spec);
        } else {
            self.objects.ctx.push(Effect::StartHop { hop, node, address, spec });
        }
        hop
    }

    pub(super) fn end_hop(&mut self, hop: Option<HopId>) {
        let Some(hop) = hop else { return };
        match self.shared.hops.remove(&hop) {
            Some(DirectedHop { is_here: true, .. }) => {
                self.shared.hostings.release(self.objects, HopOwner::Here(hop));
            }
            Some(_) => self.objects.ctx.push(Effect::EndHop { hop }),
            None => {}
        }
    }
}
