//! Fails if a target counts a source twice, or not in all bytes.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_core::node::*;
use hoplite_core::{ObjectId, PutId};

#[derive(Debug, Clone)]
struct Part {
    id: ObjectId,
    put: PutId,
    copy: Option<CopyId>,
    is_hop: bool,
}

impl Part {
    fn is_same(&self, other: &Self) -> bool {
        let is_same_copy = self.copy.is_some() && self.copy == other.copy;
        self.id == other.id && (self.put == other.put || is_same_copy)
    }
}

#[derive(Debug, Clone)]
struct Recipe {
    offset_bytes: u64,
    parts: Vec<Part>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    requests: BTreeMap<(ClientId, CallId), Reduce>,
    hops: BTreeMap<ObjectId, Recipe>,
    targets: BTreeMap<CopyId, Vec<Recipe>>,
    complete: BTreeMap<ObjectId, Vec<Recipe>>,
}

impl Ledger {
    pub(crate) fn event(&mut self, event: &Event) {
        if let Event::Request { client, call, request: Request::Reduce(reduce) } = event {
            self.requests.insert((*client, *call), reduce.clone());
        }
    }

    pub(crate) fn effect(&mut self, effect: &Effect, node: &Node) {
        match effect {
            Effect::StartHop { spec, .. } => {
                let parts = spec.inputs.iter().map(remote).collect();
                self.hops
                    .insert(spec.output.clone(), Recipe { offset_bytes: spec.offset_bytes, parts });
            }
            Effect::StartCombine { copy, offset_bytes, inputs, .. } => {
                let part = |input: &CombineInput| match input {
                    CombineInput::Remote(input) => remote(input),
                    CombineInput::Local { copy, .. } => local(node, *copy),
                };
                let recipe = Recipe {
                    offset_bytes: *offset_bytes,
                    parts: inputs.iter().map(part).collect(),
                };
                let made = local(node, *copy);
                if made.is_hop {
                    self.hops.insert(made.id, recipe);
                } else {
                    self.targets.entry(*copy).or_default().push(recipe);
                }
            }
            Effect::CopyCompleted { copy } => {
                if let Some(recipes) = self.targets.remove(copy)
                    && let Some((id, _)) = node.object_of(*copy)
                {
                    self.complete.insert(id.clone(), recipes);
                }
            }
            Effect::Reply { client, call, response: Ok(Response::Reduced { indices }) } => {
                if let Some(request) = self.requests.remove(&(*client, *call)) {
                    self.check(&request, indices);
                }
            }
            _ => {}
        }
    }

    fn check(&self, request: &Reduce, indices: &[usize]) {
        let reported: BTreeSet<&ObjectId> =
            indices.iter().map(|index| &request.sources[*index]).collect();
        assert_eq!(
            (reported.len(), indices.len()),
            (request.count, request.count),
            "as many as asked for"
        );
        let recipes =
            self.complete.get(&request.target).expect("a target that is reported is complete");
        let mut previous: Option<BTreeMap<ObjectId, Part>> = None;
        for recipe in recipes {
            let Some(parts) = self.expand(recipe) else { return };
            let counted: BTreeSet<&ObjectId> = parts.iter().map(|part| &part.id).collect();
            assert_eq!(counted.len(), parts.len(), "each counts once in {recipe:?}: {parts:?}");
            assert_eq!(counted, reported, "what was reported is what is in {recipe:?}");
            if request.order == ReduceOrder::Fixed {
                let ordered: Vec<&ObjectId> = parts.iter().map(|part| &part.id).collect();
                let expected = request.sources.iter().filter(|id| reported.contains(id));
                assert_eq!(ordered, expected.collect::<Vec<_>>(), "in the order of the request");
                self.check_from_left(recipe);
            }
            let parts: BTreeMap<ObjectId, Part> =
                parts.into_iter().map(|part| (part.id.clone(), part)).collect();
            if let Some(previous) = previous {
                let is_same = previous.iter().all(|(id, part)| part.is_same(&parts[id]));
                assert!(is_same, "{previous:?}, then {parts:?} in one target");
            }
            previous = Some(parts);
        }
    }

    /// Returns a combination's sources in order; `None` if a part has no known source.
    fn expand(&self, recipe: &Recipe) -> Option<Vec<Part>> {
        let mut sources = Vec::new();
        for part in &recipe.parts {
            if part.is_hop {
                let hop = self.hops.get(&part.id)?;
                assert!(
                    hop.offset_bytes <= recipe.offset_bytes,
                    "{hop:?} begins too late for {recipe:?}"
                );
                sources.extend(self.expand(hop)?);
            } else {
                sources.push(part.clone());
            }
        }
        Some(sources)
    }

    fn check_from_left(&self, recipe: &Recipe) {
        let (first, others) = recipe.parts.split_first().expect("a combination has an input");
        assert!(others.iter().all(|part| !part.is_hop), "{recipe:?} is not from left to right");
        if let Some(hop) = self.hops.get(&first.id) {
            self.check_from_left(hop);
        }
    }
}

fn remote(input: &HopInput) -> Part {
    Part { id: input.id.clone(), put: input.put, copy: None, is_hop: input.is_hop }
}

fn local(node: &Node, copy: CopyId) -> Part {
    let (id, put) = node.object_of(copy).expect("what is combined exists");
    Part { id: id.clone(), put, copy: Some(copy), is_hop: *id == ObjectId::of_hop(put) }
}
