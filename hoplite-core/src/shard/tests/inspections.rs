use super::*;

fn search(prefix: &str, after: &[u8], limit: usize) -> ObjectSearch {
    ObjectSearch { prefix: prefix.into(), after: after.to_vec(), limit, ..ObjectSearch::default() }
}

fn names(found: &Found) -> Vec<String> {
    found.objects.iter().map(|object| object.id.to_string()).collect()
}

#[test]
fn a_search_is_paged_and_filtered() {
    let mut world = World::with_nodes(&["a", "b"]);
    for name in ["w/1", "w/2", "w/3", "x"] {
        world.send("a", ToShard::Publish(complete(name, 1)));
    }
    world.send(
        "b",
        ToShard::Publish(publication("w/2", 1, LocationState::Complete, Retention::Evictable)),
    );
    world.send("a", ToShard::Publish(inline("w/small", 1, b"1234")));
    let first = world.shard.search(&search("w/", b"", 2));
    assert_eq!(names(&first), ["w/1", "w/2"]);
    assert_eq!(first.next, Some(id("w/2")));
    assert_eq!((first.objects[1].copies, first.objects[1].complete), (2, 2));
    let second = world.shard.search(&search("w/", b"w/2", 2));
    assert_eq!((names(&second), second.next), (vec!["w/3".to_owned(), "w/small".to_owned()], None));
    assert_eq!(names(&world.shard.search(&search("", b"w/3", 9))), ["w/small", "x"]);
    let large = world.shard.search(&ObjectSearch { min_size_bytes: 5, ..search("w/", b"", 9) });
    assert_eq!(names(&large), ["w/1", "w/2", "w/3"]);
    let many = world.shard.search(&ObjectSearch { min_copies: 2, ..search("", b"", 9) });
    assert_eq!(names(&many), ["w/2"]);
    assert_eq!(names(&world.shard.search(&search("none", b"", 9))), Vec::<String>::new());
}

#[test]
fn a_search_with_few_matches_ends_and_returns_where_to_continue() {
    let mut world = World::with_nodes(&["a"]);
    let mut effects = Vec::new();
    for number in 0..MAX_EXAMINED + 5 {
        let publish = Publish { wants_answer: false, ..complete(&format!("{number:06}"), 1) };
        let message = ToShard::Publish(publish);
        world.shard.apply(world.now, Event::Message { node: node("a"), message }, &mut effects);
    }
    let nothing = ObjectSearch { min_copies: 2, ..search("", b"", 10) };
    let found = world.shard.search(&nothing);
    assert_eq!(found.objects, []);
    let next = found.next.unwrap();
    assert_eq!(next, id(&format!("{:06}", MAX_EXAMINED - 1)));
    let rest = world.shard.search(&ObjectSearch {
        after: next.as_bytes().to_vec(),
        min_copies: 0,
        ..nothing
    });
    assert_eq!((rest.objects.len(), rest.next), (5, None));
}

#[test]
fn nodes_come_in_pages_by_name() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    world.send("b", ToShard::Publish(complete("x", 1)));
    world.disconnect("c", 1);
    let (page, more) = world.shard.node_overviews("", 2);
    assert_eq!(
        (page[0].node.as_str(), page[1].node.as_str(), page[1].copies, more),
        ("a", "b", 1, true)
    );
    let (page, more) = world.shard.node_overviews("b", 2);
    assert_eq!((page.len(), page[0].connected, more), (1, false, false));
    assert_eq!(world.shard.node_counts(), (2, 1));
    assert_eq!(world.shard.shard_list().unwrap().names().collect::<Vec<_>>(), ["shard:1"]);
}

#[test]
fn a_grant_counts_the_complete_copies_of_connected_stores() {
    let mut world = World::with_nodes(&["a", "b", "c", "d"]);
    for holder in ["a", "b"] {
        world.send(holder, ToShard::Publish(complete("x", 1)));
    }
    let counted_for = |world: &mut World, receiver| {
        let answers = world.send_and_collect(receiver, ToShard::Query(query("x", 1)));
        let [(_, ToStore::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
        grant.complete_copies
    };
    assert_eq!(counted_for(&mut world, "c"), 2);
    world.disconnect("b", 1);
    assert_eq!(counted_for(&mut world, "d"), 1);
}

#[test]
fn a_broadcast_is_a_tree_with_reasons() {
    let mut world = World::with_nodes(&["a", "b", "c"]);
    world.send("a", ToShard::Publish(complete("x", 1)));
    for (receiver, sender) in [("b", "a"), ("c", "b")] {
        let answers = world.send_and_collect(receiver, ToShard::Query(query("x", 1)));
        let [(_, ToStore::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(grant.sender, node(sender));
    }
    let ObjectTree { object, copies, grants } = world.shard.object_tree(&id("x"));
    let object = object.unwrap();
    assert_eq!((object.copies, object.complete, object.transfers, object.pinned), (3, 1, 2, true));
    let senders: Vec<_> =
        copies.iter().map(|copy| copy.sender.as_ref().map(NodeId::as_str)).collect();
    assert_eq!(senders, [None, Some("a"), Some("b")]);
    let reasons: Vec<_> = copies.iter().filter_map(|copy| Some(copy.grant?.0)).collect();
    assert_eq!(reasons, grants.iter().map(|grant| grant.reason).collect::<Vec<_>>());
    assert_eq!(world.shard.busiest_objects(10), [object]);
    assert_eq!(world.shard.object_tree(&id("none")).object, None);
}

#[test]
fn losses_are_remembered_and_bounded() {
    let mut world = World::with_nodes(&["a"]);
    for number in 0..300 {
        let name = format!("{number:03}");
        world.send("a", ToShard::Publish(complete(&name, 1)));
        let reason = UnpublishReason::Evicted;
        world.send("a", ToShard::Unpublish { id: id(&name), put: PutId(1), reason });
    }
    let losses = world.shard.losses();
    assert_eq!((losses.len(), &losses[255].id), (256, &id("299")));
    let found = world.shard.search(&search("299", b"", 1));
    assert!(found.objects[0].lost);
}
