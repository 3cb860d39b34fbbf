//! Reduce-scatter and allgather, with and without stores' collectives.

use std::thread::{ScopedJoinHandle, scope};

use hoplite_client::{AllreduceOptions, Dtype, ReduceOp, Result};
use hoplite_tests::cluster::Cluster;
use rustix::process::Signal;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ReduceScatter,
    Allgather,
}

const BOTH: [Way; 2] = [Way::ReduceScatter, Way::Allgather];

fn options() -> AllreduceOptions {
    AllreduceOptions { timeout: TIME_LIMIT, ..AllreduceOptions::default() }
}

impl Way {
    fn call(self, client: &Client, arrays: Arrays, all: &[u64], rank: usize) -> Result<Vec<u8>> {
        match self {
            Self::ReduceScatter => client.reduce_scatter("target", ids(all), rank, options()),
            Self::Allgather => {
                let mut out = vec![0; arrays.bytes(0).len() * all.len() + 10];
                let length =
                    client.allgather_into("target", ids(all), rank, &mut out, TIME_LIMIT)?;
                out.truncate(length);
                Ok(out)
            }
        }
    }

    fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        cluster: &Cluster,
        node: usize,
        (arrays, all, rank): (Arrays, &'scope [u64], usize),
    ) -> ScopedJoinHandle<'scope, Result<Vec<u8>>> {
        let client = cluster.client(node);
        scope.spawn(move || self.call(&client, arrays, all, rank))
    }

    fn expected(self, arrays: Arrays, all: &[u64], rank: usize) -> Vec<u8> {
        match self {
            Self::ReduceScatter => {
                let sum = arrays.reduced(ReduceOp::Sum, all);
                let part = sum.len() / all.len();
                sum[rank * part..(rank + 1) * part].to_vec()
            }
            Self::Allgather => all.iter().flat_map(|number| arrays.bytes(*number)).collect(),
        }
    }
}

/// With slow links, the first rank waits about a second for late sources; with fast links, 2 ms,
/// which may not suffice.
fn patient(nodes: usize, link_bandwidth: &str) -> Plan {
    let mut plan = chained(nodes);
    plan.store_arguments.retain(|argument| !argument.starts_with("--link-bandwidth"));
    plan.store_arguments.push(format!("--link-bandwidth={link_bandwidth}"));
    plan
}

/// Waits for all sources: small puts return before the directory knows them.
fn await_sources(cluster: &Cluster, all: &[u64]) {
    for source in ids(all) {
        cluster.client(0).locate(source, TIME_LIMIT).unwrap();
    }
}

fn delete_target(cluster: &Cluster) {
    let target = cluster.client(running(cluster)[0]).get("target", TIME_LIMIT).unwrap();
    assert!(target.is_empty());
    drop(target);
    cluster.client(running(cluster)[0]).delete(["target"], TIME_LIMIT).unwrap();
}

#[test]
fn each_rank_gets_its_parts_from_the_ring() {
    for nodes in [2, 3, 5] {
        let mut cluster = Cluster::start(patient(nodes, "64KiB"));
        let all: Vec<u64> = (0..nodes as u64).collect();
        let arrays = Arrays { dtype: Dtype::F32, length: 50_001 * nodes };
        for way in BOTH {
            let before = received_bytes(&cluster);
            let unfinished: Vec<_> = (0..nodes)
                .map(|rank| Unfinished::half(&cluster, rank, arrays, rank as u64))
                .collect();
            await_sources(&cluster, &all);
            scope(|scope| {
                let call = |rank| way.start(scope, &cluster, rank, (arrays, &all, rank));
                let others: Vec<_> = (1..nodes).map(call).collect();
                let client = cluster.client(0);
                await_that("the others have joined", || {
                    client.status().unwrap().shards[0].waiting_queries == others.len() as u64
                });
                let calls: Vec<_> = [call(0)].into_iter().chain(others).collect();
                for rank in 0..nodes {
                    let client = cluster.client(rank);
                    await_that("the ring is closed", || client.status().unwrap().serves > 0);
                }
                finish_all(unfinished);
                for (rank, call) in calls.into_iter().enumerate() {
                    assert!(
                        call.join().unwrap().unwrap() == way.expected(arrays, &all, rank),
                        "{way:?}"
                    );
                }
            });
            delete_target(&cluster);
            let plan = record(&cluster, 0, "target").plan;
            assert!(plan.starts_with(&format!("ring of {nodes}, estimated")), "{plan}");
            let part = arrays.size_bytes() / nodes as u64;
            let parts = if way == Way::Allgather { nodes * (nodes - 1) } else { nodes - 1 };
            for (node, before) in before.into_iter().enumerate() {
                let received = cluster.client(node).status().unwrap().received_bytes - before;
                assert_eq!(received, part * parts as u64, "{way:?} at node {node} of {nodes}");
            }
            cluster.client(0).delete(ids(&all), TIME_LIMIT).unwrap();
        }
        assert_nothing_left(&mut cluster);
    }
}

fn received_bytes(cluster: &Cluster) -> Vec<u64> {
    running(cluster)
        .into_iter()
        .map(|node| cluster.client(node).status().unwrap().received_bytes)
        .collect()
}

#[test]
fn ranks_of_one_node_are_one_member() {
    let mut cluster = Cluster::start(patient(2, "64KiB"));
    let all: Vec<u64> = (0..5).collect();
    let arrays = Arrays { dtype: Dtype::I16, length: 5 * 30_001 };
    for (rank, number) in all.iter().enumerate() {
        put(&cluster, rank % 2, arrays, *number);
    }
    await_sources(&cluster, &all);
    for way in BOTH {
        scope(|scope| {
            let calls: Vec<_> = (0..5)
                .map(|rank| way.start(scope, &cluster, rank % 2, (arrays, &all, rank)))
                .collect();
            for (rank, call) in calls.into_iter().enumerate() {
                assert!(
                    call.join().unwrap().unwrap() == way.expected(arrays, &all, rank),
                    "{way:?} {rank}"
                );
            }
        });
        delete_target(&cluster);
        assert!(record(&cluster, 0, "target").plan.starts_with("ring of 2"));
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn only_collectives_above_8_kib_use_an_attempt() {
    let mut cluster = Cluster::start(patient(3, "1KiB"));
    let all = [0, 1, 2];
    for (source_bytes, has_session) in
        [(0, false), (12, false), (2_724, false), (2_736, true), (12_000, true)]
    {
        let arrays = Arrays::of_bytes(source_bytes);
        for (rank, number) in all.iter().enumerate() {
            put(&cluster, rank, arrays, *number);
        }
        await_sources(&cluster, &all);
        for way in BOTH {
            scope(|scope| {
                let calls =
                    [0, 1, 2].map(|rank| way.start(scope, &cluster, rank, (arrays, &all, rank)));
                for (rank, call) in calls.into_iter().enumerate() {
                    let got = call.join().unwrap().unwrap();
                    assert!(
                        got == way.expected(arrays, &all, rank),
                        "{way:?} of {arrays:?} at rank {rank}"
                    );
                }
            });
            if has_session {
                delete_target(&cluster);
                let plan = record(&cluster, 0, "target").plan;
                assert!(plan.starts_with("ring of 3, estimated"), "{plan}");
            } else {
                let page = retry("list", || cluster.client(0).list("target", "", 10));
                assert!(page.objects.is_empty());
            }
        }
        cluster.client(0).delete(ids(&all), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_late_rank_causes_the_general_path() {
    let mut cluster = Cluster::start(chained(3));
    let all = [0, 1, 2];
    let arrays = Arrays { length: 3 * 100_000, ..LARGE };
    for way in BOTH {
        scope(|scope| {
            put(&cluster, 0, arrays, 0);
            put(&cluster, 1, arrays, 1);
            let first = [0, 1].map(|rank| way.start(scope, &cluster, rank, (arrays, &all, rank)));
            let target = cluster.client(1).get("target", TIME_LIMIT).unwrap();
            assert!(target.is_empty());
            put(&cluster, 2, arrays, 2);
            let late = way.start(scope, &cluster, 2, (arrays, &all, 2));
            for (rank, call) in first.into_iter().chain([late]).enumerate() {
                assert!(
                    call.join().unwrap().unwrap() == way.expected(arrays, &all, rank),
                    "{way:?} {rank}"
                );
            }
        });
        let plan = record(&cluster, 0, "target").plan;
        assert!(plan.contains("not all sources came in time"), "{plan}");
        let objects = retry("list", || cluster.client(0).list("target", "", 10)).objects;
        assert_eq!(objects.len(), 1, "parts are deleted");
        delete_target(&cluster);
        cluster.client(0).delete(ids(&all), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_rank_may_call_elsewhere_than_where_its_source_is() {
    let mut cluster = Cluster::start(chained(4));
    let all = [0, 1, 2];
    let arrays = Arrays { length: 3 * 100_000, ..LARGE };
    for (rank, number) in all.iter().enumerate() {
        put(&cluster, rank, arrays, *number);
    }
    for way in BOTH {
        scope(|scope| {
            let calls: Vec<_> = [(0, 0), (1, 2), (2, 3)]
                .into_iter()
                .map(|(rank, node)| way.start(scope, &cluster, node, (arrays, &all, rank)))
                .collect();
            for (rank, call) in calls.into_iter().enumerate() {
                assert!(
                    call.join().unwrap().unwrap() == way.expected(arrays, &all, rank),
                    "{way:?} {rank}"
                );
            }
        });
        delete_target(&cluster);
    }
    assert_nothing_left(&mut cluster);
}

/// Calls `disturb` in an exchange of three nodes that have half of their source.
fn disturbed(
    way: Way,
    node_grace: &str,
    disturb: impl FnOnce(&mut Cluster, Vec<Unfinished>),
) -> (Cluster, Vec<Result<Vec<u8>>>) {
    let shard_arguments = vec![format!("--node-grace={node_grace}")];
    let mut cluster = Cluster::start(Plan { shard_arguments, ..patient(3, "64KiB") });
    let arrays = Arrays { length: 3 * 100_000, ..LARGE };
    let halves: Vec<_> =
        (0..3).map(|rank| Unfinished::half(&cluster, rank, arrays, rank as u64)).collect();
    await_sources(&cluster, &[0, 1, 2]);
    let results = scope(|scope| {
        let calls =
            [0, 1, 2].map(|rank| way.start(scope, &cluster, rank, (arrays, &[0, 1, 2], rank)));
        for rank in 0..3 {
            let client = cluster.client(rank);
            await_that("the ring is closed", || client.status().unwrap().serves > 0);
        }
        disturb(&mut cluster, halves);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    (cluster, results)
}

#[test]
fn a_frozen_member_causes_the_general_path() {
    for way in BOTH {
        let (mut cluster, results) = disturbed(way, "20s", |cluster, halves| {
            cluster.store(1).signal(Signal::STOP);
            let mut halves = halves.into_iter();
            let [first, frozen, last] = std::array::from_fn(|_| halves.next().unwrap());
            finish_all([first, last]);
            await_given_up(cluster, 0, "target", "general path: member");
            cluster.store(1).signal(Signal::CONT);
            frozen.finish().unwrap();
        });
        let arrays = Arrays { length: 3 * 100_000, ..LARGE };
        for (rank, result) in results.into_iter().enumerate() {
            assert!(result.unwrap() == way.expected(arrays, &[0, 1, 2], rank), "{way:?} {rank}");
        }
        delete_target(&cluster);
        let plan = record(&cluster, 0, "target").plan;
        assert!(plan.starts_with("general path: member"), "{plan}");
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_lost_source_fails_the_participants_that_need_it() {
    for way in BOTH {
        let (mut cluster, results) = disturbed(way, "300ms", |cluster, halves| {
            cluster.kill_store(1);
            let mut halves = halves.into_iter();
            let [first, killed, last] = std::array::from_fn(|_| halves.next().unwrap());
            finish_all([first, last]);
            assert!(killed.finish().is_err());
        });
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let error = refusal(result);
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{way:?} {rank}: {error}");
        }
        cluster.restart_store(1);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn without_its_coordinator_an_exchange_fails_at_the_others() {
    for way in BOTH {
        let (mut cluster, results) = disturbed(way, "300ms", |cluster, halves| {
            cluster.kill_store(0);
            let mut halves = halves.into_iter();
            assert!(halves.next().unwrap().finish().is_err());
            finish_all(halves);
        });
        for result in results.into_iter().skip(1) {
            let error = refusal(result);
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{way:?}: {error}");
        }
        cluster.restart_store(0);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn participants_of_different_collectives_are_refused() {
    let mut cluster = Cluster::start(chained(3));
    let arrays = Arrays { length: 3 * 100_000, ..LARGE };
    for rank in 0..3 {
        put(&cluster, rank, arrays, rank as u64);
    }
    let all = [0, 1, 2];
    let results: Vec<_> = scope(|scope| {
        let joined = [
            Way::Allgather.start(scope, &cluster, 1, (arrays, &all, 1)),
            Way::ReduceScatter.start(scope, &cluster, 2, (arrays, &all, 2)),
        ];
        let client = cluster.client(0);
        await_that("both have joined", || client.status().unwrap().shards[0].waiting_queries == 2);
        let last = Way::ReduceScatter.start(scope, &cluster, 0, (arrays, &all, 0));
        joined.into_iter().chain([last]).map(|call| call.join().unwrap()).collect()
    });
    for result in results {
        let error = refusal(result).to_string();
        let names_both =
            error.contains("for all of 3 sources") && error.contains("rank 0 for parts of the sum");
        assert!(names_both, "{error}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn bad_requests_are_refused_before_anything_happens() {
    let mut cluster = Cluster::start(chained(2));
    put(&cluster, 0, Arrays::of_bytes(64 * 1024 + 4), 0);
    let client = cluster.client(0);
    let error = refusal(client.reduce_scatter("target", ids(&[0, 1]), 0, options()));
    assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    let error = refusal(client.reduce_scatter("target", ids(&[0, 1]), 2, options()));
    assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    let mut short = [0; 10];
    let error =
        client.allgather_into("target", ids(&[0, 1]), 0, &mut short, TIME_LIMIT).unwrap_err();
    assert!(matches!(error, hoplite_client::Error::BufferTooSmall { .. }), "{error}");
    assert_nothing_left(&mut cluster);
}
