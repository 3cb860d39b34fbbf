use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, PullOutcome};
use hoplite_core::{Error, Limits};

use crate::harness::*;

fn fill_with_evictable(h: &mut Harness) -> Vec<ObjectView> {
    let views = (0..10).map(|number| h.fetch(A, &number.to_string(), 100 + number, SIZE)).collect();
    assert_eq!(h.free_objects(), 0);
    h.sent();
    views
}

#[test]
fn the_least_recently_used_copy_goes_first() {
    let mut h = Harness::new();
    let views = fill_with_evictable(&mut h);
    let call = h.get(B, "0");
    h.view(call);
    h.gone(B);
    h.put(A, "new", SIZE);
    assert!(!h.is_failed(views[0].copy), "it was used again");
    assert!(h.is_closed(views[1].copy));
    assert_eq!(h.node.status().evictions, 1);
}

#[test]
fn an_eviction_is_published_before_the_new_copy() {
    let mut h = Harness::new();
    fill_with_evictable(&mut h);
    h.create(A, "new", SIZE);
    assert_eq!(h.told(), ["0 unpublish 0 Evicted", "0 publish new Producing"]);
}

#[test]
fn referenced_served_and_pinned_copies_are_never_evicted() {
    let mut h = Harness::new();
    let pinned = h.put(A, "pinned", SIZE);
    let referenced = h.fetch_held(A, "referenced", 1, SIZE);
    let served = h.fetch(A, "served", 2, SIZE);
    let serve = h.serve("served", served.put).expect("it is served");
    let idle = h.fetch(A, "idle", 3, SIZE);
    let call = h.create(B, "large", CAPACITY - 3 * served.extent.length_bytes - 64);
    let large = h.view(call);
    assert!(h.is_closed(idle.copy));
    for kept in [pinned, referenced, served] {
        assert!(!h.is_failed(kept.copy));
    }
    h.event(Event::ServeEnded { serve });
    assert_eq!(h.checker.references(B), [large.copy]);
}

#[test]
fn nothing_is_evicted_if_that_would_not_be_enough() {
    let mut h = Harness::new();
    h.put(A, "pinned", SIZE);
    h.fetch(A, "idle", 3, SIZE);
    let call = h.create(B, "large", CAPACITY - 64);
    h.assert_waits(call);
    assert_eq!(h.node.status().evictions, 0);
}

#[test]
fn a_put_that_finds_no_room_fails_at_its_deadline() {
    let mut h = Harness::new();
    h.put(A, "pinned", CAPACITY - 64);
    let call = h.create_within(B, "x", SIZE, Duration::from_secs(1));
    h.pass(Duration::from_secs(1));
    let error = Error::StoreFull {
        needed_bytes: SIZE + 64,
        free_bytes: 0,
        capacity_bytes: CAPACITY,
        holders: String::new(),
    };
    assert_eq!(h.error(call), error);
}

#[test]
fn a_get_that_finds_no_room_returns_its_slot_and_fails_at_its_deadline() {
    let mut h = Harness::new();
    h.put(A, "pinned", CAPACITY - 64);
    let call = h.get_within(B, "x", Duration::from_secs(1));
    let (shard, query) = h.query();
    h.sent();
    assert_eq!(h.grant_query(shard, query.request, "x", 5, SIZE, "n1"), None);
    assert_eq!(h.told(), ["0 return Cancelled"]);
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(call), Error::StoreFull { free_bytes: 0, .. }));
}

#[test]
fn those_who_wait_for_room_go_on_when_some_is_freed() {
    let mut h = Harness::new();
    let pinned = h.put(A, "pinned", CAPACITY - 64);
    let create = h.create(B, "x", SIZE);
    let get = h.get(B, "y");
    let (shard, query) = h.query();
    h.grant_query(shard, query.request, "y", 5, SIZE, "n1");
    h.drop_put(0, "pinned", pinned.put, DropReason::Deleted);
    h.view(create);
    let pull = h.grant("y", 5, SIZE, "n1");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.view(get);
}

#[test]
fn a_release_makes_room_for_a_waiting_create() {
    let mut h = Harness::new();
    let held = h.fetch_held(A, "held", 5, CAPACITY - 64);
    let call = h.create(B, "x", SIZE);
    h.assert_waits(call);
    h.release(A, held.copy);
    h.view(call);
    assert!(h.is_closed(held.copy));
}

#[test]
fn an_object_that_waits_for_room_does_not_hold_up_smaller_ones() {
    let mut h = Harness::new();
    h.put(A, "pinned", SIZE);
    let huge = h.create(B, "huge", CAPACITY - 64);
    let small = h.create(B, "small", SIZE);
    h.assert_waits(huge);
    h.view(small);
}

#[test]
fn a_create_that_waits_for_room_notices_that_the_object_has_come() {
    let mut h = Harness::new();
    let pinned = h.put(A, "pinned", CAPACITY - 64);
    let waiting = h.create(B, "x", SIZE);
    let get = h.get(A, "x");
    let (shard, query) = h.query();
    h.grant_query(shard, query.request, "x", 5, SIZE, "n1");
    // The create waits first, so it gets the memory.
    h.drop_put(0, "pinned", pinned.put, DropReason::Deleted);
    let view = h.view(waiting);
    h.seal(B, view.copy);
    assert_eq!(h.view(get).copy, view.copy);
}

#[test]
fn an_inline_object_is_never_in_the_way_of_a_create_of_the_same_id() {
    let mut h = Harness::new();
    let pinned = h.put(A, "pinned", CAPACITY - 64);
    let waiting = h.create(B, "x", SIZE);
    let other = h.create(A, "x", SIZE);
    h.drop_put(0, "pinned", pinned.put, DropReason::Deleted);
    let view = h.view(waiting);
    h.assert_waits(other);
    h.seal(B, view.copy);
    assert_eq!(h.answer(other), Some(Ok(Response::Existing(view))));
}

#[test]
fn an_object_larger_than_the_arena_is_refused_at_once() {
    let mut h = Harness::new();
    let call = h.create(A, "x", CAPACITY);
    let limit_bytes = CAPACITY - 64;
    assert_eq!(
        h.error(call),
        Error::ObjectTooLarge { id: id("x"), size_bytes: CAPACITY, limit_bytes }
    );
    let call = h.create(A, "x", u64::MAX);
    assert!(matches!(h.error(call), Error::ObjectTooLarge { .. }));
    let call = h.create(A, "x", limit_bytes);
    h.view(call);
}

#[test]
fn a_remote_object_larger_than_the_arena_fails_the_get() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    let (shard, query) = h.query();
    assert_eq!(h.grant_query(shard, query.request, "x", 5, CAPACITY, "n1"), None);
    assert!(matches!(h.error(call), Error::ObjectTooLarge { .. }));
    assert_eq!(h.told(), ["0 return Cancelled"]);
    h.assert_empty();
}

#[test]
fn the_number_of_copies_is_limited() {
    let mut h = Harness::with_limits(Limits { max_objects: 2, ..limits() });
    let first = h.fetch(A, "1", 1, SIZE);
    h.put(A, "2", SIZE);
    h.put(A, "3", SIZE);
    assert!(h.is_closed(first.copy), "an evictable copy makes room");
    let call = h.create_within(A, "4", SIZE, Duration::from_secs(1));
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
}

#[test]
fn fragments_do_not_make_those_who_wait_spin() {
    let mut h = Harness::new();
    let views: Vec<_> = (0..10).map(|number| h.put(A, &number.to_string(), SIZE)).collect();
    let call = h.get(B, "x");
    let (shard, query) = h.query();
    h.grant_query(shard, query.request, "x", 5, 2 * SIZE, "n1");
    for number in [1, 3, 5] {
        h.drop_put(0, &number.to_string(), views[number].put, DropReason::Deleted);
        let mut asked = 0;
        while h.count_queries() > 0 {
            asked += 1;
            assert!(asked < 100, "it asks again and again");
            let (shard, query) = h.query();
            assert_eq!(h.grant_query(shard, query.request, "x", 5, 2 * SIZE, "n1"), None);
        }
    }
    h.drop_put(0, "2", views[2].put, DropReason::Deleted);
    let pull = h.grant("x", 5, 2 * SIZE, "n1");
    h.pull_ended(&pull, 2 * SIZE, PullOutcome::Complete);
    h.view(call);
}

#[test]
fn a_create_that_waits_for_room_hears_of_another_put() {
    let mut h = Harness::new();
    h.put(A, "pinned", CAPACITY / 2);
    let waiting = h.create(B, "x", CAPACITY * 3 / 4);
    h.assert_waits(waiting);
    let call = h.create(A, "x", SIZE);
    h.view(call);
    assert_eq!(h.error(waiting), Error::AlreadyExists { id: id("x") });
}

#[test]
fn a_full_store_knows_who_refers_to_what_nobody_else_needs() {
    let mut h = Harness::new();
    let kept = h.put(A, "kept", SIZE);
    let deleted = h.put(A, "deleted", SIZE);
    for client in [A, B] {
        let call = h.get(client, "deleted");
        h.view(call);
    }
    let call = h.get(B, "kept");
    h.view(call);
    let fetched = h.fetch_held(B, "fetched", 1, SIZE);
    h.delete(A, &["deleted"]);
    h.drop_put(0, "deleted", deleted.put, DropReason::Deleted);
    let holders = h.node.holders();
    let of = |client, copies, bytes| Holder { client, copies, bytes };
    let (one, other) = (deleted.extent.length_bytes, fetched.extent.length_bytes);
    assert_eq!(holders.clients, [of(B, 2, one + other), of(A, 1, one)]);
    assert_eq!(holders.pinned_bytes, one);
    assert!(!h.is_failed(kept.copy));
}
