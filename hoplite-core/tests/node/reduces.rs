use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{DropReason, LocationState, Locations, PullOutcome, Verdict};
use hoplite_core::{Dtype, Error, Limits, Metadata, PutId};

use crate::harness::*;
use crate::reducing::*;

/// Begins a reduce of source `a` at `n1`, with hops that add `b` at `n2` and `c` at `n3`.
fn chain_of_three(h: &mut Harness) -> ((ClientId, CallId), [Asked; 2], Combine) {
    let call = h.reduce("t", &["a", "b", "c"]);
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    let second = h.hop_at("n2");
    h.ready("c", 3, "n3");
    let third = h.hop_at("n3");
    let target = h.combine();
    (call, [second, third], target)
}

#[test]
fn small_sources_are_fetched_and_combined_here() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(reduce("t", &["a", "b"]));
    h.tell(inline("a", 1));
    h.tell(inline("b", 2));
    h.answer_small("b", 2);
    assert!(h.has_no_combine(), "the other one is on its way");
    h.answer_small("a", 1);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["b here", "a here"]);
    assert!(
        h.told().iter().all(|line| !line.contains("publish t")),
        "a small target is published when complete"
    );
    h.combine_ended(&target, SMALL, CombineOutcome::Complete);
    assert_eq!(h.inline(), [target.copy], "and with its bytes");
    assert_eq!(h.reduced(call), [1, 0]);
    assert!(h.node.status().evictable_bytes >= 2 * SMALL, "the sources were only fetched");
}

#[test]
fn what_was_received_of_a_source_that_is_gone_is_not_taken_for_one_that_is_here() {
    let mut h = Harness::with_slow_links();
    h.request_reduce(reduce("t", &["a", "b"]));
    h.tell(inline("a", 1));
    h.tell(inline("b", 2));
    let (shard, query) = h.query_of("a");
    h.grant_as(shard, query.request, ("a", 1, SMALL, f32s()), "sender");
    let pull = h.checker.running_pulls()[0];
    h.event(Event::PullEnded { pull, valid_bytes: 0, outcome: PullOutcome::SenderUnreachable });
    assert_eq!(h.node.status().copies, 1, "it waits for another sender");
    h.tell(unknown("a"));
    assert_eq!(h.node.status().copies, 0, "nobody waits for it any more");
}

#[test]
fn many_small_sources_are_reduced_on_the_way_if_links_are_slow() {
    let names: Vec<String> = (0..16).map(|source| format!("s{source}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fetched = |bytes_per_second, size_bytes| {
        let mut h = Harness::with_limits(Limits::default());
        h.event(Event::Measured {
            link: LinkEstimate {
                bytes_per_second,
                latency: Duration::from_micros(100),
                ..LinkEstimate::default()
            },
        });
        h.request_reduce(reduce("t", &names));
        for (source, name) in (1..).zip(&names) {
            h.tell(inline_at(name, source, size_bytes, &[&format!("n{source}")]));
        }
        h.has_no_hop()
    };
    assert!(fetched(25_000_000, 1 << 10));
    assert!(!fetched(25_000_000, 32 << 10), "fifteen of them take 20 ms");
    assert!(fetched(1_000_000_000, 32 << 10));
}

#[test]
fn with_fast_links_every_source_goes_straight_to_the_receiver() {
    let mut h = Harness::new();
    h.event(Event::Measured {
        link: LinkEstimate {
            bytes_per_second: 1 << 40,
            latency: Duration::from_secs(1),
            ..LinkEstimate::default()
        },
    });
    h.request_reduce(reduce("t", &["a", "b"]));
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["a at n1", "b at n2"]);
    assert!(h.has_no_hop());
}

#[test]
fn a_source_is_taken_while_it_is_being_produced() {
    let mut h = Harness::with_slow_links();
    let writer = h.create_f32(B, "a", SIZE);
    let call = h.reduce("t", &["a", "b"]);
    h.tell(located("b", 2, LocationState::Producing, &["n2"]));
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["b at n2", "a here"]);
    assert_eq!(target.inputs[1], CombineInput::Local { copy: writer.copy, base_bytes: 0 });
    h.seal(B, writer.copy);
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1]);
}

#[test]
fn a_complete_copy_is_preferred_to_one_that_is_still_coming() {
    let mut h = Harness::with_slow_links();
    h.reduce("t", &["a"]);
    let mut news = located("a", 1, LocationState::Partial, &["n1"]);
    news.locations.extend(complete("a", 1, &["n2"]).locations);
    h.tell(news);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["a at n2"]);
}

#[test]
fn a_hop_waits_for_room_for_a_while_and_at_most_half_of_the_time_that_is_left() {
    for (timeout, patience) in [(10, 2), (7, 1)] {
        let mut h = Harness::with_slow_links();
        let timeout = Duration::from_secs(timeout);
        h.reduce_unknown(Reduce { timeout, ..reduce("t", &["a", "b"]) });
        h.ready("a", 1, "n1");
        h.pass(Duration::from_secs(5));
        h.ready("b", 2, "n2");
        assert_eq!(h.hop_at("n2").spec.timeout, Duration::from_secs(patience));
    }
}

#[test]
fn a_source_that_is_not_needed_need_not_be_like_the_others() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce_unknown(Reduce { count: 1, ..reduce("t", &["a", "b"]) });
    h.ready("a", 1, "n1");
    let target = h.combine();
    h.tell(inline("b", 2));
    h.combined(&target);
    assert_eq!(h.reduced(call), [0]);
}

#[test]
fn in_fixed_order_a_source_of_this_node_is_combined_in_its_turn_by_a_hop_here() {
    let mut h = Harness::with_slow_links();
    let b = h.put_f32("b", SIZE);
    let call =
        h.request_reduce(Reduce { order: ReduceOrder::Fixed, ..reduce("t", &["a", "b", "c"]) });
    h.ready("a", 1, "n1");
    h.tell(complete("b", b.put.0, &["here"]));
    h.ready("c", 3, "n3");
    let here = h.next_combine();
    assert_eq!(h.inputs(&here), ["a at n1", "b here"]);
    let third = h.hop_at("n3");
    assert_eq!(hop_inputs(&third), ["hop at here", "c here"]);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["hop at n3"]);
    let serve = h.ask_to_serve(third.spec.inputs[0].id.clone(), third.spec.inputs[0].put, true);
    assert!(h.is_served(serve));
    h.combined(&here);
    h.event(Event::ServeEnded { serve });
    h.hop_complete(&third);
    assert!(h.is_closed(here.copy), "the output of the hop here is freed");
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1, 2]);
}

#[test]
fn in_fixed_order_small_sources_are_combined_in_the_order_of_the_request() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(Reduce { order: ReduceOrder::Fixed, ..reduce("t", &["a", "b"]) });
    h.tell(inline("a", 1));
    h.tell(inline("b", 2));
    h.answer_small("b", 2);
    h.answer_small("a", 1);
    let target = h.combine();
    assert_eq!(h.inputs(&target), ["a here", "b here"]);
    h.combine_ended(&target, SMALL, CombineOutcome::Complete);
    assert_eq!(h.reduced(call), [0, 1], "and are named in that order");
}

fn inline_at(name: &str, put: u64, size_bytes: u64, nodes: &[&str]) -> Locations {
    let mut news = complete(name, put, nodes);
    let object = news.object.as_mut().expect("it is known");
    (object.size_bytes, object.inline) = (size_bytes, true);
    news
}

#[test]
fn in_fixed_order_small_sources_are_fetched_also_if_links_are_slow() {
    let names: Vec<String> = (0..16).map(|source| format!("s{source}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut h = Harness::with_limits(Limits::default());
    h.event(Event::Measured { link: SLOW });
    h.request_reduce(Reduce { order: ReduceOrder::Fixed, ..reduce("t", &names) });
    for (source, name) in (1..).zip(&names) {
        h.tell(inline_at(name, source, 32 << 10, &[&format!("n{source}")]));
    }
    assert!(h.has_no_hop(), "one that has lost its copies could not join a chain");
}

#[test]
fn in_fixed_order_a_chain_waits_for_a_copy_of_what_is_only_inline() {
    let names: Vec<String> = (0..130).map(|source| format!("s{source}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut h = Harness::with_limits(Limits::default());
    h.event(Event::Measured { link: SLOW });
    h.request_reduce(Reduce { order: ReduceOrder::Fixed, ..reduce("t", &names) });
    for (source, name) in (1..).zip(&names) {
        let node = format!("n{source}");
        let nodes: &[&str] = if *name == "s1" { &[] } else { &[&node] };
        h.tell(inline_at(name, source, 60 << 10, nodes));
    }
    assert!(h.has_no_hop(), "to fetch all would be too much, and the second one is nowhere");
    h.tell(inline_at("s1", 2, 60 << 10, &["n2"]));
    assert_eq!(hop_inputs(&h.next_hop_at("n2")), ["s0 at n1", "s1 here"]);
    assert_eq!(hop_inputs(&h.next_hop_at("n3")), ["hop at n2", "s2 here"]);
}

#[test]
fn a_range_of_each_source_is_reduced() {
    let mut h = Harness::with_slow_links();
    let a = h.put_f32("a", SIZE);
    let range = Some(ByteRange { offset_bytes: 4096, length_bytes: 8192 });
    let call = h.reduce_unknown(Reduce { range, ..reduce("t", &["a", "b", "c"]) });
    h.tell(complete("a", a.put.0, &["here"]));
    h.ready("b", 2, "n2");
    h.ready("c", 3, "n3");
    let hop = h.hop_at("n3");
    assert_eq!((hop.spec.size_bytes, hop.spec.inputs[0].base_bytes), (8192, 4096));
    assert_eq!((hop.spec.inputs[0].size_bytes, hop.spec.inputs[1].base_bytes), (SIZE, 4096));
    let target = h.combine();
    assert!(
        matches!(
            &target.inputs[..],
            [
                CombineInput::Remote(HopInput {
                    size_bytes: 8192,
                    base_bytes: 0,
                    is_hop: true,
                    ..
                }),
                CombineInput::Local { base_bytes: 4096, .. },
            ]
        ),
        "{target:?}"
    );
    h.combine_ended(&target, 8192, CombineOutcome::Complete);
    assert_eq!(h.reduced(call), [0, 1, 2]);
    let get = h.get(A, "t");
    let view = h.view(get);
    assert_eq!((view.size_bytes, view.metadata.shape), (8192, None));
}

#[test]
fn the_target_has_the_type_and_shape_of_the_sources() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a", "b"]);
    for (name, put) in [("a", 1), ("b", 2)] {
        let mut news = complete(name, put, &[name]);
        let object = news.object.as_mut().unwrap();
        object.metadata.shape = Some(vec![10, SIZE / 40]);
        object.metadata.user = format!("of {name}").into();
        h.tell(news);
    }
    let target = h.combine();
    h.combined(&target);
    h.reduced(call);
    let get = h.get(A, "t");
    let metadata = h.view(get).metadata;
    assert_eq!((metadata.dtype, metadata.shape), (Dtype::F32, Some(vec![10, SIZE / 40])));
    assert_eq!(metadata.user, "", "bytes of the application that differ");
}

#[test]
fn the_target_is_published_when_it_begins_and_read_while_it_grows() {
    let mut h = Harness::with_slow_links();
    let patient = h.get(B, "t");
    let call = h.reduce("t", &["a"]);
    h.sent();
    h.ready("a", 1, "n1");
    let publish = h.publication().1;
    assert_eq!((publish.state, publish.id.clone()), (LocationState::Producing, id("t")));
    assert_eq!(
        h.told().first().map(String::as_str),
        Some("0 cancel"),
        "nobody needs to look for it any more"
    );
    let target = h.combine();
    let early = h.get_started(B, "t");
    assert_eq!(h.view(early).copy, target.copy);
    h.assert_waits(patient);
    let serve = h.serve("t", publish.put).expect("a target is served while it grows");
    h.combined(&target);
    assert_eq!(h.view(patient).copy, target.copy);
    assert_eq!(h.publication().1.state, LocationState::Complete);
    h.verdict(0, &publish, Verdict::Accepted);
    assert_eq!(h.reduced(call), [0]);
    h.event(Event::ServeEnded { serve });
}

#[test]
fn the_answer_waits_for_the_directory() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.ready("a", 1, "n1");
    let target = h.combine();
    h.combined(&target);
    h.assert_waits(call);
    assert_eq!(h.reduced(call), [0]);
}

#[test]
fn sources_are_held_until_they_are_combined() {
    let mut h = Harness::with_slow_links();
    let held = h.fetch_f32("a", 1);
    assert_eq!(h.node.status().evictable_bytes, held.extent.length_bytes);
    let call = h.reduce("t", &["a", "b"]);
    h.tell(complete("a", 1, &["n1", "here"]));
    assert_eq!(h.node.status().evictable_bytes, 0);
    h.ready("b", 2, "n2");
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1]);
    assert_eq!(h.node.status().evictable_bytes, held.extent.length_bytes);
}

#[test]
fn two_reduces_share_a_source() {
    let mut h = Harness::with_slow_links();
    let a = h.put_f32("a", SIZE);
    let first = h.reduce("t", &["a", "b"]);
    let second = h.reduce("u", &["b", "a"]);
    h.tell(complete("a", a.put.0, &["here"]));
    h.ready("b", 2, "n2");
    let (t, u) = (h.next_combine(), h.next_combine());
    assert_eq!(h.inputs(&t), ["b at n2", "a here"]);
    assert_eq!(h.inputs(&u), ["b at n2", "a here"]);
    h.combined(&t);
    assert_eq!(h.reduced(first), [0, 1]);
    h.drop_put(0, "a", a.put, DropReason::Deleted);
    assert!(!h.is_closed(a.copy), "the other reduce still reads it");
    h.combined(&u);
    assert_eq!(h.reduced(second), [1, 0]);
    assert!(h.is_closed(a.copy));
}

#[test]
fn two_reduces_share_a_small_source_that_is_fetched_once() {
    let mut h = Harness::with_slow_links();
    let first = h.reduce("t", &["a"]);
    let second = h.reduce("u", &["a"]);
    h.tell(inline("a", 1));
    h.answer_small("a", 1);
    let (t, u) = (h.next_combine(), h.next_combine());
    h.combine_ended(&t, SMALL, CombineOutcome::Complete);
    h.combine_ended(&u, SMALL, CombineOutcome::Complete);
    assert_eq!((h.reduced(first), h.reduced(second)), (vec![0], vec![0]));
}

#[test]
fn a_reduce_takes_in_the_target_of_another_while_it_grows() {
    let mut h = Harness::with_slow_links();
    let outer = h.reduce("u", &["t", "c"]);
    let inner = h.reduce("t", &["a"]);
    h.ready("c", 3, "n3");
    h.ready("a", 1, "n1");
    let t = h.combine();
    let put = h.publication().1.put;
    h.tell(located("t", put.0, LocationState::Producing, &["here"]));
    let u = h.combine();
    assert_eq!(h.inputs(&u), ["c at n3", "t here"]);
    h.combined(&t);
    assert_eq!(h.answer(inner), None, "the directory has not heard of it");
    h.combined(&u);
    assert_eq!(h.reduced(outer), [1, 0]);
    assert!(matches!(h.answer(inner), Some(Ok(Response::Reduced { .. }))));
}

#[test]
fn a_reduce_goes_on_when_its_shard_is_lost_in_the_middle() {
    let mut h = Harness::with_shards(3);
    h.event(Event::Measured { link: SLOW });
    let call = h.reduce("t", &["a", "b"]);
    h.ready("a", 1, "n1");
    for shard in 0..3 {
        h.event(Event::ShardDown { shard });
        h.tell(complete("a", 1, &["n1"]));
        if shard < 2 {
            h.event(up(shard));
        }
    }
    h.tell(unknown("b"));
    h.ready("b", 2, "n2");
    let hop = h.hop_at("n2");
    assert_eq!(hop_inputs(&hop), ["a at n1", "b here"]);
    let target = h.combine();
    h.combined(&target);
    assert_eq!(h.reduced(call), [0, 1]);
}

#[test]
fn what_went_how_is_remembered() {
    let mut h = Harness::with_slow_links();
    let (call, [second, third], target) = chain_of_three(&mut h);
    h.pass(Duration::from_secs(2));
    h.hop_complete(&second);
    h.hop_complete(&third);
    h.combined(&target);
    h.reduced(call);
    let record = h.node.reduce_record(&id("t")).expect("it is remembered");
    assert_eq!((record.op, record.reduced, record.hops), (ReduceOp::Sum, (3, 3), 2));
    assert_eq!((record.elapsed, record.mendings, record.restarts), (Duration::from_secs(2), 0, 0));
    assert!(record.plan.starts_with("chain, estimated to take 9.0s"), "{}", record.plan);
}

#[test]
fn no_source_is_refused() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(Reduce { count: 1, ..reduce("t", &[]) });
    assert!(matches!(h.error(call), Error::InvalidRequest { .. }));
    h.assert_empty();
}

#[test]
fn a_count_out_of_range_is_refused() {
    let mut h = Harness::with_slow_links();
    for count in [0, 3] {
        let call = h.request_reduce(Reduce { count, ..reduce("t", &["a", "b"]) });
        assert!(matches!(h.error(call), Error::InvalidRequest { .. }));
    }
    h.assert_empty();
}

#[test]
fn an_id_that_is_named_twice_is_refused() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(reduce("t", &["a", "b", "a"]));
    assert_eq!(h.error(call), Error::DuplicateId { id: id("a") });
    let call = h.request_reduce(reduce("t", &["a", "t"]));
    assert_eq!(h.error(call), Error::DuplicateId { id: id("t") });
    h.assert_empty();
}

#[test]
fn too_many_sources_are_refused() {
    let mut h = Harness::with_limits(Limits { max_ids_per_request: 2, ..limits() });
    let call = h.request_reduce(reduce("t", &["a", "b", "c"]));
    assert!(matches!(h.error(call), Error::LimitExceeded { maximum: 2, .. }));
    h.assert_empty();
}

#[test]
fn a_target_that_exists_here_is_refused() {
    let mut h = Harness::with_slow_links();
    h.put_f32("t", SIZE);
    let call = h.request_reduce(reduce("t", &["a"]));
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("t") });
}

#[test]
fn a_target_that_another_reduce_makes_is_refused() {
    let mut h = Harness::with_slow_links();
    let first = h.reduce("t", &["a"]);
    let second = h.request_reduce(reduce("t", &["b"]));
    assert_eq!(h.error(second), Error::AlreadyExists { id: id("t") });
    h.assert_waits(first);
}

#[test]
fn a_target_that_exists_elsewhere_is_refused() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(reduce("t", &["a"]));
    h.ready("t", 9, "n9");
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("t") });
    h.assert_empty();
}

#[test]
fn a_target_that_was_lost_is_made_anew() {
    let mut h = Harness::with_slow_links();
    let call = h.request_reduce(reduce("t", &["a"]));
    h.tell(lost("t", 9));
    h.assert_waits(call);
    h.ready("a", 1, "n1");
    h.combine();
}

#[test]
fn a_target_that_is_put_here_meanwhile_is_refused() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a"]);
    h.put_f32("t", SIZE);
    h.ready("a", 1, "n1");
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("t") });
}

#[test]
fn a_target_that_another_node_put_first_is_refused_by_the_directory() {
    let mut h = Harness::with_slow_links();
    let (call, [_, third], target) = chain_of_three(&mut h);
    let (shard, publish) = h.publication();
    let equality = hoplite_core::shard::Equality::Different;
    h.verdict(shard, &publish, Verdict::Conflict { winner: PutId(9), equality });
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("t") });
    assert!(h.has_ended(&third));
    h.stop(&target, 4096);
    h.assert_empty();
}

#[test]
fn sources_of_different_types_are_refused_with_both_ids() {
    let mut h = Harness::with_slow_links();
    let call = h.reduce("t", &["a", "b"]);
    h.ready("b", 2, "n2");
    let mut news = complete("a", 1, &["n1"]);
    news.object.as_mut().unwrap().metadata.dtype = Dtype::F64;
    h.tell(news);
    let error = h.error(call);
    assert!(
        matches!(&error, Error::TypeMismatch { id: named, .. } if *named == id("a")),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "object a cannot be reduced: it is f64 of 40960 bytes, but b is f32 of 40960 bytes"
    );
    h.assert_empty();
}

#[test]
fn sources_of_different_shapes_and_sizes_are_refused() {
    let shape = Metadata { shape: Some(vec![SIZE / 4]), ..f32s() };
    for (size_bytes, metadata) in [(SIZE, shape), (2 * SIZE, f32s())] {
        let mut h = Harness::with_slow_links();
        let call = h.reduce("t", &["a", "b"]);
        h.ready("a", 1, "n1");
        let mut news = complete("b", 2, &["n2"]);
        let object = news.object.as_mut().unwrap();
        (object.size_bytes, object.metadata) = (size_bytes, metadata);
        h.tell(news);
        assert!(matches!(h.error(call), Error::TypeMismatch { id: named, .. } if named == id("b")));
        h.assert_empty();
    }
}

#[test]
fn a_local_source_of_another_type_is_refused() {
    let mut h = Harness::with_slow_links();
    let b = h.put(B, "b", SIZE);
    let call = h.reduce("t", &["a", "b"]);
    h.ready("a", 1, "n1");
    assert!(matches!(h.error(call), Error::TypeMismatch { id: named, .. } if named == id("b")));
    h.drop_put(0, "b", b.put, DropReason::Deleted);
    h.assert_empty();
}

#[test]
fn an_operation_that_is_not_defined_for_the_type_is_refused() {
    for (dtype, op) in [(Dtype::Opaque, ReduceOp::Max), (Dtype::Bool, ReduceOp::Sum)] {
        let mut h = Harness::with_slow_links();
        let call = h.reduce_unknown(Reduce { op, ..reduce("t", &["a"]) });
        let mut news = complete("a", 1, &["n1"]);
        news.object.as_mut().unwrap().metadata.dtype = dtype;
        h.tell(news);
        assert!(matches!(h.error(call), Error::TypeMismatch { id: named, .. } if named == id("a")));
        h.assert_empty();
    }
    let mut h = Harness::new();
    let range = Some(ByteRange { offset_bytes: u64::MAX - 3, length_bytes: 8 });
    let call = h.request_reduce(Reduce { range, ..reduce("t", &["a"]) });
    assert!(
        matches!(h.error(call), Error::InvalidRequest { .. }),
        "it ends beyond the largest offset"
    );
    h.assert_empty();
}

#[test]
fn a_range_that_does_not_fit_is_refused() {
    for (offset_bytes, length_bytes) in
        [(0, SIZE + 4), (SIZE, 4), (2, 8), (4, 6), (u64::MAX - 11, 8)]
    {
        let mut h = Harness::with_slow_links();
        let range = Some(ByteRange { offset_bytes, length_bytes });
        let call = h.reduce_unknown(Reduce { range, ..reduce("t", &["a"]) });
        h.ready("a", 1, "n1");
        assert!(matches!(h.error(call), Error::TypeMismatch { id: named, .. } if named == id("a")));
        h.assert_empty();
    }
    let mut h = Harness::new();
    let range = Some(ByteRange { offset_bytes: u64::MAX - 3, length_bytes: 8 });
    let call = h.request_reduce(Reduce { range, ..reduce("t", &["a"]) });
    assert!(
        matches!(h.error(call), Error::InvalidRequest { .. }),
        "it ends beyond the largest offset"
    );
    h.assert_empty();
}
