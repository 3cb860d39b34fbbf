use std::thread::scope;

use hoplite_client::{AllreduceOptions, ReduceOp, ReduceOrder};
use hoplite_tests::cluster::Cluster;
use hoplite_tests::contents::{bytes, seed};

use super::*;

fn shuffled(seed: u64, count: usize) -> Vec<usize> {
    let keys = bytes(seed, count);
    let mut ranks: Vec<usize> = (0..count).collect();
    ranks.sort_by_key(|rank| keys[*rank]);
    ranks
}

fn allreduce(
    cluster: &Cluster,
    target: &str,
    arrays: Arrays,
    order: &[usize],
    options: &AllreduceOptions,
) {
    let all: Vec<u64> = (0..order.len() as u64).collect();
    let expected = arrays.reduced(options.op, &all);
    scope(|scope| {
        let participants: Vec<_> = order
            .iter()
            .map(|rank| {
                let (client, sources, options) =
                    (cluster.client(*rank), ids(&all), options.clone());
                let puts_first = rank.is_multiple_of(2);
                if puts_first {
                    put(cluster, *rank, arrays, *rank as u64);
                }
                let call = scope.spawn(move || client.allreduce(target, sources, *rank, options));
                if !puts_first {
                    put(cluster, *rank, arrays, *rank as u64);
                }
                call
            })
            .collect();
        for participant in participants {
            assert!(participant.join().unwrap().unwrap() == expected, "{arrays:?}, {order:?}");
        }
    });
}

#[test]
fn all_participants_of_an_allreduce_get_the_same() {
    let seed = seed();
    let mut cluster = Cluster::start(chained(4));
    let small = Arrays::of_bytes(1000);
    let uneven = Arrays { length: 300_001, ..LARGE };
    for (round, participants) in [1, 2, 3, 4].into_iter().enumerate() {
        for arrays in [Arrays::of_bytes(0), small, LARGE, uneven] {
            for order in [ReduceOrder::Any, ReduceOrder::Fixed] {
                let options =
                    AllreduceOptions { op: ReduceOp::Max, order, ..AllreduceOptions::default() };
                let ranks = shuffled(seed ^ (round as u64) << 32, participants);
                allreduce(&cluster, "target", arrays, &ranks, &options);
                cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
                cluster.client(0).delete(ids(&[0, 1, 2, 3]), TIME_LIMIT).unwrap();
            }
        }
    }
    assert_nothing_left(&mut cluster);
}

fn traffic(participants: usize, seed: u64) -> Vec<[u64; 2]> {
    let mut cluster = Cluster::start(chained(participants));
    let arrays = Arrays::of_bytes(4 * MIB);
    let all: Vec<u64> = (0..participants as u64).collect();
    let order = shuffled(seed, participants);
    scope(|scope| {
        let begin = |rank: &usize| Unfinished::begin(&cluster, *rank, arrays, *rank as u64);
        let unfinished: Vec<_> = order.iter().map(begin).collect();
        for source in ids(&all) {
            cluster.client(0).locate(source, TIME_LIMIT).unwrap();
        }
        let call = |rank: &usize| {
            let (client, rank, sources) = (cluster.client(*rank), *rank, ids(&all));
            scope.spawn(move || {
                client.allreduce("target", sources, rank, AllreduceOptions::default())
            })
        };
        let calls: Vec<_> = order.iter().map(call).collect();
        for rank in 0..participants {
            let client = cluster.client(rank);
            await_that("the ring is closed", || client.status().unwrap().serves > 0);
        }
        finish_all(unfinished);
        let expected = arrays.reduced(ReduceOp::Sum, &all);
        for call in calls {
            assert!(call.join().unwrap().unwrap() == expected, "{order:?}");
        }
    });
    let status = |node: usize| cluster.client(node).status().unwrap();
    let moved = (0..participants)
        .map(status)
        .map(|status| [status.received_bytes, status.sent_bytes])
        .collect();
    assert_nothing_left(&mut cluster);
    moved
}

#[test]
fn an_allreduce_moves_what_a_ring_does_at_each_node() {
    let seed = seed();
    for participants in [2, 3, 4] {
        let ring = 2 * 4 * MIB as u64 * (participants as u64 - 1) / participants as u64;
        let moved = traffic(participants, seed);
        eprintln!("{participants} participants, in and out: {moved:?}; a ring: {ring}");
        // Parts are rounded to whole cache lines.
        let limit = ring + 64 * 2 * participants as u64;
        assert!(moved.iter().flatten().all(|bytes| *bytes <= limit), "{moved:?}");
        let all_received: u64 = moved.iter().map(|[received, _]| received).sum();
        assert_eq!(all_received, 2 * 4 * MIB as u64 * (participants as u64 - 1));
    }
}

#[test]
fn an_allreduce_whose_participant_dies_fails_for_all() {
    let mut cluster = Cluster::start(chained(3));
    for rank in 0..2 {
        put(&cluster, rank, LARGE, rank as u64);
    }
    let mut unfinished = Unfinished::begin(&cluster, 2, LARGE, 2);
    unfinished.write_to(MIB / 4).unwrap();
    scope(|scope| {
        let call = |rank: usize| {
            let client = cluster.client(rank);
            scope.spawn(move || {
                client.allreduce("target", ids(&[0, 1, 2]), rank, AllreduceOptions::default())
            })
        };
        let participants = [call(0), call(1)];
        let clients = [cluster.client(0), cluster.client(1)];
        let has_bytes = |client: &Client| client.status().unwrap().received_bytes > 0;
        await_that("bytes", || clients.iter().any(has_bytes));
        cluster.kill_store(2);
        for participant in participants {
            let error = refusal(participant.join().unwrap());
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
        }
    });
    assert!(unfinished.finish().is_err());
    cluster.restart_store(2);
    assert_nothing_left(&mut cluster);
}

#[test]
fn objects_of_all_nodes_are_gathered() {
    let mut cluster = Cluster::start(chained(4));
    let contents = |number: u64| bytes(number, 1 + 40_001 * number as usize);
    let names: Vec<String> = (0..12).map(|number| format!("part-{number}")).collect();
    let all: Vec<u8> = (0..12).flat_map(contents).collect();
    scope(|scope| {
        let (viewing, copying) = (cluster.client(0), cluster.client(1));
        let (names, all) = (&names, &all);
        let views = scope.spawn(move || viewing.gather(names, TIME_LIMIT));
        let copies = scope.spawn(move || {
            let mut out = vec![0; all.len()];
            copying.gather_into(names, &mut out, TIME_LIMIT).map(|lengths| (out, lengths))
        });
        for (number, name) in names.iter().enumerate().rev() {
            cluster.client(number % 4).put(name, &contents(number as u64)).unwrap();
        }
        for (view, number) in views.join().unwrap().unwrap().iter().zip(0..) {
            assert!(view[..] == contents(number)[..], "{number}");
        }
        let (out, lengths) = copies.join().unwrap().unwrap();
        assert!(out == *all);
        assert_eq!(lengths, (0..12).map(|number| contents(number).len()).collect::<Vec<_>>());
    });
    assert_nothing_left(&mut cluster);
}

#[test]
fn every_participant_of_an_allgather_gets_all() {
    let seed = seed();
    let mut cluster = Cluster::start(chained(4));
    let arrays = Arrays::of_bytes(MIB);
    scope(|scope| {
        let calls: Vec<_> = shuffled(seed, 4)
            .into_iter()
            .map(|rank| {
                let client = cluster.client(rank);
                let own = arrays.bytes(rank as u64);
                scope.spawn(move || {
                    client.allgather(ids(&[0, 1, 2, 3]), rank, &own, arrays.options())
                })
            })
            .collect();
        for call in calls {
            let views = call.join().unwrap().unwrap();
            for (view, number) in views.iter().zip(0..4) {
                assert!(view[..] == arrays.bytes(number)[..], "{number}");
            }
        }
    });
    for node in 0..4 {
        let received = cluster.client(node).status().unwrap().received_bytes;
        assert_eq!(received, 3 * arrays.size_bytes(), "each object once");
    }
    assert_nothing_left(&mut cluster);
}
