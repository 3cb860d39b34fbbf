//! A store that forwards an object dies at a random moment, many times.

use hoplite_tests::cluster::{Cluster, Plan};
use hoplite_tests::contents::{bytes, seed};

use super::{TIME_LIMIT, begin, gets};

const ROUNDS: u64 = 10;
const RECEIVERS: usize = 5;
const SIZE: usize = 16 << 20;

fn random(seed: u64, round: u64, purpose: u64, limit: usize) -> usize {
    let numbers = bytes(seed ^ (round << 32) ^ (purpose << 48), 16);
    let number = u32::from_le_bytes(numbers[8..12].try_into().expect("four bytes"));
    usize::try_from(number).expect("it fits") % limit
}

#[test]
fn a_broadcast_survives_the_death_of_any_relay_at_any_moment() {
    let seed = seed();
    let store_arguments = vec!["--no-prefault".to_owned()];
    let mut cluster = Cluster::start(Plan {
        nodes: RECEIVERS + 1,
        store_arguments,
        memory: "40MiB".to_owned(),
        ..Plan::default()
    });
    for round in 0..ROUNDS {
        let victim = 1 + random(seed, round, 1, RECEIVERS);
        let dies_at = random(seed, round, 2, SIZE);
        let piece = 1 + random(seed, round, 3, 512 << 10);
        eprintln!(
            "HOPLITE_SEED={seed}, round {round}: node {victim} dies after {dies_at} bytes, pieces of {piece}"
        );
        let expected = bytes(seed ^ round, SIZE);
        std::thread::scope(|scope| {
            let receivers = gets(scope, &cluster, 1..=RECEIVERS, "object");
            let mut writer = begin(&cluster, 0, "object", &expected, 0);
            let mut is_dead = false;
            for piece in expected.chunks(piece) {
                writer.write(piece).unwrap();
                if !is_dead && writer.written_bytes() > dies_at as u64 {
                    cluster.kill_store(victim);
                    is_dead = true;
                }
            }
            writer.seal().unwrap();
            for (node, receiver) in receivers {
                let got = receiver.join().unwrap();
                if node != victim {
                    assert!(
                        got.unwrap() == expected,
                        "seed {seed}, round {round}: node {node} has the right bytes"
                    );
                }
            }
        });
        cluster.restart_store(victim);
        assert!(cluster.client(victim).get("object", TIME_LIMIT).unwrap()[..] == expected[..]);
        assert_eq!(cluster.client(victim).delete(["object"], TIME_LIMIT).unwrap(), 1);
        for node in 0..=RECEIVERS {
            cluster.await_empty(node);
        }
    }
}
