//! Collectives whose links or members fail at a known byte.

use std::thread::{ScopedJoinHandle, scope, sleep};

use hoplite_client::{AllreduceOptions, Result};
use hoplite_tests::cluster::{Cluster, Worker};
use hoplite_tests::links::Links;

use super::*;

const ALL: [u64; 3] = [0, 1, 2];

/// In the ring, member 1 sends to member 2, which sends to member 0: 4/3 of 2 MiB each.
pub(super) const SENDER: usize = 1;
pub(super) const RECEIVER: usize = 2;
pub(super) const FIRST_HALF: u64 = 700_000;
const TURN: u64 = 1_400_000;
const SECOND_HALF: u64 = 2_100_000;
/// Only the end of a stream is missing after these bytes.
pub(super) const END: u64 = 2_700_000;

pub(super) fn linked(nodes: usize) -> (Cluster, Links) {
    let links = Links::new(nodes);
    let cluster = Cluster::start(Plan { advertised: links.addresses(), ..chained(nodes) });
    links.attach(&cluster);
    for rank in 0..nodes {
        put(&cluster, rank, LARGE, rank as u64);
    }
    (cluster, links)
}

pub(super) type Call<'scope> = ScopedJoinHandle<'scope, Result<Vec<u8>>>;

pub(super) fn call<'scope>(
    scope: &'scope Scope<'scope, '_>,
    cluster: &Cluster,
    rank: usize,
    (target, timeout): (&'scope str, Duration),
) -> Call<'scope> {
    let client = cluster.client(rank);
    let options = AllreduceOptions { timeout, ..AllreduceOptions::default() };
    scope.spawn(move || client.allreduce(target, ids(&ALL), rank, options))
}

pub(super) fn disturbed(
    cluster: &mut Cluster,
    target: &str,
    disturb: impl FnOnce(&mut Cluster),
) -> Vec<Result<Vec<u8>>> {
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| call(scope, cluster, rank, (target, TIME_LIMIT)));
        disturb(cluster);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

pub(super) fn sum() -> Vec<u8> {
    LARGE.reduced(ReduceOp::Sum, &ALL)
}

pub(super) fn assert_sums(results: impl IntoIterator<Item = Result<Vec<u8>>>) {
    let expected = sum();
    for result in results {
        assert!(result.unwrap() == expected);
    }
}

pub(super) fn assert_lost<T>(result: Result<T>) {
    let error = refusal(result);
    assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
}

fn received_bytes(cluster: &Cluster) -> u64 {
    let received = |node: usize| cluster.client(node).status().unwrap().received_bytes;
    running(cluster).into_iter().map(received).sum()
}

#[test]
fn a_link_that_fails_for_a_moment_costs_no_byte() {
    let (mut cluster, links) = linked(3);
    for (round, at) in [0, FIRST_HALF, TURN, SECOND_HALF, END].into_iter().enumerate() {
        for is_broken in [true, false] {
            let target = format!("target-{round}-{is_broken}");
            let before = received_bytes(&cluster);
            links.mark();
            links.hold(SENDER, RECEIVER, at);
            let results = disturbed(&mut cluster, &target, |_| {
                links.await_held(SENDER, RECEIVER);
                links.silence(SENDER, RECEIVER);
                sleep(Duration::from_millis(200));
                if is_broken {
                    links.reset(SENDER, RECEIVER);
                }
                links.open();
            });
            assert_sums(results);
            if !is_broken || at < TURN {
                let plan = record(&cluster, 0, &target).plan;
                assert!(plan.starts_with("ring of 3"), "{at}, {is_broken}: {plan}");
                let received = received_bytes(&cluster) - before;
                assert_eq!(
                    received,
                    4 * LARGE.size_bytes(),
                    "{at}, {is_broken}: as many as the ring takes"
                );
            }
            cluster.client(0).delete([target], TIME_LIMIT).unwrap();
        }
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_long_link_failure_causes_the_general_path() {
    let (mut cluster, links) = linked(3);
    links.hold(SENDER, RECEIVER, FIRST_HALF);
    let results = disturbed(&mut cluster, "target", |cluster| {
        links.await_held(SENDER, RECEIVER);
        links.silence(SENDER, RECEIVER);
        await_given_up(cluster, 0, "target", "no session, since member");
        links.open();
    });
    assert_sums(results);
    let plan = record(&cluster, 0, "target").plan;
    assert!(plan.contains("no session, since member"), "{plan}");
    assert_nothing_left(&mut cluster);
}

#[test]
fn lost_connections_to_members_change_no_result() {
    let (mut cluster, links) = linked(3);
    for at in [FIRST_HALF, END] {
        links.mark();
        links.hold(SENDER, RECEIVER, at);
        let results = disturbed(&mut cluster, "target", |_| {
            links.await_held(SENDER, RECEIVER);
            links.reset(0, RECEIVER);
            links.reset(0, SENDER);
            links.open();
        });
        assert_sums(results);
        let plan = record(&cluster, 0, "target").plan;
        assert!(at == END || plan.contains("could not be reached"), "{plan}");
        cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn after_a_member_dies_the_others_get_an_error_or_the_target() {
    let moments = [
        ((0, RECEIVER), 0, RECEIVER),
        ((SENDER, RECEIVER), 0, SENDER),
        ((SENDER, RECEIVER), FIRST_HALF, 0),
        ((SENDER, RECEIVER), TURN, RECEIVER),
        ((SENDER, RECEIVER), SECOND_HALF, SENDER),
        ((SENDER, RECEIVER), SECOND_HALF, 0),
    ];
    for ((from, to), at, victim) in moments {
        let (mut cluster, links) = linked(3);
        links.hold(from, to, at);
        let results = disturbed(&mut cluster, "target", |cluster| {
            links.await_held(from, to);
            cluster.kill_store(victim);
            links.reset(from, to);
            links.open();
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(got) => assert!(got == sum() && at == SECOND_HALF, "{rank}, {at}"),
                Err(_) if rank == victim => {}
                Err(_) => assert_lost(result),
            }
        }
        cluster.restart_store(victim);
        links.attach(&cluster);
        assert_nothing_left(&mut cluster);
    }
}

/// Calls `disturb` when only the participant `last` lacks the target.
fn lacking(
    cluster: &mut Cluster,
    links: &Links,
    last: usize,
    disturb: impl FnOnce(&mut Cluster),
) -> Result<Vec<u8>> {
    let sender = (last + 2) % 3;
    links.hold(sender, last, END);
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| call(scope, cluster, rank, ("target", TIME_LIMIT)));
        let mut lacking = None;
        for (rank, call) in calls.into_iter().enumerate() {
            if rank == last {
                lacking = Some(call);
            } else {
                assert_sums([call.join().unwrap()]);
            }
        }
        let lacking = lacking.unwrap();
        assert!(!lacking.is_finished());
        disturb(cluster);
        links.reset(sender, last);
        links.open();
        lacking.join().unwrap()
    })
}

#[test]
fn after_the_first_completion_the_others_get_the_same_from_any_survivor() {
    for (last, victim) in [(RECEIVER, SENDER), (SENDER, RECEIVER)] {
        let (mut cluster, links) = linked(3);
        let got = lacking(&mut cluster, &links, last, |cluster| cluster.kill_store(victim));
        assert_sums([got]);
        cluster.restart_store(victim);
        links.attach(&cluster);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn after_the_first_has_all_bytes_the_coordinator_may_die() {
    let (mut cluster, links) = linked(3);
    let got = lacking(&mut cluster, &links, RECEIVER, |cluster| cluster.kill_store(0));
    match got {
        Ok(got) => assert!(got == sum()),
        Err(_) => assert_lost(got),
    }
    cluster.restart_store(0);
    links.attach(&cluster);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_without_surviving_copies_is_lost() {
    let (mut cluster, links) = linked(3);
    let got = lacking(&mut cluster, &links, RECEIVER, |cluster| {
        cluster.kill_store(0);
        cluster.kill_store(SENDER);
    });
    assert_lost(got);
    for node in [0, SENDER] {
        cluster.restart_store(node);
    }
    links.attach(&cluster);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_coordinator_without_the_last_bytes_cannot_change_the_result() {
    for dies in [true, false] {
        let (mut cluster, links) = linked(3);
        links.hold(RECEIVER, 0, END);
        let results = disturbed(&mut cluster, "target", |cluster| {
            links.await_held(RECEIVER, 0);
            if dies {
                cluster.kill_store(RECEIVER);
            }
            for (one, other) in [(0, SENDER), (SENDER, RECEIVER), (RECEIVER, 0)] {
                links.reset(one, other);
            }
            links.open();
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(got) => assert!(got == sum(), "{rank}"),
                Err(_) if dies && rank == RECEIVER => {}
                Err(_) => {
                    assert!(dies, "all sources are there: {result:?}");
                    assert_lost(result);
                }
            }
        }
        if dies {
            cluster.restart_store(RECEIVER);
            links.attach(&cluster);
        }
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn after_a_member_that_has_it_is_cut_off_the_others_have_the_same() {
    let (mut cluster, links) = linked(3);
    links.hold(SENDER, RECEIVER, END);
    scope(|scope| {
        let [first, second, last] =
            [0, 1, 2].map(|rank| call(scope, &cluster, rank, ("target", TIME_LIMIT)));
        assert_sums([first.join().unwrap(), second.join().unwrap()]);
        links.isolate(SENDER);
        assert_sums([last.join().unwrap()]);
    });
    links.open();
    let got = cluster.client(SENDER).get("target", TIME_LIMIT).unwrap();
    assert!(got[..] == sum(), "it has the same");
    drop(got);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_source_that_is_deleted_while_it_is_exchanged_is_in_the_sum_or_named() {
    let (mut cluster, links) = linked(3);
    for at in [0, FIRST_HALF] {
        links.mark();
        links.hold(SENDER, RECEIVER, at);
        let results = disturbed(&mut cluster, "target", |cluster| {
            links.await_held(SENDER, RECEIVER);
            assert_eq!(cluster.client(0).delete([id(1)], TIME_LIMIT).unwrap(), 1);
            links.open();
        });
        for result in results {
            if let Ok(got) = &result {
                assert!(*got == sum());
                continue;
            }
            let error = refusal(result);
            let is_named = matches!(&error, ObjectError::ObjectLost { id } | ObjectError::Deleted { id }
                if [b"array-1" as &[u8], b"target"].contains(&id.as_bytes()));
            assert!(is_named, "{error}");
        }
        put(&cluster, 1, LARGE, 1);
        cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_rank_that_leaves_fails_the_others_only_if_it_is_the_first() {
    let (mut cluster, links) = linked(3);
    for (rank, dies) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        links.mark();
        links.hold(SENDER, RECEIVER, FIRST_HALF);
        scope(|scope| {
            let others: Vec<_> = (0..3)
                .filter(|other| *other != rank)
                .map(|other| call(scope, &cluster, other, ("target", TIME_LIMIT)))
                .collect();
            if dies {
                let mut worker = Worker::start(&cluster.socket(rank));
                worker.send_command(&format!("allreduce target {rank} {}", ids(&ALL).join(" ")));
                links.await_held(SENDER, RECEIVER);
                worker.kill();
            } else {
                let timeout = Duration::from_secs(3);
                let leaving = call(scope, &cluster, rank, ("target", timeout));
                links.await_held(SENDER, RECEIVER);
                let error = refusal(leaving.join().unwrap());
                assert!(matches!(error, ObjectError::Timeout { .. }), "{rank}: {error}");
            }
            if rank > 0 {
                links.open();
            }
            for other in others {
                let got = other.join().unwrap();
                match (rank, dies) {
                    (0, true) => assert_lost(got),
                    (0, false) => {
                        // On a slow machine, the general path begins; its target is lost with its
                        // coordinator.
                        let error = refusal(got);
                        let is_named = matches!(
                            error,
                            ObjectError::Timeout { .. } | ObjectError::ObjectLost { .. }
                        );
                        assert!(is_named, "{error}");
                    }
                    _ => assert_sums([got]),
                }
            }
            links.open();
        });
        if rank > 0 {
            cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
        }
        await_idle(&cluster);
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn the_only_shard_may_be_unreachable_during_a_reduce() {
    let (mut cluster, links) = linked(3);
    for is_gathering in [true, false] {
        if is_gathering {
            cluster.kill_shard(0);
        } else {
            links.mark();
            links.hold(SENDER, RECEIVER, END);
        }
        let results = disturbed(&mut cluster, "target", |cluster| {
            if !is_gathering {
                links.await_held(SENDER, RECEIVER);
                cluster.kill_shard(0);
                links.open();
            }
            cluster.restart_shard(0);
        });
        assert_sums(results);
        for node in 0..3 {
            cluster.await_sessions(node);
        }
        cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn two_exchanges_that_hold_space_needed_by_each_other_succeed() {
    let links = Links::new(2);
    let plan = Plan { memory: "7MiB".to_owned(), advertised: links.addresses(), ..chained(2) };
    let mut cluster = Cluster::start(plan);
    links.attach(&cluster);
    let rounds = [("one", [(0, 0), (1, 1)]), ("other", [(1, 2), (0, 3)])];
    for (node, number) in rounds.iter().flat_map(|(_, ranks)| ranks) {
        put(&cluster, *node, LARGE, *number);
    }
    links.silence(0, 1);
    scope(|scope| {
        let mut calls = Vec::new();
        for (target, ranks) in &rounds {
            let numbers = ranks.map(|(_, number)| number);
            let expected = LARGE.reduced(ReduceOp::Sum, &numbers);
            for (rank, (node, _)) in ranks.iter().enumerate() {
                let client = cluster.client(*node);
                let part =
                    expected[rank * expected.len() / 2..(rank + 1) * expected.len() / 2].to_vec();
                let options =
                    AllreduceOptions { timeout: TIME_LIMIT, ..AllreduceOptions::default() };
                let call = scope
                    .spawn(move || client.reduce_scatter(target, ids(&numbers), rank, options));
                calls.push((call, part));
            }
        }
        for node in 0..2 {
            let client = cluster.client(node);
            await_that("its own session has taken the room", || {
                client.status().unwrap().copies == 3
            });
        }
        links.open();
        for (call, part) in calls {
            assert!(call.join().unwrap().unwrap() == part);
        }
    });
    for (target, _) in rounds {
        let over = cluster.client(0).get(target, TIME_LIMIT).unwrap();
        assert!(over.is_empty());
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn no_connection_is_left_of_those_that_broke() {
    let (mut cluster, links) = linked(3);
    let open_files = |cluster: &mut Cluster, node: usize| {
        let pid = cluster.store(node).pid();
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    };
    let mut before = Vec::new();
    for round in 0..6 {
        links.mark();
        links.hold(SENDER, RECEIVER, TURN);
        let results = disturbed(&mut cluster, "target", |_| {
            links.await_held(SENDER, RECEIVER);
            for (one, other) in [(0, 1), (1, 2), (2, 0)] {
                links.reset(one, other);
            }
            links.open();
        });
        assert_sums(results);
        cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
        await_idle(&cluster);
        if round == 1 {
            before = (0..3).map(|node| open_files(&mut cluster, node)).collect();
        }
    }
    for (node, before) in before.into_iter().enumerate() {
        let spare = 4;
        await_that("no more connections", || open_files(&mut cluster, node) <= before + spare);
    }
    assert_nothing_left(&mut cluster);
}
