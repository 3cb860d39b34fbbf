use std::collections::BTreeSet;
use std::thread::scope;

use hoplite_core::error::Missing;
use hoplite_core::missing::Absent;

use super::links::{FIRST_HALF, RECEIVER, SENDER, assert_lost, assert_sums, call, linked};
use super::*;

fn known(cluster: &Cluster, node: usize) -> Option<ReduceRecord> {
    retry("describe", || cluster.client(node).describe("target")).reduce
}

fn known_at_each(cluster: &Cluster) -> [Option<ReduceRecord>; 3] {
    scope(|asking| {
        let asked = [0, 1, 2].map(|node| asking.spawn(move || known(cluster, node)));
        asked.map(|asked| asked.join().unwrap())
    })
}

/// `true` if the member at `node` reports each member's stage; one held link separates two members.
fn tells_all_stages((node, record): (usize, &Option<ReduceRecord>)) -> bool {
    let Some(record) = record else { return false };
    (0..3).all(|other| {
        let name = format!("node-{other}");
        let of_other = record.positions.iter().filter(|of| of.node == name);
        let is_held = [(SENDER, RECEIVER), (RECEIVER, SENDER)].contains(&(node, other));
        let stage = if is_held { "does not answer" } else { "gives and takes" };
        of_other.map(|of| of.stage.as_str()).eq([stage])
    })
}

fn member_of(node: usize, record: ReduceRecord) -> u32 {
    let plan = &record.plan;
    assert!(record.is_running && plan.starts_with("ring of 3, estimated to take "), "{plan}");
    assert!(plan.contains("; the next best is ") && plan.contains("; waited "), "{plan}");
    assert!(plan.contains("; rank 0 at node-0; order node-"), "{plan}");
    let position = record.position.unwrap();
    assert_eq!((position.stage.as_str(), position.members), ("gives and takes", 3));
    assert_eq!(position.size_bytes, LARGE.size_bytes());
    assert!(position.final_bytes < position.size_bytes);
    let positions = record.positions;
    assert_eq!(
        positions.iter().map(|of| (of.member, of.members)).collect::<Vec<_>>(),
        [(0, 3), (1, 3), (2, 3)]
    );
    assert_eq!(positions[position.member as usize].node, format!("node-{node}"));
    position.member
}

#[test]
fn each_member_reports_its_plan_and_progress() {
    let (mut cluster, links) = linked(4);
    for node in 0..4 {
        assert_eq!(known(&cluster, node), None);
    }
    links.hold(SENDER, RECEIVER, FIRST_HALF);
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| call(scope, &cluster, rank, ("target", TIME_LIMIT)));
        links.await_held(SENDER, RECEIVER);
        // At all members at once: the silent link ends the attempt after 5 s.
        let mut records = [None, None, None];
        await_that("the stages that each member tells", || {
            records = known_at_each(&cluster);
            records.iter().enumerate().all(tells_all_stages)
        });
        let mut members = BTreeSet::new();
        for (node, record) in records.into_iter().flatten().enumerate() {
            members.insert(member_of(node, record));
        }
        assert_eq!(members, BTreeSet::from([0, 1, 2]));
        let mut stages = None;
        await_that("the stages that another node tells", || {
            stages = known(&cluster, 3).filter(|record| {
                let stages = record.positions.iter().map(|of| (of.member, of.stage.as_str()));
                stages.eq([(0, "gives and takes"), (1, "gives and takes"), (2, "gives and takes")])
            });
            stages.is_some()
        });
        let ReduceRecord { position, positions, plan, .. } = stages.unwrap();
        assert!(plan.starts_with("ring of 3, estimated to take "), "{plan}");
        assert_eq!(position, None);
        let nodes: BTreeSet<_> = positions.iter().map(|of| of.node.as_str()).collect();
        assert_eq!(nodes, BTreeSet::from(["node-0", "node-1", "node-2"]));
        links.open();
        assert_sums(calls.into_iter().map(|call| call.join().unwrap()));
    });
    for node in 0..3 {
        await_that("the end of the session", || {
            known(&cluster, node).is_some_and(|known| !known.is_running)
        });
        let record = known(&cluster, node).unwrap();
        assert!(record.plan.starts_with("ring of 3, estimated to take "), "{}", record.plan);
        if node > 0 {
            let position = record.position.unwrap();
            assert_eq!(position.stage, "has the target");
            assert_eq!(position.final_bytes, position.size_bytes);
        }
    }
    let describe = || retry("describe", || cluster.client(3).describe("target"));
    let mut elsewhere = describe();
    await_that("the record of the node that keeps the target", || {
        elsewhere = describe();
        elsewhere.reduce.is_some()
    });
    let record = elsewhere.reduce.unwrap();
    assert!(!record.is_running && record.plan.starts_with("ring of 3, "), "{}", record.plan);
    assert!(
        elsewhere.locations.object.unwrap().metadata.agreement.is_some(),
        "it says what has made it"
    );
    for client in [3, 0] {
        cluster.client(client).delete([id(3)], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn an_allreduce_that_waits_for_a_source_ends_at_all_ranks() {
    let (mut cluster, _links) = linked(3);
    cluster.client(RECEIVER).delete([id(2)], TIME_LIMIT).unwrap();
    for is_deleted in [true, false] {
        scope(|scope| {
            let timeout = if is_deleted { TIME_LIMIT } else { Duration::from_secs(1) };
            let second = call(scope, &cluster, 1, ("target", TIME_LIMIT));
            let first = call(scope, &cluster, 0, ("target", timeout));
            let plan = |node| known(&cluster, node).map_or(String::new(), |known| known.plan);
            if is_deleted {
                await_that("who is late", || plan(0).contains("waits for the sources"));
                await_that("those who wait", || plan(1).contains("participants of this node wait"));
                cluster.client(RECEIVER).delete(["target"], TIME_LIMIT).unwrap();
            }
            let [first, second] = [first, second].map(|call| refusal(call.join().unwrap()));
            if is_deleted {
                for error in [first, second] {
                    assert!(matches!(error, ObjectError::Deleted { .. }), "{error}");
                }
            } else {
                let absent = Absent { rank: 2, source: ObjectId::new(id(2)).unwrap() };
                for error in [first, second] {
                    let ObjectError::Timeout { missing: Some(missing), .. } = &error else {
                        panic!("{error}")
                    };
                    let Missing::Participants { participants } = &**missing else {
                        panic!("{error}")
                    };
                    assert_eq!(participants.first, std::slice::from_ref(&absent), "{error}");
                }
            }
        });
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_late_participant_is_reported() {
    let (mut cluster, _links) = linked(4);
    cluster.client(RECEIVER).delete([id(2)], TIME_LIMIT).unwrap();
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| call(scope, &cluster, rank, ("target", TIME_LIMIT)));
        let plan = |node| known(&cluster, node).map_or(String::new(), |known| known.plan);
        let late = format!("no plan yet: waits for the sources {}", id(2));
        await_that("who is late", || plan(0) == late);
        assert!(known(&cluster, 0).unwrap().is_running);
        await_that("who is late, at another node", || plan(3) == late);
        await_that("those who wait", || plan(1).contains("participants of this node wait"));
        put(&cluster, RECEIVER, LARGE, 2);
        assert_sums(calls.into_iter().map(|call| call.join().unwrap()));
    });
    let known = known(&cluster, 0).unwrap();
    assert!(known.plan.starts_with("ring of 3"), "{}", known.plan);
    cluster.client(3).delete([id(3)], TIME_LIMIT).unwrap();
    assert_nothing_left(&mut cluster);
}

#[test]
fn ranks_that_wait_for_a_late_one_learn_that_rank_0_is_lost() {
    let (mut cluster, links) = linked(3);
    cluster.client(RECEIVER).delete([id(2)], TIME_LIMIT).unwrap();
    let plan = |cluster: &Cluster, node| known(cluster, node).map_or(String::new(), |it| it.plan);
    scope(|scope| {
        let [first, second] =
            [0, 1].map(|rank| call(scope, &cluster, rank, ("target", TIME_LIMIT)));
        await_that("who is late", || plan(&cluster, 0).contains("waits for the sources"));
        await_that("who waits", || plan(&cluster, 1).contains("participants of this node wait"));
        cluster.kill_store(0);
        assert_lost(second.join().unwrap());
        first.join().unwrap().unwrap_err();
    });
    put(&cluster, RECEIVER, LARGE, 2);
    cluster.restart_store(0);
    links.attach(&cluster);
    put(&cluster, 0, LARGE, 0);
    scope(|scope| {
        let again = [0, 1, 2].map(|rank| call(scope, &cluster, rank, ("target", TIME_LIMIT)));
        assert_sums(again.into_iter().map(|call| call.join().unwrap()));
    });
    assert_nothing_left(&mut cluster);
}
