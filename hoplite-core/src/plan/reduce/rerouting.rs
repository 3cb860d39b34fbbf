//! Exchanges vertices of a reduce's tree so that streams avoid slow links.

use std::collections::BTreeSet;

use super::tree::{Tree, Vertex, VertexId};

/// Most slow streams that one call reroutes.
const MAX_REROUTED: usize = 32;
/// Most vertices with which one vertex may be exchanged: more than the slow peers that a store
/// reports.
const MAX_EXCHANGEABLE: usize = 256;

impl<S> Tree<S> {
    /// Exchanges vertices, each within its group, so that fewer streams use slow links. Returns the
    /// vertices whose streams change.
    ///
    /// `is_slow` gets the data of a stream's sender and consumer. The consumer is `None` if the
    /// receiver takes in the stream.
    pub fn reroute(&mut self, is_slow: impl Fn(&S, Option<&S>) -> bool) -> BTreeSet<VertexId> {
        let mut changed = BTreeSet::new();
        let slow: Vec<VertexId> = self.slow_streams(&is_slow).take(MAX_REROUTED).collect();
        for stream in slow {
            let consumer = self.vertices.get(&stream).and_then(|vertex| vertex.consumer);
            for end in [Some(stream), consumer].into_iter().flatten() {
                if !self.is_slow_stream(stream, &is_slow) {
                    break;
                }
                let others = self.exchangeable(end);
                let gain = |other: VertexId| self.gain_of_exchange((end, other), &is_slow);
                let gains: Vec<(usize, VertexId)> =
                    others.into_iter().map(|other| (gain(other), other)).collect();
                // On ties, the newest vertex wins, so few streams change.
                let best = gains.into_iter().max().filter(|(gain, _)| *gain > 0);
                if let Some((_, other)) = best {
                    self.exchange(end, other);
                    changed.extend(self.way_to_receiver(end));
                    changed.extend(self.way_to_receiver(other));
                }
            }
        }
        changed
    }

    /// Returns the vertices whose streams use slow links.
    pub fn slow_streams(
        &self,
        is_slow: &impl Fn(&S, Option<&S>) -> bool,
    ) -> impl Iterator<Item = VertexId> {
        self.vertices.keys().copied().filter(|vertex| self.is_slow_stream(*vertex, is_slow))
    }

    fn is_slow_stream(&self, vertex: VertexId, is_slow: &impl Fn(&S, Option<&S>) -> bool) -> bool {
        let Some(vertex) = self.vertices.get(&vertex) else { return false };
        let consumer = vertex.consumer.and_then(|consumer| self.vertices.get(&consumer));
        is_slow(&vertex.state, consumer.map(|consumer| &consumer.state))
    }

    /// Returns the vertices that may trade places with `vertex`: the newest vertices of its group
    /// at nodes that can combine.
    fn exchangeable(&self, vertex: VertexId) -> Vec<VertexId> {
        let Some(group) =
            self.vertices.get(&vertex).filter(|vertex| !vertex.is_unfit).map(|of| of.group)
        else {
            return Vec::new();
        };
        let is_alike = |(other, of): &(&VertexId, &Vertex<S>)| {
            **other != vertex && of.group == group && !of.is_unfit
        };
        let alike = self.vertices.iter().rev().filter(is_alike).map(|(other, _)| *other);
        alike.take(MAX_EXCHANGEABLE).collect()
    }

    fn gain_of_exchange(
        &self,
        (one, other): (VertexId, VertexId),
        is_slow: &impl Fn(&S, Option<&S>) -> bool,
    ) -> usize {
        let at = |vertex: VertexId| match vertex {
            _ if vertex == one => other,
            _ if vertex == other => one,
            _ => vertex,
        };
        let state = |vertex: VertexId| self.vertices.get(&vertex).map(|vertex| &vertex.state);
        let of_ends = [one, other].into_iter().filter_map(|end| self.vertices.get(&end));
        let streams: BTreeSet<VertexId> =
            of_ends.flat_map(|end| end.inputs.iter().copied()).chain([one, other]).collect();
        let count = |at: &dyn Fn(VertexId) -> VertexId| {
            let is_slow_at = |stream: &&VertexId| {
                let consumer = self.vertices.get(*stream).and_then(|vertex| vertex.consumer);
                state(at(**stream))
                    .is_some_and(|from| is_slow(from, consumer.and_then(|to| state(at(to)))))
            };
            streams.iter().filter(is_slow_at).count()
        };
        count(&|vertex| vertex).saturating_sub(count(&at))
    }

    fn exchange(&mut self, one: VertexId, other: VertexId) {
        let at = |vertex: VertexId| match vertex {
            _ if vertex == one => other,
            _ if vertex == other => one,
            _ => vertex,
        };
        let place = |vertex: VertexId| {
            self.vertices.get(&vertex).map(|of| (of.inputs.clone(), of.consumer))
        };
        let (Some(place_of_one), Some(place_of_other)) = (place(one), place(other)) else { return };
        for (vertex, (inputs, consumer)) in [(one, place_of_other), (other, place_of_one)] {
            let (inputs, consumer): (Vec<VertexId>, _) =
                (inputs.into_iter().map(at).collect(), consumer.map(at));
            for input in &inputs {
                if let Some(input) = self.vertices.get_mut(input) {
                    input.consumer = Some(vertex);
                }
            }
            if let Some(vertex) = self.vertices.get_mut(&vertex) {
                (vertex.inputs, vertex.consumer) = (inputs, consumer);
            }
        }
        self.loose.iter_mut().for_each(|loose| *loose = at(*loose));
        let consumers =
            [one, other].map(|vertex| self.vertices.get(&vertex).and_then(|of| of.consumer));
        for consumer in consumers.into_iter().flatten().collect::<BTreeSet<_>>() {
            if consumer != one
                && consumer != other
                && let Some(consumer) = self.vertices.get_mut(&consumer)
            {
                consumer.inputs.iter_mut().for_each(|input| *input = at(*input));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::reduce::{Entry, ReduceSchedule};
    use crate::topology::place::{EVERYWHERE, Path};

    type Numbered = Tree<usize>;

    fn grow(schedule: &ReduceSchedule, count: usize, group: impl Fn(usize) -> Path) -> Numbered {
        let mut tree = Numbered::default();
        for node in 0..count {
            tree.grow(schedule, group(node), vec![node], node);
        }
        tree
    }

    fn schedule(shape: usize, count: usize, racks: usize) -> ReduceSchedule {
        match shape {
            0 => ReduceSchedule::Star,
            1 => ReduceSchedule::chain(count),
            2 => ReduceSchedule::chain_of_chains(count, 2),
            3 => {
                ReduceSchedule::Groups { lengths: vec![count], groups: racks, entry: Entry::First }
            }
            4 => ReduceSchedule::Groups { lengths: vec![3, 2], groups: racks, entry: Entry::Last },
            _ => ReduceSchedule::Tree { vertices: count },
        }
    }

    fn sources(tree: &Numbered) -> Vec<usize> {
        let mut sources: Vec<usize> =
            tree.iter().flat_map(|(_, vertex)| vertex.sources.clone()).collect();
        sources.sort_unstable();
        sources
    }

    fn check(tree: &Numbered) {
        let mut taken_in = BTreeSet::new();
        for (id, vertex) in tree.iter() {
            assert!(vertex.inputs.iter().all(|input| taken_in.insert(*input)));
            assert!(
                vertex.inputs.iter().all(|input| tree.get(*input).unwrap().consumer == Some(id))
            );
            assert_eq!(vertex.consumer.is_none(), tree.loose().contains(&id));
            assert!(tree.loose().contains(tree.way_to_receiver(id).last().unwrap()));
        }
    }

    #[test]
    fn each_shape_reroutes_around_one_slow_link() {
        for (shape, count) in (1..6).flat_map(|shape| (3..12).map(move |count| (shape, count))) {
            for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
                let mut tree = grow(&schedule(shape, count, 1), count, |_| EVERYWHERE);
                // The link from a node to itself stands for the link to the receiver.
                let is_slow = |node: &usize, consumer: Option<&usize>| {
                    *node == from
                        && consumer.map_or(from == to, |consumer| from != to && *consumer == to)
                };
                tree.reroute(is_slow);
                check(&tree);
                assert_eq!(sources(&tree), (0..count).collect::<Vec<_>>());
                assert_eq!(tree.slow_streams(&is_slow).count(), 0, "{shape} {count} {from} {to}");
            }
        }
    }

    #[test]
    fn a_slow_node_combines_no_inputs() {
        for (shape, count) in
            [1, 2, 5].into_iter().flat_map(|shape| (2..12).map(move |count| (shape, count)))
        {
            for slow in 0..count {
                let mut tree = grow(&schedule(shape, count, 1), count, |_| EVERYWHERE);
                let is_slow = |node: &usize, consumer: Option<&usize>| {
                    *node == slow || consumer == Some(&slow)
                };
                tree.reroute(is_slow);
                check(&tree);
                let (_, vertex) = tree.iter().find(|(_, vertex)| vertex.state == slow).unwrap();
                assert!(vertex.is_plain(), "{shape} {count} {slow}");
            }
        }
    }

    proptest! {
        #[test]
        fn rerouting_loses_no_source_and_crosses_groups_no_more_often(
            shape in 0_usize..6,
            count in 1_usize..24,
            racks in 1_u32..4,
            links in prop::collection::btree_set((0_usize..24, 0_usize..25), 0..80),
            changes in prop::collection::vec((0_u8..3, 0_usize..24), 0..20),
        ) {
            let schedule = schedule(shape, count, racks as usize);
            let group = |node: usize| match schedule.entry() {
                Some(_) => [0, 0, node as u32 % racks + 1, 0],
                None => EVERYWHERE,
            };
            let is_slow = |node: &usize, consumer: Option<&usize>| {
                links.contains(&(*node, consumer.copied().unwrap_or(24)))
            };
            let mut tree = grow(&schedule, count, group);
            for (kind, number) in changes.into_iter().chain([(3, 0)]) {
                let node = number % count;
                match (kind, tree.vertex_of(node)) {
                    (0, Some(_)) => drop(tree.remove_source(node)),
                    (1, Some(vertex)) => drop(tree.dissolve(vertex, |source| source)),
                    (2, None) => drop(tree.grow(&schedule, group(node), vec![node], node)),
                    _ => {}
                }
                if let Some(entry) = schedule.entry() {
                    tree.join_groups(entry, |group| group);
                }
                let before = (sources(&tree), tree.crossings(EVERYWHERE), tree.loose().len());
                let streams: Vec<(VertexId, Option<VertexId>)> =
                    tree.iter().map(|(id, vertex)| (id, vertex.consumer)).collect();
                let slow = tree.slow_streams(&is_slow).count();
                let changed = tree.reroute(is_slow);
                check(&tree);
                prop_assert_eq!(before, (sources(&tree), tree.crossings(EVERYWHERE), tree.loose().len()));
                let slow_now = tree.slow_streams(&is_slow).count();
                prop_assert!(slow_now <= slow && (slow_now == slow) == changed.is_empty());
                for (id, _) in streams.iter().filter(|(id, consumer)| tree.get(*id).unwrap().consumer != *consumer) {
                    let consumers = tree.way_to_receiver(*id);
                    prop_assert!(consumers.iter().skip(1).all(|vertex| changed.contains(vertex)));
                }
            }
        }
    }
}
