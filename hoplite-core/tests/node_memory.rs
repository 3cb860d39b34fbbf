//! A node's memory per object, measured in a separate process.
#![cfg(target_os = "linux")]

use bytes::Bytes;
use hoplite_core::node::{CallId, ClientId, Confirm, Effect, Event, Node, NodeConfig, Request};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::shard::{ShardRun, ToShard, ToStore, Verdict};
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::{Limits, Metadata, NodeId, ObjectId, Time};

/// A fifth of a full store; memory is linear.
const OBJECTS: u64 = 200_000;
const MAX_BYTES_PER_OBJECT: u64 = 450;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("the second field");
    pages * 4096
}

fn apply(node: &mut Node, effects: &mut Vec<Effect>, event: Event) {
    node.apply(Time::ZERO, event, effects);
    let published: Vec<_> = effects
        .drain(..)
        .filter_map(|effect| match effect {
            Effect::ToShard { shard, message: ToShard::Publish(publish), .. } => {
                Some((shard, publish))
            }
            _ => None,
        })
        .collect();
    for (shard, publish) in published {
        let message =
            ToStore::Published { id: publish.id, put: publish.put, verdict: Verdict::Accepted };
        node.apply(Time::ZERO, Event::FromShard { shard, message }, effects);
        effects.clear();
    }
}

#[test]
fn a_small_object_takes_less_than_half_a_kibibyte() {
    let mut node = Node::new(NodeConfig {
        node: NodeId::new("node").expect("a valid name"),
        path: EVERYWHERE,
        capacity_bytes: 1 << 30,
        limits: Limits::default(),
        shards: ShardMap::new(["shard-a", "shard-b"]),
        allreduce_schedule: SchedulePreference::Auto,
        replicas: 1,
        spill: None,
        serves_directory: false,
        seed: 1,
    });
    let mut effects = Vec::new();
    for shard in 0..2 {
        apply(
            &mut node,
            &mut effects,
            Event::ShardUp {
                shard,
                run: ShardRun(1),
                asked_at: Time::NEVER,
                version: hoplite_core::Version::NEWEST,
            },
        );
    }
    let bytes = Bytes::from_static(b"ten bytes.");
    let before = resident_bytes();
    for number in 0..OBJECTS {
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let request = Request::Put {
            id: ObjectId::new(format!("{scattered:028x}")).expect("a valid id"),
            metadata: Metadata::default(),
            bytes: bytes.clone(),
            confirm: Confirm::No,
            timeout: std::time::Duration::ZERO,
        };
        apply(
            &mut node,
            &mut effects,
            Event::Request { client: ClientId(1), call: CallId(number), request },
        );
    }
    let per_object = (resident_bytes() - before) / OBJECTS;
    assert_eq!(u64::try_from(node.status().copies), Ok(OBJECTS));
    println!("{per_object} bytes per object");
    assert!(per_object < MAX_BYTES_PER_OBJECT, "{per_object} bytes per object");
}
