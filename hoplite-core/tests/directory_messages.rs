//! Directory messages between real nodes and shards.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::collective::{
    Agreement, CollectiveEffect, CollectiveEvent, EnlistmentId, MembershipId,
};
use hoplite_core::dtype::Dtype;
use hoplite_core::id::{Incarnation, NodeId, ObjectId};
use hoplite_core::limits::Limits;
use hoplite_core::link::Uplink;
use hoplite_core::metadata::Metadata;
use hoplite_core::node::{
    self, CallId, ClientId, CombineId, CombineOutcome, CopyId, Node, NodeConfig, PullId, Reduce,
    ReduceOrder, Request, Response, ServeId, Until,
};
use hoplite_core::placement::{ShardList, ShardMap};
use hoplite_core::plan::collective::{Collective, SchedulePreference};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    self, NodeInfo, Placed, PullOutcome, Shard, ShardConfig, ShardRun, ToShard,
};
use hoplite_core::time::Time;
use hoplite_core::topology::place::EVERYWHERE;

const SHARDS: usize = 3;

const fn up(shard: usize) -> node::Event {
    node::Event::ShardUp {
        shard,
        run: ShardRun(1),
        asked_at: Time::NEVER,
        version: hoplite_core::Version::NEWEST,
    }
}

/// A query, its answer, the location at the other shard, and the complete copy at both shards.
const MESSAGES_PER_GET: u64 = 5;
const MAX_MESSAGES_PER_MEMBER: u64 = 8;
const LARGE: u64 = 1 << 20;
const SMALL: usize = 100;
const LONG: Duration = Duration::from_secs(60);
const MAX_MESSAGES: u64 = 10_000;

enum Message {
    ToNode(usize, node::Event),
    ToShard(usize, shard::Event),
}

/// The source's query, its answer and end, and the target's copy at two shards.
const MESSAGES_PER_MEMBER: u64 = 5;
/// The target's query, its answer and end, and both shards' verdicts.
const MESSAGES_OF_RANK_0: u64 = 5;
/// The plan, the commit, and the last report.
const WORDS_PER_MEMBER: u64 = 3;

struct Cluster {
    nodes: Vec<Node>,
    shards: Vec<Shard>,
    queue: VecDeque<Message>,
    messages: u64,
    words: u64,
    members: BTreeMap<EnlistmentId, (usize, usize)>,
    exchanges: Vec<(usize, CombineId, u64)>,
    /// The sender, the object and its size, by receiver.
    pulls: BTreeMap<(usize, PullId), (usize, ObjectId, u64)>,
    answers: BTreeMap<(usize, CallId), Response>,
    next_number: u64,
}

impl Cluster {
    fn new(nodes: usize) -> Self {
        let names = ["a", "b", "c"];
        let config = ShardConfig { warm_up: Duration::ZERO, ..ShardConfig::default() };
        let new_node = |number: usize| {
            Node::new(NodeConfig {
                node: name(number),
                path: EVERYWHERE,
                capacity_bytes: 64 << 20,
                limits: Limits::default(),
                shards: ShardMap::new(names),
                allreduce_schedule: SchedulePreference::Auto,
                replicas: 1,
                spill: None,
                serves_directory: false,
                seed: number as u64,
            })
        };
        let mut cluster = Self {
            nodes: (0..nodes).map(new_node).collect(),
            shards: (0..SHARDS).map(|_| Shard::new(config.clone(), Time::ZERO)).collect(),
            queue: VecDeque::new(),
            messages: 0,
            words: 0,
            members: BTreeMap::new(),
            exchanges: Vec::new(),
            pulls: BTreeMap::new(),
            answers: BTreeMap::new(),
            next_number: 0,
        };
        for node in 0..nodes {
            for shard in 0..SHARDS {
                let info = NodeInfo {
                    node: name(node),
                    incarnation: Incarnation(1),
                    data_address: SocketAddr::from(([127, 0, 0, 1], 7400)),
                    labels: Vec::new(),
                    shards: ShardList::default(),
                    version: hoplite_core::Version::NEWEST,
                };
                let mut effects = Vec::new();
                let reception = cluster.shards[shard].connect(Time::ZERO, info, &mut effects);
                assert_eq!((reception, effects), (shard::Reception::Accepted, Vec::new()));
                cluster.queue.push_back(Message::ToNode(node, up(shard)));
            }
        }
        cluster.settle();
        cluster
    }

    fn request(&mut self, node: usize, request: Request) -> CallId {
        self.next_number += 1;
        let call = CallId(self.next_number);
        let event = node::Event::Request { client: ClientId(1), call, request };
        self.queue.push_back(Message::ToNode(node, event));
        self.settle();
        call
    }

    fn settle(&mut self) {
        let before = self.messages;
        while let Some(message) = self.queue.pop_front() {
            assert!(self.messages - before < MAX_MESSAGES, "they talk for ever");
            match message {
                Message::ToNode(number, event) => {
                    let mut effects = Vec::new();
                    self.nodes[number].apply(Time::ZERO, event, &mut effects);
                    effects.into_iter().for_each(|effect| self.perform(number, effect));
                }
                Message::ToShard(shard, event) => {
                    let mut effects = Vec::new();
                    self.shards[shard].apply(Time::ZERO, event, &mut effects);
                    for effect in effects {
                        let shard::Effect::Send { node, message } = effect else { continue };
                        self.messages += 1;
                        let event = node::Event::FromShard { shard, message };
                        self.queue.push_back(Message::ToNode(number_of(&node), event));
                    }
                }
            }
        }
    }

    fn perform(&mut self, number: usize, effect: node::Effect) {
        match effect {
            node::Effect::ToShard { shard, mut message, inline_from, .. } => {
                if let (ToShard::Publish(publish), Some(_)) = (&mut message, inline_from) {
                    publish.inline = Some(bytes::Bytes::from(vec![0; SMALL]).into());
                }
                self.messages += 1;
                let event = shard::Event::Message { node: name(number), message };
                self.queue.push_back(Message::ToShard(shard, event));
            }
            node::Effect::StartPull { pull, id, put, size_bytes, sender, .. } => {
                let sender = number_of(&sender);
                self.pulls.insert((number, pull), (sender, id.clone(), size_bytes));
                self.next_number += 1;
                let serve = ServeId(self.next_number);
                let peer = name(number);
                let event = node::Event::ServeRequested { serve, peer, id, put, awaits_hop: false };
                self.queue.push_front(Message::ToNode(sender, event));
            }
            node::Effect::ServeRefused { .. } => panic!("a pull was refused"),
            node::Effect::Collective(effect) => self.perform_collective(number, effect),
            node::Effect::Reply { call, response, .. } => {
                self.answers.insert((number, call), response.expect("all calls succeed"));
            }
            _ => {}
        }
    }

    fn perform_collective(&mut self, number: usize, effect: CollectiveEffect) {
        let (to, event) = match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let member = number_of(&plan.members[plan.index].node);
                self.members.insert(enlistment, (number, member));
                (
                    member,
                    CollectiveEvent::Asked {
                        membership: MembershipId::Elsewhere(enlistment.0),
                        plan,
                    },
                )
            }
            CollectiveEffect::Tell { enlistment, decision } => {
                let membership = MembershipId::Elsewhere(enlistment.0);
                (self.members[&enlistment].1, CollectiveEvent::Told { membership, decision })
            }
            CollectiveEffect::Report { membership: MembershipId::Elsewhere(member), report } => {
                let enlistment = EnlistmentId(member);
                (self.members[&enlistment].0, CollectiveEvent::Reported { enlistment, report })
            }
            CollectiveEffect::StartExchange { combine, plan, .. } => {
                return self.exchanges.push((number, combine, plan.copy_bytes()));
            }
            other => panic!("nothing fails: {other:?}"),
        };
        self.words += 1;
        self.queue.push_back(Message::ToNode(to, node::Event::Collective(event)));
    }

    fn finish_exchanges(&mut self) {
        for (number, combine, valid_bytes) in std::mem::take(&mut self.exchanges) {
            let filled = node::Event::Collective(CollectiveEvent::Filled { combine });
            let outcome = CombineOutcome::Complete;
            let ended = node::Event::CombineEnded { combine, valid_bytes, outcome };
            self.queue.extend([filled, ended].map(|event| Message::ToNode(number, event)));
        }
        self.settle();
    }

    fn finish_pulls(&mut self) {
        while let Some((&(node, pull), (_, _, valid_bytes))) =
            self.pulls.iter().find(|(_, (sender, id, _))| !self.is_pulled(*sender, id))
        {
            let (valid_bytes, outcome) = (*valid_bytes, PullOutcome::Complete);
            self.pulls.remove(&(node, pull));
            self.queue.push_back(Message::ToNode(
                node,
                node::Event::PullEnded { pull, valid_bytes, outcome },
            ));
            self.settle();
        }
        assert!(self.pulls.is_empty(), "every pull ends");
    }

    fn is_pulled(&self, node: usize, id: &ObjectId) -> bool {
        self.pulls.iter().any(|((receiver, _), (_, of, _))| (receiver, of) == (&node, id))
    }

    fn put(&mut self, node: usize, id: &ObjectId, size_bytes: u64) {
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        let create = Request::Create { id: id.clone(), size_bytes, metadata, timeout: LONG };
        let call = self.request(node, create);
        let copy = self.created(node, call);
        self.request(node, Request::Seal { copy, timeout: LONG });
    }

    fn created(&self, node: usize, call: CallId) -> CopyId {
        match &self.answers[&(node, call)] {
            Response::Created(view) => view.copy,
            other => panic!("not created: {other:?}"),
        }
    }

    fn get(&mut self, node: usize, id: &ObjectId) -> CallId {
        self.request(
            node,
            Request::Get {
                id: id.clone(),
                until: Until::Complete,
                timeout: LONG,
                allow_stale: false,
            },
        )
    }

    fn is_answered(&self, node: usize, call: CallId) -> bool {
        matches!(self.answers.get(&(node, call)), Some(Response::Object(_)))
    }
}

fn name(number: usize) -> NodeId {
    NodeId::new(&format!("n{number}")).expect("a valid name")
}

fn number_of(node: &NodeId) -> usize {
    node.as_str()[1..].parse().expect("a number")
}

fn id(name: &str) -> ObjectId {
    ObjectId::new(name).expect("a valid id")
}

#[test]
fn a_get_of_a_large_object_takes_five_messages() {
    let mut cluster = Cluster::new(2);
    for name in ["x", "y", "z", "another", "and another"] {
        cluster.put(0, &id(name), LARGE);
        let before = cluster.messages;
        let call = cluster.get(1, &id(name));
        cluster.finish_pulls();
        assert!(cluster.is_answered(1, call));
        assert_eq!(cluster.messages - before, MESSAGES_PER_GET);
    }
}

#[test]
fn a_get_of_a_small_object_takes_three_messages() {
    let mut cluster = Cluster::new(2);
    cluster.put(0, &id("x"), SMALL as u64);
    let before = cluster.messages;
    let call = cluster.get(1, &id("x"));
    cluster.finish_pulls();
    assert!(cluster.is_answered(1, call));
    assert_eq!(cluster.messages - before, 3);
}

#[test]
fn each_get_of_a_broadcast_takes_five_messages() {
    const RECEIVERS: usize = 50;
    let mut cluster = Cluster::new(RECEIVERS + 1);
    let calls: Vec<CallId> = (1..=RECEIVERS).map(|node| cluster.get(node, &id("x"))).collect();
    let queries = cluster.messages;
    cluster.put(0, &id("x"), LARGE);
    cluster.finish_pulls();
    assert!(calls.iter().enumerate().all(|(index, call)| cluster.is_answered(index + 1, *call)));
    // Not of the gets: two publications of the put at two shards, and their answers.
    let of_gets = cluster.messages - 8;
    assert_eq!(queries, RECEIVERS as u64);
    assert_eq!(of_gets, MESSAGES_PER_GET * RECEIVERS as u64);
    let mut cluster = Cluster::new(RECEIVERS + 1);
    cluster.put(0, &id("x"), LARGE);
    let before = cluster.messages;
    for node in 1..=RECEIVERS {
        cluster.get(node, &id("x"));
    }
    cluster.finish_pulls();
    assert_eq!(cluster.messages - before, MESSAGES_PER_GET * RECEIVERS as u64);
}

#[test]
fn a_member_of_an_allreduce_costs_five_messages_and_three_words() {
    const SOURCE_BYTES: u64 = 32 << 10;
    for members in [3, 4, 8, 16] {
        let mut cluster = Cluster::new(members);
        let sources: Vec<ObjectId> =
            (0..members).map(|rank| id(&format!("source {rank}"))).collect();
        for (node, source) in sources.iter().enumerate() {
            cluster.put(node, source, SOURCE_BYTES);
        }
        let before = cluster.messages;
        let reduce = Reduce {
            target: id("target"),
            count: sources.len(),
            sources,
            op: ReduceOp::Sum,
            order: ReduceOrder::Any,
            range: None,
            replicas: 0,
            timeout: LONG,
        };
        let join = Request::Join {
            target: reduce.target.clone(),
            agreement: Agreement::of(Collective::Allreduce, &reduce),
            is_again: false,
            source_bytes: SOURCE_BYTES,
            timeout: LONG,
        };
        let joins: Vec<CallId> =
            (0..members).map(|node| cluster.request(node, join.clone())).collect();
        let call = cluster.request(0, Request::Collective(Collective::Allreduce, reduce));
        assert_eq!(cluster.exchanges.len(), members, "all of them take part");
        cluster.finish_exchanges();
        assert!(joins.iter().enumerate().all(|(node, call)| cluster.is_answered(node, *call)));
        assert!(matches!(cluster.answers.get(&(0, call)), Some(Response::Reduced { .. })));
        let (members, of_directory) = (members as u64, cluster.messages - before);
        assert_eq!(of_directory, MESSAGES_PER_MEMBER * members + MESSAGES_OF_RANK_0);
        assert!(
            of_directory <= MAX_MESSAGES_PER_MEMBER * members,
            "{of_directory} of {members} members"
        );
        assert_eq!(cluster.words, WORDS_PER_MEMBER * (members - 1));
        for node in &cluster.nodes {
            assert_eq!(
                (node.status().reductions, node.status().directed_hops),
                (0, 0),
                "it is over"
            );
        }
    }
}

/// Restarted shards know places only from stores.
#[test]
fn what_disagrees_of_places_under_one_version_comes_to_rest() {
    let placed = |rack, permille| Placed {
        version: 5,
        path: [0, 0, rack, 0],
        uplink: Uplink::measured(permille),
    };
    for said in [
        [placed(1, 100), placed(1, 1000)],
        [placed(1, 100), placed(2, 100)],
        [placed(1, 1000), placed(2, 100)],
        [placed(0, 100), placed(2, 0)],
    ] {
        let mut cluster = Cluster::new(3);
        let before = cluster.messages;
        for (shard, placed) in said.into_iter().enumerate() {
            let message = ToShard::Placed(placed);
            let of_store =
                |node| shard::Event::Message { node: name(node), message: message.clone() };
            cluster.queue.extend([0, 1].map(|node| Message::ToShard(shard, of_store(node))));
        }
        cluster.settle();
        assert!(cluster.messages - before < 100, "{} messages", cluster.messages - before);
        let expected = placed(
            said[0].path[2].max(said[1].path[2]),
            said.map(|it| it.uplink.permille()).into_iter().max().unwrap_or(0),
        );
        for shard in 0..SHARDS {
            let places = cluster.shards[shard].measured_places();
            let paths = [0, 1].map(|node| places.paths.get(&name(node)).copied());
            assert_eq!(
                (places.version, places.uplink, paths),
                (5, expected.uplink, [Some(expected.path); 2])
            );
        }
        cluster.queue.push_back(Message::ToNode(0, node::Event::ShardDown { shard: 2 }));
        cluster.settle();
        let mut effects = Vec::new();
        cluster.nodes[0].apply(Time::ZERO, up(2), &mut effects);
        let of_place = |effect: &node::Effect| match effect {
            node::Effect::ToShard { message: ToShard::Placed(placed), .. } => Some(*placed),
            _ => None,
        };
        assert_eq!(effects.iter().find_map(of_place), Some(expected));
    }
}
