use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{DropReason, PullOutcome, ToStore, Verdict};
use hoplite_core::{Dtype, Error, ObjectId, PutId};

use crate::harness::*;
use crate::reducing::*;

fn hop(number: u64, inputs: Vec<HopInput>) -> Hop {
    Hop {
        output: ObjectId::of_hop(PutId(number)),
        put: PutId(number),
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        size_bytes: SIZE,
        offset_bytes: 0,
        inputs,
        timeout: Duration::from_secs(5),
    }
}

fn remote(name: &str, put: u64, node: &str) -> HopInput {
    HopInput {
        id: id(name),
        put: PutId(put),
        size_bytes: SIZE,
        base_bytes: 0,
        node: node_id(node),
        address: address(node),
        is_hop: false,
    }
}

fn local(name: &str, view: &ObjectView) -> HopInput {
    HopInput { size_bytes: view.size_bytes, ..remote(name, view.put.0, "here") }
}

fn stream(number: u64, node: &str) -> HopInput {
    HopInput { id: ObjectId::of_hop(PutId(number)), is_hop: true, ..remote("hop", number, node) }
}

fn ask_for_output(h: &mut Harness, number: u64) -> ServeId {
    h.ask_to_serve(ObjectId::of_hop(PutId(number)), PutId(number), true)
}

fn delete(h: &mut Harness, name: &str, view: &ObjectView) {
    h.drop_put(0, name, view.put, DropReason::Deleted);
}

#[test]
fn a_hop_combines_what_is_here_with_what_comes() {
    let mut h = Harness::new();
    let b = h.put_f32("b", SIZE);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), local("b", &b)]));
    let combine = h.combine();
    assert_eq!(h.inputs(&combine), ["a at n1", "b here"]);
    assert_eq!(h.report(hosting), None);
    h.combined(&combine);
    assert_eq!(h.report(hosting), Some(HopReport::Complete));
    assert!(!h.is_closed(combine.copy), "it is needed until it is released");
    h.release_hop(hosting);
    assert!(h.is_closed(combine.copy));
    delete(&mut h, "b", &b);
    h.assert_empty();
}

#[test]
fn a_hop_begins_where_its_coordinator_says() {
    let mut h = Harness::new();
    h.host(Hop { offset_bytes: 8192, ..hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]) });
    assert_eq!(h.combine().offset_bytes, 8192);
}

#[test]
fn the_directory_never_hears_of_a_hop() {
    let mut h = Harness::with_shards(3);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let combine = h.combine();
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    h.combined(&combine);
    h.event(Event::ShardDown { shard: 1 });
    h.event(up(1));
    h.release_hop(hosting);
    h.pass(SETTLING);
    assert_eq!(h.told(), Vec::<String>::new());
    h.assert_empty();
}

#[test]
fn the_output_is_served_while_it_grows_also_to_those_who_came_before() {
    let mut h = Harness::new();
    let early = ask_for_output(&mut h, 1);
    assert!(!h.is_served(early));
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    assert!(h.is_served(early));
    let late = ask_for_output(&mut h, 1);
    assert!(h.is_served(late));
    let combine = h.combine();
    h.combined(&combine);
    h.release_hop(hosting);
    assert!(
        h.is_failed(combine.copy) && !h.is_closed(combine.copy),
        "it is read until the serves have ended"
    );
    h.event(Event::ServeEnded { serve: early });
    h.event(Event::ServeEnded { serve: late });
    h.assert_empty();
}

#[test]
fn a_serve_that_ends_before_its_hop_begins_is_forgotten() {
    let mut h = Harness::new();
    let serve = ask_for_output(&mut h, 1);
    h.event(Event::ServeEnded { serve });
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    assert!(!h.is_served(serve));
    let combine = h.combine();
    h.combined(&combine);
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_hop_that_is_released_early_keeps_its_memory_until_it_has_stopped() {
    let mut h = Harness::new();
    let b = h.put_f32("b", SIZE);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), local("b", &b)]));
    let combine = h.combine();
    h.release_hop(hosting);
    assert!(h.is_cancelled_combine(&combine) && !h.is_closed(combine.copy));
    delete(&mut h, "b", &b);
    assert!(!h.is_closed(b.copy), "it is still read");
    h.stop(&combine, 4096);
    assert!(h.is_closed(b.copy));
    h.assert_empty();
}

#[test]
fn a_release_that_crosses_the_end_of_the_hop_is_harmless() {
    let mut h = Harness::new();
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let combine = h.combine();
    h.release_hop(hosting);
    h.combined(&combine);
    assert_eq!(h.report(hosting), None, "nobody waits for it");
    h.assert_empty();
}

#[test]
fn an_input_that_fails_is_reported_by_its_place() {
    let mut h = Harness::new();
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let combine = h.combine();
    let outcome = PullOutcome::SenderUnreachable;
    h.combine_ended(&combine, 4096, CombineOutcome::InputFailed { index: 1, outcome });
    assert_eq!(h.report(hosting), Some(HopReport::Failed(HopFailure::Input { index: 1, outcome })));
    assert!(h.is_closed(combine.copy), "its bytes are of no use");
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_local_input_that_is_missing_is_reported_once() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    let other = HopInput { put: PutId(a.put.0 ^ 1), ..local("a", &a) };
    for missing in [remote("b", 6, "here"), other] {
        let hosting = h.host(hop(1, vec![local("a", &a), missing]));
        let outcome = PullOutcome::SenderHasNoCopy;
        assert_eq!(
            h.report(hosting),
            Some(HopReport::Failed(HopFailure::Input { index: 1, outcome }))
        );
        assert!(h.has_no_combine());
        h.pass(Duration::from_secs(10));
        assert_eq!(h.report(hosting), None, "nothing comes after a failure");
        h.release_hop(hosting);
    }
    delete(&mut h, "a", &a);
    h.assert_empty();
}

#[test]
fn a_local_input_that_is_shorter_than_the_coordinator_says_is_missing() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE / 2);
    let hosting =
        h.host(hop(1, vec![remote("b", 6, "n1"), HopInput { size_bytes: SIZE, ..local("a", &a) }]));
    let outcome = PullOutcome::SenderHasNoCopy;
    assert_eq!(h.report(hosting), Some(HopReport::Failed(HopFailure::Input { index: 1, outcome })));
}

#[test]
fn a_local_input_is_combined_while_it_is_written() {
    let mut h = Harness::new();
    let a = h.create_f32(B, "a", SIZE);
    let hosting = h.host(hop(1, vec![remote("b", 6, "n1"), local("a", &a)]));
    let combine = h.combine();
    assert_eq!(h.inputs(&combine), ["b at n1", "a here"]);
    h.gone(B);
    assert!(h.is_failed(a.copy) && !h.is_closed(a.copy));
    let outcome = PullOutcome::SenderHasNoCopy;
    h.combine_ended(&combine, 4096, CombineOutcome::InputFailed { index: 1, outcome });
    assert_eq!(h.report(hosting), Some(HopReport::Failed(HopFailure::Input { index: 1, outcome })));
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_local_input_is_not_evicted_while_it_is_combined() {
    let mut h = Harness::new();
    let a = h.fetch_f32("a", 5);
    let hosting = h.host(hop(1, vec![remote("b", 6, "n1"), local("a", &a)]));
    let combine = h.combine();
    assert_eq!(h.node.status().evictable_bytes, 0);
    h.combined(&combine);
    assert_eq!(h.node.status().evictable_bytes, a.extent.length_bytes);
    h.release_hop(hosting);
}

#[test]
fn two_hops_of_one_node_stream_from_each_other() {
    let mut h = Harness::new();
    let first = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let one = h.combine();
    let second = h.host(hop(2, vec![stream(1, "here"), remote("c", 7, "n3")]));
    let other = h.combine();
    assert_eq!(h.inputs(&other), ["hop here", "c at n3"]);
    assert_eq!(other.inputs[0], CombineInput::Local { copy: one.copy, base_bytes: 0 });
    h.combined(&one);
    h.release_hop(first);
    assert!(!h.is_closed(one.copy), "the other hop reads it");
    h.combined(&other);
    h.release_hop(second);
    h.assert_empty();
}

#[test]
fn a_hop_that_begins_before_the_one_that_it_takes_in_waits_for_it() {
    let mut h = Harness::new();
    h.host(hop(2, vec![stream(1, "here"), remote("c", 7, "n3")]));
    let other = h.combine();
    assert!(matches!(&other.inputs[0], CombineInput::Remote(input) if input.is_hop));
    let serve = ask_for_output(&mut h, 1);
    h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    assert!(h.is_served(serve));
}

#[test]
fn a_hop_waits_for_room_and_so_do_those_who_take_it_in() {
    let mut h = Harness::new();
    let all = h.put_f32("all", CAPACITY - 64);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let serve = ask_for_output(&mut h, 1);
    assert!(h.has_no_combine() && !h.is_served(serve));
    h.pass(Duration::from_secs(4));
    delete(&mut h, "all", &all);
    let combine = h.combine();
    assert!(h.is_served(serve));
    h.pass(Duration::from_secs(4));
    assert_eq!(h.report(hosting), None, "the deadline was one for room");
    h.combined(&combine);
    assert_eq!(h.report(hosting), Some(HopReport::Complete));
    h.event(Event::ServeEnded { serve });
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_hop_that_finds_no_room_is_refused_at_its_deadline() {
    let mut h = Harness::new();
    let all = h.put_f32("all", CAPACITY - 64);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    h.pass(Duration::from_secs(5));
    match h.report(hosting) {
        Some(HopReport::Failed(HopFailure::Refused(Error::StoreFull { needed_bytes, .. }))) => {
            assert_eq!(needed_bytes, SIZE + 64);
        }
        other => panic!("{other:?}"),
    }
    delete(&mut h, "all", &all);
    assert!(h.has_no_combine(), "nobody waits for it any more");
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_hop_that_is_released_while_it_waits_for_room_leaves_nothing() {
    let mut h = Harness::new();
    let all = h.put_f32("all", CAPACITY - 64);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    h.release_hop(hosting);
    delete(&mut h, "all", &all);
    assert!(h.has_no_combine());
    h.assert_empty();
}

#[test]
fn a_hop_evicts_what_may_be_evicted() {
    let mut h = Harness::new();
    for number in 0..10 {
        h.fetch_f32(&number.to_string(), 100 + number);
    }
    h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    h.combine();
    assert_eq!(h.node.status().evictions, 1);
}

#[test]
fn a_hop_evicts_others_before_what_it_combines() {
    let mut h = Harness::new();
    let views: Vec<_> =
        (0..10).map(|number| h.fetch_f32(&number.to_string(), 100 + number)).collect();
    let inputs = vec![local("0", &views[0]), local("1", &views[1])];
    h.host(hop(1, inputs));
    let combine = h.combine();
    assert_eq!(h.inputs(&combine), ["0 here", "1 here"]);
    assert!(h.is_closed(views[2].copy));
}

#[test]
fn a_hop_that_never_fits_is_refused_at_once() {
    let mut h = Harness::new();
    let size_bytes = CAPACITY;
    let hosting =
        h.host(Hop { size_bytes, ..hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]) });
    let report = h.report(hosting);
    assert!(
        matches!(
            report,
            Some(HopReport::Failed(HopFailure::Refused(Error::ObjectTooLarge { .. })))
        ),
        "{report:?}"
    );
    h.release_hop(hosting);
    h.assert_empty();
}

#[test]
fn a_second_hop_of_the_same_output_is_refused() {
    let mut h = Harness::new();
    let first = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let combine = h.combine();
    let second = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    let report = h.report(second);
    assert!(
        matches!(report, Some(HopReport::Failed(HopFailure::Refused(Error::AlreadyExists { .. })))),
        "{report:?}"
    );
    h.release_hop(second);
    h.combined(&combine);
    assert_eq!(h.report(first), Some(HopReport::Complete));
}

#[test]
fn of_two_hops_of_the_same_output_that_wait_for_room_one_is_refused() {
    let mut h = Harness::new();
    let all = h.put_f32("all", CAPACITY - 64);
    let hostings =
        [1, 1].map(|number| h.host(hop(number, vec![remote("a", 5, "n1"), remote("b", 6, "n2")])));
    delete(&mut h, "all", &all);
    let combine = h.combine();
    assert_eq!(h.report(hostings[0]), None);
    let report = h.report(hostings[1]);
    assert!(
        matches!(report, Some(HopReport::Failed(HopFailure::Refused(Error::AlreadyExists { .. })))),
        "{report:?}"
    );
    h.combined(&combine);
    for hosting in hostings {
        h.release_hop(hosting);
    }
    h.assert_empty();
}

#[test]
fn a_client_that_takes_the_name_of_an_output_first_keeps_it() {
    let mut h = Harness::new();
    let all = h.put_f32("all", CAPACITY - 64);
    let output = ObjectId::of_hop(PutId(1));
    let metadata = f32s();
    let create = Request::Create { id: output, size_bytes: SIZE, metadata, timeout: LONG };
    let call = h.request(A, create);
    let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
    delete(&mut h, "all", &all);
    h.view(call);
    assert!(matches!(h.report(hosting), Some(HopReport::Failed(HopFailure::Refused(_)))));
    h.release_hop(hosting);
    h.gone(A);
    h.assert_empty();
}

#[test]
fn a_shard_that_speaks_of_an_output_does_no_harm() {
    for reason in [DropReason::Deleted, DropReason::Lost, DropReason::Superseded] {
        let mut h = Harness::new();
        let hosting = h.host(hop(1, vec![remote("a", 5, "n1"), remote("b", 6, "n2")]));
        let combine = h.combine();
        let (id, put) = (ObjectId::of_hop(PutId(1)), PutId(1));
        let verdict = Verdict::Deleted;
        for message in [
            ToStore::Drop { id: id.clone(), put, reason },
            ToStore::Promote { id: id.clone(), put },
            ToStore::Published { id, put, verdict },
        ] {
            h.event(Event::FromShard { shard: 0, message });
        }
        h.combined(&combine);
        assert_eq!(h.report(hosting), Some(HopReport::Complete));
        h.release_hop(hosting);
        h.assert_empty();
    }
}

#[test]
fn a_store_that_stops_says_so_to_its_coordinators() {
    let mut h = Harness::new();
    let pinned = h.put_f32("pinned", CAPACITY - 3 * (SIZE + 64));
    let inputs = || vec![remote("a", 5, "n1"), remote("b", 6, "n2")];
    let (done, running) = (h.host(hop(1, inputs())), h.host(hop(2, inputs())));
    let (one, other) = (h.next_combine(), h.next_combine());
    h.combined(&one);
    h.report(done);
    let size_bytes = pinned.size_bytes;
    let waiting = h.host(Hop { size_bytes, ..hop(3, inputs()) });
    let serve = ask_for_output(&mut h, 3);
    h.event(Event::ShutDown);
    let late = h.host(hop(4, inputs()));
    for hosting in [done, running, waiting, late] {
        let report = h.report(hosting);
        assert!(
            matches!(report, Some(HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)))),
            "{report:?} of {hosting:?}"
        );
    }
    assert!(h.effects.contains(&Effect::ServeRefused { serve }));
    h.stop(&other, 0);
    h.pass(Duration::from_secs(10));
    for hosting in [done, running, waiting, late] {
        h.release_hop(hosting);
    }
    h.assert_empty();
}
