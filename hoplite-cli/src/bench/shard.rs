use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::Dtype;
use hoplite_core::id::Incarnation;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    Effect, Event, GrantId, LocationState, NodeInfo, Publish, Query, RequestId, Retention, Shard,
    ShardConfig, ToShard, ToStore, UnpublishReason, Wants,
};
use hoplite_core::{Limits, Metadata, NodeId, ObjectId, PutId, Time};

use super::report::{Figure, Measurement, Report};

/// Messages in a batch, timed as a whole.
const BATCH: u64 = 10_000;
const TIMEOUT: Duration = Duration::from_secs(60);
const TARGET_OPERATIONS: f64 = 100_000.0;
const TARGET_BYTES: f64 = (1_u64 << 30) as f64 / 1e6;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of objects in the shard
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(BATCH..=1_000_000))]
    objects: u64,
    /// Number of connected stores
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    nodes: u32,
    /// Number of timed batches of each operation
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Number of racks over which the stores are spread; without it, stores have no labels
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    racks: u32,
}

struct Bench {
    shard: Shard,
    nodes: Vec<NodeId>,
    /// Number of messages sent so far. Each advances the shard's time by a microsecond.
    said: u64,
    effects: Vec<Effect>,
}

pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let &Arguments { objects, nodes, repetitions, racks } = arguments;
    let batches = u64::from(repetitions).min(objects / BATCH);
    let mut bench = Bench::new(nodes, racks)?;
    let empty_bytes = resident_bytes()?;
    let puts = bench.publish_all(objects, 0)?;
    let one_bytes = resident_bytes()?;
    let gets =
        (0..batches).map(|batch| bench.get_batch(batch)).collect::<anyhow::Result<Vec<_>>>()?;
    let evictions =
        (0..batches).map(|batch| bench.evict_batch(batch)).collect::<anyhow::Result<Vec<_>>>()?;
    let follows =
        (0..batches).map(|batch| bench.follow_batch(batch)).collect::<anyhow::Result<Vec<_>>>()?;
    let before_bytes = resident_bytes()?;
    let copies = bench.publish_all(objects, 1)?;
    let two_bytes = resident_bytes()?;
    let broadcast = bench.get_everywhere()?;
    ensure!(bench.shard.status().objects as u64 == objects + 1, "the shard knows all objects");

    let mut report = Report::new("shard");
    report.note(format!(
        "One shard on one core, {nodes} stores, {objects} objects; messages are not encoded or sent."
    ));
    if racks > 0 {
        report.note(format!("The stores are in {racks} racks, in turn."));
    }
    report
        .note("A get is a query and the publication of the complete copy, which returns the slot.");
    let per_second = |samples: &[Duration]| {
        samples.len() as f64 / samples.iter().sum::<Duration>().as_secs_f64()
    };
    let rate = |name: &str, samples: &[Duration]| Figure {
        name: format!("{name}, per second"),
        value: per_second(samples),
        target: Some(TARGET_OPERATIONS),
    };
    for (name, samples) in [
        ("publication of a new object", &puts),
        ("message of a get", &gets),
        ("eviction of a copy", &evictions),
        ("message of a subscription", &follows),
        ("publication of a second copy", &copies),
        ("message of a get of one object by all stores", &broadcast),
    ] {
        report.add(Measurement::new(name, samples));
        report.figure(rate(name, samples));
    }
    let per_object = |bytes: u64| bytes as f64 / objects as f64;
    let one = per_object(one_bytes.saturating_sub(empty_bytes));
    let further = per_object(two_bytes.saturating_sub(before_bytes));
    report.figure(Figure {
        name: "bytes per object with one copy".into(),
        value: one,
        target: Some(TARGET_BYTES),
    });
    report.figure(Figure { name: "bytes per further copy".into(), value: further, target: None });
    Ok(report)
}

impl Bench {
    fn new(nodes: u32, racks: u32) -> anyhow::Result<Self> {
        let limits = Limits { max_objects: 1 << 21, ..Limits::default() };
        let config = ShardConfig { limits, warm_up: Duration::ZERO };
        let mut bench = Self {
            shard: Shard::new(config, Time::ZERO),
            nodes: Vec::new(),
            said: 0,
            effects: Vec::new(),
        };
        for number in 0..nodes {
            let node = NodeId::new(&format!("node-{number:05}"))?;
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
            let rack = number.checked_rem(racks);
            let labels =
                rack.map(|rack| ("rack".to_owned(), rack.to_string())).into_iter().collect();
            let info = NodeInfo {
                node: node.clone(),
                incarnation: Incarnation(1),
                data_address: SocketAddr::from((address, 7400)),
                labels,
                shards: ShardList::default(),
                version: hoplite_core::Version::NEWEST,
            };
            bench.shard.connect(Time::ZERO, info, &mut bench.effects);
            bench.nodes.push(node);
        }
        Ok(bench)
    }

    fn holder(&self, object: u64, copy: u64) -> NodeId {
        let count = self.nodes.len() as u64;
        // Puts neighbours in the shard's map, and copies of an object, on different nodes.
        let place = (scattered(object) % count + copy) % count;
        self.nodes[usize::try_from(place).unwrap_or_default()].clone()
    }

    fn apply(&mut self, event: Event) {
        self.said += 1;
        self.effects.clear();
        self.shard.apply(Time::from_micros(self.said), event, &mut self.effects);
    }

    fn apply_all(&mut self, events: Vec<Event>) -> Duration {
        let count = events.len().max(1);
        let started = Instant::now();
        for event in events {
            self.apply(event);
        }
        started.elapsed().div_f64(count as f64)
    }

    fn publish_all(&mut self, objects: u64, copy: u64) -> anyhow::Result<Vec<Duration>> {
        let mut samples = Vec::new();
        for first in (0..objects).step_by(usize::try_from(BATCH)?) {
            let retention = if copy == 0 { Retention::Pinned } else { Retention::Evictable };
            let publish = |object: u64| {
                let message = ToShard::Publish(publication(object, retention)?);
                Ok(Event::Message { node: self.holder(object, copy), message })
            };
            let last = objects.min(first + BATCH);
            let events = (first..last).map(publish).collect::<anyhow::Result<Vec<Event>>>()?;
            samples.push(self.apply_all(events));
        }
        Ok(samples)
    }

    /// Gets a batch's objects at nodes without a copy. Returns the time per message.
    fn get_batch(&mut self, batch: u64) -> anyhow::Result<Duration> {
        let mut gets = Vec::new();
        for object in batch * BATCH..(batch + 1) * BATCH {
            gets.push(Get::new(object_id(object)?, object, self.holder(object, 1))?);
        }
        self.get_all(gets)
    }

    fn get_all(&mut self, gets: Vec<Get>) -> anyhow::Result<Duration> {
        let messages = 2 * gets.len().max(1);
        let started = Instant::now();
        for Get { receiver, query, complete } in gets {
            self.apply(Event::Message { node: receiver.clone(), message: query });
            let slot = Some(self.granted().context("a query was not granted")?);
            let message = ToShard::Publish(Publish { slot, ..complete });
            self.apply(Event::Message { node: receiver, message });
        }
        Ok(started.elapsed().div_f64(messages as f64))
    }

    fn granted(&self) -> Option<GrantId> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Send { message: ToStore::Granted(grant), .. } => Some(grant.grant),
            _ => None,
        })
    }

    fn evict_batch(&mut self, batch: u64) -> anyhow::Result<Duration> {
        let evict = |object: u64| {
            let (id, put) = (object_id(object)?, PutId(object));
            let message = ToShard::Unpublish { id, put, reason: UnpublishReason::Evicted };
            Ok(Event::Message { node: self.holder(object, 1), message })
        };
        let objects = batch * BATCH..(batch + 1) * BATCH;
        let events = objects.map(evict).collect::<anyhow::Result<Vec<Event>>>()?;
        Ok(self.apply_all(events))
    }

    fn follow_batch(&mut self, batch: u64) -> anyhow::Result<Duration> {
        let mut events = Vec::new();
        for object in batch * BATCH..(batch + 1) * BATCH {
            let (node, request) = (self.holder(object, 1), RequestId(object));
            let message = ToShard::Subscribe {
                request,
                id: object_id(object)?,
                wants: Wants::Locations,
                makes: false,
            };
            events.push(Event::Message { node: node.clone(), message });
            events.push(Event::Message { node, message: ToShard::Unsubscribe { request } });
        }
        Ok(self.apply_all(events))
    }

    fn get_everywhere(&mut self) -> anyhow::Result<Vec<Duration>> {
        let object = u64::MAX;
        let message = ToShard::Publish(publication(object, Retention::Pinned)?);
        self.apply(Event::Message { node: self.nodes[0].clone(), message });
        let receivers: Vec<NodeId> = self.nodes.iter().skip(1).cloned().collect();
        let mut samples = Vec::new();
        for receiver in receivers {
            let get = Get::new(object_id(object)?, object, receiver)?;
            samples.push(self.get_all(vec![get])?);
        }
        Ok(samples)
    }
}

struct Get {
    receiver: NodeId,
    query: ToShard,
    complete: Publish,
}

impl Get {
    fn new(id: ObjectId, object: u64, receiver: NodeId) -> anyhow::Result<Self> {
        let request = RequestId(object);
        let query = Query { request, id, timeout: TIMEOUT, resume: None, avoid: Vec::new() };
        let complete = publication(object, Retention::Evictable)?;
        Ok(Self { receiver, query: ToShard::Query(query), complete })
    }
}

fn publication(object: u64, retention: Retention) -> anyhow::Result<Publish> {
    let metadata =
        Metadata { dtype: Dtype::F32, shape: Some(vec![1024, 1024]), ..Metadata::default() };
    Ok(Publish {
        id: object_id(object)?,
        put: PutId(object),
        size_bytes: 4 << 20,
        metadata,
        state: LocationState::Complete,
        retention,
        pulling_from: None,
        inline: None,
        slot: None,
        wants_answer: retention == Retention::Pinned,
        returning: None,
    })
}

/// Returns an id like Ray's: 28 bytes, in no order.
fn object_id(object: u64) -> anyhow::Result<ObjectId> {
    Ok(ObjectId::new(format!("{:028x}", scattered(object)))?)
}

const fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn resident_bytes() -> anyhow::Result<u64> {
    let statm =
        fs::read_to_string("/proc/self/statm").context("cannot read this process's memory")?;
    let pages = statm.split_ascii_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    Ok(pages.context("cannot understand this process's memory")?
        * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_understood() {
        for racks in [0, 2] {
            let report =
                measure(&Arguments { objects: BATCH, nodes: 5, repetitions: 2, racks }).unwrap();
            let json = serde_json::to_value(report).unwrap();
            assert_eq!(json["measurements"].as_array().unwrap().len(), 6);
            let figures = json["figures"].as_array().unwrap();
            assert_eq!(
                (figures.len(), &figures[0]["target"]),
                (8, &serde_json::json!(TARGET_OPERATIONS))
            );
        }
    }

    #[test]
    fn gets_leave_copies_and_no_slots() {
        let mut bench = Bench::new(3, 0).unwrap();
        bench.publish_all(BATCH, 0).unwrap();
        bench.get_batch(0).unwrap();
        let status = bench.shard.status();
        assert_eq!(status.objects as u64, BATCH);
        bench.evict_batch(0).unwrap();
        bench.get_everywhere().unwrap();
        assert_eq!(bench.shard.status().objects as u64, BATCH + 1);
    }
}
