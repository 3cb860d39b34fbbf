//! A shard's memory per object, measured in a separate process.
#![cfg(target_os = "linux")]

use std::time::Duration;

use hoplite_core::id::Incarnation;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    Event, LocationState, NodeInfo, Publish, Retention, Shard, ShardConfig, ToShard,
};
use hoplite_core::{Dtype, Metadata, NodeId, ObjectId, PutId, Time};

/// A fifth of a full shard; memory is linear.
const OBJECTS: u64 = 200_000;
/// The target: a million objects in less than 1 GiB.
const MAX_BYTES_PER_OBJECT: u64 = (1 << 30) / 1_000_000;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("the second field");
    pages * 4096
}

#[test]
fn a_million_objects_fit_in_a_gibibyte() {
    let mut shard = Shard::new(ShardConfig::default(), Time::ZERO);
    let mut effects = Vec::new();
    let nodes = ["node-a", "node-b"].map(|name| NodeId::new(name).expect("a valid name"));
    for node in &nodes {
        let data_address = "127.0.0.1:7400".parse().expect("a valid address");
        let info = NodeInfo {
            node: node.clone(),
            incarnation: Incarnation(1),
            data_address,
            labels: Vec::new(),
            shards: ShardList::default(),
            version: hoplite_core::Version::NEWEST,
        };
        shard.connect(Time::ZERO, info, &mut effects);
    }
    let before = resident_bytes();
    for number in 0..OBJECTS {
        // Like Ray's ids, 28 bytes, in no order; a matrix each; one pinned and one pulled copy.
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (node, retention) in nodes.iter().zip([Retention::Pinned, Retention::Evictable]) {
            let message = ToShard::Publish(Publish {
                id: ObjectId::new(format!("{scattered:028x}")).expect("a valid id"),
                put: PutId(number),
                size_bytes: 4 << 20,
                metadata: Metadata {
                    dtype: Dtype::F32,
                    shape: Some(vec![1024, 1024]),
                    ..Metadata::default()
                },
                state: LocationState::Complete,
                retention,
                pulling_from: None,
                inline: None,
                slot: None,
                wants_answer: false,
                returning: None,
            });
            let now = Time::ZERO + Duration::from_micros(number);
            shard.apply(now, Event::Message { node: node.clone(), message }, &mut effects);
            effects.clear();
        }
    }
    let per_object = (resident_bytes() - before) / OBJECTS;
    assert_eq!(u64::try_from(shard.status().objects), Ok(OBJECTS));
    println!("{per_object} bytes per object with two locations");
    assert!(per_object < MAX_BYTES_PER_OBJECT, "{per_object} bytes per object");
}
