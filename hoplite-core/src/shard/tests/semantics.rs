//! Bounds, hostile stores, and reports to tools.

use super::*;
use crate::error::ErrorCode;
use crate::link::Uplink;
use crate::shard::CLIENTS_PER_NODE;
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::{EVERYWHERE, Path, Place};

fn small_shard(limits: Limits) -> World {
    let mut world = World::new(ShardConfig { limits, warm_up: Duration::ZERO });
    for name in ["a", "b"] {
        world.connect(name, 1);
    }
    world
}

fn verdict(answers: &[(String, ToStore)]) -> &Verdict {
    match answers {
        [(_, ToStore::Published { verdict, .. }), ..] => verdict,
        _ => panic!("{answers:?}"),
    }
}

fn failure(answers: &[(String, ToStore)]) -> ErrorCode {
    match answers {
        [(_, ToStore::Failed { error, .. })] => error.code(),
        _ => panic!("{answers:?}"),
    }
}

#[test]
fn updates_contain_the_groups_of_copies() {
    let mut world = World::with_nodes(&["a"]);
    let labels = vec![("rack".to_owned(), "7".to_owned())];
    let path = Place::of_labels(&labels).path;
    assert_ne!(path, EVERYWHERE);
    world.receive(NodeInfo { labels, ..info("b", 1) });
    for name in ["a", "b"] {
        let copy = publication("x", 1, LocationState::Complete, Retention::Pinned);
        world.send(name, ToShard::Publish(copy));
    }
    let answers = world.send_and_collect(
        "a",
        ToShard::Subscribe {
            request: RequestId(1),
            id: id("x"),
            wants: Wants::Locations,
            makes: false,
        },
    );
    let [(_, ToStore::Locations { locations, .. })] = &answers[..] else { panic!("{answers:?}") };
    let paths: Vec<Path> = locations.locations.iter().map(|location| location.path).collect();
    assert_eq!(paths, [EVERYWHERE, path]);
}

fn makes(object: &str, request: u64) -> ToShard {
    let (request, wants) = (RequestId(request), Wants::Locations);
    ToShard::Subscribe { request, id: id(object), wants, makes: true }
}

#[test]
fn an_object_is_lost_with_the_node_that_makes_it() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", makes("x", 1));
    world.send("a", makes("given-up", 2));
    world.send("a", ToShard::Unsubscribe { request: RequestId(2) });
    for (request, object) in [(1, "x"), (2, "given-up")] {
        assert_eq!(world.send_and_collect("b", ToShard::Query(query(object, request))), []);
    }
    world.disconnect("a", 1);
    let lost = ToStore::Failed { request: RequestId(1), error: Error::ObjectLost { id: id("x") } };
    let effects = world.wait(world.shard.config.limits.node_grace);
    assert_eq!(effects, [Effect::Send { node: node("b"), message: lost }]);
    assert_eq!(world.send_and_collect("b", ToShard::Query(query("x", 3))), []);
    world.connect("a", 2);
    world.send("a", makes("x", 1));
    world.send("a", ToShard::Publish(complete("x", 1)));
    assert_eq!(world.shard.status().grants, 1);
}

#[test]
fn a_maker_that_is_away_may_return_and_counts_until_it_is_lost() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let grace = world.shard.config.limits.node_grace;
    world.send("a", makes("x", 1));
    world.send("b", makes("x", 1));
    world.send("c", ToShard::Query(query("x", 1)));
    world.disconnect("a", 1);
    world.wait(grace / 2);
    world.disconnect("b", 1);
    assert_eq!(world.wait(grace / 2), []);
    world.connect("b", 1);
    world.disconnect("b", 1);
    assert_ne!(world.wait(grace), [], "it was lost before it subscribed again");
    assert_eq!(world.shard.status().waiting_queries, 0);
}

#[test]
fn a_maker_that_gives_up_after_its_return_makes_nothing() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let grace = world.shard.config.limits.node_grace;
    for (node, object) in [("a", "x"), ("b", "x"), ("b", "y")] {
        world.send(node, makes(object, 1 + u64::from(object == "y")));
    }
    world.send("c", ToShard::Query(query("x", 1)));
    world.send("c", ToShard::Query(query("y", 2)));
    world.disconnect("a", 1);
    world.wait(grace - Duration::from_millis(10));
    world.disconnect("b", 1);
    world.connect("b", 1);
    world.send("b", makes("y", 2));
    world.send("b", ToShard::Unsubscribe { request: RequestId(2) });
    assert_eq!(world.wait(grace / 2), [], "b may still make x");
    world.disconnect("b", 1);
    let lost = ToStore::Failed { request: RequestId(1), error: Error::ObjectLost { id: id("x") } };
    assert_eq!(world.wait(3 * grace), [Effect::Send { node: node("c"), message: lost }]);
    assert_eq!(world.shard.status().waiting_queries, 1, "nobody made y at last");
}

#[test]
fn a_shard_that_warms_up_reports_unpublished_objects_lost_at_its_end() {
    let warm_up = 4 * Limits::default().node_grace;
    let mut world = World::new(ShardConfig { warm_up, ..ShardConfig::default() });
    for (name, requests) in [("a", 1..4), ("b", 3..4), ("c", 0..0)] {
        world.connect(name, 1);
        for request in requests {
            world.send(name, makes(&format!("x{request}"), request));
        }
    }
    for request in 1..4 {
        world.send("c", ToShard::Query(query(&format!("x{request}"), request)));
    }
    world.disconnect("a", 1);
    world.connect("a", 2);
    world.now = world.now + Duration::from_millis(1);
    world.send("c", ToShard::Query(query("x1", 9)));
    world.send("b", ToShard::Publish(complete("x2", 1)));
    assert_eq!(world.wait(warm_up / 2), []);
    let error = Error::ObjectLost { id: id("x1") };
    let lost = ToStore::Failed { request: RequestId(1), error };
    assert_eq!(world.wait(warm_up / 2), [Effect::Send { node: node("c"), message: lost }]);
    assert_eq!(world.shard.status().waiting_queries, 2);
}

#[test]
fn a_node_that_returns_in_time_goes_on_to_make_its_objects() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", makes("x", 1));
    world.send("b", ToShard::Query(query("x", 1)));
    for _ in 0..2 {
        world.disconnect("a", 1);
        world.connect("a", 1);
        assert_eq!(world.wait(2 * world.shard.config.limits.node_grace), []);
        world.send("a", makes("x", 1));
    }
}

#[test]
fn an_object_that_two_nodes_make_is_lost_with_the_second() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    world.send("a", makes("x", 1));
    world.send("b", makes("x", 1));
    world.send("c", ToShard::Query(query("x", 1)));
    world.disconnect("a", 1);
    assert_eq!(world.wait(world.shard.config.limits.node_grace), []);
    world.disconnect("b", 1);
    assert_ne!(world.wait(world.shard.config.limits.node_grace), []);
    assert_eq!(world.shard.status().waiting_queries, 0);
}

#[test]
fn messages_without_a_session_are_ignored() {
    let mut world = World::with_nodes(&["a"]);
    assert_eq!(world.send("stranger", ToShard::Publish(complete("x", 1))), []);
    world.disconnect("a", 1);
    assert_eq!(world.send("a", ToShard::Publish(complete("x", 1))), []);
    assert_eq!(world.shard.status().objects, 0);
}

#[test]
fn the_end_of_an_older_session_does_not_end_the_newer_one() {
    let mut world = World::with_nodes(&["a"]);
    world.disconnect("a", 1);
    world.connect("a", 2);
    world.disconnect("a", 1);
    assert!(world.shard.status().nodes[0].connected);
}

#[test]
fn slots_of_others_cannot_be_returned() {
    let mut world = World::with_nodes(&["s", "a", "b"]);
    world.send("s", ToShard::Publish(complete("x", 1)));
    world.send("a", ToShard::Query(query("x", 1)));
    let grant = GrantId(1);
    world.send("b", ToShard::ReturnSlot { grant, outcome: PullOutcome::Complete });
    world.send("s", ToShard::ReturnSlot { grant: GrantId(99), outcome: PullOutcome::Complete });
    assert_eq!(world.shard.status().grants, 1);
    assert_eq!(world.shard.describe(&id("x")).grants[0].outcome, None);
    world.send("a", ToShard::ReturnSlot { grant, outcome: PullOutcome::Corrupt });
    assert_eq!(world.shard.status().grants, 0);
    assert_eq!(world.shard.describe(&id("x")).grants[0].outcome, Some(PullOutcome::Corrupt));
}

#[test]
fn open_requests_are_bounded_per_node() {
    let mut world = small_shard(Limits { max_requests_per_client: 1, ..Limits::default() });
    let most = CLIENTS_PER_NODE as u64;
    for number in 0..most {
        assert_eq!(world.send_and_collect("a", ToShard::Query(query("x", number))), []);
    }
    let answers = world.send_and_collect("a", ToShard::Query(query("x", most)));
    assert_eq!(failure(&answers), ErrorCode::LimitExceeded);
    let subscribe = |number| ToShard::Subscribe {
        request: RequestId(number),
        id: id("x"),
        wants: Wants::Locations,
        makes: false,
    };
    assert_eq!(
        failure(&world.send_and_collect("a", subscribe(most + 1))),
        ErrorCode::LimitExceeded
    );
    assert!(matches!(
        world.send_and_collect("b", subscribe(most + 1))[..],
        [(_, ToStore::Locations { .. })]
    ));
    world.send("a", ToShard::Cancel { request: RequestId(3) });
    assert_eq!(world.send_and_collect("a", ToShard::Query(query("x", most + 2))), []);
    assert_eq!(world.shard.status().waiting_queries, CLIENTS_PER_NODE);
}

#[test]
fn the_number_of_an_open_request_cannot_be_used_again() {
    let mut world = World::with_nodes(&["a"]);
    world.send("a", ToShard::Query(query("x", 1)));
    assert_eq!(
        failure(&world.send_and_collect("a", ToShard::Query(query("y", 1)))),
        ErrorCode::InvalidRequest
    );
    let delete =
        ToShard::Delete { request: RequestId(1), id: id("x"), terms: DeleteTerms::default() };
    assert_eq!(failure(&world.send_and_collect("a", delete)), ErrorCode::InvalidRequest);
    world.send("a", ToShard::Unsubscribe { request: RequestId(1) });
    assert_eq!(world.shard.status().waiting_queries, 1);
}

#[test]
fn a_full_shard_refuses_objects_but_forgets_lost_ones() {
    let mut world = small_shard(Limits { max_objects: 2, ..Limits::default() });
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.send("b", ToShard::Publish(complete("y", 1)));
    assert_eq!(
        verdict(&world.send_and_collect("b", ToShard::Publish(complete("z", 1)))),
        &Verdict::ShardFull
    );
    assert_eq!(
        verdict(&world.send_and_collect("b", ToShard::Publish(complete("x", 1)))),
        &Verdict::Accepted
    );
    world.send(
        "b",
        ToShard::Unpublish { id: id("y"), put: PutId(1), reason: UnpublishReason::Evicted },
    );
    assert!(world.shard.describe(&id("y")).locations.object.unwrap().lost);
    assert_eq!(
        verdict(&world.send_and_collect("b", ToShard::Publish(complete("z", 1)))),
        &Verdict::Accepted
    );
    assert_eq!(world.shard.describe(&id("y")).locations.object, None);
}

#[test]
fn tombstones_are_bounded() {
    let mut world = small_shard(Limits { max_objects: 3, ..Limits::default() });
    for put in 0..100 {
        world.send("a", ToShard::Forget { id: id("x"), put: PutId(put) });
        world.now = world.now + Duration::from_millis(1);
    }
    assert_eq!(world.shard.status().tombstones, 3);
    assert_eq!(
        verdict(&world.send_and_collect("a", ToShard::Publish(complete("x", 99)))),
        &Verdict::Deleted
    );
    assert_eq!(
        verdict(&world.send_and_collect("a", ToShard::Publish(complete("x", 0)))),
        &Verdict::Accepted
    );
}

#[test]
fn incomplete_inline_bytes_are_not_kept() {
    let mut world = small_shard(Limits::default());
    let fits = inline("fits", 1, b"1234");
    world.send("a", ToShard::Publish(fits.clone()));
    world.send("a", ToShard::Publish(Publish { size_bytes: 3, ..inline("wrong", 1, b"1234") }));
    let producing = Publish { state: LocationState::Producing, ..inline("unsealed", 1, b"1234") };
    world.send("a", ToShard::Publish(producing));
    world.send("a", ToShard::Publish(inline("empty", 1, b"")));
    assert_eq!(world.shard.status().inline_bytes, 4);
    let inlined = |name| world.shard.describe(&id(name)).locations.object.unwrap().inline;
    assert!(inlined("fits") && inlined("empty"));
    assert!(!inlined("wrong") && !inlined("unsealed"));
    world.send("a", ToShard::Forget { id: id("fits"), put: PutId(1) });
    assert_eq!(world.shard.status().inline_bytes, 0);
}

#[test]
fn a_complete_copy_does_not_become_partial() {
    let mut world = World::with_nodes(&["a"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    let partial = publication("x", 1, LocationState::Partial, Retention::Pinned);
    world.send("a", ToShard::Publish(Publish { pulling_from: Some(node("b")), ..partial }));
    let locations = world.shard.describe(&id("x")).locations.locations;
    assert_eq!((locations[0].state, &locations[0].pulling_from), (LocationState::Complete, &None));
}

#[test]
fn one_put_of_two_sizes_is_a_conflict() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    let other = Publish { size_bytes: 7, ..complete("x", 1) };
    let expected = Verdict::Conflict { winner: PutId(1), equality: Equality::Different };
    assert_eq!(verdict(&world.send_and_collect("b", ToShard::Publish(other))), &expected);
}

#[test]
fn grants_are_described_with_their_reasons() {
    let mut world = World::with_nodes(&["s", "a", "b"]);
    world.send("s", ToShard::Publish(complete("x", 1)));
    world.now = Time::from_micros(5);
    let effects = world.send("a", ToShard::Query(query("x", 1)));
    world.send(
        "a",
        ToShard::Unpublish { id: id("x"), put: PutId(1), reason: UnpublishReason::PullEnded },
    );
    let record = GrantRecord {
        receiver: node("a"),
        sender: node("s"),
        reason: GrantReason::OnlyCandidate,
        at: Time::from_micros(5),
        outcome: None,
        ended: None,
    };
    assert_eq!(effects.last(), Some(&Effect::Granted { id: id("x"), record: record.clone() }));
    world.send("b", ToShard::Query(query("x", 1)));
    let description = world.shard.describe(&id("x"));
    assert_eq!((description.grants, description.waiting_receivers), (vec![record], 1));
    let status = world.shard.status();
    assert_eq!((status.grants, status.waiting_queries, status.nodes.len()), (1, 1, 3));
}

#[test]
fn objects_are_listed_page_by_page() {
    let mut world = World::with_nodes(&["a"]);
    for name in ["a/1", "a/2", "a/3", "b/1"] {
        world.send("a", ToShard::Publish(complete(name, 1)));
    }
    let list = |prefix: &str, after: &str, limit| {
        let (page, more) = world.shard.list(prefix.as_bytes(), after.as_bytes(), limit);
        (page.iter().map(|locations| locations.id.to_string()).collect::<Vec<_>>().join(" "), more)
    };
    assert_eq!(list("", "", 10), ("a/1 a/2 a/3 b/1".into(), false));
    assert_eq!(list("a/", "", 2), ("a/1 a/2".into(), true));
    assert_eq!(list("a/", "a/2", 2), ("a/3".into(), false));
    assert_eq!(list("a/", "b", 2), (String::new(), false));
    assert_eq!(list("b", "a/3", 1), ("b/1".into(), false));
    assert_eq!(list("", "", 0), (String::new(), true));
}

#[test]
fn the_origin_of_an_object_is_its_first_publication() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    let origin = |world: &World| {
        let mut page = world.shard.list(b"", b"", 10).0;
        assert_eq!(page[0].object.as_ref().unwrap().origin, None);
        world.shard.add_origins(world.now, &mut page);
        page.remove(0).object.unwrap().origin.unwrap()
    };
    let creator = NodeId::new("a").unwrap();
    let new = Origin { creator: creator.clone(), age: Duration::ZERO, unused: None };
    assert_eq!(origin(&world), new);
    world.wait(Duration::from_secs(5));
    world.send("b", ToShard::Query(query("x", 1)));
    world.wait(Duration::from_secs(2));
    world.send("b", ToShard::Publish(complete("x", 1)));
    let seconds = Duration::from_secs;
    assert_eq!(origin(&world), Origin { creator, age: seconds(7), unused: Some(seconds(2)) });
}

#[test]
fn objects_without_a_complete_copy_are_not_listed() {
    let mut world = World::with_nodes(&["a", "b"]);
    for name in ["kept", "lost"] {
        world.send("a", ToShard::Publish(complete(name, 1)));
    }
    let partial = publication("partial", 1, LocationState::Partial, Retention::Evictable);
    world.send("b", ToShard::Publish(partial));
    let reason = UnpublishReason::Evicted;
    world.send("a", ToShard::Unpublish { id: id("lost"), put: PutId(1), reason });
    let (page, more) = world.shard.list(b"", b"", 10);
    assert_eq!(page.iter().map(|object| object.id.to_string()).collect::<Vec<_>>(), ["kept"]);
    assert!(!more);
    assert!(world.shard.describe(&id("lost")).locations.object.is_some_and(|object| object.lost));
    let answers = world.send_and_collect(
        "b",
        ToShard::Delete { request: RequestId(1), id: id("lost"), terms: DeleteTerms::default() },
    );
    assert_eq!(answers, [("b".to_owned(), done(1, Some(PutId(1))))]);
    assert_eq!(world.shard.describe(&id("lost")).locations.object, None);
}

#[test]
fn messages_are_counted() {
    let mut world = World::with_nodes(&["s", "a"]);
    world.send("s", ToShard::Publish(complete("x", 1)));
    world.send("a", ToShard::Query(query("x", 1)));
    let pulled = publication("x", 1, LocationState::Complete, Retention::Evictable);
    let slot = Some(GrantId(1));
    world.send("a", ToShard::Publish(Publish { slot, wants_answer: false, ..pulled }));
    let status = world.shard.status();
    assert_eq!((status.received_messages, status.sent_messages, status.grants), (3, 2, 0));
}

#[test]
fn differing_label_keys_are_reported_once_for_each_set_of_keys() {
    let mut world = small_shard(Limits::default());
    let mut logged_keys = |name: &str, incarnation: u64, keys: &[&str]| {
        let labels = keys.iter().map(|key| ((*key).to_owned(), "7".to_owned())).collect();
        let effects = world.receive(NodeInfo { labels, ..info(name, incarnation) }).1;
        let logged = effects.into_iter().filter_map(|effect| match effect {
            Effect::PlaceKeysDiffer { counts } => Some(counts.to_string()),
            _ => None,
        });
        logged.collect::<Vec<_>>()
    };
    assert_eq!(
        logged_keys("c", 1, &["disk"]),
        Vec::<String>::new(),
        "no place labels, like a and b"
    );
    assert_eq!(logged_keys("d", 1, &["rack"]), ["3 nodes by nothing, 1 node by rack"]);
    assert_eq!(logged_keys("e", 1, &["rack"]), Vec::<String>::new());
    assert_eq!(
        logged_keys("f", 1, &["rack", "zone"]),
        ["3 nodes by nothing, 2 nodes by rack, 1 node by zone+rack"]
    );
    assert_eq!(
        logged_keys("f", 1, &["zone"]),
        ["3 nodes by nothing, 1 node by zone, 2 nodes by rack"]
    );
    assert_eq!(logged_keys("f", 1, &["rack", "zone"]), Vec::<String>::new(), "already reported");
}

/// Returns the places that the shard sends to stores: node, version, rack, and the uplink in
/// thousandths.
fn sent_places(effects: Vec<Effect>) -> Vec<(String, u64, u32, u32)> {
    let placed = effects.into_iter().filter_map(|effect| match effect {
        Effect::Send { node, message: ToStore::Placed(Placed { version, path, uplink }) } => {
            Some((node.to_string(), version, path[2], uplink.permille()))
        }
        _ => None,
    });
    placed.collect()
}

fn measured(version: u64, permille: u32, racks: &[(&str, u32)]) -> MeasuredPlaces {
    let paths = racks.iter().map(|(name, rack)| (node(name), [0, 0, *rack, 0])).collect();
    MeasuredPlaces { version, uplink: Uplink::measured(permille), paths }
}

#[test]
fn nodes_without_labels_have_measured_places() {
    let mut world = small_shard(Limits::default());
    let labels = vec![("rack".to_owned(), "7".to_owned())];
    let labelled = Place::of_labels(&labels).path[2];
    world.receive(NodeInfo { labels, ..info("c", 1) });
    let mut measure = |places: MeasuredPlaces| sent_places(world.apply(Event::Places(places)));
    let three = |version, racks: [u32; 2], permille| {
        ["a", "b", "c"]
            .map(str::to_owned)
            .into_iter()
            .zip([racks[0], racks[1], labelled])
            .map(|(name, rack)| (name, version, rack, permille))
            .collect::<Vec<_>>()
    };
    let all = [("a", 1), ("b", 2), ("c", 2), ("later", 1), ("unknown", 9)];
    assert_eq!(measure(measured(5, 250, &all)), three(5, [1, 2], 250), "labels come first");
    assert_eq!(measure(measured(4, 100, &[("a", 3)])), [], "older");
    assert_eq!(measure(measured(5, 250, &all)), [], "again");
    assert_eq!(
        measure(measured(5, 250, &[("a", 1)])),
        [],
        "of two surveys with one version, the same one wins everywhere"
    );
    for incarnation in [1, 1] {
        let sent_places = sent_places(world.receive(info("later", incarnation)).1);
        assert_eq!(sent_places, [("later".to_owned(), 5, 1, 250)]);
    }
    world.apply(Event::Disconnected { node: node("later"), incarnation: Incarnation(1) });
    let empty = measured(6, 0, &[]);
    assert_eq!(sent_places(world.apply(Event::Places(empty))), three(6, [0, 0], 0));
    assert_eq!(world.shard.status().measured, (6, Uplink::default()));
}

#[test]
fn the_measured_uplink_counts_once_a_node_has_a_measured_place() {
    let mut world = World::new(ShardConfig { warm_up: Duration::ZERO, ..ShardConfig::default() });
    let labels = vec![("rack".to_owned(), "7".to_owned())];
    let rack = Place::of_labels(&labels).path[2];
    world.receive(NodeInfo { labels, ..info("a", 1) });
    let a = |version, permille| ("a".to_owned(), version, rack, permille);
    let effects = world.apply(Event::Places(measured(5, 250, &[("a", 1), ("b", 2)])));
    assert_eq!(
        (sent_places(effects), world.shard.measured_nodes()),
        (vec![a(5, 0)], 0),
        "all have labels"
    );
    assert_eq!(world.shard.status().measured, (5, Uplink::default()));
    let effects = world.receive(info("c", 1)).1;
    assert_eq!(sent_places(effects), [("c".to_owned(), 5, 0, 0)]);
    let effects = world.receive(info("b", 1)).1;
    let [b, c] = [("b", 2), ("c", 0)].map(|(name, rack)| (name.to_owned(), 5, rack, 250));
    assert_eq!(
        (sent_places(effects), world.shard.measured_nodes()),
        (vec![a(5, 250), c, b.clone()], 1)
    );
    assert_eq!(world.shard.status().measured, (5, Uplink::measured(250)));
    assert_eq!(sent_places(world.receive(info("b", 1)).1), [b], "the other nodes know it already");
}

#[test]
fn the_measured_uplink_counts_once_another_shard_has_a_node_with_a_measured_place() {
    let mut world = small_shard(Limits::default());
    let rows = |permille| ["a", "b"].map(|name| (name.to_owned(), 5, 0, permille));
    let effects = world.apply(Event::Places(measured(5, 250, &[("elsewhere", 1)])));
    assert_eq!(sent_places(effects), rows(0));
    let says = |permille| {
        ToShard::Placed(Placed { version: 5, path: EVERYWHERE, uplink: Uplink::measured(permille) })
    };
    assert_eq!(sent_places(world.send("a", says(0))), []);
    assert_eq!(sent_places(world.send("a", says(100))), [], "differs from the measurement");
    assert_eq!(sent_places(world.send("a", says(250))), rows(250));
    assert_eq!(sent_places(world.send("b", says(250))), [], "known already");
    assert_eq!(sent_places(world.send("b", says(0))), [], "told already");
    assert_eq!(world.shard.status().measured, (5, Uplink::measured(250)));
}

#[test]
fn a_restarted_shard_learns_places_from_stores() {
    let mut world = small_shard(Limits::default());
    let labels = vec![("rack".to_owned(), "7".to_owned())];
    let labelled = Place::of_labels(&labels).path;
    world.receive(NodeInfo { labels, ..info("c", 1) });
    let recalled = |version, rack, permille| {
        let uplink = Uplink::measured(permille);
        ToShard::Placed(Placed { version, path: [0, 0, rack, 0], uplink })
    };
    let row = |name: &str, version, rack, permille| (name.to_owned(), version, rack, permille);
    // A store with labels reports slow uplinks, but no places of other nodes.
    let uplink = Uplink::measured(250);
    let effects = world.send("c", ToShard::Placed(Placed { version: 5, path: labelled, uplink }));
    let all = [row("a", 5, 0, 250), row("b", 5, 0, 250), row("c", 5, labelled[2], 250)];
    assert_eq!((sent_places(effects), world.shard.measured_nodes()), (all.to_vec(), 0));
    assert_eq!(sent_places(world.send("a", recalled(5, 1, 250))), [], "the place that it reported");
    assert_eq!(sent_places(world.send("b", recalled(4, 1, 100))), [], "older");
    assert_eq!(sent_places(world.send("b", recalled(5, 2, 250))), []);
    // For one version, the larger place counts. A place that the shard knows moves no node.
    assert_eq!(sent_places(world.send("b", recalled(5, 1, 100))), [row("b", 5, 2, 250)]);
    let b = world.shard.nodes.index(&node("b")).unwrap();
    let again = Placed { version: 5, path: [0, 0, 2, 0], uplink };
    assert_eq!(world.shard.nodes.recall(b, again), Some(Vec::new()));
    assert_eq!((world.shard.measured_nodes(), world.shard.status().measured), (2, (5, uplink)));
    assert_eq!(sent_places(world.receive(info("b", 1)).1), [row("b", 5, 2, 250)]);
    // A probe's places replace the places that stores repeated. Stores then add nothing.
    let whole = measured(5, 250, &[("a", 1), ("b", 2), ("later", 1)]);
    assert_eq!(sent_places(world.apply(Event::Places(whole.clone()))).len(), 3);
    assert_eq!(sent_places(world.send("b", recalled(5, 9, 250))), []);
    assert_eq!(*world.shard.measured_places(), whole);
    let effects = world.send("b", recalled(6, 3, 500));
    assert_eq!(
        sent_places(effects),
        [row("a", 6, 0, 500), row("b", 6, 3, 500), row("c", 6, labelled[2], 500)]
    );
}

#[test]
fn a_receiver_that_waits_for_a_close_copy_is_served_when_its_place_changes() {
    let mut world = small_shard(Limits::default());
    world.connect("d", 1);
    world.apply(Event::Places(measured(1, 250, &[("a", 1), ("b", 1), ("d", 2)])));
    world.send("a", ToShard::Publish(complete("x", 1)));
    let granted = |effects: &[Effect]| {
        let of = |effect: &Effect| match effect {
            Effect::Granted { record, .. } => {
                Some(format!("{} from {}", record.receiver, record.sender))
            }
            _ => None,
        };
        effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(granted(&world.send("d", ToShard::Query(query("x", 1)))), ["d from a"]);
    // The rack's only copy is busy. The receiver does not use the other rack's copy at once.
    assert!(granted(&world.send("b", ToShard::Query(query("x", 1)))).is_empty());
    let effects = world.apply(Event::Places(measured(2, 250, &[("a", 1), ("b", 2), ("d", 2)])));
    assert_eq!(granted(&effects), ["b from d"]);
}

#[test]
fn a_far_receiver_does_not_starve_while_closer_ones_keep_coming() {
    let mut world = World::new(ShardConfig { warm_up: Duration::ZERO, ..ShardConfig::default() });
    let mut join = |name: &str, rack: &str| {
        let labels = vec![("rack".to_owned(), rack.to_owned())];
        world.receive(NodeInfo { labels, ..info(name, 1) }).1
    };
    join("s", "near");
    (0..1000).for_each(|number| assert_eq!(join(&format!("near{number}"), "near"), []));
    join("far", "far");
    world.send("s", ToShard::Publish(complete("x", 1)));
    world.send("near0", ToShard::Query(query("x", 0)));
    // Receiver `far` avoids the earlier receivers, which could serve it.
    let avoid = (0..20).map(|number| node(&format!("near{number}"))).collect();
    world.send("far", ToShard::Query(Query { avoid, ..query("x", 0) }));
    // Each near receiver holds the slot for 10 ms, until the next one has queried.
    for number in 1..1000 {
        let (leaving, coming) = (format!("near{}", number - 1), format!("near{number}"));
        world.send(&coming, ToShard::Query(query("x", 0)));
        world.now = world.now + Duration::from_millis(10);
        let grant = GrantId(world.shard.next_grant - 1);
        world.send(&leaving, ToShard::ReturnSlot { grant, outcome: PullOutcome::Cancelled });
        let served = world.shard.describe(&id("x")).grants.last().unwrap().receiver.clone();
        if served == node("far") {
            assert_eq!(world.now, Time::from_micros(50_000));
            return;
        }
        assert_eq!(served, node(&coming));
    }
    panic!("the far receiver starved");
}

#[test]
fn a_delete_continues_after_its_requester_has_cancelled() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("b", ToShard::Publish(complete("x", 1)));
    let delete =
        || ToShard::Delete { request: RequestId(1), id: id("x"), terms: DeleteTerms::default() };
    let drops = world.send_and_collect("a", delete());
    assert!(matches!(drops[..], [(_, ToStore::Drop { .. })]), "{drops:?}");
    assert_eq!(world.send("a", ToShard::Cancel { request: RequestId(1) }), []);
    assert_eq!(world.send("a", delete()), [], "the number is free, and the drop is under way");
    let dropped =
        ToShard::Unpublish { id: id("x"), put: PutId(1), reason: UnpublishReason::Deleted };
    assert_eq!(world.send_and_collect("b", dropped), [("a".to_owned(), done(1, Some(PutId(1))))]);
}
