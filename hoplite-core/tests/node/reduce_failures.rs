//! Reduces in which something is lost, refused, cancelled, or made anew: what is done again, what goes on, what ends.

use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, Equality, LocationState, PullOutcome, UnpublishReason, Verdict};
use hoplite_core::{Error, Operation, PutId};

use crate::harness::*;
use crate::reducing::*;

/// How long a node is left alone at which a source could not be had.
const AVOIDED: Duration = Duration::from_millis(100);
/// How long a source may be known to nobody before it counts as lost.
const MISSING: Duration = Duration::from_secs(1);

const UNREACHABLE: PullOutcome = PullOutcome::SenderUnreachable;
const NO_COPY: PullOutcome = PullOutcome::SenderHasNoCopy;

/// A chain: the source `a` at `n1`, hops at `n2` and `n3` that add `b` and `c`, and the target, which takes in the last.
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

// Mending.

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
fn when_the_target_is_made_anew_all_hops_give_all_bytes() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.tell(complete("a", 1, &["n1", "n4"]));
    h.hop_failed(&chain.second, input(0, UNREACHABLE));
    h.stop(&chain.target, 8192);
    let second = h.next_hop_at("n3");
    assert_eq!(second.spec.offset_bytes, 8192);
    let third = h.hop_at("n4");
    let target = h.combine();
    // Now another put of `a` takes the place of the one that is gone.
    h.tell(complete("a", 11, &["n5"]));
    h.hop_failed(&third, HopFailure::Unreachable);
    h.stop(&target, 12_288);
    assert!(h.has_ended(&second), "it has no byte before 8192");
    let hops = [h.next_hop_at("n3"), h.next_hop_at("n5")];
    assert_eq!(hops.map(|hop| hop.spec.offset_bytes), [0, 0]);
    assert_eq!(h.combine().offset_bytes, 0);
}

#[test]
fn a_spare_takes_the_place_of_a_source_that_is_lost() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::of(&mut h, Reduce { count: 3, ..reduce("t", &["a", "b", "c", "d"]) });
    h.ready("d", 4, "n4");
    h.tell(lost("b", 2));
    h.hop_failed(&chain.second, HopFailure::Unreachable);
    h.stop(&chain.target, 8192);
    assert_eq!(hop_inputs(&h.next_hop_at("n3")), ["a at n1", "c here"]);
    assert_eq!(hop_inputs(&h.hop_at("n4")), ["hop at n3", "d here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 2, 3]);
    assert_eq!(h.node.next_deadline(), None, "whether b comes back is of no interest");
}

#[test]
fn a_spare_is_preferred_to_a_source_that_failed_before() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::of(&mut h, Reduce { count: 3, ..reduce("t", &["a", "b", "c", "d", "e"]) });
    h.ready("d", 4, "n4");
    h.ready("e", 5, "n5");
    h.hop_failed(&chain.second, HopFailure::Unreachable);
    h.stop(&chain.target, 0);
    let third = h.next_hop_at("n3");
    assert_eq!(hop_inputs(&h.hop_at("n4")), ["hop at n3", "d here"]);
    let target = h.combine();
    h.pass(AVOIDED);
    h.hop_failed(&third, HopFailure::Unreachable);
    h.stop(&target, 0);
    assert_eq!(hop_inputs(&h.next_hop_at("n4")), ["a at n1", "d here"]);
    assert_eq!(
        hop_inputs(&h.hop_at("n5")),
        ["hop at n4", "e here"],
        "the directory may not know that n2 is gone"
    );
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 3, 4]);
}

#[test]
fn a_source_that_is_lost_without_a_spare_ends_the_reduce() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let get = h.get(B, "t");
    h.tell(lost("b", 2));
    h.hop_failed(&chain.second, HopFailure::Unreachable);
    h.stop(&chain.target, 8192);
    assert_eq!(h.error(chain.call), Error::ObjectLost { id: id("b") });
    assert_eq!(h.error(get), Error::ObjectLost { id: id("t") });
    assert!(h.has_ended(&chain.second) && h.has_ended(&chain.third));
    h.assert_empty();
}

#[test]
fn a_source_that_nobody_knows_any_more_is_lost_after_a_while() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.tell(unknown("b"));
    h.hop_failed(&chain.second, input(1, NO_COPY));
    h.stop(&chain.target, 8192);
    h.pass(MISSING - Duration::from_millis(1));
    h.assert_waits(chain.call);
    h.pass(Duration::from_millis(1));
    assert_eq!(h.error(chain.call), Error::ObjectLost { id: id("b") });
    h.assert_empty();
}

#[test]
fn a_source_that_is_put_again_in_time_is_taken() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.tell(unknown("b"));
    h.hop_failed(&chain.second, input(1, NO_COPY));
    h.stop(&chain.target, 8192);
    h.pass(MISSING / 2);
    h.ready("b", 22, "n2");
    h.next_hop_at("n3");
    assert_eq!(hop_inputs(&h.hop_at("n2")), ["hop at n3", "b here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 2, 1]);
}

#[test]
fn a_source_that_goes_missing_again_is_waited_for_again() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    for put in 2..4 {
        let target = h.combine();
        h.tell(unknown("a"));
        h.input_failed(&target, 0, 0, NO_COPY);
        h.pass(MISSING * 9 / 10);
        h.assert_waits(call);
        h.ready("a", put, "n1");
    }
}

#[test]
fn the_head_of_the_chain_dies() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.tell(complete("a", 1, &["n5"]));
    h.hop_failed(&chain.second, input(0, UNREACHABLE));
    h.stop(&chain.target, 0);
    assert!(h.has_ended(&chain.second), "it has nothing left to combine");
    assert_eq!(hop_inputs(&h.next_hop_at("n3")), ["b at n2", "c here"]);
    assert_eq!(hop_inputs(&h.hop_at("n5")), ["hop at n3", "a here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [1, 2, 0]);
}

#[test]
fn the_head_of_a_chain_that_waits_for_others_is_lost() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a", "b"]);
    h.ready("a", 1, "n1");
    h.tell(lost("a", 1));
    h.pass(GATHERING);
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn the_head_of_a_chain_that_waits_for_others_is_replaced() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce_unknown(Reduce { count: 2, ..reduce("t", &["a", "b", "c"]) });
    h.ready("a", 1, "n1");
    h.tell(unknown("a"));
    h.pass(GATHERING);
    h.ready("b", 2, "n2");
    h.ready("c", 3, "n3");
    assert_eq!(hop_inputs(&h.hop_at("n3")), ["b at n2", "c here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(call), [1, 2]);
}

#[test]
fn a_source_here_that_is_lost_before_the_others_are_ready_ends_the_reduce() {
    let mut h = Harness::with_slow_links();
    let a = h.put_f32("a", SIZE);
    let call = h.reduce("t", &["a", "b"]);
    h.tell(complete("a", a.put.0, &["here"]));
    h.drop_put(0, "a", a.put, DropReason::Deleted);
    h.tell(unknown("a"));
    h.pass(GATHERING + MISSING);
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn a_source_here_whose_worker_dies_is_lost() {
    let mut h = Harness::with_slow_links();
    let a = h.create_f32(B, "a", SIZE);
    let call = h.reduce("t", &["a", "b"]);
    h.ready("b", 2, "n2");
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["b at n2", "a here"]);
    h.gone(B);
    assert!(!h.is_closed(a.copy), "it is still read");
    h.input_failed(&target, 4096, 1, NO_COPY);
    h.tell(unknown("a"));
    h.pass(MISSING);
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn a_local_copy_that_is_gone_is_replaced_by_one_elsewhere() {
    let mut h = Harness::with_slow_links();
    let a = h.fetch_f32("a", 1);
    let call = h.reduce("t", &["a"]);
    h.tell(complete("a", 1, &["here", "n1"]));
    let first = h.combine();
    h.drop_put(0, "a", a.put, DropReason::Deleted);
    h.tell(complete("a", 1, &["n1"]));
    h.input_failed(&first, 4096, 0, NO_COPY);
    let target = h.combine();
    assert_eq!((h.inputs(&target), target.offset_bytes), (vec!["a at n1".to_owned()], 4096));
    assert_eq!(target.copy, first.copy);
    h.combined(&target);
    assert_eq!(h.reduced(call), [0]);
}

#[test]
fn a_hop_that_is_complete_outlives_the_loss_of_its_source() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.hop_complete(&chain.second);
    h.hop_complete(&chain.third);
    h.tell(lost("a", 1));
    h.tell(lost("b", 2));
    h.pass(MISSING);
    h.combined(&chain.target);
    assert_eq!(h.reduced(chain.call), [0, 1, 2]);
}

#[test]
fn what_was_released_is_needed_again_when_its_consumer_dies() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.hop_complete(&chain.second);
    h.hop_complete(&chain.third);
    assert!(h.has_ended(&chain.second));
    h.tell(complete("c", 3, &["n4"]));
    h.hop_failed(&chain.third, HopFailure::Unreachable);
    h.stop(&chain.target, 4096);
    let hops = [h.next_hop_at("n2"), h.next_hop_at("n4")];
    assert_eq!(hops.map(|hop| hop.spec.offset_bytes), [4096, 4096]);
    h.combine();
}

#[test]
fn what_was_released_is_needed_again_when_its_consumer_stops() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.hop_complete(&chain.second);
    h.hop_complete(&chain.third);
    assert!(h.has_ended(&chain.second));
    h.hop_said(&chain.third, HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)));
    h.pass(GATHERING);
    h.stop(&chain.target, 4096);
    let again = h.hop_at("n2");
    assert_eq!(again.spec.offset_bytes, 4096);
    let target = h.combine();
    assert_eq!(target.inputs.len(), 2, "the stream of the second hop, and the source at the third");
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 1, 2]);
}

#[test]
fn failures_of_one_moment_are_mended_as_one() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.hop_said(&chain.third, HopReport::Failed(input(0, UNREACHABLE)));
    h.combine_ended(&chain.target, 4096, CombineOutcome::InputFailed { index: 0, outcome: NO_COPY });
    h.tell(complete("b", 2, &["n4"]));
    assert!(h.has_no_hop());
    h.hop_failed(&chain.second, HopFailure::Unreachable);
    assert_eq!(hop_inputs(&h.next_hop_at("n3")), ["a at n1", "c here"]);
    assert_eq!(hop_inputs(&h.hop_at("n4")), ["hop at n3", "b here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 2, 1]);
    assert_eq!(h.node.reduce_record(&id("t")).expect("it is remembered").mendings, 1);
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
    // The first two are mended at once, the following ones after 50 ms, 100 ms, ...
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
        assert!(!h.is_cancelled_combine(&target), "other reports of the same failure are waited for");
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
fn a_hop_that_is_refused_is_combined_by_its_consumer() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let full = Error::StoreFull { needed_bytes: SIZE, free_bytes: 0, capacity_bytes: CAPACITY };
    h.hop_failed(&chain.second, HopFailure::Refused(full.clone()));
    h.stop(&chain.target, 0);
    let third = h.hop_at("n3");
    assert_eq!(hop_inputs(&third), ["a at n1", "b at n2", "c here"]);
    let target = h.combine();
    h.hop_failed(&third, HopFailure::Refused(full));
    h.stop(&target, 0);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["a at n1", "b at n2", "c at n3"]);
    h.combined(&target);
    assert_eq!(h.reduced(chain.call), [0, 1, 2]);
}

#[test]
fn a_hop_never_takes_in_more_than_fits_into_a_request() {
    let mut h = Harness::with_slow_links();
    let names: Vec<String> = (0..80).map(|number| format!("s{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    h.reduce("t", &names);
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
fn in_fixed_order_what_comes_after_a_source_joins_after_it_again() {
    let mut h = Harness::with_slow_links();
    let request = Reduce { order: ReduceOrder::Fixed, ..reduce("t", &["a", "b", "c", "d"]) };
    let call = h.reduce_unknown(request);
    for (put, name) in ["a", "b", "c", "d"].iter().enumerate() {
        h.ready(name, put as u64, name);
    }
    let [_, c, d] = ["b", "c", "d"].map(|node| h.next_hop_at(node));
    let target = h.combine();
    h.tell(complete("c", 2, &["e"]));
    h.hop_failed(&c, HopFailure::Unreachable);
    h.stop(&target, 4096);
    assert!(h.has_ended(&d));
    assert_eq!(hop_inputs(&h.next_hop_at("e")), ["hop at b", "c here"]);
    assert_eq!(hop_inputs(&h.hop_at("d")), ["hop at e", "d here"]);
    let target = h.combine();
    assert_eq!((h.inputs(&target), target.offset_bytes), (vec!["hop at d".to_owned()], 4096));
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1, 2, 3]);
}

#[test]
fn in_fixed_order_what_joins_after_a_refused_hop_takes_in_all_that_it_would_have() {
    let mut h = Harness::with_slow_links();
    let request = Reduce { order: ReduceOrder::Fixed, ..reduce("t", &["a", "b", "c"]) };
    let call = h.reduce_unknown(request);
    for (put, name) in ["a", "b", "c"].iter().enumerate() {
        h.ready(name, put as u64, name);
    }
    let [b, c] = ["b", "c"].map(|node| h.next_hop_at(node));
    let target = h.combine();
    h.hop_said(&b, HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)));
    h.hop_failed(&c, HopFailure::Refused(Error::ShuttingDown));
    h.stop(&target, 0);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["a at a", "b at b", "c at c"]);
    h.tell(complete("c", 2, &["e"]));
    h.input_failed(&target, 4096, 2, UNREACHABLE);
    assert_eq!(hop_inputs(&h.hop_at("e")), ["a at a", "b at b", "c here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1, 2]);
}

#[test]
fn in_fixed_order_a_hop_here_that_finds_no_room_is_combined_by_its_consumer() {
    let mut h = Harness::with_slow_links();
    let b = h.put_f32("b", SIZE);
    // With room for the target, and none for the hop.
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
fn a_small_source_that_is_lost_on_the_way_is_fetched_again() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.tell(inline("a", 1));
    h.fail_query(Error::ObjectLost { id: id("a") });
    h.tell(inline("a", 2));
    h.assert_waits(call);
    h.pass(Duration::from_millis(50));
    h.answer_small("a", 2);
    let target = h.combine();
    h.combine_ended(&target, SMALL, CombineOutcome::Complete);
    assert_eq!(h.reduced(call), [0]);
}

#[test]
fn a_small_source_that_is_lost_for_good_ends_the_reduce() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a", "b"]);
    h.tell(inline("a", 1));
    h.fail_query(Error::ObjectLost { id: id("a") });
    h.tell(lost("a", 1));
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn a_small_source_that_is_deleted_on_the_way_makes_room_for_a_spare() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce_unknown(Reduce { count: 1, ..reduce("t", &["a", "b"]) });
    h.tell(inline("a", 1));
    h.tell(unknown("a"));
    h.tell(inline("b", 2));
    h.answer_small("b", 2);
    let target = h.combine();
    h.combine_ended(&target, SMALL, CombineOutcome::Complete);
    assert_eq!(h.reduced(call), [1]);
}

#[test]
fn a_small_source_that_is_deleted_on_the_way_ends_the_reduce_without_a_spare() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.tell(inline("a", 1));
    h.tell(unknown("a"));
    h.assert_waits(call);
    h.pass(Duration::from_secs(1));
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn a_source_that_was_lost_before_is_lost() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(reduce("t", &["a", "b"]));
    h.tell(lost("a", 1));
    h.tell(unknown("b"));
    assert_eq!(h.error(call), Error::ObjectLost { id: id("a") });
    h.assert_empty();
}

#[test]
fn the_target_of_another_reduce_that_is_made_anew_is_taken_in_anew() {
    let mut h = Harness::with_slow_links();
    let outer = h.reduce("u", &["t"]);
    let inner = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    let t = h.combine();
    let first = h.publication().1.put;
    h.tell(located("t", first.0, LocationState::Producing, &["here"]));
    let u = h.combine();
    h.tell(complete("a", 11, &["n2"]));
    h.input_failed(&t, 8192, 0, UNREACHABLE);
    let t = h.combine();
    h.input_failed(&u, 4096, 0, NO_COPY);
    let again = h.publications().pop().expect("the new target is published").1;
    assert_eq!(again.id, id("t"));
    h.tell(located("t", again.put.0, LocationState::Producing, &["here"]));
    h.pass(AVOIDED);
    let u = h.combine();
    assert_eq!((h.inputs(&u), u.offset_bytes), (vec!["t here".to_owned()], 0));
    h.combined(&t);
    h.combined(&u);
    assert_eq!(h.reduced(outer), [0]);
    assert!(matches!(h.answer(inner), Some(Ok(Response::Reduced { .. }))));
}

// Ends.

#[test]
fn a_client_that_is_gone_ends_its_reduce_everywhere() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let get = h.get(B, "t");
    h.sent();
    h.gone(A);
    assert!(h.has_ended(&chain.second) && h.has_ended(&chain.third));
    assert!(h.told().contains(&"0 unpublish t Aborted".to_owned()));
    assert_eq!(h.error(get), Error::ObjectLost { id: id("t") });
    h.stop(&chain.target, 4096);
    h.assert_empty();
}

#[test]
fn a_client_that_is_gone_is_not_answered_what_it_waited_for_beside_its_reduce() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.get(A, "t");
    let create = Request::Create { id: id("t"), size_bytes: SIZE, metadata: f32s(), timeout: LONG };
    h.request(A, create);
    h.gone(A);
    h.stop(&chain.target, 4096);
    h.assert_empty();
}

#[test]
fn a_reduce_that_is_cancelled_leaves_nothing() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    h.request(A, Request::Cancel { call: chain.call.1 });
    h.stop(&chain.target, 4096);
    h.assert_waits(chain.call);
    assert!(h.subscriptions.is_empty());
    h.assert_empty();
}

#[test]
fn a_reduce_times_out() {
    let mut h = Harness::with_slow_links();
    let timeout = Duration::from_secs(3);
    let chain = Chain::of(&mut h, Reduce { timeout, ..reduce("t", &["a", "b", "c"]) });
    h.pass(timeout);
    assert_eq!(h.error(chain.call), Error::Timeout { operation: Operation::Reduce, waited: timeout });
    assert!(h.has_ended(&chain.second) && h.has_ended(&chain.third));
    h.stop(&chain.target, 4096);
    h.assert_empty();
}

#[test]
fn a_reduce_that_waits_for_a_small_source_times_out() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.tell(inline("a", 1));
    h.pass(LONG);
    assert_eq!(h.error(call), Error::Timeout { operation: Operation::Reduce, waited: LONG });
    h.assert_empty();
}

#[test]
fn a_zero_timeout_is_over_at_once() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(Reduce { timeout: Duration::ZERO, ..reduce("t", &["a"]) });
    assert!(matches!(h.error(call), Error::Timeout { .. }));
    h.assert_empty();
}

#[test]
fn a_delete_of_the_target_ends_the_reduce() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let put = h.publication().1.put;
    h.drop_put(0, "t", put, DropReason::Deleted);
    assert_eq!(h.error(chain.call), Error::Deleted { id: id("t") });
    assert!(h.has_ended(&chain.second) && h.has_ended(&chain.third));
    h.stop(&chain.target, 4096);
    h.assert_empty();
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
fn a_delete_here_ends_a_reduce_that_waits_for_its_sources() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a", "b"]);
    h.ready("a", 1, "n1");
    h.delete(B, &["t"]);
    assert_eq!(h.error(call), Error::Deleted { id: id("t") });
    h.gone(B);
    h.assert_empty();
}

#[test]
fn a_target_that_finds_no_room_fails_at_the_deadline() {
    let mut h = Harness::with_slow_links();
    let all = h.put_f32("all", CAPACITY - 64);
    let call = h.reduce("t", &["a", "b"]);
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    assert!(h.has_no_hop(), "nothing is made elsewhere for a target that has no room");
    h.pass(LONG);
    let error = Error::StoreFull { needed_bytes: SIZE + 64, free_bytes: 0, capacity_bytes: CAPACITY };
    assert_eq!(h.error(call), error);
    h.drop_put(0, "all", all.put, DropReason::Deleted);
    h.assert_empty();
}

#[test]
fn a_small_source_that_finds_no_room_fails_the_reduce_at_the_deadline() {
    let mut h = Harness::with_slow_links();
    let all = h.put_f32("all", CAPACITY - 64);
    let call = h.reduce("t", &["a"]);
    h.tell(inline("a", 1));
    h.answer_small("a", 1);
    h.pass(LONG);
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
    h.drop_put(0, "all", all.put, DropReason::Deleted);
    h.assert_empty();
}

#[test]
fn a_target_waits_for_room() {
    let mut h = Harness::with_slow_links();
    let all = h.put_f32("all", CAPACITY - 64);
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    assert!(h.has_no_combine());
    h.drop_put(0, "all", all.put, DropReason::Deleted);
    let target = h.combine();
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
    // The target is superseded, and there is no room for the new one while the old one is read.
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
fn a_target_that_turns_out_equal_to_another_put_takes_its_name() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    let (shard, publish) = h.publication();
    let holder = Some((node_id("n9"), address("n9")));
    let winner = PutId(9);
    h.verdict(shard, &publish, Verdict::Conflict { winner, equality: Equality::Unknown { holder } });
    let target = h.combine();
    h.combined(&target);
    h.event(Event::Compared { copy: target.copy, equal: Some(true) });
    assert_eq!(h.reduced(call), [0]);
    let get = h.get(A, "t");
    assert_eq!(h.view(get).put, winner);
}

#[test]
fn a_target_that_turns_out_different_from_another_put_is_dropped() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    let (shard, publish) = h.publication();
    let equality = Equality::Unknown { holder: Some((node_id("n9"), address("n9"))) };
    h.verdict(shard, &publish, Verdict::Conflict { winner: PutId(9), equality });
    let target = h.combine();
    h.combined(&target);
    h.event(Event::Compared { copy: target.copy, equal: Some(false) });
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("t") });
    h.assert_empty();
}

#[test]
fn a_store_that_stops_ends_its_reduces() {
    let mut h = Harness::with_slow_links();
    let chain = Chain::new(&mut h);
    let get = h.get(B, "t");
    h.event(Event::ShutDown);
    assert_eq!(h.error(chain.call), Error::ShuttingDown);
    assert_eq!(h.error(get), Error::ShuttingDown);
    assert!(h.has_ended(&chain.second) && h.has_ended(&chain.third));
    h.stop(&chain.target, 4096);
    h.assert_empty();
}

#[test]
fn a_receiver_of_a_target_that_is_made_anew_begins_anew() {
    // The other side: this node follows a target that another one makes.
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
