mod absent;
mod cases;
mod chains;
mod inspections;
mod invariants;
mod properties;
mod replicas;
mod returning;
mod semantics;
mod shards;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::metadata::Metadata;
use crate::missing::Named;
use crate::placement::ShardList;

fn done(request: u64, put: Option<PutId>) -> ToStore {
    ToStore::DeleteDone { request: RequestId(request), put, absent: Named::of([]) }
}

struct World {
    shard: Shard,
    now: Time,
}

impl World {
    fn new(config: ShardConfig) -> Self {
        Self { shard: Shard::new(config, Time::ZERO), now: Time::ZERO }
    }

    fn with_nodes(names: &[&str]) -> Self {
        let mut world =
            Self::new(ShardConfig { warm_up: Duration::ZERO, ..ShardConfig::default() });
        for name in names {
            assert_eq!(world.connect(name, 1), []);
        }
        world
    }

    fn apply(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.shard.apply(self.now, event, &mut effects);
        invariants::check(&self.shard, self.now);
        effects
    }

    fn connect(&mut self, name: &str, incarnation: u64) -> Vec<Effect> {
        self.receive(info(name, incarnation)).1
    }

    fn receive(&mut self, info: NodeInfo) -> (Reception, Vec<Effect>) {
        let mut effects = Vec::new();
        let reception = self.shard.connect(self.now, info, &mut effects);
        invariants::check(&self.shard, self.now);
        (reception, effects)
    }

    fn disconnect(&mut self, name: &str, incarnation: u64) -> Vec<Effect> {
        self.apply(Event::Disconnected { node: node(name), incarnation: Incarnation(incarnation) })
    }

    fn send(&mut self, name: &str, message: ToShard) -> Vec<Effect> {
        self.apply(Event::Message { node: node(name), message })
    }

    fn send_and_collect(&mut self, name: &str, message: ToShard) -> Vec<(String, ToStore)> {
        let effects = self.send(name, message).into_iter();
        let sent = effects.filter_map(|effect| match effect {
            Effect::Send { node, message } => Some((node.to_string(), message)),
            _ => None,
        });
        sent.collect()
    }

    fn wait(&mut self, duration: Duration) -> Vec<Effect> {
        let end = self.now + duration;
        let mut effects = Vec::new();
        while let Some(deadline) = self.shard.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            effects.extend(self.apply(Event::Tick));
            assert!(
                self.shard.next_deadline().is_none_or(|next| next > self.now),
                "the tick handles everything that is due"
            );
        }
        self.now = end;
        effects
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn id(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

fn info(name: &str, incarnation: u64) -> NodeInfo {
    NodeInfo {
        node: node(name),
        incarnation: Incarnation(incarnation),
        data_address: "127.0.0.1:7400".parse().unwrap(),
        labels: Vec::new(),
        shards: ShardList::new(["shard:1"]),
        version: crate::Version::NEWEST,
    }
}

fn publication(object: &str, put: u64, state: LocationState, retention: Retention) -> Publish {
    Publish {
        id: id(object),
        put: PutId(put),
        size_bytes: 1 << 20,
        metadata: Metadata::default(),
        state,
        retention,
        pulling_from: None,
        inline: None,
        slot: None,
        wants_answer: true,
        returning: None,
    }
}

fn complete(object: &str, put: u64) -> Publish {
    publication(object, put, LocationState::Complete, Retention::Pinned)
}

fn inline(object: &str, put: u64, bytes: &'static [u8]) -> Publish {
    let size_bytes = u64::try_from(bytes.len()).unwrap();
    Publish { size_bytes, inline: Some(Bytes::from_static(bytes).into()), ..complete(object, put) }
}

fn query(object: &str, request: u64) -> Query {
    Query {
        request: RequestId(request),
        id: id(object),
        timeout: Duration::from_secs(10),
        resume: None,
        avoid: Vec::new(),
    }
}
