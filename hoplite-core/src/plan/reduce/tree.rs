use std::collections::{BTreeMap, BTreeSet};

use super::schedule::{Entry, ReduceSchedule};
use crate::topology::place::{EVERYWHERE, Path};

/// Number of a vertex, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(pub u64);

/// A node that combines streams and its own sources, or only sends its one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex<S> {
    /// Vertices whose streams this vertex takes in, in combining order.
    pub inputs: Vec<VertexId>,
    /// Node's sources by index in the request, combined in this order after the inputs.
    pub sources: Vec<usize>,
    /// Vertex that takes in this vertex's stream; `None` if the receiver does, and while the stream
    /// is loose.
    pub consumer: Option<VertexId>,
    /// Node's group, if the schedule uses groups.
    pub group: Path,
    pub(super) is_unfit: bool,
    /// Data of the tree's user.
    pub state: S,
}

impl<S> Vertex<S> {
    /// Returns `true` if the vertex combines nothing.
    pub fn is_plain(&self) -> bool {
        self.inputs.is_empty() && self.sources.len() == 1
    }
}

/// Vertices of a reduce.
///
/// # Invariants
///
/// * Each source is at most at one vertex, each vertex is an input of at most one vertex, and there
///   is no cycle.
/// * A vertex without a consumer is loose: the receiver or a later vertex takes it in.
/// * Each vertex has an input or a source.
#[derive(Debug, Clone)]
pub struct Tree<S> {
    pub(super) vertices: BTreeMap<VertexId, Vertex<S>>,
    pub(super) loose: Vec<VertexId>,
    joined: BTreeMap<Path, usize>,
    last: u64,
}

impl<S> Default for Tree<S> {
    fn default() -> Self {
        Self { vertices: BTreeMap::new(), loose: Vec::new(), joined: BTreeMap::new(), last: 0 }
    }
}

impl<S> Tree<S> {
    /// Adds a vertex that takes in as many loose streams of its group as `schedule` says. If
    /// another group already takes in the group's stream, inserts the vertex between them.
    pub fn grow(
        &mut self,
        schedule: &ReduceSchedule,
        group: Path,
        sources: Vec<usize>,
        state: S,
    ) -> VertexId {
        let joined = self.joined.entry(group).or_default();
        let input_count = schedule.input_count(*joined);
        *joined += 1;
        let inputs = self.take_loose(group, input_count);
        if inputs.is_empty()
            && input_count > 0
            && let Some(end) = self.end_of(group)
        {
            return self.add_behind(end, sources, state);
        }
        let vertex = self.add(inputs, group, sources, state);
        self.loose.push(vertex);
        vertex
    }

    /// Adds a vertex that takes in all loose streams, so that sources are combined from left to
    /// right.
    pub fn grow_in_order(&mut self, sources: Vec<usize>, state: S) -> VertexId {
        let inputs = std::mem::take(&mut self.loose);
        let vertex = self.add(inputs, EVERYWHERE, sources, state);
        self.loose.push(vertex);
        vertex
    }

    fn take_loose(&mut self, group: Path, count: usize) -> Vec<VertexId> {
        let mut taken = Vec::new();
        let mut place = self.loose.len();
        while place > 0 && taken.len() < count {
            place -= 1;
            if self.vertices.get(&self.loose[place]).is_some_and(|vertex| vertex.group == group) {
                taken.push(self.loose.remove(place));
            }
        }
        taken.reverse();
        taken
    }

    fn end_of(&self, group: Path) -> Option<VertexId> {
        let continues_elsewhere = |vertex: &Vertex<S>| {
            let consumer = vertex.consumer.and_then(|consumer| self.vertices.get(&consumer));
            vertex.group == group && consumer.is_some_and(|consumer| consumer.group != group)
        };
        self.iter().find(|(_, vertex)| continues_elsewhere(vertex)).map(|(id, _)| id)
    }

    fn add(
        &mut self,
        inputs: Vec<VertexId>,
        group: Path,
        sources: Vec<usize>,
        state: S,
    ) -> VertexId {
        let vertex = self.new_id();
        for input in &inputs {
            if let Some(input) = self.vertices.get_mut(input) {
                input.consumer = Some(vertex);
            }
        }
        let entry = Vertex { inputs, sources, consumer: None, group, is_unfit: false, state };
        self.vertices.insert(vertex, entry);
        vertex
    }

    fn add_behind(&mut self, end: VertexId, sources: Vec<usize>, state: S) -> VertexId {
        let (group, consumer) =
            self.vertices.get(&end).map_or((EVERYWHERE, None), |end| (end.group, end.consumer));
        let vertex = self.add(vec![end], group, sources, state);
        if let Some(added) = self.vertices.get_mut(&vertex) {
            added.consumer = consumer;
        }
        let consumer = consumer.and_then(|consumer| self.vertices.get_mut(&consumer));
        let streams = consumer.map_or(&mut self.loose, |consumer| &mut consumer.inputs);
        if let Some(place) = streams.iter().position(|stream| *stream == end) {
            streams[place] = vertex;
        }
        vertex
    }

    /// Joins the groups' loose streams along a chain, sorted by `order`. One stream is left if each
    /// group has a node that can combine. Returns the vertices whose streams change.
    pub fn join_groups<K: Ord>(
        &mut self,
        entry: Entry,
        order: impl Fn(Path) -> K,
    ) -> BTreeSet<VertexId> {
        let group = |vertex: &VertexId| self.vertices.get(vertex).map(|vertex| order(vertex.group));
        let mut streams = self.loose.clone();
        streams.sort_by_key(group);
        let mut changed = BTreeSet::new();
        let mut waiting: Vec<VertexId> = Vec::new();
        for stream in streams {
            if let Some(at) = self.entry_of(stream, entry) {
                for before in waiting.drain(..) {
                    self.attach(before, at);
                    changed.extend(self.way_to_receiver(at));
                }
            }
            waiting.push(stream);
        }
        changed
    }

    /// Returns the vertex at which this stream's group takes in the previous group's stream; `None`
    /// if no node of the group can combine.
    fn entry_of(&self, stream: VertexId, entry: Entry) -> Option<VertexId> {
        let fit = |vertex: &VertexId| self.vertices.get(vertex).filter(|vertex| !vertex.is_unfit);
        let mut at = stream;
        let mut vertex = fit(&at)?;
        while entry == Entry::First
            && let Some(input) = vertex.inputs.iter().find(|input| fit(input).is_some())
        {
            at = *input;
            vertex = fit(&at)?;
        }
        Some(at)
    }

    fn attach(&mut self, stream: VertexId, to: VertexId) {
        self.loose.retain(|loose| *loose != stream);
        if let Some(stream) = self.vertices.get_mut(&stream) {
            stream.consumer = Some(to);
        }
        if let Some(to) = self.vertices.get_mut(&to) {
            to.inputs.push(stream);
        }
    }

    /// Counts the streams that leave their group; `own` is the receiver's group.
    pub fn crossings(&self, own: Path) -> usize {
        let crosses = |vertex: &Vertex<S>| {
            let consumer = vertex.consumer.and_then(|consumer| self.vertices.get(&consumer));
            vertex.group != consumer.map_or(own, |consumer| consumer.group)
        };
        self.vertices.values().filter(|vertex| crosses(vertex)).count()
    }

    /// Adds a source to a vertex. Returns the vertices whose streams change.
    pub fn add_source(&mut self, vertex: VertexId, source: usize) -> Vec<VertexId> {
        if let Some(vertex) = self.vertices.get_mut(&vertex) {
            vertex.sources.push(source);
        }
        self.way_to_receiver(vertex)
    }

    fn new_id(&mut self) -> VertexId {
        self.last += 1;
        VertexId(self.last)
    }

    /// Returns the vertex, unless it was removed.
    pub fn get(&self, vertex: VertexId) -> Option<&Vertex<S>> {
        self.vertices.get(&vertex)
    }

    /// Returns the vertex's mutable data.
    pub fn state_mut(&mut self, vertex: VertexId) -> Option<&mut S> {
        self.vertices.get_mut(&vertex).map(|vertex| &mut vertex.state)
    }

    /// Returns all vertices, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (VertexId, &Vertex<S>)> {
        self.vertices.iter().map(|(id, vertex)| (*id, vertex))
    }

    /// Vertices whose streams the receiver takes in, if no further vertex joins.
    pub fn loose(&self) -> &[VertexId] {
        &self.loose
    }

    /// Returns the vertex that a source has joined.
    pub fn vertex_of(&self, source: usize) -> Option<VertexId> {
        self.iter().find(|(_, vertex)| vertex.sources.contains(&source)).map(|(id, _)| id)
    }

    /// Returns `vertex` and all vertices between it and the receiver.
    pub fn way_to_receiver(&self, vertex: VertexId) -> Vec<VertexId> {
        let mut way = Vec::new();
        let mut next = Some(vertex);
        while let Some(vertex) = next.filter(|vertex| self.vertices.contains_key(vertex)) {
            way.push(vertex);
            next = self.vertices.get(&vertex).and_then(|vertex| vertex.consumer);
        }
        way
    }

    /// Removes a source. A vertex without sources is removed, too, and its consumer takes in its
    /// inputs. Returns the vertices whose streams change, and a removed vertex's data.
    pub fn remove_source(&mut self, source: usize) -> (BTreeSet<VertexId>, Option<S>) {
        let Some(vertex) = self.vertex_of(source) else { return (BTreeSet::new(), None) };
        let mut changed: BTreeSet<VertexId> = self.way_to_receiver(vertex).into_iter().collect();
        let Some(entry) = self.vertices.get_mut(&vertex) else { return (changed, None) };
        entry.sources.retain(|other| *other != source);
        if !entry.sources.is_empty() {
            return (changed, None);
        }
        changed.remove(&vertex);
        (changed, self.splice(vertex, Vec::new()))
    }

    /// Removes a vertex whose node cannot combine. Its consumer takes in its inputs, and each of
    /// its sources as a plain vertex with the data of `plain`. Returns the vertices whose streams
    /// change, and the removed data.
    pub fn dissolve(
        &mut self,
        vertex: VertexId,
        mut plain: impl FnMut(usize) -> S,
    ) -> (BTreeSet<VertexId>, Option<S>) {
        let mut changed: BTreeSet<VertexId> = self.way_to_receiver(vertex).into_iter().collect();
        let Some(entry) = self.vertices.get(&vertex) else { return (changed, None) };
        changed.remove(&vertex);
        let (sources, group) = (entry.sources.clone(), entry.group);
        let mut added = Vec::new();
        for source in sources {
            let id = self.new_id();
            let state = plain(source);
            let inputs = Vec::new();
            let leaf = Vertex {
                inputs,
                sources: vec![source],
                consumer: None,
                group,
                is_unfit: true,
                state,
            };
            self.vertices.insert(id, leaf);
            added.push(id);
        }
        (changed, self.splice(vertex, added))
    }

    fn splice(&mut self, vertex: VertexId, added: Vec<VertexId>) -> Option<S> {
        let gone = self.vertices.remove(&vertex)?;
        let successors: Vec<VertexId> = gone.inputs.into_iter().chain(added).collect();
        for successor in &successors {
            if let Some(successor) = self.vertices.get_mut(successor) {
                successor.consumer = gone.consumer;
            }
        }
        let consumer = gone.consumer.and_then(|consumer| self.vertices.get_mut(&consumer));
        let streams = consumer.map_or(&mut self.loose, |consumer| &mut consumer.inputs);
        if let Some(place) = streams.iter().position(|stream| *stream == vertex) {
            streams.splice(place..=place, successors);
        }
        // The consumer has its own source, else it would be gone.
        Some(gone.state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(tree: &Tree<()>) {
        let mut seen_inputs = BTreeSet::new();
        let mut seen_sources = BTreeSet::new();
        for (id, vertex) in tree.iter() {
            assert!(!vertex.inputs.is_empty() || !vertex.sources.is_empty(), "{id:?} is empty");
            assert!(vertex.sources.iter().all(|source| seen_sources.insert(*source)));
            for input in &vertex.inputs {
                assert!(seen_inputs.insert(*input), "{input:?} is taken in twice");
                assert_eq!(tree.get(*input).unwrap().consumer, Some(id));
            }
            assert_eq!(vertex.consumer.is_none(), tree.loose().contains(&id));
            let way = tree.way_to_receiver(id);
            assert!(tree.loose().contains(way.last().unwrap()));
        }
    }

    #[test]
    fn a_vertex_in_the_middle_leaves_no_gap() {
        let mut tree = Tree::default();
        let schedule = ReduceSchedule::chain(4);
        let ids: Vec<VertexId> =
            (0..4).map(|source| tree.grow(&schedule, EVERYWHERE, vec![source], ())).collect();
        assert_eq!(tree.way_to_receiver(ids[1]), ids[1..]);
        let (changed, gone) = tree.remove_source(1);
        assert_eq!(changed, BTreeSet::from([ids[2], ids[3]]));
        assert_eq!(gone, Some(()));
        assert_eq!(tree.get(ids[2]).unwrap().inputs, [ids[0]]);
        check(&tree);
        let (changed, _) = tree.remove_source(0);
        assert_eq!(changed, BTreeSet::from([ids[2], ids[3]]));
        assert!(tree.get(ids[2]).unwrap().is_plain());
        check(&tree);
    }

    #[test]
    fn the_consumer_combines_for_a_node_that_cannot() {
        let mut tree = Tree::default();
        let schedule = ReduceSchedule::chain(3);
        let ids: Vec<VertexId> =
            (0..3).map(|source| tree.grow(&schedule, EVERYWHERE, vec![source], ())).collect();
        let (changed, _) = tree.dissolve(ids[1], |_| ());
        assert_eq!(changed, BTreeSet::from([ids[2]]));
        let inputs = &tree.get(ids[2]).unwrap().inputs;
        assert_eq!(inputs.len(), 2);
        assert_eq!(inputs[0], ids[0]);
        assert_eq!(tree.get(inputs[1]).unwrap().sources, [1]);
        check(&tree);
        tree.dissolve(ids[2], |_| ());
        assert_eq!(tree.loose().len(), 3);
        check(&tree);
    }

    fn of_racks(entry: Entry, racks: &[u32]) -> Tree<()> {
        let mut tree = Tree::default();
        let sizes = racks.iter().fold(BTreeMap::new(), |mut sizes: BTreeMap<u32, usize>, rack| {
            *sizes.entry(*rack).or_default() += 1;
            sizes
        });
        let largest = sizes.values().copied().max().unwrap_or(1);
        let schedule =
            ReduceSchedule::Groups { lengths: vec![largest], groups: sizes.len(), entry };
        for (source, rack) in racks.iter().enumerate() {
            tree.grow(&schedule, rack_path(*rack), vec![source], ());
        }
        tree.join_groups(entry, receiver_last);
        tree
    }

    fn rack_path(rack: u32) -> Path {
        [0, 0, rack + 1, 0]
    }

    fn receiver_last(group: Path) -> u32 {
        group[2].wrapping_sub(2)
    }

    #[test]
    fn one_chain_goes_through_all_racks_and_ends_in_the_receivers_rack() {
        let tree = of_racks(Entry::First, &[0, 1, 0, 1, 2, 0, 1, 2]);
        let [end] = tree.loose() else { panic!("{:?}", tree.loose()) };
        let mut racks = Vec::new();
        let mut next = Some(*end);
        while let Some(vertex) = next.and_then(|vertex| tree.get(vertex)) {
            assert!(vertex.inputs.len() <= 1);
            racks.push(vertex.group[2] - 1);
            next = vertex.inputs.first().copied();
        }
        assert_eq!(racks, [0, 0, 0, 2, 2, 1, 1, 1]);
        assert_eq!(tree.crossings(rack_path(0)), 2);
    }

    #[test]
    fn the_ends_of_racks_form_a_chain() {
        let tree = of_racks(Entry::Last, &[0, 1, 0, 1, 2, 0, 1, 2]);
        let [end] = tree.loose() else { panic!("{:?}", tree.loose()) };
        let ends: Vec<(u32, usize)> = std::iter::successors(Some(*end), |vertex| {
            let inputs = &tree.get(*vertex).unwrap().inputs;
            inputs.get(1).copied()
        })
        .map(|vertex| tree.get(vertex).unwrap())
        .map(|vertex| (vertex.group[2] - 1, vertex.inputs.len()))
        .collect();
        assert_eq!(ends, [(0, 2), (2, 2), (1, 1)]);
        assert_eq!(tree.crossings(rack_path(0)), 2);
    }

    #[test]
    fn a_late_vertex_is_inserted_behind_the_others_of_its_rack() {
        let mut tree = of_racks(Entry::First, &[0, 1, 0, 1]);
        let schedule = ReduceSchedule::Groups { lengths: vec![2], groups: 2, entry: Entry::First };
        tree.remove_source(3);
        let late = tree.grow(&schedule, rack_path(1), vec![3], ());
        let inputs = &tree.get(late).unwrap().inputs;
        assert_eq!(tree.get(inputs[0]).unwrap().sources, [1]);
        assert_eq!(tree.get(tree.get(late).unwrap().consumer.unwrap()).unwrap().sources, [0]);
        assert_eq!((tree.loose().len(), tree.crossings(rack_path(0))), (1, 1));
        check(&tree);
    }

    #[test]
    fn no_stream_enters_at_a_node_that_cannot_combine() {
        let mut tree = of_racks(Entry::First, &[0, 1]);
        let end = tree.loose()[0];
        tree.dissolve(end, |_| ());
        assert_eq!(tree.loose().len(), 2);
        assert_eq!(tree.join_groups(Entry::First, receiver_last), BTreeSet::new());
        assert_eq!(tree.loose().len(), 2, "the receiver takes both in");
        check(&tree);
    }

    proptest! {
        #[test]
        fn one_object_leaves_each_rack_in_any_order_of_sources(
            racks in prop::collection::vec(0_u32..5, 1..40),
            is_first: bool,
        ) {
            let entry = if is_first { Entry::First } else { Entry::Last };
            let tree = of_racks(entry, &racks);
            check(&tree);
            let others: BTreeSet<u32> = racks.iter().copied().filter(|rack| *rack != 0).collect();
            prop_assert_eq!(tree.crossings(rack_path(0)), others.len());
            prop_assert_eq!(tree.loose().len(), 1);
            let (most, allowed) = (tree.iter().map(|(_, vertex)| vertex.inputs.len()).max(), 2 - usize::from(is_first));
            prop_assert!(most <= Some(allowed), "{most:?}");
        }

        #[test]
        fn each_source_reaches_the_receiver_once(
            shape in 0_usize..6,
            count in 1_usize..30,
            racks in 1_u32..4,
            changes in proptest::collection::vec((any::<bool>(), 0_usize..30), 0..30),
        ) {
            let schedule = match shape {
                0 => ReduceSchedule::Star,
                1 => ReduceSchedule::chain(count),
                2 => ReduceSchedule::chain_of_chains(count, 2),
                3 => ReduceSchedule::Groups { lengths: vec![count], groups: racks as usize, entry: Entry::First },
                4 => ReduceSchedule::Groups { lengths: vec![3, 2], groups: racks as usize, entry: Entry::Last },
                _ => ReduceSchedule::Tree { vertices: count },
            };
            let group = |source: usize| match schedule.entry() {
                Some(_) => rack_path(source as u32 % racks),
                None => EVERYWHERE,
            };
            let mut tree: Tree<()> = Tree::default();
            let mut present: BTreeSet<usize> = (0..count).collect();
            for source in 0..count {
                tree.grow(&schedule, group(source), vec![source], ());
                check(&tree);
            }
            for (dissolves, number) in changes {
                let source = number % count;
                match tree.vertex_of(source) {
                    Some(vertex) if dissolves => {
                        tree.dissolve(vertex, |_| ());
                    }
                    Some(_) => {
                        tree.remove_source(source);
                        present.remove(&source);
                    }
                    None => {
                        tree.grow(&schedule, group(source), vec![source], ());
                        present.insert(source);
                    }
                }
                if let Some(entry) = schedule.entry() && present.len() == count {
                    tree.join_groups(entry, receiver_last);
                    let changed = tree.join_groups(entry, receiver_last);
                    prop_assert!(changed.is_empty(), "a second removal changes nothing");
                }
                check(&tree);
                let found: BTreeSet<usize> = tree.iter().flat_map(|(_, vertex)| vertex.sources.clone()).collect();
                prop_assert_eq!(&found, &present);
            }
        }
    }
}
