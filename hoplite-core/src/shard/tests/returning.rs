//! Copies that return to the shard after their node was away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const AWAY: Duration = Duration::from_secs(8);
const LONG_AWAY: Duration = Duration::from_secs(45);

fn returning(object: &str, put: u64, absence: Duration) -> Publish {
    Publish { returning: Some(absence), ..complete(object, put) }
}

fn verdict(sent: &[(String, ToStore)]) -> Verdict {
    match sent {
        [(_, ToStore::Published { verdict, .. })] => verdict.clone(),
        other => panic!("expected a verdict, got {other:?}"),
    }
}

/// A shard that has listed `x` of the absent node `a`.
fn shard_without_a() -> World {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.disconnect("a", 1);
    world
}

fn delete(world: &mut World, request: u64) {
    world.send(
        "b",
        ToShard::Delete { request: RequestId(request), id: id("x"), terms: DeleteTerms::default() },
    );
}

#[test]
fn a_deleted_object_never_returns() {
    for object_is_lost in [false, true] {
        let mut world = shard_without_a();
        if object_is_lost {
            world.wait(AWAY);
        }
        delete(&mut world, 1);
        world.wait(LONG_AWAY);
        world.connect("a", 1);
        let sent =
            world.send_and_collect("a", ToShard::Publish(returning("x", 1, LONG_AWAY + AWAY)));
        assert_eq!(verdict(&sent), Verdict::Deleted);
    }
}

#[test]
fn an_object_that_was_replaced_after_its_delete_does_not_come_back() {
    let mut world = shard_without_a();
    delete(&mut world, 1);
    world.wait(LONG_AWAY);
    world.send("b", ToShard::Publish(complete("x", 2)));
    world.connect("a", 1);
    let sent = world.send_and_collect("a", ToShard::Publish(returning("x", 1, LONG_AWAY)));
    assert_eq!(verdict(&sent), Verdict::Deleted);
}

#[test]
fn a_lost_object_comes_back() {
    for put_again in [false, true] {
        let mut world = shard_without_a();
        world.wait(LONG_AWAY);
        if put_again {
            let producing = Publish { state: LocationState::Producing, ..complete("x", 2) };
            world.send("b", ToShard::Publish(producing));
            let (put, reason) = (PutId(2), UnpublishReason::Aborted);
            world.send("b", ToShard::Unpublish { id: id("x"), put, reason });
        }
        world.connect("a", 1);
        let sent = world.send_and_collect("a", ToShard::Publish(returning("x", 1, LONG_AWAY)));
        assert_eq!(verdict(&sent), Verdict::Accepted);
    }
}

#[test]
fn a_lost_object_comes_back_after_its_marker_has_expired() {
    let mut world = shard_without_a();
    world.wait(Duration::from_secs(700));
    world.connect("a", 1);
    let sent =
        world.send_and_collect("a", ToShard::Publish(returning("x", 1, Duration::from_secs(700))));
    assert_eq!(verdict(&sent), Verdict::Accepted);
}

#[test]
fn a_lost_object_that_was_put_again_is_in_conflict() {
    let mut world = shard_without_a();
    world.wait(AWAY);
    world.send("b", ToShard::Publish(complete("x", 2)));
    world.connect("a", 1);
    let sent = world.send_and_collect("a", ToShard::Publish(returning("x", 1, AWAY)));
    assert!(matches!(verdict(&sent), Verdict::Conflict { winner: PutId(2), .. }), "{sent:?}");
    // Once the other put is deleted, no earlier one may come back.
    delete(&mut world, 1);
    let sent = world.send_and_collect("a", ToShard::Publish(returning("x", 1, AWAY)));
    assert_eq!(verdict(&sent), Verdict::Deleted);
}

#[test]
fn a_copy_that_is_not_returning_is_accepted_as_usual() {
    let mut world = shard_without_a();
    delete(&mut world, 1);
    // The shard keeps the tombstone while it remembers the lost node.
    world.wait(Duration::from_secs(700));
    world.connect("a", 1);
    let sent = world.send_and_collect("a", ToShard::Publish(complete("x", 1)));
    assert_eq!(
        verdict(&sent),
        Verdict::Accepted,
        "the shard cannot know that it has listed the put"
    );
}

/// A node's copies: the put, and `true` if the shard has listed it.
type Held = BTreeMap<&'static str, (u64, bool)>;

const NODES: [&str; 3] = ["a", "b", "c"];
const OBJECTS: [&str; 2] = ["x", "y"];

#[derive(Debug, Clone)]
enum Step {
    Put { node: usize, object: usize },
    Get { node: usize, object: usize },
    Evict { node: usize, object: usize },
    Delete { node: usize, object: usize },
    Leave { node: usize },
    Return { node: usize },
    Restart { node: usize },
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..NODES.len();
    let object = || 0..OBJECTS.len();
    prop_oneof![
        4 => (node(), object()).prop_map(|(node, object)| Step::Put { node, object }),
        3 => (node(), object()).prop_map(|(node, object)| Step::Get { node, object }),
        1 => (node(), object()).prop_map(|(node, object)| Step::Evict { node, object }),
        3 => (node(), object()).prop_map(|(node, object)| Step::Delete { node, object }),
        4 => node().prop_map(|node| Step::Leave { node }),
        4 => node().prop_map(|node| Step::Return { node }),
        1 => node().prop_map(|node| Step::Restart { node }),
        4 => prop_oneof![Just(0), Just(2), Just(40), Just(700)].prop_map(|seconds| Step::Pass { seconds }),
    ]
}

struct Model {
    world: World,
    held: [Held; 3],
    incarnation: [u64; 3],
    away_since: [Option<Time>; 3],
    accepted: BTreeSet<(&'static str, u64)>,
    deleted: BTreeSet<(&'static str, u64)>,
    next: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            world: World::with_nodes(&NODES),
            held: Default::default(),
            incarnation: [1; 3],
            away_since: [None; 3],
            accepted: BTreeSet::new(),
            deleted: BTreeSet::new(),
            next: 1,
        }
    }

    fn send(&mut self, node: usize, message: ToShard) {
        let effects = self.world.send(NODES[node], message);
        self.answer(effects);
    }

    fn answer(&mut self, effects: Vec<Effect>) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            let Effect::Send { node, message } = effect else { continue };
            let node = NODES.iter().position(|name| *name == node.to_string()).unwrap();
            if let Some(answer) = self.received(node, &message) {
                queue.extend(self.world.send(NODES[node], answer));
            }
        }
    }

    fn received(&mut self, node: usize, message: &ToStore) -> Option<ToShard> {
        let (id, put) = match message {
            ToStore::Published { id, put, .. } | ToStore::Drop { id, put, .. } => {
                (id.clone(), *put)
            }
            _ => return None,
        };
        let object = *OBJECTS.iter().find(|name| **name == id.to_string()).unwrap();
        let has_copy = self.held[node].get(object).is_some_and(|(held, _)| *held == put.0);
        let (ends, reason) = match message {
            ToStore::Published { verdict: Verdict::Accepted, .. } => {
                self.accepted.insert((object, put.0));
                if has_copy {
                    self.held[node].insert(object, (put.0, true));
                }
                return None;
            }
            ToStore::Published { verdict: Verdict::Deleted, .. }
            | ToStore::Drop { reason: DropReason::Deleted, .. } => {
                assert!(
                    self.deleted.contains(&(object, put.0)),
                    "{object} of put {} was not deleted",
                    put.0
                );
                (true, UnpublishReason::Deleted)
            }
            ToStore::Published { .. } => (has_copy, UnpublishReason::Conceded),
            ToStore::Drop { .. } => return has_copy.then(|| self.publication(node, object)),
            _ => return None,
        };
        if has_copy {
            self.held[node].remove(object);
        }
        ends.then_some(ToShard::Unpublish { id, put, reason })
    }

    fn publication(&self, node: usize, object: &'static str) -> ToShard {
        ToShard::Publish(complete(object, self.held[node][object].0))
    }

    fn reconnect_node(&mut self, node: usize) {
        let Some(since) = self.away_since[node].take() else { return };
        let absence = self.world.now.since(since);
        let effects = self.world.connect(NODES[node], self.incarnation[node]);
        self.answer(effects);
        for (object, (put, is_listed)) in self.held[node].clone() {
            let returning = is_listed.then_some(absence);
            self.send(node, ToShard::Publish(Publish { returning, ..complete(object, put) }));
        }
    }

    fn perform(&mut self, step: Step) {
        self.next += 1;
        let number = self.next;
        let is_here = |model: &Self, node: usize| model.away_since[node].is_none();
        match step {
            Step::Put { node, object } => {
                let object = OBJECTS[object];
                if !self.held[node].contains_key(object) {
                    self.held[node].insert(object, (number, false));
                    if is_here(self, node) {
                        self.send(node, self.publication(node, object));
                    }
                }
            }
            Step::Get { node, object } => {
                let object = OBJECTS[object];
                let listed =
                    self.world.shard.entries.get(&id(object)).filter(|entry| entry.has_root());
                let listed = listed.map(|entry| entry.put.0);
                if let Some(put) =
                    listed.filter(|_| is_here(self, node) && !self.held[node].contains_key(object))
                {
                    self.held[node].insert(object, (put, true));
                    self.send(node, self.publication(node, object));
                }
            }
            Step::Evict { node, object } => {
                if let Some((put, _)) = self.held[node].remove(OBJECTS[object])
                    && is_here(self, node)
                {
                    let (id, reason) = (id(OBJECTS[object]), UnpublishReason::Evicted);
                    self.send(node, ToShard::Unpublish { id, put: PutId(put), reason });
                }
            }
            Step::Delete { node, object } if is_here(self, node) => {
                let object = OBJECTS[object];
                self.deleted.extend(self.accepted.iter().filter(|(name, _)| *name == object));
                let (request, terms) = (RequestId(number), DeleteTerms::default());
                self.send(node, ToShard::Delete { request, id: id(object), terms });
            }
            Step::Delete { .. } => {}
            Step::Leave { node } => {
                if is_here(self, node) {
                    self.away_since[node] = Some(self.world.now);
                    let effects = self.world.disconnect(NODES[node], self.incarnation[node]);
                    self.answer(effects);
                }
            }
            Step::Return { node } => self.reconnect_node(node),
            Step::Restart { node } => {
                self.perform(Step::Leave { node });
                self.held[node].clear();
                self.incarnation[node] += 1;
                self.reconnect_node(node);
            }
            Step::Pass { seconds } => {
                let effects = self.world.wait(Duration::from_secs(seconds));
                self.answer(effects);
            }
        }
        for (object, entry) in &self.world.shard.entries {
            let name = *OBJECTS.iter().find(|name| **name == object.to_string()).unwrap();
            assert!(
                !self.deleted.contains(&(name, entry.put.0)),
                "{name} of {:?} came back",
                entry.put
            );
        }
    }

    fn settle(&mut self) {
        for node in 0..NODES.len() {
            self.reconnect_node(node);
        }
        self.perform(Step::Pass { seconds: 2 });
        for held in &self.held {
            for (object, (put, _)) in held {
                let entry = &self.world.shard.entries[&id(object)];
                assert_eq!(entry.put, PutId(*put), "a copy of {object} is listed");
                assert!(entry.has_root());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn deleted_objects_stay_deleted_and_no_other_is_dropped(steps in proptest::collection::vec(step(), 1..80)) {
        let mut model = Model::new();
        for step in steps {
            model.perform(step);
        }
        model.settle();
    }
}
