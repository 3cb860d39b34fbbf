//! Failures that tests/cases/reduce_failures.txt cannot express.

use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, PullOutcome, UnpublishReason};
use hoplite_core::{Error, PutId};

use crate::harness::*;
use crate::reducing::*;

const UNREACHABLE: PullOutcome = PullOutcome::SenderUnreachable;

/// A reduce of source `a` at `n1`, with hops that add `b` at `n2` and `c` at `n3`.
struct Chain {
    call: (ClientId, CallId),
    second: Asked,
    third: Asked,
    target: Combine,
}

impl Chain {
    fn new(h: &mut Harness) -> Self {
        Self::of(h, reduce("t", &["a", "b", "c"]))
    }

    fn of(h: &mut Harness, request: Reduce) -> Self {
        let call = h.reduce_unknown(request);
        h.ready("a", 1, "n1");
        h.ready("b", 2, "n2");
        let second = h.hop_at("n2");
        h.ready("c", 3, "n3");
        let third = h.hop_at("n3");
        let target = h.combine();
        Self { call, second, third, target }
    }
}

fn input(index: usize, outcome: PullOutcome) -> HopFailure {
    HopFailure::Input { index, outcome }
}

#[test]
fn another_put_of_a_source_makes_the_target_anew() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let old = h.publication().1;
    let follower = h.get_started(B, "t");
    let view = h.view(follower);
    let patient = h.get(B, "t");
    h.tell(complete("c", 33, &["n4"]));
    h.hop_failed(&chain.third, HopFailure::Unreachable);
    h.stop(&chain.target, 8192);
    let fourth = h.hop_at("n4");
    assert_eq!(
        (hop_inputs(&fourth), fourth.spec.offset_bytes),
        (vec!["hop at n2".into(), "c here".to_owned()], 0)
    );
    let target = h.combine();
    assert_eq!(target.offset_bytes, 0);
    assert_ne!(target.copy, view.copy);
    assert!(h.is_failed(view.copy), "who follows the old one is told");
    assert!(h.told().contains(&"0 unpublish t Superseded".to_owned()));
    h.release(B, view.copy);
    h.combined(&target);
    assert_ne!(h.view(patient).put, old.put, "who waits for all of it gets the new one");
    let record = h.node.reduce_record(&id("t")).expect("it is remembered");
    assert_eq!((record.mendings, record.restarts), (1, 1));
}

#[test]
fn a_target_that_is_complete_in_spite_of_a_failure_is_complete() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.hop_failed(&chain.third, HopFailure::Unreachable);
    assert!(h.is_cancelled_combine(&chain.target));
    h.combined(&chain.target);
    assert_eq!(h.reduced(chain.call), [0, 1, 2]);
    assert!(h.has_no_hop());
    assert_eq!(h.node.next_deadline(), None, "nothing is to be mended any more");
}

#[test]
fn failures_without_progress_back_off() {
    let mut h = Harness::with_slow_links();
    let Chain { mut third, mut target, .. } = Chain::new(&mut h);
    for pause in [2, 2, 50, 100, 200] {
        h.hop_said(&third, HopReport::Failed(input(0, PullOutcome::Corrupt)));
        h.pass(Duration::from_millis(pause - 1));
        assert!(!h.is_cancelled_combine(&target), "{pause} ms");
        h.pass(Duration::from_millis(1));
        h.stop(&target, 0);
        h.next_hop_at("n2");
        third = h.hop_at("n3");
        target = h.combine();
    }
}

#[test]
fn nodes_that_die_one_after_the_other_are_each_mended_at_once() {
    let mut h = Harness::with_slow_links();
    let spares = ["d", "e", "f", "g"];
    let sources = ["a", "b", "c", "d", "e", "f", "g"];
    let Chain { second, mut target, call, .. } =
        Chain::of(&mut h, Reduce { count: 3, ..reduce("t", &sources) });
    for (number, spare) in spares.iter().enumerate() {
        h.ready(spare, 4 + number as u64, &format!("n{}", 4 + number));
    }
    let mut dying = second;
    for number in 4..=7 {
        h.hop_said(&dying, HopReport::Failed(HopFailure::Unreachable));
        h.pass(Duration::from_millis(1));
        assert!(
            !h.is_cancelled_combine(&target),
            "other reports of the same failure are waited for"
        );
        h.pass(Duration::from_millis(1));
        h.stop(&target, 0);
        if number == 4 {
            h.next_hop_at("n3");
        }
        dying = h.hop_at(&format!("n{number}"));
        target = h.combine();
    }
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 2, 6]);
}

#[test]
fn a_hop_never_takes_in_more_than_fits_into_a_request() {
    let mut h = Harness::with_slow_links();
    let names: Vec<String> = (0..80).map(|number| format!("s{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    h.request_reduce(Reduce { order: ReduceOrder::Fixed, ..reduce("t", &names) });
    for (number, name) in names.iter().enumerate() {
        h.ready(name, 1 + number as u64, &format!("n{number}"));
    }
    let hops: Vec<Asked> = (1..80).map(|number| h.next_hop_at(&format!("n{number}"))).collect();
    let target = h.combine();
    for hop in &hops[..78] {
        h.hop_said(hop, HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)));
    }
    h.pass(GATHERING);
    h.stop(&target, 0);
    assert!(h.has_no_hop(), "80 inputs are too many for the last one");
    assert_eq!(h.combine().inputs.len(), 80);
}

#[test]
fn in_fixed_order_a_hop_here_that_finds_no_room_is_combined_by_its_consumer() {
    let mut h = Harness::with_slow_links();
    let b = h.put_f32("b", SIZE);
    h.put_f32("rest", CAPACITY - 2 * (SIZE + 64) - 64);
    let request = Reduce { order: ReduceOrder::Fixed, ..reduce("t", &["a", "b", "c", "d"]) };
    h.reduce_unknown(Reduce { timeout: Duration::from_secs(8), ..request });
    h.ready("a", 1, "n1");
    h.tell(complete("b", b.put.0, &["here"]));
    h.ready("c", 3, "n3");
    let third = h.hop_at("n3");
    assert_eq!(hop_inputs(&third), ["hop at here", "c here"]);
    assert!(h.has_no_combine(), "the hop here waits for room");
    h.pass(Duration::from_secs(2) + GATHERING);
    assert_eq!(hop_inputs(&h.hop_at("n3")), ["a at n1", "b at here", "c here"]);
    assert!(h.has_ended(&third));
}

#[test]
fn once_the_directory_knows_the_target_it_need_not_tell_of_it() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    let target = h.combine();
    let is_watched = |h: &Harness| h.subscriptions.iter().any(|(_, _, of)| *of == id("t"));
    assert!(is_watched(&h), "a delete may come before the publication");
    h.accept_all();
    assert!(!is_watched(&h));
    h.combined(&target);
    assert_eq!(h.reduced(call), [0]);
}

#[test]
fn those_who_wait_for_a_target_that_is_given_up_between_two_attempts_look_elsewhere() {
    let mut h = Harness::with_slow_links();
    let timeout = Duration::from_secs(3);
    let call = h.reduce_unknown(Reduce { timeout, ..reduce("t", &["a"]) });
    h.ready("a", 1, "n1");
    let target = h.combine();
    let get = h.get(B, "t");
    let follower = h.get_started(ClientId(3), "t");
    let view = h.view(follower);
    h.put_f32("rest", CAPACITY - 2 * (SIZE + 64));
    h.tell(complete("a", 11, &["n2"]));
    h.input_failed(&target, 4096, 0, UNREACHABLE);
    assert!(h.has_no_combine());
    h.sent();
    h.pass(timeout);
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
    h.assert_waits(get);
    assert!(h.told().contains(&"0 query t".to_owned()), "another may make it");
    h.release(ClientId(3), view.copy);
}

#[test]
fn a_receiver_of_a_target_that_is_made_anew_begins_anew() {
    let mut h = Harness::new();
    let get = h.get(A, "t");
    let started = h.get_started(B, "t");
    let pull = h.grant("t", 5, SIZE, "n1");
    let view = h.view(started);
    h.sent();
    h.drop_put(0, "t", PutId(5), DropReason::Superseded);
    assert!(h.is_failed(view.copy) && h.is_cancelled(&pull));
    let unpublished = format!("0 unpublish t {:?}", UnpublishReason::PullEnded);
    assert_eq!(h.told().first(), Some(&unpublished));
    h.pull_ended(&pull, 4096, PullOutcome::Cancelled);
    h.release(B, view.copy);
    h.get(A, "t");
    h.assert_waits(get);
}
