use std::time::Duration;

use hoplite_core::error::Missing;
use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::shard::{
    DropReason, Location, LocationState, Locations, ObjectSummary, PullOutcome, RequestId,
    Retention, ToShard, ToStore,
};
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::{Error, Limits, Metadata, Operation, PutId};

use crate::harness::*;

fn complete(name: &str) -> Locations {
    let location = Location {
        node: node_id("n1"),
        data_address: address("n1"),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        path: EVERYWHERE,
        slow_peers: Vec::new(),
    };
    Locations { id: id(name), object: Some(summary()), locations: vec![location] }
}

fn absent(name: &str) -> Locations {
    Locations { id: id(name), object: None, locations: Vec::new() }
}

fn summary() -> ObjectSummary {
    ObjectSummary {
        put: PutId(5),
        size_bytes: SIZE,
        metadata: Metadata::default(),
        inline: false,
        lost: false,
        origin: None,
    }
}

fn subscriptions(h: &mut Harness) -> Vec<(String, RequestId)> {
    let sent = h.sent();
    let subscribed = sent.into_iter().filter_map(|(_, message)| match message {
        ToShard::Subscribe { request, id, .. } => Some((id.to_string(), request)),
        _ => None,
    });
    subscribed.collect()
}

fn say(h: &mut Harness, request: RequestId, locations: Locations) {
    h.event(Event::FromShard { shard: 0, message: ToStore::Locations { request, locations } });
}

fn wait(h: &mut Harness, names: &[&str], count: usize) -> (ClientId, CallId) {
    let ids = names.iter().map(|name| id(name)).collect();
    h.request(A, Request::Wait { ids, count, timeout: Duration::from_secs(10) })
}

#[test]
fn wait_is_answered_when_enough_objects_are_available() {
    let mut h = Harness::new();
    h.put(A, "here", SIZE);
    let call = wait(&mut h, &["a", "here", "b"], 2);
    let asked = subscriptions(&mut h);
    say(&mut h, asked[0].1, absent("a"));
    h.assert_waits(call);
    say(&mut h, asked[1].1, complete("b"));
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![1, 2] })));
    assert_eq!(h.told(), ["0 unsubscribe", "0 unsubscribe"]);
}

#[test]
fn wait_answers_what_it_has_at_its_deadline() {
    let mut h = Harness::new();
    let call = wait(&mut h, &["a", "b"], 2);
    let asked = subscriptions(&mut h);
    say(&mut h, asked[1].1, complete("b"));
    h.pass(Duration::from_secs(10));
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![1] })));
}

#[test]
fn wait_forgets_an_object_that_is_lost_again() {
    let mut h = Harness::new();
    let call = wait(&mut h, &["a", "b"], 2);
    let asked = subscriptions(&mut h);
    say(&mut h, asked[0].1, complete("a"));
    say(&mut h, asked[0].1, absent("a"));
    say(&mut h, asked[1].1, complete("b"));
    h.assert_waits(call);
    say(&mut h, asked[0].1, complete("a"));
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![0, 1] })));
}

#[test]
fn wait_without_a_timeout_asks_once() {
    let mut h = Harness::new();
    h.put(A, "here", SIZE);
    let ids = ["a", "here", "b", "b"].into_iter().map(id).collect();
    let call = h.request(A, Request::Wait { ids, count: 4, timeout: Duration::ZERO });
    let asked = subscriptions(&mut h);
    say(&mut h, asked[0].1, absent("a"));
    say(&mut h, asked[0].1, absent("a"));
    say(&mut h, asked[1].1, complete("b"));
    h.assert_waits(call);
    say(&mut h, asked[2].1, complete("b"));
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![1, 2, 3] })));
    assert_eq!(h.told(), ["0 unsubscribe"; 3]);

    let call =
        h.request(A, Request::Wait { ids: vec![id("a")], count: 1, timeout: Duration::ZERO });
    h.pass(Duration::from_secs(5));
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![] })));
}

#[test]
fn wait_for_nothing_is_answered_at_once() {
    let mut h = Harness::new();
    let call = wait(&mut h, &["a"], 0);
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![] })));
    let call = wait(&mut h, &["a"], 2);
    assert!(matches!(h.error(call), Error::InvalidRequest { .. }));
}

#[test]
fn locate_waits_for_a_location() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Locate { id: id("x"), timeout: LONG });
    let asked = subscriptions(&mut h);
    say(&mut h, asked[0].1, absent("x"));
    h.assert_waits(call);
    say(&mut h, asked[0].1, complete("x"));
    assert_eq!(h.answer(call), Some(Ok(Response::Locations(complete("x")))));
    h.assert_empty();
}

#[test]
fn locate_without_patience_takes_what_is_known() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Locate { id: id("x"), timeout: Duration::ZERO });
    let asked = subscriptions(&mut h);
    say(&mut h, asked[0].1, absent("x"));
    assert_eq!(h.answer(call), Some(Ok(Response::Locations(absent("x")))));
    let call = h.request(A, Request::Locate { id: id("x"), timeout: Duration::ZERO });
    h.pass(Duration::from_secs(5));
    assert!(matches!(h.error(call), Error::Unavailable { .. }), "a directory that does not answer");
}

#[test]
fn locate_of_a_lost_object_fails() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Locate { id: id("x"), timeout: LONG });
    let asked = subscriptions(&mut h);
    let object = Some(ObjectSummary { lost: true, ..summary() });
    say(&mut h, asked[0].1, Locations { id: id("x"), object, locations: Vec::new() });
    assert_eq!(h.error(call), Error::ObjectLost { id: id("x") });
}

#[test]
fn a_subscription_is_answered_at_every_change_until_it_ends() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Subscribe { id: id("x") });
    let asked = subscriptions(&mut h);
    for locations in [absent("x"), complete("x")] {
        say(&mut h, asked[0].1, locations.clone());
        assert_eq!(h.answer(call), Some(Ok(Response::Locations(locations))));
    }
    h.request(A, Request::Unsubscribe { call: call.1 });
    assert_eq!(h.told(), ["0 unsubscribe"]);
    say(&mut h, asked[0].1, absent("x"));
    h.assert_waits(call);
    h.assert_empty();
}

#[test]
fn a_delete_is_answered_when_every_id_is_done() {
    let mut h = Harness::new();
    let call = h.delete(A, &["a", "b", "a"]);
    let asked: Vec<RequestId> = h
        .sent()
        .into_iter()
        .filter_map(|(_, message)| match message {
            ToShard::Delete { request, .. } => Some(request),
            _ => None,
        })
        .collect();
    assert_eq!(asked.len(), 2, "an id that is named twice is deleted once");
    for (request, put) in asked.into_iter().zip([Some(PutId(5)), None]) {
        h.assert_waits(call);
        h.event(Event::FromShard {
            shard: 0,
            message: ToStore::DeleteDone { request, put, absent: Named::of([]) },
        });
    }
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
    h.assert_empty();
}

#[test]
fn a_delete_times_out() {
    let mut h = Harness::new();
    let call = h.delete(A, &["a"]);
    h.pass(LONG);
    let missing = Some(Box::new(Missing::Answer { address: "shard-0".into() }));
    assert_eq!(
        h.error(call),
        Error::Timeout { operation: Operation::Delete, waited: LONG, missing }
    );
    let empty = h.delete(A, &[]);
    assert_eq!(h.answer(empty), Some(Ok(Response::Deleted { count: 0, absent: Named::of([]) })));
}

#[test]
fn a_cancelled_call_is_not_answered() {
    let mut h = Harness::new();
    let pinned = h.put(A, "pinned", CAPACITY - 64);
    let calls =
        [h.create(A, "x", SIZE), h.get(A, "y"), h.delete(A, &["z"]), wait(&mut h, &["w"], 1)];
    for call in calls {
        h.request(A, Request::Cancel { call: call.1 });
    }
    h.pass(Duration::from_secs(100));
    h.drop_put(0, "pinned", pinned.put, DropReason::Deleted);
    for call in calls {
        h.assert_waits(call);
    }
    h.assert_empty();
}

#[test]
fn a_call_id_in_use_is_refused() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    let mut effects = Vec::new();
    let request = Request::Locate { id: id("x"), timeout: LONG };
    h.node.apply(
        hoplite_core::Time::ZERO,
        Event::Request { client: A, call: call.1, request },
        &mut effects,
    );
    assert!(
        matches!(&effects[..], [Effect::Reply { response: Err(Error::InvalidRequest { .. }), .. }]),
        "{effects:?}"
    );
}

#[test]
fn the_number_of_open_calls_is_limited() {
    let mut h = Harness::with_limits(Limits { max_requests_per_client: 2, ..limits() });
    let calls = [h.get(A, "x"), h.get(A, "y")];
    let refused = h.get(A, "z");
    assert!(matches!(h.error(refused), Error::LimitExceeded { maximum: 2, .. }));
    let other = h.get(B, "z");
    h.assert_waits(other);
    h.request(A, Request::Cancel { call: calls[0].1 });
    let accepted = h.get(A, "z");
    h.assert_waits(accepted);
}

#[test]
fn the_number_of_references_is_limited() {
    let limits = Limits { max_references_per_client: 2, max_requests_per_client: 1, ..limits() };
    let mut h = Harness::with_limits(limits);
    let held = h.put_held(A, "x", SIZE);
    let again = h.get(A, "x");
    h.view(again);
    let refused = h.get(A, "x");
    assert!(
        matches!(h.error(refused), Error::LimitExceeded { .. }),
        "each reference to one copy counts"
    );
    let created = h.create(A, "z", SIZE);
    let created = h.view(created);
    let waiting = h.get(B, "y");
    let refused = h.create(A, "y", SIZE);
    assert!(matches!(h.error(refused), Error::LimitExceeded { maximum: 2, .. }));
    h.request(A, Request::Abort { copy: created.copy });
    let pull = h.grant("y", 5, SIZE, "n1");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.view(waiting);
    let refused = h.get(A, "y");
    assert!(matches!(h.error(refused), Error::LimitExceeded { .. }));
    h.release(A, held.copy);
    h.release(A, held.copy);
    let accepted = h.get(A, "y");
    h.view(accepted);
}

#[test]
fn the_number_of_ids_is_limited() {
    let mut h = Harness::with_limits(Limits { max_ids_per_request: 1, ..limits() });
    let calls = [h.delete(A, &["a", "b"]), wait(&mut h, &["a", "b"], 1)];
    for call in calls {
        assert!(matches!(h.error(call), Error::LimitExceeded { maximum: 1, .. }));
    }
    let open = wait(&mut h, &["a"], 1);
    let refused = wait(&mut h, &["b"], 1);
    assert!(matches!(h.error(refused), Error::LimitExceeded { maximum: 1, .. }));
    h.request(A, Request::Cancel { call: open.1 });
    wait(&mut h, &["b"], 1);
}

#[test]
fn references_that_were_never_given_are_not_taken_back() {
    let mut h = Harness::new();
    let view = h.put_held(A, "x", SIZE);
    h.release(B, view.copy);
    h.release(B, CopyId(999));
    h.release(A, view.copy);
    h.release(A, view.copy);
    assert!(!h.is_failed(view.copy));
    assert_eq!(h.node.status().copies, 1);
}

#[test]
fn a_client_follows_a_copy_that_it_holds() {
    let mut h = Harness::new();
    let writer = h.create(A, "x", SIZE);
    let view = h.view(writer);
    let follow = |timeout| Request::Follow { copy: view.copy, beyond_bytes: 0, timeout };
    let foreign = h.request(B, follow(LONG));
    assert_eq!(h.error(foreign), Error::UnknownReference { reference: view.copy.0 });

    let reader = h.get_started(B, "x");
    h.view(reader);
    let (client, call) = h.request(B, follow(LONG));
    let begun = Effect::Follow { client, call, copy: view.copy, beyond_bytes: 0 };
    assert!(h.effects.contains(&begun));
    h.event(Event::Followed { client, call, progress: Ok(4096) });
    assert_eq!(h.answer((client, call)), Some(Ok(Response::Progress { valid_bytes: 4096 })));

    let late = h.request(B, follow(Duration::from_secs(1)));
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(late), Error::Timeout { .. }));
    let (client, call) = late;
    assert!(h.effects.contains(&Effect::CallEnded { client, call }));
    h.event(Event::Followed { client, call, progress: Ok(4096) });
    h.assert_waits(late);
}

#[test]
fn follows_count_as_open_calls_and_end_with_their_client() {
    let mut h = Harness::with_limits(Limits { max_requests_per_client: 1, ..limits() });
    let writer = h.create(A, "x", SIZE);
    let copy = h.view(writer).copy;
    let follow = || Request::Follow { copy, beyond_bytes: 0, timeout: LONG };
    let (client, call) = h.request(A, follow());
    let second = h.request(A, follow());
    assert!(matches!(h.error(second), Error::LimitExceeded { .. }));
    h.gone(A);
    assert!(h.effects.contains(&Effect::CallEnded { client, call }));
    h.assert_empty();
}
