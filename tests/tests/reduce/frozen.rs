//! Collectives whose coordinator freezes at a known byte, or whose members lack memory.

use std::thread::sleep;

use hoplite_client::AllreduceOptions;
use hoplite_tests::links::Links;
use rustix::process::Signal;

use super::links::{END, FIRST_HALF, RECEIVER, SENDER, call, disturbed, linked, sum};
use super::*;

const COORDINATOR: usize = 0;
/// A freeze that peers tolerate.
const SHORT: Duration = Duration::from_millis(1500);
/// A freeze that exceeds the limits of peers and of the directory.
const LONG: Duration = Duration::from_secs(9);

#[derive(Debug, Clone, Copy)]
enum Phase {
    Plan,
    Exchange,
    BeforeCommit,
    AfterCommit,
}

fn frozen(
    (cluster, links): (&mut Cluster, &Links),
    target: &str,
    (phase, period): (Phase, Duration),
) -> Vec<Result<Vec<u8>>> {
    links.mark();
    let (from, to, at) = match phase {
        Phase::Plan => (COORDINATOR, RECEIVER, 0),
        Phase::Exchange => (SENDER, RECEIVER, FIRST_HALF),
        Phase::BeforeCommit => (RECEIVER, COORDINATOR, END),
        Phase::AfterCommit => (SENDER, RECEIVER, END),
    };
    links.hold(from, to, at);
    disturbed(cluster, target, |cluster| {
        links.await_held(from, to);
        if matches!(phase, Phase::AfterCommit) {
            links.hold(COORDINATOR, RECEIVER, 0);
            let client = cluster.client(COORDINATOR);
            await_that("the decision", || client.contains(target).unwrap());
        }
        cluster.store(COORDINATOR).signal(Signal::STOP);
        if matches!(phase, Phase::AfterCommit) {
            links.reset(COORDINATOR, RECEIVER);
        }
        links.open();
        sleep(period);
        cluster.store(COORDINATOR).signal(Signal::CONT);
    })
}

fn check(cluster: &mut Cluster, links: &Links, results: Vec<Result<Vec<u8>>>, may_fail: &[usize]) {
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(got) => assert!(got == sum(), "{rank}"),
            Err(_) if may_fail.contains(&rank) => {
                let error = refusal(result);
                assert!(matches!(error, ObjectError::ObjectLost { .. }), "{rank}: {error}");
            }
            Err(error) => panic!("{rank}: {error}"),
        }
    }
    for node in 0..3 {
        cluster.await_sessions(node);
    }
    cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
    links.open();
    let again = disturbed(cluster, "again", |_| {});
    assert!(again.into_iter().all(|result| result.unwrap() == sum()));
    assert_nothing_left(cluster);
}

#[test]
fn a_coordinator_that_freezes_for_a_moment_costs_nothing_but_that() {
    for phase in [Phase::Plan, Phase::Exchange, Phase::BeforeCommit, Phase::AfterCommit] {
        let (mut cluster, links) = linked(3);
        let results = frozen((&mut cluster, &links), "target", (phase, SHORT));
        check(&mut cluster, &links, results, &[]);
    }
}

#[test]
fn a_coordinator_that_freezes_before_all_have_their_plan_does_not_block_others() {
    let (mut cluster, links) = linked(3);
    let results = frozen((&mut cluster, &links), "target", (Phase::Plan, LONG));
    check(&mut cluster, &links, results, &[1, 2]);
}

#[test]
fn a_coordinator_that_freezes_in_the_exchange_does_not_block_others() {
    let (mut cluster, links) = linked(3);
    let results = frozen((&mut cluster, &links), "target", (Phase::Exchange, LONG));
    check(&mut cluster, &links, results, &[1, 2]);
}

#[test]
fn a_coordinator_that_freezes_before_it_decides_does_not_block_others() {
    let (mut cluster, links) = linked(3);
    let results = frozen((&mut cluster, &links), "target", (Phase::BeforeCommit, LONG));
    check(&mut cluster, &links, results, &[1, 2]);
}

#[test]
fn a_decision_stands_though_the_coordinator_freezes() {
    let (mut cluster, links) = linked(3);
    let results = frozen((&mut cluster, &links), "target", (Phase::AfterCommit, LONG));
    check(&mut cluster, &links, results, &[]);
}

#[test]
fn a_member_without_space_does_not_block_the_target_of_others() {
    let plan = Plan { memory_of: [(2, "3MiB".to_owned())].into(), ..chained(3) };
    let mut cluster = Cluster::start(plan);
    for rank in 0..3 {
        put(&cluster, rank, LARGE, rank as u64);
    }
    for (target, ranks) in [("target", &[0, 1][..]), ("other", &[0, 1, 2])] {
        let timeout = Duration::from_secs(8);
        let results: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let calls: Vec<_> =
                ranks.iter().map(|rank| call(scope, &cluster, *rank, (target, timeout))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for (rank, result) in results.into_iter().enumerate() {
            if rank < 2 {
                assert!(result.unwrap() == sum(), "{rank}");
            } else {
                let error = refusal(result);
                assert!(matches!(error, ObjectError::StoreFull { .. }), "{error}");
            }
        }
        let plan = record(&cluster, 0, target).plan;
        assert!(plan.contains("no session, since member"), "{plan}");
        cluster.client(0).delete([target], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_full_store_at_rank_0_ends_an_allreduce_at_all_ranks() {
    let plan = Plan { memory_of: [(0, "3MiB".to_owned())].into(), ..chained(3) };
    let mut cluster = Cluster::start(plan);
    for rank in 0..3 {
        put(&cluster, rank, LARGE, rank as u64);
    }
    let began = std::time::Instant::now();
    let results = disturbed(&mut cluster, "target", |_| {});
    assert!(began.elapsed() < TIME_LIMIT / 2, "no rank waits for its timeout");
    for (rank, result) in results.into_iter().enumerate() {
        let error = refusal(result);
        assert!(matches!(error, ObjectError::StoreFull { .. }), "{rank}: {error}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn two_allreduces_that_hold_space_needed_by_each_other_succeed() {
    let links = Links::new(2);
    let plan = Plan { memory: "9MiB".to_owned(), advertised: links.addresses(), ..chained(2) };
    let mut cluster = Cluster::start(plan);
    links.attach(&cluster);
    let rounds = [("one", [(0, 0), (1, 1)]), ("other", [(1, 2), (0, 3)])];
    for (node, number) in rounds.iter().flat_map(|(_, ranks)| ranks) {
        put(&cluster, *node, LARGE, *number);
    }
    let fillers = ["filler-0", "filler-1"];
    for (node, filler) in fillers.iter().enumerate() {
        cluster.client(node).put(filler, &vec![1; 2 * MIB]).unwrap();
    }
    links.silence(0, 1);
    std::thread::scope(|scope| {
        let mut calls = Vec::new();
        for (target, ranks) in &rounds {
            let numbers = ranks.map(|(_, number)| number);
            for (rank, (node, _)) in ranks.iter().enumerate() {
                let client = cluster.client(*node);
                let options =
                    AllreduceOptions { timeout: TIME_LIMIT, ..AllreduceOptions::default() };
                let call =
                    scope.spawn(move || client.allreduce(target, ids(&numbers), rank, options));
                calls.push((call, LARGE.reduced(ReduceOp::Sum, &numbers)));
            }
        }
        for node in 0..2 {
            let client = cluster.client(node);
            await_that("its own session has taken the room", || {
                client.status().unwrap().copies == 4
            });
        }
        links.open();
        await_that("no session", || {
            rounds.iter().enumerate().any(|(node, (target, _))| {
                let record = retry("describe", || cluster.client(node).describe(*target)).reduce;
                record.is_some_and(|record| record.plan.contains("no session, since member"))
            })
        });
        for (node, filler) in fillers.iter().enumerate() {
            assert_eq!(cluster.client(node).delete([filler], TIME_LIMIT).unwrap(), 1);
        }
        for (call, expected) in calls {
            assert!(call.join().unwrap().unwrap() == expected);
        }
    });
    assert_nothing_left(&mut cluster);
}
