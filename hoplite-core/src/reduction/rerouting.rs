use super::grow::Group;
use super::parts::{Run, TargetState};
use super::state::Reduction;
use super::world::World;
use crate::id::NodeId;
use crate::topology::place::Path;
use crate::topology::reported::Reports;

impl Reduction {
    pub(super) fn mark_slow_nodes(&self, world: &World<'_>, groups: &mut [Group]) {
        let mut locations = groups.iter().map(|group| &group.location);
        if !self.rerouting.is_enabled && locations.all(|location| location.slow_peers.is_empty()) {
            return;
        }
        let locations = groups.iter().map(|group| &group.location);
        let slow_peers_of_groups =
            locations.map(|at| (at.node.clone(), at.path, at.slow_peers.clone()));
        let reports = Reports::new(self.slow_peers_of_hops(world).chain(slow_peers_of_groups));
        for group in groups {
            group.is_slow = reports.is_slow_node(&group.location.node);
        }
    }

    fn slow_peers_of_hops(
        &self,
        world: &World<'_>,
    ) -> impl Iterator<Item = (NodeId, Path, Vec<NodeId>)> {
        let here =
            (world.objects.ctx.node().clone(), self.own, world.objects.ctx.slow_peers().to_vec());
        let runs = self.tree.iter().map(|(_, vertex)| &vertex.state);
        runs.map(|run| (run.node.clone(), run.path, run.slow_peers.clone())).chain([here])
    }

    /// Exchanges the places of vertices before combinations begin, so that fewer streams use slow
    /// links.
    pub(super) fn reroute_around_slow_links(&mut self, world: &mut World<'_>) {
        let is_combining = matches!(self.target, TargetState::Combining { .. });
        if !self.rerouting.is_enabled || self.to_begin.is_empty() || self.is_fixed() || is_combining
        {
            return;
        }
        let reports = Reports::new(self.slow_peers_of_hops(world));
        let (here, is_full) = (world.objects.ctx.node().clone(), self.is_full());
        let is_slow = |from: &Run, to: Option<&Run>| match to {
            Some(to) => reports.is_slow(&from.node, &to.node),
            None => is_full && reports.is_slow(&from.node, &here),
        };
        let changed = self.tree.reroute(is_slow);
        if self.tree.slow_streams(&is_slow).next().is_some() {
            self.rerouting.remark = Some("over a slow link");
        } else if !changed.is_empty() || self.rerouting.remark.is_some() {
            self.rerouting.remark = Some("around slow links");
        }
        for vertex in changed {
            self.redo(world, vertex);
        }
    }
}
