use std::thread::{self, scope};
use std::time::{Duration, Instant};

use hoplite_client::{
    AllreduceOptions, Dtype, Metadata, PutOptions, ReduceOp, ReduceOrder, Result,
};
use hoplite_tests::cluster::{Cluster, retry};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;

use super::*;

const ALL: [u64; 3] = [0, 1, 2];
const SHORT_GRACE: &str = "300ms";

fn options(op: ReduceOp) -> AllreduceOptions {
    AllreduceOptions { op, timeout: TIME_LIMIT, ..AllreduceOptions::default() }
}

struct Begun {
    cluster: Cluster,
    halves: Vec<Unfinished>,
}

impl Begun {
    fn disturbed(
        node_grace: &str,
        ranks: &[usize],
        disturb: impl FnOnce(&mut Cluster, Vec<Unfinished>),
    ) -> (Cluster, Vec<Result<Vec<u8>>>) {
        let shard_arguments = vec![format!("--node-grace={node_grace}")];
        let cluster = Cluster::start(Plan { shard_arguments, ..chained(3) });
        let halves =
            (0..3).map(|rank| Unfinished::half(&cluster, rank, LARGE, rank as u64)).collect();
        for source in ids(&ALL) {
            cluster.client(0).locate(source, TIME_LIMIT).unwrap();
        }
        let mut begun = Self { cluster, halves };
        let results = scope(|scope| {
            let calls: Vec<_> = ranks
                .iter()
                .map(|rank| {
                    let (client, rank) = (begun.cluster.client(*rank), *rank);
                    scope.spawn(move || {
                        client.allreduce("target", ids(&ALL), rank, options(ReduceOp::Sum))
                    })
                })
                .collect();
            for rank in 0..3 {
                let client = begun.cluster.client(rank);
                await_that("the ring is closed", || client.status().unwrap().serves > 0);
            }
            disturb(&mut begun.cluster, std::mem::take(&mut begun.halves));
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        (begun.cluster, results)
    }
}

fn assert_sums(results: Vec<Result<Vec<u8>>>) {
    let expected = LARGE.reduced(ReduceOp::Sum, &ALL);
    for result in results {
        assert!(result.unwrap() == expected);
    }
}

#[test]
fn all_ranks_learn_which_store_is_full() {
    let cluster = Cluster::of(3);
    let length = 12 << 20;
    let full = cluster.client(0);
    full.put("kept", &bytes(1, 40 << 20)).unwrap();
    let ids = ["source/0", "source/1", "source/2"];
    for (node, id) in ids.iter().enumerate() {
        let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let options = PutOptions { metadata, ..PutOptions::default() };
        cluster.client(node).put_with(id, &bytes(2, length), options).unwrap();
    }
    let participants: Vec<_> = (0..3)
        .map(|rank| {
            let client = cluster.client(rank);
            thread::spawn(move || {
                client.allreduce("target", ids, rank, AllreduceOptions::default()).unwrap_err()
            })
        })
        .collect();
    for (rank, participant) in participants.into_iter().enumerate() {
        let error = participant.join().unwrap().to_string();
        assert!(
            error.contains("store is full") && error.contains("on node-0"),
            "rank {rank}: {error}"
        );
        let names_holders = error.contains("objects that were put and not deleted");
        assert_eq!(names_holders, rank == 0, "rank {rank} knows only of its own store: {error}");
    }
}

#[test]
fn a_frozen_member_aborts_the_attempt_and_all_get_the_same_result() {
    // With this grace, sources outlive a session.
    let (mut cluster, results) = Begun::disturbed("20s", &[0, 1, 2], |cluster, halves| {
        cluster.store(1).signal(Signal::STOP);
        let mut halves = halves.into_iter();
        let [first, frozen, last] = std::array::from_fn(|_| halves.next().unwrap());
        finish_all([first, last]);
        await_given_up(cluster, 0, "target", "no session, since member");
        cluster.store(1).signal(Signal::CONT);
        frozen.finish().unwrap();
    });
    assert_sums(results);
    let record = retry("describe", || cluster.client(0).describe("target")).reduce.unwrap();
    assert!(record.plan.contains("no session, since member"), "{}", record.plan);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_participant_that_leaves_costs_the_others_nothing() {
    // Rank 1 never calls, but its node has its source.
    let (mut cluster, results) =
        Begun::disturbed(SHORT_GRACE, &[0, 2], |_, halves| finish_all(halves));
    assert_sums(results);
    let record = retry("describe", || cluster.client(0).describe("target")).reduce.unwrap();
    assert!(record.plan.starts_with("ring of 3, estimated to take"), "{}", record.plan);
    assert!(
        cluster.client(1).get("target", TIME_LIMIT).unwrap()[..]
            == LARGE.reduced(ReduceOp::Sum, &ALL)
    );
    assert_nothing_left(&mut cluster);
}

#[test]
fn without_its_coordinator_a_session_fails_at_the_others() {
    let (mut cluster, results) = Begun::disturbed(SHORT_GRACE, &[0, 1, 2], |cluster, halves| {
        cluster.kill_store(0);
        let mut halves = halves.into_iter();
        assert!(halves.next().unwrap().finish().is_err());
        finish_all(halves);
    });
    for result in results.into_iter().skip(1) {
        let error = refusal(result);
        assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    }
    cluster.restart_store(0);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_that_is_deleted_fails_everywhere() {
    let (mut cluster, results) = Begun::disturbed(SHORT_GRACE, &[0, 1, 2], |cluster, halves| {
        assert_eq!(cluster.client(0).delete(["target"], TIME_LIMIT).unwrap(), 1);
        finish_all(halves);
    });
    for result in results {
        let error = refusal(result);
        assert!(matches!(error, ObjectError::Deleted { .. }), "{error}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_source_that_is_aborted_fails_everywhere() {
    let (mut cluster, results) = Begun::disturbed(SHORT_GRACE, &[0, 1, 2], |_, mut halves| {
        drop(halves.pop());
        finish_all(halves);
    });
    for result in results {
        let error = refusal(result);
        assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_reduce_of_a_target_that_a_session_makes_waits_for_it() {
    let (mut cluster, results) = Begun::disturbed(SHORT_GRACE, &[0, 1, 2], |cluster, halves| {
        put(cluster, 1, LARGE, 3);
        let client = cluster.client(1);
        let sources = [ids(&[3]).remove(0), "target".into()];
        let reduce =
            std::thread::spawn(move || client.reduce("sum", sources, ReduceOp::Sum, TIME_LIMIT));
        let client = cluster.client(1);
        await_that("the reduce has begun", || client.status().unwrap().reduces > 0);
        finish_all(halves);
        reduce.join().unwrap().unwrap();
        let sum = client.get("sum", TIME_LIMIT).unwrap();
        assert!(sum[..] == LARGE.reduced(ReduceOp::Sum, &[0, 1, 2, 3]));
        drop(sum);
        client.delete(["sum".into(), ids(&[3]).remove(0)], TIME_LIMIT).unwrap();
    });
    assert_sums(results);
    assert_nothing_left(&mut cluster);
}

#[test]
fn participants_with_different_requests_are_refused() {
    let mut cluster = Cluster::start(chained(3));
    for rank in 0..3 {
        put(&cluster, rank, LARGE, rank as u64);
    }
    let results: Vec<_> = scope(|scope| {
        let call = |rank: usize, op| {
            let client = cluster.client(rank);
            scope.spawn(move || client.allreduce("target", ids(&ALL), rank, options(op)))
        };
        let joined = [call(1, ReduceOp::Max), call(2, ReduceOp::Sum)];
        let client = cluster.client(0);
        await_that("both have joined", || client.status().unwrap().shards[0].waiting_queries == 2);
        joined
            .into_iter()
            .chain([call(0, ReduceOp::Sum)])
            .map(|call| call.join().unwrap())
            .collect()
    });
    for result in results {
        let error = refusal(result).to_string();
        let names_both =
            error.contains("max of 3 sources") && error.contains("rank 0 for sum of 3 sources");
        assert!(names_both, "{error}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_first_rank_with_an_outdated_source_fails_no_other_rank() {
    let mut cluster = Cluster::start(chained(2));
    let (pair, replaced) = ([0, 1], Arrays::of_bytes(MIB));
    let expected = LARGE.reduced(ReduceOp::Sum, &pair);
    for is_late in [false, true] {
        let first = cluster.client(0);
        first.put_with(id(0), &replaced.bytes(0), replaced.options()).unwrap();
        cluster.client(0).delete([id(0)], TIME_LIMIT).unwrap();
        put(&cluster, 0, LARGE, 0);
        if !is_late {
            put(&cluster, 1, LARGE, 1);
        }
        scope(|scope| {
            let call = |client: Client, rank: usize| {
                scope.spawn(move || {
                    client.allreduce("target", ids(&pair), rank, options(ReduceOp::Sum))
                })
            };
            let second = call(cluster.client(1), 1);
            let client = cluster.client(0);
            await_that("the second has joined", || {
                client.status().unwrap().shards[0].waiting_queries == 1
            });
            let (begun, first) = (Instant::now(), call(first, 0));
            if is_late {
                await_that("it is looked at", || begun.elapsed() > Duration::from_millis(200));
                put(&cluster, 1, LARGE, 1);
            }
            for call in [first, second] {
                assert!(call.join().unwrap().unwrap() == expected, "{is_late}");
            }
        });
        let objects = ids(&pair).into_iter().chain(["target".to_owned()]);
        cluster.client(0).delete(objects, TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn ranks_of_one_node_are_one_member() {
    let mut cluster = Cluster::start(chained(2));
    let all = [0, 1, 2, 3];
    for rank in all {
        put(&cluster, rank as usize % 2, LARGE, rank);
    }
    let expected = LARGE.reduced(ReduceOp::Sum, &all);
    scope(|scope| {
        let call = |rank: u64| {
            let client = cluster.client(rank as usize % 2);
            scope.spawn(move || {
                client.allreduce("target", ids(&all), rank as usize, options(ReduceOp::Sum))
            })
        };
        for call in all.map(call) {
            assert!(call.join().unwrap().unwrap() == expected);
        }
    });
    let record = retry("describe", || cluster.client(0).describe("target")).reduce.unwrap();
    assert!(record.plan.starts_with("ring of 2"), "{}", record.plan);
    for node in 0..2 {
        let status = cluster.client(node).status().unwrap();
        assert_eq!(
            (status.sent_bytes, status.received_bytes),
            (LARGE.size_bytes(), LARGE.size_bytes())
        );
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn elements_of_every_type_are_reduced() {
    let mut cluster = Cluster::start(chained(3));
    for dtype in Dtype::ALL.iter().copied().filter(|dtype| ReduceOp::Sum.is_defined_for(*dtype)) {
        let arrays = Arrays { dtype, length: 40_001 };
        for rank in 0..3 {
            put(&cluster, rank, arrays, rank as u64);
        }
        let expected = arrays.reduced(ReduceOp::Sum, &ALL);
        for order in [ReduceOrder::Any, ReduceOrder::Fixed] {
            let target = &format!("{dtype}-{order:?}");
            scope(|scope| {
                let calls: Vec<_> = (0..3)
                    .map(|rank| {
                        let (client, options) = (
                            cluster.client(rank),
                            AllreduceOptions { order, ..options(ReduceOp::Sum) },
                        );
                        scope.spawn(move || {
                            client.allreduce(target.as_str(), ids(&ALL), rank, options)
                        })
                    })
                    .collect();
                for call in calls {
                    assert!(call.join().unwrap().unwrap() == expected, "{dtype}, {order:?}");
                }
            });
            cluster.client(0).delete([target.as_str()], TIME_LIMIT).unwrap();
        }
        cluster.client(0).delete(ids(&ALL), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}
