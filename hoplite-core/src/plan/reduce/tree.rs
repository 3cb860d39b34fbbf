//! The vertices of a reduce, as an in-tree that grows and is mended.

use std::collections::{BTreeMap, BTreeSet};

use super::schedule::Schedule;

/// The number of a vertex. A [`Tree`] never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(pub u64);

/// A node that combines streams with sources of its own, or only hands out one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex<S> {
    /// The streams that it takes in, in this order.
    pub inputs: Vec<VertexId>,
    /// The sources that it has itself, as indices into the request's list; combined after the inputs, in this order.
    pub sources: Vec<usize>,
    /// Who takes in its stream; `None`: nobody yet, or the receiver.
    pub consumer: Option<VertexId>,
    /// What the owner of the tree keeps with the vertex.
    pub state: S,
}

impl<S> Vertex<S> {
    /// Whether it combines nothing: its stream is its only source.
    pub fn is_plain(&self) -> bool {
        self.inputs.is_empty() && self.sources.len() == 1
    }
}

/// What is known of the shape of a reduce so far. See the [module](super).
///
/// # Invariants
/// * Each source is at one vertex at most, each vertex is an input of one vertex at most, and there is no cycle.
/// * A vertex without a consumer is loose: the receiver, or a vertex that is still to come, takes it in.
/// * No vertex is empty: it has an input or a source.
#[derive(Debug, Clone)]
pub struct Tree<S> {
    vertices: BTreeMap<VertexId, Vertex<S>>,
    /// The vertices without a consumer, in the order in which they are combined.
    loose: Vec<VertexId>,
    /// How many vertices have joined so far.
    joined: usize,
    last: u64,
}

impl<S> Default for Tree<S> {
    fn default() -> Self {
        Self { vertices: BTreeMap::new(), loose: Vec::new(), joined: 0, last: 0 }
    }
}

impl<S> Tree<S> {
    /// Adds a vertex for `sources`, which takes in as many of the loose streams as `schedule` says.
    pub fn grow(&mut self, schedule: &Schedule, sources: Vec<usize>, state: S) -> VertexId {
        let taken = schedule.takes_in(self.joined).min(self.loose.len());
        self.add(taken, sources, state)
    }

    /// Adds a vertex for `sources`, which takes in all loose streams. Everything is combined from left to right that way, even
    /// after a vertex was dissolved.
    pub fn grow_in_order(&mut self, sources: Vec<usize>, state: S) -> VertexId {
        self.add(self.loose.len(), sources, state)
    }

    /// Adds a vertex that takes in the last `taken` of the loose streams.
    fn add(&mut self, taken: usize, sources: Vec<usize>, state: S) -> VertexId {
        self.joined += 1;
        let inputs = self.loose.split_off(self.loose.len() - taken);
        let vertex = self.new_id();
        for input in &inputs {
            if let Some(input) = self.vertices.get_mut(input) {
                input.consumer = Some(vertex);
            }
        }
        self.vertices.insert(vertex, Vertex { inputs, sources, consumer: None, state });
        self.loose.push(vertex);
        vertex
    }

    /// Gives one more source to a vertex. Answers the vertices whose streams change by that: the vertex itself and all between
    /// it and the receiver.
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

    /// Looks a vertex up; `None` if it is gone.
    pub fn get(&self, vertex: VertexId) -> Option<&Vertex<S>> {
        self.vertices.get(&vertex)
    }

    /// What the owner of the tree keeps with a vertex.
    pub fn state_mut(&mut self, vertex: VertexId) -> Option<&mut S> {
        self.vertices.get_mut(&vertex).map(|vertex| &mut vertex.state)
    }

    /// All vertices, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (VertexId, &Vertex<S>)> {
        self.vertices.iter().map(|(id, vertex)| (*id, vertex))
    }

    /// The streams that the receiver takes in if no further vertex joins.
    pub fn loose(&self) -> &[VertexId] {
        &self.loose
    }

    /// The vertex that has this source.
    pub fn vertex_of(&self, source: usize) -> Option<VertexId> {
        self.iter().find(|(_, vertex)| vertex.sources.contains(&source)).map(|(id, _)| id)
    }

    /// `vertex` and the vertices between it and the receiver, in the order in which the stream passes them.
    pub fn way_to_receiver(&self, vertex: VertexId) -> Vec<VertexId> {
        let mut way = Vec::new();
        let mut next = Some(vertex);
        while let Some(vertex) = next.filter(|vertex| self.vertices.contains_key(vertex)) {
            way.push(vertex);
            next = self.vertices.get(&vertex).and_then(|vertex| vertex.consumer);
        }
        way
    }

    /// Removes one source. If that leaves its vertex without a source, the vertex is removed too and its consumer takes in its
    /// inputs.
    ///
    /// Answers the vertices whose streams change by that, and what was kept with the removed vertex.
    pub fn remove_source(&mut self, source: usize) -> (BTreeSet<VertexId>, Option<S>) {
        let Some(vertex) = self.vertex_of(source) else { return (BTreeSet::new(), None) };
        let mut changed: BTreeSet<VertexId> = self.way_to_receiver(vertex).into_iter().collect();
        let Some(entry) = self.vertices.get_mut(&vertex) else { return (changed, None) };
        entry.sources.retain(|other| *other != source);
        // A vertex with a source left goes on.
        if !entry.sources.is_empty() {
            return (changed, None);
        }
        changed.remove(&vertex);
        (changed, self.splice(vertex, Vec::new()))
    }

    /// Removes a vertex whose node cannot combine. Its consumer takes in its inputs and its sources; each source becomes a plain
    /// vertex, with which it keeps what `plain` makes.
    ///
    /// Answers as [`Tree::remove_source`] does.
    pub fn dissolve(
        &mut self,
        vertex: VertexId,
        mut plain: impl FnMut(usize) -> S,
    ) -> (BTreeSet<VertexId>, Option<S>) {
        let mut changed: BTreeSet<VertexId> = self.way_to_receiver(vertex).into_iter().collect();
        let Some(entry) = self.vertices.get(&vertex) else { return (changed, None) };
        changed.remove(&vertex);
        let sources = entry.sources.clone();
        let mut added = Vec::new();
        for source in sources {
            let id = self.new_id();
            let state = plain(source);
            let leaf = Vertex { inputs: Vec::new(), sources: vec![source], consumer: None, state };
            self.vertices.insert(id, leaf);
            added.push(id);
        }
        (changed, self.splice(vertex, added))
    }

    /// Replaces `vertex` by its inputs and by `added`.
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
        // The consumer has a source of its own, or it would have been taken out before.
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
            // This ends, so there is no cycle.
            let way = tree.way_to_receiver(id);
            assert!(tree.loose().contains(way.last().unwrap()));
        }
    }

    #[test]
    fn a_vertex_in_the_middle_leaves_no_gap() {
        let mut tree = Tree::default();
        let schedule = Schedule::chain(4);
        let ids: Vec<VertexId> = (0..4).map(|source| tree.grow(&schedule, vec![source], ())).collect();
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
    fn what_a_node_cannot_combine_its_consumer_does() {
        let mut tree = Tree::default();
        let schedule = Schedule::chain(3);
        let ids: Vec<VertexId> = (0..3).map(|source| tree.grow(&schedule, vec![source], ())).collect();
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

    proptest! {
        #[test]
        fn each_source_reaches_the_receiver_once(
            shape in 0_usize..4,
            count in 1_usize..30,
            changes in proptest::collection::vec((any::<bool>(), 0_usize..30), 0..30),
        ) {
            let schedule = match shape {
                0 => Schedule::Star,
                1 => Schedule::chain(count),
                2 => Schedule::chain_of_chains(count, 2),
                _ => Schedule::Tree { vertices: count },
            };
            let mut tree: Tree<()> = Tree::default();
            let mut present: BTreeSet<usize> = (0..count).collect();
            for source in 0..count {
                tree.grow(&schedule, vec![source], ());
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
                        tree.grow(&schedule, vec![source], ());
                        present.insert(source);
                    }
                }
                check(&tree);
                let found: BTreeSet<usize> = tree.iter().flat_map(|(_, vertex)| vertex.sources.clone()).collect();
                prop_assert_eq!(&found, &present);
            }
        }
    }
}
