//! Pinned copies at several stores, and stores that drain.

use super::*;
use crate::metadata::Replicas;

fn wanting(object: &str, put: u64, wanted: u8) -> Publish {
    let replicas = Replicas { wanted, awaited: 0, quorum: false };
    Publish { metadata: Metadata { replicas, ..Metadata::default() }, ..complete(object, put) }
}

fn lead(object: &str, put: u64) -> ToShard {
    ToShard::Lead(Lead { id: id(object), put: PutId(put), leads: true, is_new: true })
}

fn orders(effects: &[Effect]) -> Vec<(String, String)> {
    let order = |effect: &Effect| match effect {
        Effect::Send { node, message: ToStore::Replicate(order) } => {
            Some((node.to_string(), order.id.to_string()))
        }
        _ => None,
    };
    effects.iter().filter_map(order).collect()
}

fn reported_copies(effects: &[Effect], name: &str) -> Option<(u32, u32, Option<Obstacle>)> {
    let news = |effect: &Effect| match effect {
        Effect::Send { node: to, message: ToStore::Replication(news) } if *to == node(name) => {
            Some((news.copies, news.nodes, news.obstacle))
        }
        _ => None,
    };
    effects.iter().filter_map(news).next_back()
}

impl World {
    /// Publishes a put that wants copies, and tells the shard that it leads. Returns the shard's
    /// orders.
    fn put(&mut self, at: &str, object: &str, put: u64, wanted: u8) -> Vec<(String, String)> {
        self.send(at, ToShard::Publish(wanting(object, put, wanted)));
        orders(&self.send(at, lead(object, put)))
    }

    fn keep(&mut self, at: &str, object: &str, put: u64, wanted: u8) -> Vec<Effect> {
        let mut effects = self.send(at, ToShard::Publish(wanting(object, put, wanted)));
        let lead = Lead { id: id(object), put: PutId(put), leads: true, is_new: false };
        effects.extend(self.send(at, ToShard::Lead(lead)));
        effects
    }

    fn lose(&mut self, name: &str) -> Vec<Effect> {
        let mut effects = self.disconnect(name, 1);
        effects.extend(self.wait(Duration::from_secs(2)));
        effects
    }
}

#[test]
fn a_put_gets_its_copies_at_other_stores_at_once() {
    let mut world = World::with_nodes(&["a", "b", "c", "d"]);
    let ordered = world.put("a", "x", 1, 3);
    assert_eq!(ordered.len(), 2, "{ordered:?}");
    let mut count = 1;
    for (target, object) in ordered {
        assert!(target != "a" && object == "x");
        count += 1;
        let effects = world.keep(&target, "x", 1, 3);
        assert_eq!(reported_copies(&effects, "a"), Some((count, 4, None)), "{effects:?}");
        assert_eq!(orders(&effects), []);
    }
    assert_eq!(world.shard.counters().under_replicated, 0);
}

#[test]
fn a_put_that_is_being_written_is_copied_from_its_start() {
    let mut world = World::with_nodes(&["a", "b"]);
    let producing = Publish { state: LocationState::Producing, ..wanting("x", 1, 2) };
    world.send("a", ToShard::Publish(producing));
    assert_eq!(orders(&world.send("a", lead("x", 1))), [("b".to_owned(), "x".to_owned())]);
    let effects = world.keep("b", "x", 1, 2);
    assert_eq!(
        reported_copies(&effects, "a"),
        Some((1, 2, None)),
        "the first copy is not complete"
    );
    let effects = world.send("a", ToShard::Publish(wanting("x", 1, 2)));
    assert_eq!(reported_copies(&effects, "a"), Some((2, 2, None)));
}

#[test]
fn without_replicas_or_the_lead_no_copy_is_created() {
    let mut world = World::with_nodes(&["a", "b"]);
    assert_eq!(world.put("a", "x", 1, 1), []);
    let effects = world.send("a", ToShard::Publish(wanting("y", 2, 2)));
    assert_eq!(orders(&effects), [], "another shard leads");
    assert_eq!(world.shard.counters().under_replicated, 0);
}

#[test]
fn a_put_that_wants_more_copies_than_stores_gets_none() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(wanting("x", 1, 3)));
    let effects = world.send("a", lead("x", 1));
    assert_eq!(orders(&effects), []);
    assert_eq!(reported_copies(&effects, "a"), Some((1, 2, Some(Obstacle::NoNode))));
}

#[test]
fn a_put_learns_that_a_required_store_is_lost() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let ordered = world.put("a", "x", 1, 3);
    assert_eq!(ordered.len(), 2);
    let effects = world.disconnect("c", 1);
    assert_eq!(reported_copies(&effects, "a"), None, "the store may return");
    let effects = world.wait(Duration::from_secs(2));
    assert_eq!(reported_copies(&effects, "a"), Some((1, 2, Some(Obstacle::NoNode))));
}

#[test]
fn a_store_that_is_away_for_a_moment_fails_no_put_and_no_drain() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.disconnect("b", 1);
    world.send("a", ToShard::Publish(wanting("x", 1, 2)));
    let effects = world.send("a", lead("x", 1));
    assert_eq!(reported_copies(&effects, "a"), Some((1, 2, None)));
    let ordered = [("b".to_owned(), "x".to_owned())];
    assert_eq!(orders(&world.connect("b", 1)), ordered);
    world.disconnect("b", 1);
    let mut effects = world.send("a", ToShard::Drain { is_draining: true });
    effects.extend(world.send("a", ToShard::Publish(complete("y", 2))));
    effects.extend(world.send("a", lead("y", 2)));
    assert_eq!(reported_copies(&effects, "a"), Some((0, 1, None)));
    assert_eq!(orders(&world.connect("b", 1)), [("b".to_owned(), "y".to_owned())]);
}

#[test]
fn copies_are_in_different_racks() {
    let mut world = World::with_nodes(&[]);
    for (name, rack) in [("a", "1"), ("b", "1"), ("c", "1"), ("d", "2"), ("e", "2"), ("f", "3")] {
        let labels = vec![("rack".to_owned(), rack.to_owned())];
        world.receive(NodeInfo { labels, ..info(name, 1) });
    }
    for put in 1..20 {
        let object = format!("x{put}");
        let targets: Vec<String> =
            world.put("a", &object, put, 3).into_iter().map(|(to, _)| to).collect();
        assert!(targets.contains(&"f".to_owned()), "{targets:?}");
        assert!(targets.iter().any(|to| to == "d" || to == "e"), "{targets:?}");
    }
}

#[test]
fn two_other_stores_get_similar_numbers_of_copies() {
    for names in [["a", "b", "c"], ["host-1", "host-2", "host-3"], ["h0", "h1", "h2"]] {
        let mut world = World::with_nodes(&names);
        let mut counts = BTreeMap::<String, u64>::new();
        for put in 0..100 {
            for (target, _) in world.put(names[0], &format!("x{put}"), put, 2) {
                *counts.entry(target).or_default() += 1;
            }
        }
        assert_eq!(counts.values().sum::<u64>(), 100);
        assert!(counts.len() == 2 && counts.values().all(|count| *count > 30), "{counts:?}");
    }
}

#[test]
fn each_of_many_stores_gets_copies() {
    let names: Vec<String> = (0..100).map(|number| format!("node-{number}")).collect();
    let mut world = World::with_nodes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut counts = BTreeMap::<String, u64>::new();
    for put in 0..600 {
        for (target, _) in world.put("node-0", &format!("x{put}"), put, 2) {
            *counts.entry(target).or_default() += 1;
        }
    }
    assert!(counts.len() > 90, "{counts:?}");
    assert!(counts.values().all(|count| *count < 25), "six on average: {counts:?}");
}

#[test]
fn a_complete_copy_is_kept_before_another_is_made() {
    let mut world = World::with_nodes(&["a", "b", "c", "d", "e"]);
    let cached = Publish { retention: Retention::Evictable, ..wanting("x", 1, 2) };
    world.send("a", ToShard::Publish(wanting("x", 1, 2)));
    world.send("d", ToShard::Publish(cached));
    assert_eq!(orders(&world.send("a", lead("x", 1))), [("d".to_owned(), "x".to_owned())]);
}

#[test]
fn lost_copies_are_replaced_the_most_endangered_object_first() {
    let mut world = World::with_nodes(&["a", "b", "c", "d"]);
    for (object, put, holders) in
        [("safe", 1, vec!["a", "b", "c"]), ("endangered", 2, vec!["a", "b"])]
    {
        for holder in holders {
            world.keep(holder, object, put, 3);
        }
    }
    let effects = world.lose("b");
    let first = orders(&effects).into_iter().next();
    assert_eq!(first.map(|(_, object)| object).as_deref(), Some("endangered"), "{effects:?}");
    assert_eq!(world.shard.counters().under_replicated, 2);
    let ordered: Vec<String> = orders(&effects).into_iter().map(|(_, object)| object).collect();
    assert!(ordered.contains(&"safe".to_owned()), "{ordered:?}");
}

#[test]
fn a_short_disconnect_creates_no_copy() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    world.keep("a", "x", 1, 2);
    world.keep("b", "x", 1, 2);
    world.disconnect("b", 1);
    world.wait(Duration::from_millis(500));
    world.connect("b", 1);
    let effects = world.keep("b", "x", 1, 2);
    assert_eq!((orders(&effects), reported_copies(&effects, "a")), (vec![], Some((2, 3, None))));
    assert_eq!(orders(&world.wait(Duration::from_secs(60))), []);
}

#[test]
fn a_store_limits_concurrent_repairs_and_puts_go_first() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    for put in 0..40 {
        let object = format!("x{put}");
        world.keep("a", &object, put, 2);
        world.keep("b", &object, put, 2);
    }
    let effects = world.lose("b");
    let ordered = orders(&effects);
    assert_eq!(ordered.len(), 8, "{ordered:?}");
    assert_eq!(world.put("a", "new", 99, 2), [("c".to_owned(), "new".to_owned())]);
    let (_, object) = ordered[0].clone();
    let put = object.trim_start_matches('x').parse().unwrap();
    let more = orders(&world.keep("c", &object, put, 2));
    assert_eq!(more.len(), 0, "the put of another object has the place: {more:?}");
    let more = orders(&world.keep("c", "new", 99, 2));
    assert_eq!(more.len(), 1, "{more:?}");
}

#[test]
fn repairs_are_paced_by_their_size() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    for put in 0..4 {
        for holder in ["a", "b"] {
            let size_bytes = 500 << 20;
            let object = format!("x{put}");
            world
                .send(holder, ToShard::Publish(Publish { size_bytes, ..wanting(&object, put, 2) }));
            let lead = Lead { id: id(&object), put: PutId(put), leads: true, is_new: false };
            world.send(holder, ToShard::Lead(lead));
        }
    }
    world.wait(Duration::from_secs(10));
    world.disconnect("b", 1);
    let at_first = orders(&world.wait(Duration::from_millis(1001))).len();
    assert_eq!(at_first, 1);
    assert_eq!(orders(&world.wait(Duration::from_millis(1500))).len(), 1);
    assert_eq!(orders(&world.wait(Duration::from_secs(3))).len(), 2);
}

#[test]
fn a_refusing_store_is_skipped_and_the_reason_is_reported() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let ordered = world.put("a", "x", 1, 2);
    let refusal = |reason| ToShard::NotReplicated { id: id("x"), put: PutId(1), reason };
    let effects = world.send(&ordered[0].0, refusal(Obstacle::NoRoom));
    let next = orders(&effects);
    assert!(next.len() == 1 && next[0] != ordered[0], "{next:?}");
    let effects = world.send(&next[0].0, refusal(Obstacle::Failed));
    assert_eq!(
        (orders(&effects), reported_copies(&effects, "a")),
        (vec![], Some((1, 3, Some(Obstacle::NoRoom))))
    );
    let again = orders(&world.wait(Duration::from_secs(6)));
    assert_eq!(again, ordered, "after a pause, the stores are asked again");
}

#[test]
fn a_store_that_goes_away_loses_its_assignment() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let ordered = world.put("a", "x", 1, 2);
    let next = orders(&world.disconnect(&ordered[0].0, 1));
    assert!(next.len() == 1 && next[0].0 != ordered[0].0, "{next:?}");
}

#[test]
fn an_assignment_without_a_transfer_ends() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    let ordered = world.put("a", "x", 1, 2);
    let next = orders(&world.wait(Duration::from_secs(11)));
    assert!(next.len() == 1 && next[0].0 != ordered[0].0, "{next:?}");
    world.send(&next[0].0, ToShard::Query(query("x", 1)));
    assert_eq!(
        orders(&world.wait(Duration::from_secs(60))),
        [],
        "the second store receives the object"
    );
}

#[test]
fn a_deleted_object_is_not_copied() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.put("a", "x", 1, 2);
    world.send(
        "a",
        ToShard::Delete { request: RequestId(1), id: id("x"), terms: DeleteTerms::default() },
    );
    assert_eq!(world.shard.counters().under_replicated, 0);
    let effects = world.send("b", ToShard::Publish(wanting("x", 1, 2)));
    let refused = effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Send { message: ToStore::Published { verdict: Verdict::Deleted, .. }, .. }
        )
    });
    assert!(refused, "{effects:?}");
}

#[test]
fn objects_of_a_draining_store_are_copied_and_its_copies_do_not_count() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.keep("a", "y", 2, 2);
    world.keep("b", "y", 2, 2);
    world.send("a", ToShard::Drain { is_draining: true });
    let leads =
        |object: &str, put| Lead { id: id(object), put: PutId(put), leads: true, is_new: false };
    let effects = world.send("a", ToShard::Lead(leads("x", 1)));
    assert_eq!(reported_copies(&effects, "a"), Some((0, 2, None)));
    let ordered = orders(&effects);
    assert!(ordered.len() == 1 && ordered[0].0 != "a", "{ordered:?}");
    let effects = world.keep(&ordered[0].0, "x", 1, 1);
    assert_eq!(reported_copies(&effects, "a"), Some((1, 2, None)));
    let ordered = orders(&world.send("a", ToShard::Lead(leads("y", 2))));
    assert_eq!(ordered, [("c".to_owned(), "y".to_owned())]);
    let effects = world.keep("c", "y", 2, 2);
    assert_eq!(reported_copies(&effects, "a"), Some((2, 2, None)));
    // The store gives its pins up, and is not told to pin its copy again.
    let evictable = Publish { retention: Retention::Evictable, ..complete("x", 1) };
    let effects = world.send("a", ToShard::Publish(evictable));
    let promoted =
        |effect: &Effect| matches!(effect, Effect::Send { message: ToStore::Promote { .. }, .. });
    assert!(!effects.iter().any(promoted), "{effects:?}");
    assert_eq!(
        world.put("b", "z", 3, 2),
        [("c".to_owned(), "z".to_owned())],
        "never the store that drains"
    );
}

#[test]
fn a_released_pin_returns_if_the_other_copy_is_lost() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    world.send("a", ToShard::Drain { is_draining: true });
    world.keep("b", "x", 1, 1);
    world.lose("b");
    let evictable = Publish { retention: Retention::Evictable, ..complete("x", 1) };
    let effects = world.send("a", ToShard::Publish(evictable));
    let promoted =
        |effect: &Effect| matches!(effect, Effect::Send { message: ToStore::Promote { .. }, .. });
    assert!(effects.iter().any(promoted), "{effects:?}");
}

#[test]
fn draining_stores_do_not_choose_each_other_and_the_last_one_is_notified() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    for (name, put) in [("a", 1), ("b", 2)] {
        world.send(name, ToShard::Publish(complete(name, put)));
        world.send(name, ToShard::Drain { is_draining: true });
    }
    for (name, put) in [("a", 1), ("b", 2)] {
        let lead = Lead { id: id(name), put: PutId(put), leads: true, is_new: false };
        assert_eq!(
            orders(&world.send(name, ToShard::Lead(lead))),
            [("c".to_owned(), name.to_owned())]
        );
    }
    let effects = world.send("c", ToShard::Drain { is_draining: true });
    assert_eq!(orders(&effects), []);
    world.send("c", ToShard::Publish(complete("c", 3)));
    let lead = Lead { id: id("c"), put: PutId(3), leads: true, is_new: false };
    assert_eq!(
        reported_copies(&world.send("c", ToShard::Lead(lead)), "c"),
        Some((0, 0, Some(Obstacle::NoNode)))
    );
    let effects = world.send("b", ToShard::Drain { is_draining: false });
    let mut objects: Vec<String> =
        orders(&effects).into_iter().map(|(to, object)| to + &object).collect();
    objects.sort();
    assert_eq!(objects, ["ba", "bc"]);
}

#[test]
fn an_object_that_no_store_can_take_is_known_until_one_can() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.keep("a", "x", 1, 2);
    world.keep("b", "x", 1, 2);
    assert_eq!(world.shard.blocked_copies(), []);
    world.lose("b");
    assert_eq!(world.shard.blocked_copies(), [(id("x"), Obstacle::NoNode)]);
    world.receive(info("c", 1));
    world.wait(Duration::from_secs(2));
    assert_eq!(world.shard.blocked_copies(), []);
    assert_eq!(world.shard.counters().under_replicated, 1, "the copy is under way");
}
