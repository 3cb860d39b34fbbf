use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::session::LEASE;
use hoplite_core::shard::{LocationState, Publish, PullOutcome, ShardRun, ToShard, Verdict};
use hoplite_core::{Error, Time};

use crate::harness::*;

fn up_at(seconds: u64, shard: usize, run: u64) -> Event {
    Event::ShardUp {
        shard,
        run: ShardRun(run),
        asked_at: at(seconds),
        version: hoplite_core::Version::NEWEST,
    }
}

fn at(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

fn connected(count: usize) -> Harness {
    let mut h = Harness::disconnected(count, limits());
    for shard in 0..count {
        h.event(up_at(0, shard, 1));
    }
    h
}

fn ranked(h: &Harness) -> [usize; 2] {
    h.shards.ranked(&id("x"))[..2].try_into().expect("there are two shards")
}

fn at_shard(h: &mut Harness, shard: usize) -> Vec<Publish> {
    h.publications()
        .into_iter()
        .filter(|(at, _)| *at == shard)
        .map(|(_, publish)| publish)
        .collect()
}

#[test]
fn a_copy_is_served_only_while_a_shard_has_a_lease() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.pass(LEASE - Duration::from_millis(1));
    let call = h.get(A, "x");
    h.view(call);
    h.pass(Duration::from_millis(1));
    let call = h.get(A, "x");
    h.assert_waits(call);
    assert_eq!(h.count_queries(), 0, "the copy is here, so no sender is needed");
    h.event(Event::ShardAnswered { shard: 0, pinged_at: at(4) });
    h.view(call);
    h.pass(LEASE);
    let call = h.get_within(A, "x", Duration::from_secs(1));
    h.pass(Duration::from_secs(1));
    let error = h.error(call);
    assert!(error.to_string().contains("shard-0"), "{error}");
}

fn get_stale(h: &mut Harness, name: &str, until: Until) -> (ClientId, CallId) {
    h.request(A, Request::Get { id: id(name), until, timeout: LONG, allow_stale: true })
}

#[test]
fn a_get_may_allow_a_copy_without_a_lease() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.put(A, "small", SMALL);
    let call = get_stale(&mut h, "x", Until::Complete);
    assert!(!h.view(call).is_stale);
    h.pass(LEASE);
    let ordinary = h.get(A, "x");
    h.assert_waits(ordinary);
    for until in [Until::Started, Until::Complete, Until::Contents] {
        let call = get_stale(&mut h, "x", until);
        assert!(h.view(call).is_stale, "{until:?}");
    }
    let call = get_stale(&mut h, "small", Until::Contents);
    let answer = h.answer(call);
    assert!(
        matches!(&answer, Some(Ok(Response::Contents { view, .. })) if view.is_stale),
        "{answer:?}"
    );
    h.event(Event::ShardAnswered { shard: 0, pinged_at: at(4) });
    assert!(!h.view(ordinary).is_stale);
    let call = get_stale(&mut h, "x", Until::Complete);
    assert!(!h.view(call).is_stale);
}

#[test]
fn a_waiting_get_may_allow_a_copy_that_came_without_a_lease() {
    let mut h = connected(1);
    let waiting = get_stale(&mut h, "x", Until::Complete);
    let ordinary = h.get(A, "x");
    let pull = h.grant("x", 7, SIZE, "sender");
    h.pass(LEASE);
    h.assert_waits(waiting);
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    assert!(h.view(waiting).is_stale);
    h.assert_waits(ordinary);
}

#[test]
fn a_batch_says_which_of_its_objects_are_stale() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.put(A, "small", SMALL);
    h.pass(LEASE);
    let get = |name| Request::Get {
        id: id(name),
        until: Until::Contents,
        timeout: LONG,
        allow_stale: true,
    };
    let call = h.request(A, Request::Batch(vec![get("x"), get("small")]));
    let Some(Ok(Response::Batch(answers))) = h.answer(call) else { panic!("the batch waits") };
    let is_stale = |answer: &Result<Response, Error>| match answer {
        Ok(Response::Object(view) | Response::Contents { view, .. }) => view.is_stale,
        other => panic!("{other:?} is no object"),
    };
    assert!(answers.iter().all(is_stale), "{answers:?}");
}

#[test]
fn an_answer_to_a_ping_that_is_too_old_renews_nothing() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.pass(Duration::from_secs(20));
    let call = h.get(A, "x");
    h.event(Event::ShardAnswered { shard: 0, pinged_at: at(14) });
    h.assert_waits(call);
}

#[test]
fn one_of_two_shards_is_enough() {
    let mut h = connected(2);
    h.put(A, "x", SIZE);
    h.pass(Duration::from_secs(10));
    let [_, second] = ranked(&h);
    h.event(Event::ShardAnswered { shard: second, pinged_at: at(9) });
    let call = h.get(A, "x");
    h.view(call);
}

#[test]
fn a_put_that_no_shard_was_told_of_needs_no_lease() {
    let mut h = Harness::disconnected(1, limits());
    let call = h.create(A, "x", SMALL);
    let view = h.view(call);
    h.request(A, Request::SealUnconfirmed { copy: view.copy });
    let call = h.get(A, "x");
    h.view(call);
}

#[test]
fn a_create_and_a_wait_do_not_count_on_a_copy_without_a_lease() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.pass(Duration::from_secs(10));
    let create = h.create(A, "x", SIZE);
    let other = h.create(B, "x", SIZE + 1);
    let wait = h.request(A, Request::Wait { ids: vec![id("x")], count: 1, timeout: LONG });
    for call in [create, other, wait] {
        h.assert_waits(call);
    }
    h.event(Event::ShardAnswered { shard: 0, pinged_at: at(10) });
    h.view(create);
    assert_eq!(h.error(other), Error::AlreadyExists { id: id("x") });
}

#[test]
fn a_copy_returns_to_the_same_run_of_a_shard() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.event(Event::ShardAnswered { shard: 0, pinged_at: Time::ZERO });
    h.pass(Duration::from_secs(40));
    h.event(Event::ShardDown { shard: 0 });
    let call = h.get(A, "x");
    h.event(up_at(40, 0, 1));
    let (_, publish) = h.publication();
    assert!(publish.wants_answer);
    assert_eq!(publish.returning, Some(Duration::from_secs(40)));
    h.assert_waits(call);
    h.verdict(0, &publish, Verdict::Accepted);
    h.view(call);
}

#[test]
fn a_copy_is_not_returning_where_its_put_may_be_unknown() {
    let mut h = connected(1);
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    h.seal(A, view.copy);
    h.sent();
    h.event(Event::ShardDown { shard: 0 });
    h.event(up_at(1, 0, 1));
    let (_, publish) = h.publication();
    assert_eq!(publish.returning, None, "the shard may never have heard of the put");
}

#[test]
fn a_shard_that_was_restarted_knows_nothing() {
    let mut h = connected(1);
    h.put(A, "x", SIZE);
    h.event(Event::ShardDown { shard: 0 });
    h.event(up_at(1, 0, 2));
    let (_, publish) = h.publication();
    assert_eq!((publish.returning, publish.wants_answer), (None, true));
}

#[test]
fn a_deleted_copy_is_dropped_and_a_get_finds_the_next_put() {
    let mut h = connected(1);
    let view = h.put(A, "x", SIZE);
    h.pass(Duration::from_secs(10));
    h.event(Event::ShardDown { shard: 0 });
    let call = h.get(B, "x");
    h.event(up_at(10, 0, 1));
    let (_, publish) = h.publication();
    h.verdict(0, &publish, Verdict::Deleted);
    assert!(h.is_closed(view.copy));
    h.assert_waits(call);
    let pull = h.grant("x", 9, SIZE, "n1");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    assert_eq!(h.view(call).put.0, 9);
}

#[test]
fn a_restarted_shard_is_told_after_the_other_shard_has_answered() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    for (unchanged, restarted) in [(first, second), (second, first)] {
        h.put(A, "x", SIZE);
        h.sent();
        for shard in [first, second] {
            h.event(Event::ShardDown { shard });
        }
        h.event(up_at(0, unchanged, 1));
        h.event(up_at(0, restarted, 2));
        let publications = h.publications();
        assert_eq!(publications.len(), 1, "{publications:?}");
        let (shard, publish) = &publications[0];
        assert_eq!(*shard, unchanged);
        assert!(publish.returning.is_some());
        h.verdict(unchanged, publish, Verdict::Accepted);
        let told = at_shard(&mut h, restarted);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].returning, None);
        h.verdict(restarted, &told[0], Verdict::Accepted);
        h = connected(2);
    }
}

#[test]
fn a_deleted_copy_never_reaches_a_restarted_shard() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    for shard in [first, second] {
        h.event(Event::ShardDown { shard });
    }
    h.event(up_at(0, second, 1));
    h.event(up_at(0, first, 2));
    let (at, publish) = h.publication();
    assert_eq!(at, second);
    h.verdict(second, &publish, Verdict::Deleted);
    assert!(h.publications().is_empty());
    let told = h.told();
    assert!(told.contains(&format!("{first} unpublish x Deleted")), "{told:?}");
}

#[test]
fn if_the_unchanged_shard_is_lost_the_restarted_one_is_told() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    for shard in [first, second] {
        h.event(Event::ShardDown { shard });
    }
    h.event(up_at(0, second, 1));
    h.event(up_at(0, first, 2));
    assert!(at_shard(&mut h, first).is_empty());
    h.event(Event::ShardDown { shard: second });
    h.pass(Duration::from_secs(2));
    let told = at_shard(&mut h, first);
    assert_eq!(told.len(), 1);
    assert!(told[0].wants_answer);
}

#[test]
fn while_one_session_lasts_the_copy_is_served_and_returns_to_the_other_shard() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    h.event(Event::ShardDown { shard: first });
    h.event(up_at(0, first, 1));
    let told = at_shard(&mut h, first);
    assert!(told[0].returning.is_some(), "the other side of a split may have deleted it");
    let call = h.get(A, "x");
    h.view(call);
    h.verdict(first, &told[0], Verdict::Deleted);
    let call = h.get(A, "x");
    h.assert_waits(call);
    let told = h.told();
    assert!(told.contains(&format!("{second} unpublish x Deleted")), "{told:?}");
}

#[test]
fn a_fetched_copy_returns_to_the_shard_that_granted_it() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.fetch(A, "x", 5, SIZE);
    h.sent();
    for shard in [first, second] {
        h.event(Event::ShardDown { shard });
        h.event(up_at(0, shard, 1));
    }
    let publications = h.publications();
    let of = |shard| publications.iter().filter(move |(at, _)| *at == shard).collect::<Vec<_>>();
    assert!(of(first)[0].1.returning.is_some());
    assert!(of(second).iter().all(|(_, publish)| publish.returning.is_none()));
}

#[test]
fn a_pull_that_returns_fails_over_to_the_next_put() {
    let mut h = connected(1);
    let call = h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    h.event(Event::ShardDown { shard: 0 });
    h.event(up_at(0, 0, 1));
    let (_, publish) = h.publication();
    assert_eq!(publish.state, LocationState::Partial);
    assert!(publish.returning.is_some());
    h.verdict(0, &publish, Verdict::Deleted);
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.assert_waits(call);
    let sent = h.sent();
    assert!(sent.iter().any(|(_, message)| matches!(message, ToShard::Query(_))), "{sent:?}");
}

#[test]
fn an_eviction_lets_a_get_fetch_the_object() {
    let mut h = connected(1);
    h.fetch(A, "x", 5, SIZE);
    h.pass(Duration::from_secs(10));
    h.sent();
    let call = h.get(A, "x");
    assert_eq!(h.count_queries(), 0);
    for number in 0..10 {
        h.create(B, &format!("fill-{number}"), SIZE);
    }
    h.assert_waits(call);
    assert_eq!(h.count_queries(), 1);
    h.fail_query(Error::ObjectLost { id: id("x") });
    assert_eq!(h.error(call), Error::ObjectLost { id: id("x") });
}

#[test]
fn a_restarted_shard_waits_while_the_unchanged_one_may_connect() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    for shard in [first, second] {
        h.event(Event::ShardDown { shard });
    }
    h.event(up_at(0, second, 2));
    assert!(h.publications().is_empty(), "the other shard may know of a delete");
    h.pass(Duration::from_secs(1));
    h.event(up_at(1, first, 1));
    let (at, publish) = h.publication();
    assert_eq!(at, first);
    h.verdict(first, &publish, Verdict::Deleted);
    assert!(h.publications().is_empty());
}

#[test]
fn a_restarted_shard_is_told_in_the_end_if_the_other_shard_stays_away() {
    let mut h = connected(2);
    let [first, second] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    for shard in [first, second] {
        h.event(Event::ShardDown { shard });
    }
    h.event(up_at(0, second, 2));
    h.pass(Duration::from_secs(2));
    let (at, publish) = h.publication();
    assert_eq!((at, publish.returning), (second, None));
    let call = h.get(A, "x");
    h.assert_waits(call);
    h.verdict(second, &publish, Verdict::Accepted);
    h.view(call);
}
