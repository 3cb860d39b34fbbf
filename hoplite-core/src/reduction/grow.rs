use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::parts::{Run, RunPhase, TargetState};
use super::source::{Readiness, SourcePlace};
use super::state::Reduction;
use super::world::World;
use crate::error::Result;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{Hop, HopInput, MAX_HOP_INPUTS};
use crate::peer::ROOM_TIMEOUT;
use crate::plan::Choice;
use crate::plan::reduce::{ReduceSchedule, Vertex, VertexId, choose, choose_for_groups, estimate};
use crate::shard::Location;
use crate::topology::place::{EVERYWHERE, MAX_LEVELS, Path, level};

/// Most sources of a vertex: half of a hop's inputs. The other half is for streams.
const MAX_SOURCES_PER_VERTEX: usize = MAX_HOP_INPUTS / 2;

/// Time for which a vertex (node of the tree) takes in further sources of its node: equal workers
/// finish within milliseconds. This restarts its combination, but a separate vertex costs a
/// transfer.
const MERGE_WINDOW: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Group {
    pub(super) location: Location,
    sources: Vec<usize>,
    /// `true` if a source failed at this node, which may be dead without the directory's knowledge.
    has_failed: bool,
    pub(super) is_slow: bool,
    level: usize,
    /// First source's position, counted cyclically from the source after this store's own.
    turn: usize,
}

impl Reduction {
    fn joining_count(&self) -> usize {
        self.joined.len() + self.fetching
    }

    fn needs_sources(&self) -> bool {
        self.joining_count() < self.request.count
    }
}

impl Reduction {
    pub(super) fn join_ready(&mut self, world: &mut World<'_>) -> Result<()> {
        if !self.needs_sources() {
            return Ok(());
        }
        let is_ready = |index: &usize| Some((*index, self.readiness(world, *index)?));
        let ready: Vec<(usize, Readiness)> = self.open.iter().filter_map(is_ready).collect();
        if self.is_fixed() {
            return self.join_in_order(world, &ready);
        }
        let mut elsewhere: BTreeMap<NodeId, Group> = BTreeMap::new();
        for (index, readiness) in ready {
            match readiness {
                Readiness::At(location) => {
                    let has_failed = self.sources[index].has_failed_at(&location.node);
                    let group = elsewhere.entry(location.node.clone());
                    let level = level(self.own, location.path);
                    let sources = Vec::new();
                    let new = || Group {
                        location,
                        sources,
                        has_failed: false,
                        is_slow: false,
                        level,
                        turn: 0,
                    };
                    let group = group.or_insert_with(new);
                    group.sources.push(index);
                    group.has_failed |= has_failed;
                }
                // Local and small sources join at the receiver.
                readiness if self.needs_sources() => {
                    self.join_at_receiver(world, index, &readiness)?
                }
                _ => {}
            }
        }
        self.join_groups(world, elsewhere.into_values().collect())
    }

    fn join_at_receiver(
        &mut self,
        world: &mut World<'_>,
        index: usize,
        readiness: &Readiness,
    ) -> Result<()> {
        match readiness {
            Readiness::Here(copy) => self.join_here(world, index, *copy)?,
            Readiness::Small => self.fetch_source(world, index),
            Readiness::At(_) => {}
        }
        Ok(())
    }

    /// Adds the sources of each node as one vertex: close nodes first, nodes with only slow links
    /// later, failed nodes last. Equally close nodes come by turn, so that reduces of the same
    /// sources begin at different nodes.
    fn join_groups(&mut self, world: &mut World<'_>, mut groups: Vec<Group>) -> Result<()> {
        let own =
            self.sources.iter().position(|source| matches!(source.place, SourcePlace::Here { .. }));
        let (count, first) = (self.sources.len(), own.map_or(0, |own| own + 1));
        self.mark_slow_nodes(world, &mut groups);
        for group in &mut groups {
            let turn = |index: &usize| (index + count - first) % count;
            group.sources.sort_by_key(turn);
            group.turn = group.sources.first().map_or(0, turn);
        }
        groups.sort_by_key(|group| {
            Reverse((group.has_failed, group.is_slow, group.level, group.turn))
        });
        while self.needs_sources()
            && let Some(Group { location, mut sources, .. }) = groups.pop()
        {
            sources.truncate(self.request.count - self.joining_count());
            sources = self.join_young_vertex(world, &location, sources)?;
            for part in sources.chunks(MAX_SOURCES_PER_VERTEX) {
                self.join_at(world, &location, part.to_vec())?;
            }
        }
        Ok(())
    }

    /// Adds sources to their node's latest vertex if it joined within [`MERGE_WINDOW`]. Otherwise
    /// returns them.
    fn join_young_vertex(
        &mut self,
        world: &mut World<'_>,
        location: &Location,
        sources: Vec<usize>,
    ) -> Result<Vec<usize>> {
        let is_young = |vertex: &Vertex<Run>| {
            vertex.sources.len() + sources.len() <= MAX_SOURCES_PER_VERTEX
                && world.objects.ctx.now() <= vertex.state.joined_at + MERGE_WINDOW
        };
        let latest = self.latest.get(&location.node).copied();
        let young = latest.filter(|latest| self.tree.get(*latest).is_some_and(is_young));
        let has_begun = !matches!(self.target, TargetState::None | TargetState::Reserved { .. });
        let Some(vertex) = young.filter(|_| !has_begun) else { return Ok(sources) };
        for index in sources {
            self.join_elsewhere(world, index)?;
            for changed in self.tree.add_source(vertex, index) {
                self.redo(world, changed);
            }
        }
        Ok(Vec::new())
    }

    fn join_in_order(&mut self, world: &mut World<'_>, ready: &[(usize, Readiness)]) -> Result<()> {
        let count = self.request.count;
        let takes_all = count == self.sources.len();
        if !takes_all && self.joining_count() + ready.len() < count {
            return Ok(());
        }
        let mut ready = ready.iter().map(|(index, _)| *index).peekable();
        while self.needs_sources()
            && let Some(index) = ready.next()
        {
            // This source may now be the last one, which may be combined at this store.
            match self.readiness(world, index) {
                Some(Readiness::At(location)) if !takes_all || index == self.joining_count() => {
                    let mut sources = vec![index];
                    while let Some(next) = ready.next_if(|next| {
                        let is_next = !takes_all || *next == index + sources.len();
                        is_next && self.may_accompany(world, *next, &location, sources.len())
                    }) {
                        sources.push(next);
                    }
                    self.join_at(world, &location, sources)?;
                }
                Some(Readiness::At(_)) | None => break,
                Some(readiness) => self.join_at_receiver(world, index, &readiness)?,
            }
        }
        Ok(())
    }

    /// Returns `true` if a hop at `location` that takes `others` sources can also take this source.
    fn may_accompany(
        &self,
        world: &World<'_>,
        index: usize,
        location: &Location,
        others: usize,
    ) -> bool {
        location.node != *world.objects.ctx.node()
            && others < MAX_SOURCES_PER_VERTEX
            && self.joining_count() + others < self.request.count
            && matches!(self.readiness(world, index), Some(Readiness::At(at)) if at.node == location.node)
    }

    fn join_elsewhere(&mut self, world: &World<'_>, index: usize) -> Result<()> {
        self.examine_known(world, index)?;
        self.sources[index].join_elsewhere();
        self.open.remove(&index);
        self.joined.push(index);
        Ok(())
    }

    fn join_at(
        &mut self,
        world: &mut World<'_>,
        location: &Location,
        sources: Vec<usize>,
    ) -> Result<()> {
        let schedule = match &self.choice {
            Some(choice) => choice.schedule.clone(),
            None => {
                let choice = self.choose_schedule(world);
                self.choice.insert(choice).schedule.clone()
            }
        };
        for index in &sources {
            self.join_elsewhere(world, *index)?;
        }
        let state = Run::planned(location, world.now());
        self.rerouting.is_enabled |= !location.slow_peers.is_empty();
        let vertex = if self.is_fixed() {
            self.tree.grow_in_order(sources, state)
        } else {
            let group = schedule.entry().map_or(EVERYWHERE, |_| location.path);
            self.tree.grow(&schedule, group, sources, state)
        };
        // The hops from the new vertex to the receiver have other inputs now, or have ended.
        for changed in self.tree.way_to_receiver(vertex) {
            self.redo(world, changed);
        }
        self.latest.insert(location.node.clone(), vertex);
        Ok(())
    }

    fn choose_schedule(&self, world: &World<'_>) -> Choice<ReduceSchedule> {
        let mut nodes: BTreeMap<NodeId, Path> = BTreeMap::new();
        let mut at_nodes = 0;
        for index in &self.open {
            if let Some(Readiness::At(location)) = self.readiness(world, *index) {
                nodes.insert(location.node, location.path);
                at_nodes += 1;
            }
        }
        let missing = self.request.count - self.joined.len();
        // Each missing source may be at a different node.
        let vertices = (nodes.len() + missing.saturating_sub(at_nodes)).min(missing).max(1);
        // Uses the whole size, because other reduces use the same links for the other parts.
        let size_bytes = self.common.as_ref().map_or(0, |common| common.size_bytes);
        if self.is_fixed() {
            let schedule = ReduceSchedule::chain(vertices);
            let estimate = estimate(&schedule, vertices, size_bytes, world.objects.ctx.link());
            return Choice { schedule, estimate, runner_up: None };
        }
        let may_differ = self.own != EVERYWHERE && missing > at_nodes;
        let are_together = nodes.values().all(|path| *path == self.own);
        if !may_differ && (are_together || are_apart(nodes.values())) {
            return choose(vertices, size_bytes, world.objects.ctx.link());
        }
        let mut groups: BTreeMap<Path, usize> = BTreeMap::new();
        for path in nodes.values() {
            *groups.entry(*path).or_default() += 1;
        }
        let known = groups.values().copied().max().unwrap_or(0);
        let largest = known.max(vertices.div_ceil(groups.len().max(1)));
        choose_for_groups(vertices, (groups.len(), largest), size_bytes, world.objects.ctx.link())
    }

    /// Connects the groups' streams once all sources have joined. At each level, the receiver's
    /// group is last.
    pub(super) fn join_streams_of_groups(&mut self, world: &mut World<'_>) {
        let Some(entry) = self.choice.as_ref().and_then(|choice| choice.schedule.entry()) else {
            return;
        };
        if !self.is_full() || matches!(self.target, TargetState::Combining { .. }) {
            return;
        }
        let own = self.own;
        let order = |group: Path| -> Path {
            std::array::from_fn(|level| group[level].wrapping_sub(own[level]).wrapping_sub(1))
        };
        for changed in self.tree.join_groups(entry, order) {
            self.redo(world, changed);
        }
    }

    /// Dissolves vertices with more inputs than a hop may have: vertices that could not combine
    /// have passed their inputs to them.
    fn dissolve_oversized(&mut self, world: &mut World<'_>) {
        let oversized = |reduction: &Self| {
            let mut planned = planned_hops(reduction);
            planned
                .find(|(_, vertex)| vertex.inputs.len() + vertex.sources.len() > MAX_HOP_INPUTS)
                .map(|(id, _)| id)
        };
        while let Some(vertex) = oversized(self) {
            self.dissolve(world, vertex);
        }
    }

    pub(super) fn start_hops(&mut self, world: &mut World<'_>) {
        let Some(offset_bytes) = self.offset_of_new_hops() else { return };
        let Some(common) = self.common.clone() else { return };
        self.dissolve_oversized(world);
        let planned: Vec<VertexId> = planned_hops(self).map(|(id, _)| id).collect();
        // All outputs get names first, because hops name each other's outputs.
        for vertex in &planned {
            let put = world.objects.ctx.next_put();
            if let Some(run) = self.tree.state_mut(*vertex) {
                run.put = put;
                run.output = ObjectId::of_hop(put);
                run.offset_bytes = offset_bytes;
            }
        }
        let timeout = self.time_left(world.now());
        for id in planned {
            let Some(vertex) = self.tree.get(id) else { continue };
            let streams = vertex.inputs.iter().filter_map(|input| stream(self, *input));
            let own = vertex.sources.iter().map(|source| {
                source_input(self, *source, (&vertex.state.node, vertex.state.address))
            });
            let run = vertex.state.clone();
            let spec = Hop {
                output: run.output.clone(),
                put: run.put,
                op: self.request.op,
                dtype: common.dtype,
                size_bytes: common.length_bytes,
                offset_bytes,
                inputs: streams.chain(own).collect(),
                // The other half of the time is for repairs.
                timeout: (timeout / 2).min(ROOM_TIMEOUT),
            };
            let hop = world.begin_hop(&self.request.target, id, (run.node, run.address), spec);
            if let Some(run) = self.tree.state_mut(id) {
                run.phase = RunPhase::Running(hop);
            }
        }
        self.to_begin.clear();
    }
}

fn planned_hops(reduction: &Reduction) -> impl Iterator<Item = (VertexId, &Vertex<Run>)> {
    let is_planned =
        |vertex: &Vertex<Run>| vertex.state.phase == RunPhase::Planned && !vertex.is_plain();
    let vertices = reduction.to_begin.iter().filter_map(|id| Some((*id, reduction.tree.get(*id)?)));
    vertices.filter(move |(_, vertex)| is_planned(vertex))
}

/// Returns `true` if groups cannot save traffic: at each level, all nodes share a group or each has
/// its own.
fn are_apart<'a>(paths: impl ExactSizeIterator<Item = &'a Path> + Clone) -> bool {
    let groups =
        |levels: usize| paths.clone().map(|path| &path[..levels]).collect::<BTreeSet<_>>().len();
    (1..=MAX_LEVELS).all(|levels| [1, paths.len()].contains(&groups(levels)))
        && groups(MAX_LEVELS) == paths.len()
}

pub(super) fn stream(reduction: &Reduction, vertex: VertexId) -> Option<HopInput> {
    let vertex = reduction.tree.get(vertex)?;
    let run = &vertex.state;
    if vertex.is_plain() {
        return vertex
            .sources
            .first()
            .map(|source| source_input(reduction, *source, (&run.node, run.address)));
    }
    let size_bytes = reduction.common.as_ref()?.length_bytes;
    Some(HopInput {
        id: run.output.clone(),
        put: run.put,
        size_bytes,
        base_bytes: 0,
        node: run.node.clone(),
        address: run.address,
        is_hop: true,
    })
}

pub(super) fn source_input(
    reduction: &Reduction,
    source: usize,
    (node, address): (&NodeId, SocketAddr),
) -> HopInput {
    let (size_bytes, base_bytes) =
        reduction.common.as_ref().map_or((0, 0), |common| (common.size_bytes, common.base_bytes));
    HopInput {
        id: reduction.request.sources[source].clone(),
        put: reduction.sources[source].joined_put.unwrap_or(PutId(0)),
        size_bytes,
        base_bytes,
        node: node.clone(),
        address,
        is_hop: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_two_nodes_are_ignored() {
        let apart = |paths: &[Path]| are_apart(paths.iter());
        assert!(apart(&[[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]]));
        assert!(apart(&[[1, 1, 0, 0], [1, 2, 0, 0]]), "one zone, two racks");
        assert!(!apart(&[[1, 0, 0, 0], [2, 0, 0, 0], [2, 0, 0, 0]]));
        assert!(
            !apart(&[[1, 1, 0, 0], [1, 2, 0, 0], [2, 1, 0, 0]]),
            "two of the zones' racks share a zone"
        );
        assert!(
            !apart(&[[1, 0, 0, 0], [1, 0, 0, 0]]),
            "one rack: an object leaves it once only along a chain or a tree"
        );
    }
}
