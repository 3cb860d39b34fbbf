use hoplite_tests::cluster::{Cluster, Plan, retry};
use hoplite_tests::contents::{bytes, seed};

use super::*;

const ROUNDS: u64 = 5;
const SOURCES: usize = 6;

fn random(seed: u64, round: u64, purpose: u64, limit: usize) -> usize {
    let numbers = bytes(seed ^ (round << 32) ^ (purpose << 48), 16);
    let number = u32::from_le_bytes(numbers[8..12].try_into().unwrap());
    usize::try_from(number).unwrap() % limit
}

#[test]
fn a_chain_survives_the_death_of_any_node_at_any_moment() {
    survives("chain", chained(SOURCES + 2));
}

#[test]
fn a_tree_survives_the_death_of_any_node_at_any_moment() {
    let mut plan = chained(SOURCES + 2);
    let latency = "--link-latency=20ms".to_owned();
    plan.store_arguments.retain(|argument| !argument.starts_with("--link-latency"));
    plan.store_arguments.push(latency);
    survives("binary tree", plan);
}

#[expect(clippy::print_stderr, reason = "the output of a failed test is where its seed belongs")]
fn survives(schedule: &str, plan: Plan) {
    let seed = seed();
    let mut cluster = Cluster::start(plan);
    let all: Vec<u64> = (1..=SOURCES as u64 + 1).collect();
    for round in 0..ROUNDS {
        let victim = 1 + random(seed, round, 1, SOURCES);
        let dies_at = random(seed, round, 2, 2 * MIB);
        let piece = 1 + random(seed, round, 3, 200 << 10);
        eprintln!(
            "HOPLITE_SEED={seed}, round {round}: node {victim} dies after {dies_at} bytes, pieces of {piece}"
        );
        put(&cluster, SOURCES + 1, LARGE, SOURCES as u64 + 1);
        std::thread::scope(|scope| {
            let sources = 1..=SOURCES;
            let begin = |node: usize| Unfinished::begin(&cluster, node, LARGE, node as u64);
            let mut unfinished: Vec<_> = sources.map(begin).collect();
            let running = start(scope, &cluster, 0, "target", &all, first(SOURCES));
            let client = cluster.client(SOURCES + 1);
            let get = scope.spawn(move || client.get_vec("target", TIME_LIMIT));
            let mut is_dead = false;
            for end in (piece..2 * MIB).step_by(piece) {
                if !is_dead && end > dies_at {
                    cluster.kill_store(victim);
                    is_dead = true;
                }
                for (unfinished, node) in unfinished.iter_mut().zip(1..) {
                    let written = unfinished.write_to(end);
                    assert!(written.is_ok() || node == victim, "{written:?}");
                }
            }
            for (unfinished, node) in unfinished.into_iter().zip(1..) {
                let finished = unfinished.finish();
                assert!(finished.is_ok() || node == victim, "{finished:?}");
            }
            let joined = numbers(&running.join().unwrap().unwrap());
            assert_eq!(joined.len(), SOURCES);
            let expected = LARGE.reduced(ReduceOp::Sum, &joined);
            assert!(
                get.join().unwrap().unwrap() == expected,
                "seed {seed}, round {round}: {joined:?}"
            );
            assert_sum(&cluster, "target", &joined);
        });
        let plan = record(&cluster, 0, "target").plan;
        assert!(plan.starts_with(schedule), "{plan}");
        cluster.restart_store(victim);
        assert_nothing_left(&mut cluster);
        let victims = id(victim as u64);
        await_that("what died with the victim is gone", || {
            let object =
                retry("describe", || cluster.client(0).describe(&victims)).locations.object;
            object.is_none_or(|object| object.lost)
        });
    }
}
