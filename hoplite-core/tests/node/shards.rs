use std::time::Duration;

use hoplite_core::error::Missing;
use hoplite_core::link::Uplink;
use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::placement::ShardList;
use hoplite_core::session::LEASE;
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, DropReason, LocationState, Placed, PullOutcome, RequestId, ShardRun,
    ToShard, ToStore, Verdict,
};
use hoplite_core::{Error, Metadata, Operation, PutId, Time, Version};

use crate::harness::*;

fn ranked(h: &Harness) -> [usize; 3] {
    h.shards.ranked(&id("x")).try_into().expect("there are three shards")
}

#[test]
fn a_copy_is_published_at_the_first_two_shards() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    h.create(A, "x", SIZE);
    assert_eq!(
        h.told(),
        [format!("{first} publish x Producing"), format!("{second} publish x Producing")]
    );
}

#[test]
fn when_a_shard_is_lost_the_next_one_learns_of_the_copies() {
    let mut h = Harness::with_shards(3);
    let [first, _, third] = ranked(&h);
    h.put(A, "x", SIZE);
    h.sent();
    h.event(Event::ShardDown { shard: first });
    assert_eq!(h.told(), [format!("{third} publish x Complete")]);
}

#[test]
fn when_a_shard_returns_it_learns_of_the_copies() {
    let mut h = Harness::with_shards(3);
    let [first, ..] = ranked(&h);
    h.put(A, "x", SIZE);
    h.put(A, "tiny", SMALL);
    let call = h.create(A, "unsealed", SMALL);
    h.view(call);
    h.event(Event::ShardDown { shard: first });
    h.sent();
    h.event(up(first));
    let told = h.told();
    assert!(told.contains(&format!("{first} publish x Complete")), "{told:?}");
    assert!(!told.iter().any(|line| line.contains("unsealed")), "{told:?}");
}

#[test]
fn a_query_moves_to_the_next_shard_and_back() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    let call = h.get(A, "x");
    assert_eq!(h.told(), [format!("{first} query x")]);
    h.event(Event::ShardDown { shard: first });
    assert_eq!(h.told(), [format!("{second} query x")]);
    h.event(up(first));
    assert_eq!(
        h.told(),
        Vec::<String>::new(),
        "other stores may have to tell the shard of a delete"
    );
    h.pass(SETTLING);
    assert_eq!(h.told(), [format!("{second} cancel"), format!("{first} query x")]);
    h.assert_waits(call);
}

#[test]
fn a_shard_that_was_away_answers_no_get_while_another_one_decides() {
    let mut h = Harness::with_shards(2);
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    h.event(Event::ShardDown { shard: first });
    h.event(up(first));
    h.get(A, "x");
    assert_eq!(h.told(), [format!("{second} query x")]);
    h.event(Event::ShardDown { shard: second });
    assert_eq!(h.told(), [format!("{first} query x")], "it is the only one");
}

#[test]
fn a_shard_that_was_away_hands_no_object_over_while_another_one_decides() {
    let mut h = Harness::with_shards(2);
    let [first, _] = h.shards.ranked(&id("x")).try_into().unwrap();
    h.event(Event::ShardDown { shard: first });
    h.event(up(first));
    for is_taken in [false, true] {
        let bytes = bytes::Bytes::from_static(b"bytes").into();
        let message =
            ToStore::TakeOver { id: id("x"), put: PutId(5), metadata: Metadata::default(), bytes };
        h.event(Event::FromShard { shard: first, message });
        assert_eq!(!h.told().is_empty(), is_taken);
        h.pass(SETTLING);
    }
}

#[test]
fn a_query_waits_for_the_first_shard_to_connect() {
    let mut h = Harness::disconnected(3, limits());
    let call = h.get(A, "x");
    assert_eq!(h.told(), Vec::<String>::new());
    h.event(up(2));
    assert_eq!(h.told(), ["2 query x"]);
    h.assert_waits(call);
}

#[test]
fn an_answer_of_a_shard_that_is_no_longer_asked_returns_its_slot() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    h.get(A, "x");
    h.event(Event::ShardDown { shard: first });
    h.sent();
    h.event(up(first));
    h.pass(SETTLING);
    let request = match &h.sent()[..] {
        [(_, ToShard::Cancel { request }), _] => *request,
        other => panic!("{other:?}"),
    };
    assert_eq!(h.grant_query(second, request, "x", 5, SIZE, "n1"), None);
    assert_eq!(h.told(), [format!("{second} return Cancelled")]);
}

#[test]
fn a_confirmed_seal_waits_for_a_shard() {
    for size_bytes in [SMALL, SIZE] {
        let mut h = Harness::disconnected(2, limits());
        let call = h.create(A, "x", size_bytes);
        let view = h.view(call);
        let sealed = h.seal(A, view.copy);
        h.assert_waits(sealed);
        h.event(up(1));
        h.assert_waits(sealed);
        h.accept_all();
        assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    }
}

#[test]
fn a_confirmed_seal_fails_if_no_shard_comes() {
    let mut h = Harness::disconnected(2, limits());
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let sealed = h.seal(A, view.copy);
    h.pass(LONG);
    let error = h.error(sealed);
    assert!(matches!(error, Error::Timeout { operation: Operation::Put, .. }), "{error:?}");
    assert!(error.is_retryable());
}

#[test]
fn what_a_shard_has_accepted_counts_only_while_it_decides() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let publications = h.publications();
    let of = |shard: usize| publications.iter().find(|(at, _)| *at == shard).unwrap().1.clone();
    h.verdict(first, &of(first), Verdict::Accepted);
    h.event(Event::ShardDown { shard: first });
    let sealed = h.seal(A, view.copy);
    h.assert_waits(sealed);
    h.verdict(second, &of(second), Verdict::Accepted);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn a_shard_that_returns_has_accepted_nothing() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    h.accept_all();
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    let sealed = h.seal(A, view.copy);
    h.assert_waits(sealed);
    h.accept_all();
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn a_seal_waits_when_the_last_shard_is_lost() {
    let mut h = Harness::with_shards(2);
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    h.accept_all();
    h.event(Event::ShardDown { shard: 0 });
    h.event(Event::ShardDown { shard: 1 });
    let sealed = h.seal(A, view.copy);
    h.assert_waits(sealed);
    h.event(up(1));
    h.accept_all();
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn a_seal_counts_what_the_next_shard_has_accepted() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let (at, publish) = h.publications().pop().expect("two shards are told");
    assert_eq!(at, second);
    h.verdict(second, &publish, Verdict::Accepted);
    let sealed = h.seal(A, view.copy);
    h.assert_waits(sealed);
    h.event(Event::ShardDown { shard: first });
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn a_pull_survives_the_loss_of_the_shard_that_granted_it() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    let (_, publish) = h.publications().pop().expect("the new session learns of the partial copy");
    assert_eq!(publish.pulling_from, Some(node_id("n1")));
    h.sent();
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    let sent = h.sent();
    let [(0, ToShard::Publish(publish))] = &sent[..] else {
        panic!("expected one publication: {sent:?}")
    };
    assert_eq!(publish.state, LocationState::Complete);
    assert_eq!(publish.slot, None, "a slot of the old session is not returned to the new one");
    h.assert_waits(call);
    h.verdict(0, publish, Verdict::Accepted);
    h.view(call);
}

#[test]
fn a_delete_moves_with_its_shard_and_tells_the_second_one() {
    let mut h = Harness::with_shards(3);
    let [first, second, third] = ranked(&h);
    let call = h.delete(A, &["x"]);
    assert_eq!(h.told(), [format!("{first} delete x")]);
    h.event(Event::ShardDown { shard: first });
    let request = match &h.sent()[..] {
        [(shard, ToShard::Delete { request, .. })] if *shard == second => *request,
        other => panic!("{other:?}"),
    };
    let done = ToStore::DeleteDone { request, put: Some(PutId(5)), absent: Named::of([]) };
    h.event(Event::FromShard { shard: first, message: done.clone() });
    h.assert_waits(call);
    h.event(Event::FromShard { shard: second, message: done.clone() });
    assert_eq!(h.told(), [format!("{third} delete x")], "the second shard now");
    h.assert_waits(call);
    h.event(Event::FromShard { shard: third, message: done });
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

fn delete_at(h: &mut Harness, shard: usize) -> (RequestId, DeleteTerms) {
    let sent = h.sent();
    let deletes = sent.iter().filter_map(|(at, message)| match message {
        ToShard::Delete { request, terms, .. } => Some((*at, *request, *terms)),
        _ => None,
    });
    match deletes.collect::<Vec<_>>()[..] {
        [(at, request, terms)] if at == shard => (request, terms),
        ref other => panic!("{other:?} in {sent:?}"),
    }
}

fn deleted(h: &mut Harness, shard: usize, request: RequestId, put: Option<u64>) {
    let message = ToStore::DeleteDone { request, put: put.map(PutId), absent: Named::of([]) };
    h.event(Event::FromShard { shard, message });
}

#[test]
fn a_delete_is_answered_after_both_shards_of_the_id() {
    let mut h = Harness::with_shards(3);
    let [first, second, third] = ranked(&h);
    let call = h.delete(A, &["x"]);
    let (request, terms) = delete_at(&mut h, first);
    assert_eq!(terms, DeleteTerms::default());
    deleted(&mut h, first, request, Some(5));
    h.assert_waits(call);
    let sent = h.sent();
    let terms = DeleteTerms { only: Some(PutId(5)), ..DeleteTerms::default() };
    assert!(sent.contains(&(second, ToShard::Delete { request, id: id("x"), terms })), "{sent:?}");
    assert!(sent.contains(&(third, ToShard::Forget { id: id("x"), put: PutId(5) })), "{sent:?}");
    h.event(Event::ShardDown { shard: second });
    let (request, terms) = delete_at(&mut h, first);
    assert_eq!(terms.only, Some(PutId(5)));
    deleted(&mut h, first, request, None);
    let (request, terms) = delete_at(&mut h, third);
    assert_eq!(terms.only, Some(PutId(5)));
    h.assert_waits(call);
    deleted(&mut h, third, request, None);
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

#[test]
fn a_delete_finds_an_object_that_only_the_second_shard_knows() {
    let mut h = Harness::with_shards(2);
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    let call = h.delete(A, &["x"]);
    let (request, _) = delete_at(&mut h, first);
    deleted(&mut h, first, request, None);
    let (request, _) = delete_at(&mut h, second);
    deleted(&mut h, second, request, Some(5));
    assert_eq!(h.told(), [format!("{first} forget x")]);
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

#[test]
fn a_delete_names_the_lost_stores_of_both_shards() {
    let mut h = Harness::with_shards(2);
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    let call = h.delete(A, &["x"]);
    let (request, _) = delete_at(&mut h, first);
    for (shard, absent) in [(first, "one"), (second, "two")] {
        h.assert_waits(call);
        let absent = Named::of([node_id(absent)]);
        let message = ToStore::DeleteDone { request, put: Some(PutId(5)), absent };
        h.event(Event::FromShard { shard, message });
    }
    assert_eq!(h.told(), [format!("{second} delete x")], "the first shard is told nothing twice");
    let absent = Named::of([node_id("one"), node_id("two")]);
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent })));
}

#[test]
fn a_delete_that_waits_for_all_names_the_lost_stores_at_its_timeout() {
    let mut h = Harness::with_shards(1);
    let absent = || Named::of([node_id("absent")]);
    let delete = |wait| Request::Delete { ids: vec![id("x")], timeout: LONG, wait };
    let call = h.request(A, delete(DeleteWait::Reachable));
    let (request, _) = delete_at(&mut h, 0);
    let done = |request, absent| ToStore::DeleteDone { request, put: Some(PutId(5)), absent };
    h.event(Event::FromShard { shard: 0, message: done(request, absent()) });
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: absent() })));
    let answered = h.request(A, delete(DeleteWait::All));
    let (request, _) = delete_at(&mut h, 0);
    h.event(Event::FromShard { shard: 0, message: done(request, absent()) });
    h.assert_waits(answered);
    h.event(Event::FromShard { shard: 0, message: done(request, Named::of([])) });
    assert_eq!(h.answer(answered), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
    let late = h.request(A, delete(DeleteWait::All));
    let (request, _) = delete_at(&mut h, 0);
    h.event(Event::FromShard { shard: 0, message: done(request, absent()) });
    h.pass(LONG);
    let Error::Timeout { missing: Some(missing), .. } = h.error(late) else { panic!("no timeout") };
    assert_eq!(*missing, Missing::Stores { nodes: absent() });
}

fn restarted(shard: usize) -> Event {
    Event::ShardUp { shard, run: ShardRun(2), asked_at: Time::NEVER, version: Version::NEWEST }
}

#[test]
fn a_restarted_shard_decides_again_once_all_leases_of_its_earlier_run_have_ended() {
    let mut h = Harness::with_shards(2);
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    let call = h.get(A, "x");
    h.event(Event::ShardDown { shard: first });
    h.event(restarted(first));
    assert_eq!(h.told(), [format!("{first} query x"), format!("{second} query x")]);
    h.pass(LEASE - Duration::from_millis(1));
    assert_eq!(h.told(), Vec::<String>::new());
    h.pass(Duration::from_millis(1));
    assert_eq!(h.told(), [format!("{second} cancel"), format!("{first} query x")]);
    h.assert_waits(call);
}

#[test]
fn a_delete_at_the_only_shard_waits_for_the_leases_of_its_earlier_run() {
    let mut h = Harness::with_shards(1);
    h.event(Event::ShardDown { shard: 0 });
    h.event(restarted(0));
    let (call, late) = (h.delete(A, &["x"]), h.request(A, short_delete()));
    let requests: Vec<RequestId> = h.sent().iter().filter_map(delete_number).collect();
    for request in requests {
        deleted(&mut h, 0, request, Some(5));
    }
    h.pass(LEASE - Duration::from_millis(1));
    h.assert_waits(call);
    assert!(h.error(late).to_string().contains("shard-0"), "the error names the shard");
    h.pass(Duration::from_millis(1));
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

fn short_delete() -> Request {
    let timeout = Duration::from_secs(1);
    Request::Delete { ids: vec![id("y")], timeout, wait: DeleteWait::Reachable }
}

const fn delete_number((_, message): &(usize, ToShard)) -> Option<RequestId> {
    match message {
        ToShard::Delete { request, .. } => Some(*request),
        _ => None,
    }
}

#[test]
fn a_shard_that_was_away_hears_of_deletions_when_it_returns() {
    let mut h = Harness::with_shards(2);
    h.event(Event::ShardDown { shard: 0 });
    h.drop_put(1, "x", PutId(5), DropReason::Deleted);
    h.sent();
    h.pass(Duration::from_secs(3600));
    h.drop_put(1, "y", PutId(6), DropReason::Deleted);
    h.sent();
    h.event(up(0));
    assert_eq!(h.told(), ["0 forget x", "0 forget y"]);
    h.pass(Duration::from_secs(31));
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    assert_eq!(h.told(), Vec::<String>::new(), "the shard has heard of them");
}

#[test]
fn a_shard_that_was_away_hears_of_what_was_given_up() {
    let mut h = Harness::with_shards(2);
    let call = h.create(A, "x", SIZE);
    let copy = h.view(call).copy;
    h.event(Event::ShardDown { shard: 0 });
    h.request(A, Request::Abort { copy });
    h.put(B, "x", SIZE);
    h.sent();
    h.event(up(0));
    assert_eq!(
        h.told(),
        ["0 unpublish x Aborted", "0 publish x Complete"],
        "or it would see a conflict"
    );
}

#[test]
fn a_shard_that_does_not_exist_is_ignored() {
    let mut h = Harness::new();
    h.event(up(7));
    h.event(Event::ShardDown { shard: 7 });
    h.drop_put(7, "x", PutId(5), DropReason::Deleted);
    assert_eq!(h.told(), Vec::<String>::new());
}

#[test]
fn shutdown_answers_calls_and_withdraws_everything() {
    let mut h = Harness::new();
    let written = h.create(A, "written", SIZE);
    let written = h.view(written);
    h.put(A, "complete", SIZE);
    let get = h.get(B, "pulled");
    let pull = h.grant("pulled", 5, SIZE, "n1");
    let waiting = h.create(B, "written", SIZE);
    let subscription = h.request(B, Request::Subscribe { id: id("x") });
    h.sent();
    h.event(Event::ShutDown);
    for call in [get, waiting, subscription] {
        assert_eq!(h.error(call), Error::ShuttingDown);
    }
    let told = h.told();
    for line in [
        "0 unpublish written Aborted",
        "0 unpublish complete Evicted",
        "0 unpublish pulled PullEnded",
    ] {
        assert!(told.iter().any(|other| other == line), "{line}: {told:?}");
    }
    let late = h.get(B, "x");
    assert_eq!(h.error(late), Error::ShuttingDown);
    h.pull_ended(&pull, SIZE, PullOutcome::Cancelled);
    h.release(A, written.copy);
    h.gone(A);
    h.pass(Duration::from_secs(100));
    h.assert_empty();
}

#[test]
fn a_delete_stays_at_the_shard_that_performs_it() {
    let mut h = Harness::with_shards(3);
    let [first, second, _] = ranked(&h);
    let call = h.delete(A, &["x"]);
    h.event(Event::ShardDown { shard: first });
    assert_eq!(h.told(), [format!("{first} delete x"), format!("{second} delete x")]);
    h.event(up(first));
    assert_eq!(
        h.told(),
        Vec::<String>::new(),
        "only the second shard may know that there was an object"
    );
    h.assert_waits(call);
    h.event(Event::ShardDown { shard: second });
    assert_eq!(h.told(), [format!("{first} delete x")]);
}

#[test]
fn the_end_of_a_deletion_that_nobody_asked_for_ends_no_question() {
    let mut h = Harness::new();
    let get = h.get(A, "x");
    let (shard, query) = h.query();
    h.event(Event::FromShard {
        shard,
        message: ToStore::DeleteDone { request: query.request, put: None, absent: Named::of([]) },
    });
    assert!(
        h.grant_query(shard, query.request, "x", 1, SIZE, "sender").is_some(),
        "the answer still counts"
    );
    h.assert_waits(get);
}

#[test]
fn shards_that_have_not_heard_where_a_node_is_hear_it_from_the_node() {
    let mut h = Harness::with_shards(3);
    h.event(Event::ShardDown { shard: 2 });
    let place = |version, rack, permille| {
        let (path, uplink) = ([0, 0, rack, 0], Uplink::measured(permille));
        ToStore::Placed(Placed { version, path, uplink })
    };
    let mut said = |shard, message| {
        h.event(Event::FromShard { shard, message });
        h.told()
    };
    assert_eq!(said(0, place(5, 1, 250)), ["1 placed 5 [0, 0, 1, 0]"]);
    for known in [place(5, 1, 250), place(4, 2, 100), place(5, 0, 0)] {
        assert_eq!(said(1, known), Vec::<String>::new());
    }
    h.event(up(2));
    assert_eq!(h.told(), ["2 placed 5 [0, 0, 1, 0]"]);
    h.event(Event::FromShard { shard: 2, message: place(6, 0, 0) });
    assert_eq!(h.told(), ["0 placed 6 [0, 0, 0, 0]", "1 placed 6 [0, 0, 0, 0]"]);
    h.event(Event::FromShard { shard: 1, message: place(6, 3, 250) });
    assert_eq!(h.told(), ["0 placed 6 [0, 0, 3, 0]", "2 placed 6 [0, 0, 3, 0]"]);
    assert_eq!(h.node.status().place.version, 6);
}

#[test]
fn shards_hear_which_links_are_slow_and_those_that_come_later_too() {
    let mut h = Harness::with_shards(2);
    h.event(Event::ShardDown { shard: 1 });
    h.event(Event::SlowLinks { peers: vec![hoplite_core::id::NodeId::new("n5").unwrap()] });
    assert_eq!(h.told(), ["0 slow links [NodeId(n5)]"]);
    h.event(up(1));
    assert_eq!(h.told(), ["1 slow links [NodeId(n5)]"]);
    h.event(Event::SlowLinks { peers: Vec::new() });
    assert_eq!(h.told(), ["0 slow links []", "1 slow links []"]);
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    assert_eq!(h.told(), Vec::<String>::new());
}

fn listed(version: u64, shards: &[usize]) -> ShardList {
    ShardList::new(shards.iter().map(|shard| format!("shard-{shard}"))).with_version(version)
}

impl Harness {
    fn learn(&mut self, shard: usize, list: ShardList) {
        self.event(Event::FromShard { shard, message: ToStore::Shards(list) });
    }

    /// Returns the added and left shards of the only `ShardsChanged`.
    fn change(&mut self) -> (Vec<usize>, Vec<usize>) {
        let changes: Vec<_> = self
            .effects
            .drain(..)
            .filter_map(|effect| match effect {
                Effect::ShardsChanged { added, left } => Some((added, left)),
                _ => None,
            })
            .collect();
        let [change] = changes.try_into().expect("the list has changed once");
        change
    }
}

/// Returns an id whose first shard is `first`, by the present list.
fn id_of(h: &Harness, first: usize) -> String {
    let names = (0..100).map(|number| format!("id-{number}"));
    let mut ranked = names.filter(|name| h.node.shards().ranked(&id(name))[0] == first);
    ranked.next().expect("ids spread over all shards")
}

#[test]
fn copies_and_queries_move_to_a_shard_that_joins_once_it_has_settled() {
    let mut h = Harness::with_shards(2);
    h.learn(0, listed(1, &[0, 1, 2]));
    assert_eq!(h.change(), (vec![2], vec![]));
    let list = "shard-0, shard-1, shard-2 (version 1)";
    assert_eq!(h.told(), [format!("0 shards {list}"), format!("1 shards {list}")]);
    let name = id_of(&h, 2);
    h.put(A, &name, SIZE);
    h.sent();
    h.event(up(2));
    let told = h.told();
    assert_eq!(told[0], format!("2 shards {list}"), "the shard may not know it");
    assert!(told.contains(&format!("2 publish {name} Complete")), "{told:?}");
    let unknown = (0..100).map(|number| format!("get-{number}"));
    let mut unknown = unknown;
    let unknown = unknown.find(|name| h.node.shards().ranked(&id(name))[0] == 2).unwrap();
    let call = h.get(A, &unknown);
    let first = h.node.shards().ranked(&id(&unknown))[1];
    assert_eq!(h.told(), [format!("{first} query {unknown}")], "the new shard lacks copies");
    h.pass(LEASE);
    assert_eq!(h.told(), [format!("{first} cancel"), format!("2 query {unknown}")]);
    h.assert_waits(call);
}

#[test]
fn copies_and_queries_leave_a_removed_shard_at_once() {
    let mut h = Harness::with_shards(3);
    let [first, second, third] = ranked(&h);
    h.put(A, "x", SIZE);
    let delete = h.delete(A, &["x"]);
    let (request, _) = delete_at(&mut h, first);
    let get = h.get(A, "x2");
    h.sent();
    let stay: Vec<usize> = (0..3).filter(|shard| *shard != first).collect();
    h.learn(second, listed(1, &stay));
    let told = h.told();
    assert!(told.contains(&format!("{third} publish x Complete")), "{told:?}");
    assert!(
        !told.iter().any(|line| line.contains("delete")),
        "the shard goes on with it: {told:?}"
    );
    h.assert_waits(get);
    deleted(&mut h, first, request, Some(1));
    let (request, _) = delete_at(&mut h, second);
    deleted(&mut h, second, request, Some(1));
    assert_eq!(h.answer(delete), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
    h.event(Event::FromShard {
        shard: first,
        message: ToStore::Promote { id: id("x"), put: PutId(1) },
    });
    assert_eq!(h.told(), Vec::<String>::new(), "what it remembers may be deleted");
    h.effects.clear();
    h.pass(SETTLING);
    assert_eq!(h.change(), (vec![], vec![first]));
    h.sent();
    h.event(Event::ShardDown { shard: first });
    h.event(up(first));
    assert_eq!(h.told(), Vec::<String>::new(), "the removed shard hears nothing");
    h.event(Event::ShardFailed { shard: first, error: Error::unavailable("it") });
    assert!(h.troubles().shards.is_empty(), "nobody misses a removed shard");
}

#[test]
fn only_a_newer_list_counts() {
    let mut h = Harness::with_shards(2);
    h.learn(0, listed(2, &[0, 1, 2]));
    h.sent();
    h.effects.clear();
    for list in [listed(0, &[0]), listed(1, &[0]), listed(2, &[0, 1])] {
        h.learn(1, list);
    }
    assert_eq!(h.told(), Vec::<String>::new());
    assert!(!h.effects.iter().any(|effect| matches!(effect, Effect::ShardsChanged { .. })));
    assert_eq!(h.node.shards().list(), listed(2, &[0, 1, 2]));
}
