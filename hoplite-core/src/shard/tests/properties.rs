//! Random events from stores that follow the protocol, and from stores that violate it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::link::Uplink;
use crate::metadata::Replicas;
use crate::topology::measured::MeasuredPlaces;

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
const OBJECTS: [&str; 2] = ["x", "y"];

#[derive(Debug, Clone)]
enum Step {
    /// Connects a node, in this rack if `rack` is not zero.
    Connect {
        node: usize,
        incarnation: u64,
        rack: u8,
    },
    Disconnect {
        node: usize,
        incarnation: u64,
    },
    Publish {
        node: usize,
        publish: Publish,
    },
    /// Publishes a complete copy, and returns the grant whose number is `back` below the next one.
    PublishPulled {
        node: usize,
        back: u64,
        publish: Publish,
    },
    Unpublish {
        node: usize,
        object: usize,
        put: u64,
        reason: UnpublishReason,
    },
    Query {
        node: usize,
        query: Query,
    },
    Cancel {
        node: usize,
        request: u64,
    },
    /// Returns the grant whose number is `back` below the next one, granted to any node.
    ReturnSlot {
        node: usize,
        back: u64,
        outcome: PullOutcome,
    },
    Delete {
        node: usize,
        request: u64,
        object: usize,
    },
    Forget {
        node: usize,
        object: usize,
        put: u64,
    },
    Subscribe {
        node: usize,
        request: u64,
        object: usize,
    },
    Unsubscribe {
        node: usize,
        request: u64,
    },
    Recall {
        node: usize,
        version: u64,
        rack: u32,
    },
    Measure {
        version: u64,
        racks: [u32; NODES.len()],
    },
    SlowLinks {
        node: usize,
        peers: BTreeSet<usize>,
    },
    Lead {
        node: usize,
        object: usize,
        put: u64,
        leads: bool,
        is_new: bool,
    },
    NotReplicated {
        node: usize,
        object: usize,
        put: u64,
    },
    Drain {
        node: usize,
        is_draining: bool,
    },
    Wait {
        millis: u64,
    },
}

fn node_number() -> impl Strategy<Value = usize> {
    0..NODES.len()
}

fn object() -> impl Strategy<Value = usize> {
    0..OBJECTS.len()
}

fn publish() -> impl Strategy<Value = Publish> {
    let state = prop_oneof![
        Just(LocationState::Producing),
        Just(LocationState::Partial),
        Just(LocationState::Complete),
        Just(LocationState::Complete)
    ];
    let retention = prop_oneof![Just(Retention::Pinned), Just(Retention::Evictable)];
    let inline = prop_oneof![
        8 => Just(None),
        1 => Just(Some(Bytes::from_static(b"1234").into())),
        1 => Just(Some(Bytes::from_static(b"12345").into()))
    ];
    let from = prop::option::of(node_number());
    let size = prop_oneof![6 => Just(1_u64 << 20), 1 => Just(4)];
    (object(), 1_u64..3, state, retention, inline, from, size, 0_u8..5).prop_map(
        |(object, put, state, retention, inline, from, size_bytes, wanted)| {
            let replicas = Replicas { wanted, awaited: 0, quorum: false };
            Publish {
                pulling_from: from.map(|number| node(NODES[number])),
                inline,
                size_bytes,
                metadata: Metadata { replicas, ..Metadata::default() },
                ..publication(OBJECTS[object], put, state, retention)
            }
        },
    )
}

fn query() -> impl Strategy<Value = Query> {
    let avoid = prop::collection::vec(node_number(), 0..2);
    let timeout = prop_oneof![Just(0_u64), 1_u64..3000];
    (0_u64..6, object(), timeout, prop::option::weighted(0.2, 1_u64..3), avoid).prop_map(
        |(request, object, timeout, resume, avoid)| Query {
            request: RequestId(request),
            id: id(OBJECTS[object]),
            timeout: Duration::from_millis(timeout),
            resume: resume.map(PutId),
            avoid: avoid.into_iter().map(|number| node(NODES[number])).collect(),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let reason = prop_oneof![
        Just(UnpublishReason::Evicted),
        Just(UnpublishReason::PullEnded),
        Just(UnpublishReason::Aborted),
        Just(UnpublishReason::Superseded),
        Just(UnpublishReason::Deleted)
    ];
    let outcome = prop_oneof![
        Just(PullOutcome::Complete),
        Just(PullOutcome::SenderStalled),
        Just(PullOutcome::GaveWay),
        Just(PullOutcome::Cancelled)
    ];
    prop_oneof![
        2 => (node_number(), 1_u64..3, 0_u8..3)
            .prop_map(|(node, incarnation, rack)| Step::Connect { node, incarnation, rack }),
        1 => (node_number(), 1_u64..3).prop_map(|(node, incarnation)| Step::Disconnect { node, incarnation }),
        8 => (node_number(), publish()).prop_map(|(node, publish)| Step::Publish { node, publish }),
        3 => (node_number(), 0_u64..6, publish())
            .prop_map(|(node, back, publish)| Step::PublishPulled { node, back, publish }),
        3 => (node_number(), object(), 1_u64..3, reason)
            .prop_map(|(node, object, put, reason)| Step::Unpublish { node, object, put, reason }),
        10 => (node_number(), query()).prop_map(|(node, query)| Step::Query { node, query }),
        1 => (node_number(), 0_u64..6).prop_map(|(node, request)| Step::Cancel { node, request }),
        5 => (node_number(), 0_u64..6, outcome)
            .prop_map(|(node, back, outcome)| Step::ReturnSlot { node, back, outcome }),
        1 => (node_number(), 0_u64..6, object())
            .prop_map(|(node, request, object)| Step::Delete { node, request, object }),
        1 => (node_number(), object(), 1_u64..3)
            .prop_map(|(node, object, put)| Step::Forget { node, object, put }),
        1 => (node_number(), 0_u64..6, object())
            .prop_map(|(node, request, object)| Step::Subscribe { node, request, object }),
        1 => (node_number(), 0_u64..6).prop_map(|(node, request)| Step::Unsubscribe { node, request }),
        1 => (1_u64..20, prop::array::uniform5(0_u32..3))
            .prop_map(|(version, racks)| Step::Measure { version, racks }),
        1 => (node_number(), 1_u64..20, 0_u32..3)
            .prop_map(|(node, version, rack)| Step::Recall { node, version, rack }),
        2 => (node_number(), prop::collection::btree_set(node_number(), 0..4))
            .prop_map(|(node, peers)| Step::SlowLinks { node, peers }),
        4 => (node_number(), object(), 1_u64..3, any::<bool>(), any::<bool>())
            .prop_map(|(node, object, put, leads, is_new)| Step::Lead { node, object, put, leads, is_new }),
        1 => (node_number(), object(), 1_u64..3)
            .prop_map(|(node, object, put)| Step::NotReplicated { node, object, put }),
        1 => (node_number(), any::<bool>()).prop_map(|(node, is_draining)| Step::Drain { node, is_draining }),
        3 => (0_u64..1500).prop_map(|millis| Step::Wait { millis }),
    ]
}

fn config() -> impl Strategy<Value = ShardConfig> {
    (1_u32..3, 0_u64..2, 1_usize..4).prop_map(|(slots, warm_up, max_objects)| {
        let limits = Limits {
            slots_per_location: slots,
            max_objects,
            tombstone_ttl: Duration::from_secs(5),
            ..Limits::default()
        };
        ShardConfig { limits, warm_up: Duration::from_secs(warm_up) }
    })
}

#[derive(Default)]
struct Observer {
    connected: BTreeSet<NodeId>,
    queries: BTreeMap<(NodeId, RequestId), Time>,
    deletes: BTreeSet<(NodeId, RequestId)>,
    wants_bytes: Option<(NodeId, RequestId)>,
}

impl Observer {
    fn observe(&mut self, now: Time, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Send { node, message } => {
                    assert!(self.connected.contains(node), "{node} is not connected: {message:?}");
                    self.answered(node, message);
                }
                Effect::Granted { record, .. } => {
                    assert!(
                        self.connected.contains(&record.sender)
                            && self.connected.contains(&record.receiver)
                    );
                }
                Effect::PlaceKeysDiffer { .. } => {}
            }
        }
        for (query, deadline) in &self.queries {
            assert!(*deadline > now, "{query:?} is answered by its deadline");
        }
    }

    fn answered(&mut self, node: &NodeId, message: &ToStore) {
        match message {
            ToStore::Inline { request, .. }
                if self.wants_bytes == Some((node.clone(), *request)) =>
            {
                self.wants_bytes = None;
            }
            ToStore::Granted(Grant { request, .. }) | ToStore::Inline { request, .. } => {
                assert!(
                    self.queries.remove(&(node.clone(), *request)).is_some(),
                    "one answer per query"
                );
            }
            ToStore::Failed { request, .. } => {
                self.queries.remove(&(node.clone(), *request));
                self.deletes.remove(&(node.clone(), *request));
            }
            ToStore::DeleteDone { request, .. } => {
                assert!(self.deletes.remove(&(node.clone(), *request)), "one answer per delete");
            }
            _ => {}
        }
    }

    fn session_ended(&mut self, name: &NodeId) {
        self.queries.retain(|(node, _), _| node != name);
        self.deletes.retain(|(node, _)| node != name);
    }
}

struct Run {
    world: World,
    observer: Observer,
    incarnations: BTreeMap<NodeId, u64>,
}

impl Run {
    fn new(config: ShardConfig) -> Self {
        Self {
            world: World::new(config),
            observer: Observer::default(),
            incarnations: BTreeMap::new(),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn step(&mut self, step: Step) {
        match step {
            Step::Connect { node: number, incarnation, rack } => {
                self.connect(NODES[number], incarnation, rack);
            }
            Step::Disconnect { node: number, incarnation } => {
                // Due effects come before the session's end, which must cause no message.
                let effects = self.world.apply(Event::Tick);
                self.observer.observe(self.world.now, &effects);
                let name = node(NODES[number]);
                let is_current = self.incarnations.get(&name) == Some(&incarnation);
                if is_current && self.observer.connected.remove(&name) {
                    self.observer.session_ended(&name);
                }
                let effects = self.world.disconnect(NODES[number], incarnation);
                self.observer.observe(self.world.now, &effects);
            }
            Step::Wait { millis } => {
                let end = self.world.now + Duration::from_millis(millis);
                while let Some(deadline) = self.world.shard.next_deadline().filter(|at| *at <= end)
                {
                    self.world.now = self.world.now.max(deadline);
                    let effects = self.world.apply(Event::Tick);
                    self.observer.observe(self.world.now, &effects);
                }
                self.world.now = end;
            }
            Step::Measure { version, racks } => {
                let in_rack = |(name, rack): (&&str, u32)| (node(name), [0, 0, rack, 0]);
                let paths =
                    NODES.iter().zip(racks).filter(|(_, rack)| *rack > 0).map(in_rack).collect();
                let places = MeasuredPlaces { version, paths, ..MeasuredPlaces::default() };
                let effects = self.world.apply(Event::Places(places));
                self.observer.observe(self.world.now, &effects);
            }
            Step::Recall { node, version, rack } => {
                let (path, uplink) = ([0, 0, rack, 0], Uplink::default());
                self.send(node, ToShard::Placed(Placed { version, path, uplink }));
            }
            Step::SlowLinks { node: of, peers } => {
                let peers = peers.into_iter().map(|peer| node(NODES[peer])).collect();
                self.send(of, ToShard::SlowLinks { peers });
            }
            Step::Lead { node, object, put, leads, is_new } => {
                let (id, put) = (id(OBJECTS[object]), PutId(put));
                self.send(node, ToShard::Lead(Lead { id, put, leads, is_new }));
            }
            Step::NotReplicated { node, object, put } => {
                let (id, put, reason) = (id(OBJECTS[object]), PutId(put), Obstacle::NoRoom);
                self.send(node, ToShard::NotReplicated { id, put, reason });
            }
            Step::Drain { node, is_draining } => self.send(node, ToShard::Drain { is_draining }),
            Step::Publish { node, publish } => self.send(node, ToShard::Publish(publish)),
            Step::PublishPulled { node, back, publish } => {
                let slot = Some(GrantId(self.world.shard.next_grant.saturating_sub(back)));
                let (state, wants_answer) = (LocationState::Complete, false);
                self.send(node, ToShard::Publish(Publish { state, slot, wants_answer, ..publish }));
            }
            Step::Unpublish { node, object, put, reason } => {
                self.send(
                    node,
                    ToShard::Unpublish { id: id(OBJECTS[object]), put: PutId(put), reason },
                );
            }
            Step::Query { node: number, query } => {
                let key = (node(NODES[number]), query.request);
                if self.is_open(&key) {
                    return;
                }
                if self.observer.connected.contains(&key.0) {
                    self.observer.queries.insert(key, self.world.now + query.timeout);
                }
                self.send(number, ToShard::Query(query));
            }
            Step::Cancel { node: number, request } => {
                let key = (node(NODES[number]), RequestId(request));
                self.observer.queries.remove(&key);
                self.observer.deletes.remove(&key);
                self.send(number, ToShard::Cancel { request: RequestId(request) });
            }
            Step::ReturnSlot { node, back, outcome } => {
                let grant = GrantId(self.world.shard.next_grant.saturating_sub(back));
                self.send(node, ToShard::ReturnSlot { grant, outcome });
            }
            Step::Delete { node: number, request, object } => {
                let key = (node(NODES[number]), RequestId(request));
                if self.is_open(&key) {
                    return;
                }
                if self.observer.connected.contains(&key.0) {
                    self.observer.deletes.insert(key);
                }
                self.send(
                    number,
                    ToShard::Delete {
                        request: RequestId(request),
                        id: id(OBJECTS[object]),
                        terms: DeleteTerms::default(),
                    },
                );
            }
            Step::Forget { node, object, put } => {
                self.send(node, ToShard::Forget { id: id(OBJECTS[object]), put: PutId(put) });
            }
            Step::Subscribe { node: number, request, object } => {
                if !self.is_open(&(node(NODES[number]), RequestId(request))) {
                    let wants = if request % 2 == 0 { Wants::Locations } else { Wants::Bytes };
                    let makes = request % 3 == 0;
                    let (request, id) = (RequestId(request), id(OBJECTS[object]));
                    let asker = (node(NODES[number]), request);
                    self.observer.wants_bytes = (wants == Wants::Bytes).then_some(asker);
                    self.send(number, ToShard::Subscribe { request, id, wants, makes });
                    self.observer.wants_bytes = None;
                }
            }
            Step::Unsubscribe { node, request } => {
                self.send(node, ToShard::Unsubscribe { request: RequestId(request) });
            }
        }
    }

    fn is_open(&self, key: &(NodeId, RequestId)) -> bool {
        let index = self.world.shard.nodes.index(&key.0);
        let record = index.and_then(|index| self.world.shard.nodes.get(index));
        record.is_some_and(|record| record.requests.contains_key(&key.1))
    }

    fn connect(&mut self, name: &str, incarnation: u64, rack: u8) {
        let label = (rack > 0).then(|| ("rack".to_owned(), rack.to_string()));
        let labels = label.into_iter().collect();
        let (reception, effects) =
            self.world.receive(NodeInfo { labels, ..info(name, incarnation) });
        let name = node(name);
        let was_refused = matches!(reception, Reception::Refused(_));
        let is_another = self.incarnations.get(&name) != Some(&incarnation);
        assert_eq!(was_refused, self.observer.connected.contains(&name) && is_another);
        if !was_refused {
            self.observer.session_ended(&name);
            self.observer.connected.insert(name.clone());
            self.incarnations.insert(name, incarnation);
        }
        self.observer.observe(self.world.now, &effects);
    }

    fn send(&mut self, number: usize, message: ToShard) {
        let effects = self.world.send(NODES[number], message);
        self.observer.observe(self.world.now, &effects);
    }

    fn finish(&mut self) {
        let pending: Vec<((ObjectId, PutId), Vec<NodeId>)> = self
            .world
            .shard
            .deletions
            .iter()
            .map(|(key, deletion)| {
                let records =
                    deletion.pending.iter().map(|node| self.world.shard.nodes.get(*node).unwrap());
                (key.clone(), records.map(|record| record.info.node.clone()).collect())
            })
            .collect();
        for ((id, put), nodes) in pending {
            for (number, name) in nodes.into_iter().enumerate() {
                if number % 2 == 0 {
                    let message = ToShard::Unpublish {
                        id: id.clone(),
                        put,
                        reason: UnpublishReason::Deleted,
                    };
                    let effects = self.world.send(name.as_str(), message);
                    self.observer.observe(self.world.now, &effects);
                } else if let Some(incarnation) = self.incarnations.get(&name).copied() {
                    let number = NODES.iter().position(|node| *node == name.as_str()).unwrap();
                    self.step(Step::Disconnect { node: number, incarnation });
                }
            }
        }
        self.step(Step::Wait { millis: 5001 });
        assert!(self.observer.deletes.is_empty(), "deletes complete");
        assert!(self.world.shard.deletions.is_empty());
        self.step(Step::Wait { millis: 3000 });
        assert!(self.observer.queries.is_empty(), "queries are answered");
        self.step(Step::Wait { millis: 700_000 });
        for (number, name) in NODES.into_iter().enumerate() {
            let incarnation = self.incarnations.get(&node(name)).copied().unwrap_or(1);
            self.step(Step::Disconnect { node: number, incarnation });
        }
        self.step(Step::Wait { millis: 700_000 });
        let status = self.world.shard.status();
        assert_eq!(
            (status.grants, status.subscriptions, status.tombstones),
            (0, 0, 0),
            "nothing leaks"
        );
        assert!(status.nodes.is_empty());
        let mut entries = self.world.shard.entries.values();
        assert!(entries.all(|entry| entry.is_inline()), "without any node, what is left is inline");
        assert_eq!(self.world.shard.next_deadline(), None);
    }
}

/// Uses the seed in `HOPLITE_SEED`, if set. A failure prints its steps.
fn runs() -> ProptestConfig {
    let mut config =
        ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() };
    if let Some(seed) = std::env::var("HOPLITE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        config.rng_seed = RngSeed::Fixed(seed);
    }
    config
}

proptest! {
    #![proptest_config(runs())]

    #[test]
    fn any_sequence_of_events_keeps_the_invariants(
        config in config(),
        racks in prop::collection::vec(0_u8..3, NODES.len()),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut run = Run::new(config);
        for (name, rack) in NODES.into_iter().zip(racks) {
            run.connect(name, 1, rack);
        }
        for step in steps {
            run.step(step);
        }
        run.finish();
    }
}

#[test]
fn due_effects_come_before_a_store_leaves() {
    let config = ShardConfig { limits: Limits::default(), warm_up: Duration::ZERO };
    let publish = Publish {
        id: id(OBJECTS[1]),
        put: PutId(2),
        size_bytes: 4,
        metadata: Metadata::default(),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        inline: Some(Bytes::from_static(b"1234").into()),
        slot: None,
        wants_answer: true,
        returning: None,
    };
    let mut run = Run::new(config);
    for name in NODES {
        run.connect(name, 1, 0);
    }
    run.step(Step::Publish { node: 3, publish });
    run.step(Step::Unpublish { node: 3, object: 1, put: 2, reason: UnpublishReason::Evicted });
    for node in 0..NODES.len() {
        run.step(Step::Disconnect { node, incarnation: 1 });
    }
    run.finish();
}
