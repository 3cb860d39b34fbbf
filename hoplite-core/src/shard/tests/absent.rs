//! Deletes of objects that lost nodes may have.

use super::*;

const LOSS: Duration = Duration::from_secs(2);

fn delete(wait: DeleteWait, only: Option<u64>) -> ToShard {
    let terms = DeleteTerms { only: only.map(PutId), wait };
    ToShard::Delete { request: RequestId(1), id: id("x"), terms }
}

fn confirmed(put: u64) -> ToShard {
    ToShard::Unpublish { id: id("x"), put: PutId(put), reason: UnpublishReason::Deleted }
}

fn answer(put: Option<u64>, absent: &[&str]) -> (String, ToStore) {
    let absent = Named::of(absent.iter().map(|name| node(name)));
    ("b".to_owned(), ToStore::DeleteDone { request: RequestId(1), put: put.map(PutId), absent })
}

fn second_delete(wait: DeleteWait) -> ToShard {
    let terms = DeleteTerms { only: None, wait };
    ToShard::Delete { request: RequestId(2), id: id("x"), terms }
}

fn second_answer(put: Option<u64>) -> (String, ToStore) {
    let (request, absent) = (RequestId(2), Named::of([]));
    ("b".to_owned(), ToStore::DeleteDone { request, put: put.map(PutId), absent })
}

fn sent(effects: Vec<Effect>) -> Vec<(String, ToStore)> {
    let sent = effects.into_iter().filter_map(|effect| match effect {
        Effect::Send { node, message } => Some((node.to_string(), message)),
        _ => None,
    });
    sent.collect()
}

fn shard_without_a() -> World {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.disconnect("a", 1);
    world.wait(LOSS);
    world
}

#[test]
fn a_delete_names_the_lost_nodes_that_may_have_a_copy() {
    let mut world = shard_without_a();
    let answers = world.send_and_collect("b", delete(DeleteWait::Reachable, None));
    assert_eq!(answers, [answer(Some(1), &["a"])]);
    // The lost node never had the id's new put.
    world.send("b", ToShard::Publish(complete("x", 2)));
    world.connect("a", 2);
    let drops = world.send_and_collect("b", second_delete(DeleteWait::Reachable));
    assert!(matches!(drops[..], [(_, ToStore::Drop { put: PutId(2), .. })]), "{drops:?}");
    assert_eq!(world.send_and_collect("b", confirmed(2)), [second_answer(Some(2))]);
}

#[test]
fn a_node_that_is_lost_during_a_delete_is_named() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    assert_eq!(
        world.send_and_collect("b", delete(DeleteWait::Reachable, None)).len(),
        1,
        "only the drop"
    );
    world.disconnect("a", 1);
    assert_eq!(sent(world.wait(LOSS)), [answer(Some(1), &["a"])]);
}

#[test]
fn a_delete_may_wait_until_the_lost_node_has_confirmed_it() {
    for is_later_than_tombstones in [false, true] {
        let mut world = shard_without_a();
        assert_eq!(
            world.send_and_collect("b", delete(DeleteWait::All, None)),
            [answer(Some(1), &["a"])]
        );
        if is_later_than_tombstones {
            world.wait(Duration::from_secs(100));
        }
        let drops = sent(world.connect("a", 1));
        assert!(matches!(drops[..], [(_, ToStore::Drop { put: PutId(1), .. })]), "{drops:?}");
        assert_eq!(world.send_and_collect("a", confirmed(1)), [answer(None, &[])]);
        assert_eq!(
            world.send_and_collect("b", second_delete(DeleteWait::All)),
            [second_answer(None)]
        );
    }
}

#[test]
fn another_run_of_the_lost_node_has_no_copies() {
    let mut world = shard_without_a();
    world.send("b", delete(DeleteWait::All, None));
    assert_eq!(sent(world.connect("a", 2)), [answer(None, &[])]);
}

#[test]
fn a_waiting_delete_ends_with_its_requester() {
    let mut world = shard_without_a();
    world.send("b", delete(DeleteWait::All, None));
    assert_eq!(world.send("b", ToShard::Cancel { request: RequestId(1) }), []);
    assert_eq!(sent(world.connect("a", 2)), []);
}

#[test]
fn the_second_shard_waits_for_the_nodes_that_only_it_reaches() {
    for is_told_by_a_holder in [false, true] {
        let mut world = World::with_nodes(&["a", "b", "c"]);
        world.send("a", ToShard::Publish(complete("x", 1)));
        if is_told_by_a_holder {
            world.send("c", ToShard::Publish(complete("x", 1)));
            let drops = world.send_and_collect("c", confirmed(1));
            assert!(matches!(drops[..], [(_, ToStore::Drop { .. })]), "{drops:?}");
        }
        let drops = world.send_and_collect("b", delete(DeleteWait::Reachable, Some(1)));
        assert_eq!(drops.len(), usize::from(!is_told_by_a_holder));
        assert_eq!(world.send_and_collect("a", confirmed(1)), [answer(Some(1), &[])]);
    }
}

#[test]
fn the_second_shard_keeps_another_put_and_refuses_the_deleted_one() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 2)));
    assert_eq!(
        world.send_and_collect("b", delete(DeleteWait::Reachable, Some(1))),
        [answer(None, &[])]
    );
    assert_eq!(world.shard.entries[&id("x")].put, PutId(2));
    let verdict = world.send_and_collect("b", ToShard::Publish(complete("x", 1)));
    assert!(
        matches!(verdict[..], [(_, ToStore::Published { verdict: Verdict::Deleted, .. })]),
        "{verdict:?}"
    );
}

#[test]
fn a_delete_waits_for_the_lease_of_a_store_whose_session_the_shard_has_ended() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.apply(Event::Ended { node: node("a"), incarnation: Incarnation(1) });
    assert_eq!(world.send_and_collect("b", delete(DeleteWait::Reachable, None)), []);
    assert_eq!(sent(world.wait(LEASE - Duration::from_millis(1))), []);
    assert_eq!(sent(world.wait(Duration::from_millis(1))), [answer(Some(1), &["a"])]);
}

#[test]
fn a_restarted_shard_holds_deletes_of_unknown_ids_for_a_lease() {
    let mut world = World::new(ShardConfig::default());
    world.connect("b", 1);
    assert_eq!(world.send_and_collect("b", delete(DeleteWait::Reachable, None)), []);
    assert_eq!(sent(world.wait(LEASE - Duration::from_millis(1))), []);
    assert_eq!(sent(world.wait(Duration::from_millis(1))), [answer(None, &[])]);
    let mut world = World::new(ShardConfig::default());
    world.connect("b", 1);
    assert_eq!(
        world.send_and_collect("b", delete(DeleteWait::Reachable, Some(1))),
        [answer(None, &[])]
    );
}

#[test]
fn a_repeated_delete_is_counted_and_spares_a_newer_put() {
    for ends_session in [true, false] {
        let mut world = World::with_nodes(&["a", "b"]);
        world.send("a", ToShard::Publish(complete("x", 1)));
        world.send("b", delete(DeleteWait::Reachable, None));
        if ends_session {
            world.disconnect("b", 1);
        } else {
            world.send("b", ToShard::Cancel { request: RequestId(1) });
        }
        world.send("a", confirmed(1));
        world.send("a", ToShard::Publish(complete("x", 2)));
        if ends_session {
            world.connect("b", 1);
        }
        let answers = world.send_and_collect("b", delete(DeleteWait::Reachable, None));
        assert_eq!(answers, [answer(Some(1), &[])]);
        assert!(world.shard.describe(&id("x")).locations.object.is_some(), "the newer put stays");
    }
}

#[test]
fn the_memory_of_lost_nodes_is_bounded() {
    let mut absent = LostNodes::default();
    let put = |number: u64| (id("x"), PutId(number));
    let now = Time::from_micros(1);
    absent.note(now, (&node("a"), Incarnation(1)), (0..10).map(put));
    absent.note(now, (&node("b"), Incarnation(1)), (0..1 << 17).map(put));
    absent.check(0);
    assert!(absent.has_holder(&put(20)), "the latest node stays");
    let later = now + Duration::from_secs(601);
    absent.note(later, (&node("c"), Incarnation(1)), [put(1)]);
    absent.check(0);
    assert!(absent.has_holder(&put(1)) && !absent.has_holder(&put(20)));
    absent.note(later, (&node("c"), Incarnation(2)), [put(2)]);
    absent.check(0);
    assert!(!absent.has_holder(&put(1)), "another run has no copies of the earlier one");
}
