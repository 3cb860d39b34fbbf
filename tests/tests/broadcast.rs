//! Many gets of one object are a broadcast: receivers serve each other.

use std::time::Duration;

use hoplite_tests::cluster::{Cluster, Plan};
use hoplite_tests::contents::bytes;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn an_object_moves_from_node_to_node() {
    let cluster = Cluster::of(2);
    for length in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 5 << 20] {
        let id = format!("object-{length}");
        let expected = bytes(7, length);
        cluster.client(0).put(id.as_str(), &expected).unwrap();
        let view = cluster.client(1).get(id.as_str(), PATIENCE).unwrap();
        assert!(view[..] == expected[..], "{length} bytes arrive as they were put");
    }
}

#[test]
fn receivers_that_come_together_relay() {
    let nodes = 6;
    let cluster = Cluster::start(Plan { nodes, ..Plan::default() });
    let expected = bytes(8, 8 << 20);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = (1..nodes)
            .map(|node| {
                let client = cluster.client(node);
                scope.spawn(move || client.get("weights", PATIENCE).map(|view| view.to_vec()))
            })
            .collect();
        cluster.client(0).put("weights", &expected).unwrap();
        for receiver in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    let sent = |node: usize| cluster.client(node).status().unwrap().sent_bytes;
    let total: u64 = (0..nodes).map(sent).sum();
    assert_eq!(total, 5 * (8 << 20), "each receiver pulled the object once");
    // One slot at the origin, and all receivers there before the first was done: a chain, or close to it.
    assert!(sent(0) <= 2 * (8 << 20), "the origin sent {} bytes", sent(0));
}
