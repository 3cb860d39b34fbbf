use std::ops::Range;
use std::time::Duration;

use hoplite_core::collective::{CollectiveEvent, Failure, Plan, Report};
use hoplite_core::node::*;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{DropReason, Equality, PullOutcome, ToShard, UnpublishReason, Verdict};
use hoplite_core::{Dtype, Error, Limits, ObjectId, PutId};

use crate::harness::*;
use crate::members::*;
use crate::reducing::complete;

impl Harness {
    #[track_caller]
    fn served_record(&self, serve: ServeId) -> SpillRecord {
        let record = self.effects.iter().find_map(|effect| match effect {
            Effect::ServeSpilled { serve: of, record, .. } if *of == serve => Some(*record),
            _ => None,
        });
        record.unwrap_or_else(|| panic!("{serve:?} is not served from a file"))
    }

    fn hold(&mut self, numbers: Range<usize>) -> Vec<ObjectView> {
        let hold = |number: usize| {
            let call = self.get(A, &number.to_string());
            self.write_all();
            self.read_all();
            self.view(call)
        };
        numbers.map(hold).collect()
    }
}

#[test]
fn a_receiver_is_served_from_the_file_even_without_room_in_the_arena() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let held = h.hold(4..14);
    assert_eq!(h.free_objects(), 0);
    let serve = h.ask_to_serve(id("0"), views[0].put, false);
    h.served_record(serve);
    assert!(h.loads().is_empty(), "it needs no room");
    assert_eq!(h.node.status().waiting_for_room, 0);
    let call = h.get(B, "0");
    h.release(A, held[0].copy);
    h.write_all();
    h.read_all();
    let view = h.view(call);
    h.release(B, view.copy);
    h.event(Event::ServeEnded { serve });
    let serve = h.serve("0", views[0].put).expect("the next receiver is served from the arena");
    h.event(Event::ServeEnded { serve });
}

#[test]
fn a_failed_read_for_a_receiver_concerns_only_a_copy_that_still_needs_the_record() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let copy = views[0].copy;
    let serve = h.ask_to_serve(id("0"), views[0].put, false);
    let record = h.served_record(serve);
    h.event(Event::RecordFailed { copy, record, fault: SpillFault::Failed("busy".to_owned()) });
    h.event(Event::ServeEnded { serve });
    let refused = h.ask_to_serve(id("0"), views[0].put, false);
    assert!(h.is_refused(refused), "the disk rests for a moment");
    h.pass(Duration::from_secs(1));
    let call = h.get(B, "0");
    h.read_all();
    h.view(call);
    h.sent();
    h.event(Event::RecordFailed { copy, record, fault: SpillFault::Damaged("no".to_owned()) });
    assert!(!h.is_failed(copy) && h.told().is_empty(), "the copy in the arena is good");
    assert_eq!(h.spill().failures, 1);
}

#[test]
fn a_copy_whose_damage_a_receiver_finds_is_lost() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let copy = views[0].copy;
    let serve = h.ask_to_serve(id("0"), views[0].put, false);
    let record = h.served_record(serve);
    h.sent();
    h.event(Event::RecordFailed { copy, record, fault: SpillFault::Damaged("no".to_owned()) });
    let gone =
        ToShard::Unpublish { id: id("0"), put: views[0].put, reason: UnpublishReason::Evicted };
    assert!(h.sent().iter().any(|(_, message)| *message == gone));
    h.event(Event::ServeEnded { serve });
    assert_eq!(h.node.status().copies, 13);
}

#[test]
fn a_served_record_stays_in_its_file() {
    let mut h = Harness::spilling(None);
    let views = h.put_sized(100, UNCONFIRMED);
    let serve = h.ask_to_serve(id("9"), views[9].put, false);
    let record = h.served_record(serve);
    for (number, view) in views.iter().enumerate().take(5) {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    assert_eq!(h.write_all(), views[5..9].iter().map(|view| view.copy).collect::<Vec<_>>());
    assert_eq!(h.removed(), 0, "the receiver reads the old file");
    h.event(Event::ServeEnded { serve });
    assert_eq!(h.write_all(), [views[9].copy]);
    assert_eq!(h.removed(), 1);
    let serve = h.ask_to_serve(id("9"), views[9].put, false);
    assert_ne!(h.served_record(serve), record);
}

#[test]
fn compaction_makes_room_at_the_limit_of_the_files() {
    let file = 10 * SpillRecord::length_bytes(UNCONFIRMED) + SpillRecord::FILE_HEADER_BYTES;
    let mut h = Harness::spilling(Some(3 * file));
    let views = h.put_sized(100, UNCONFIRMED);
    let before = h.spill();
    assert!(before.files >= 2 && 3 * file - before.file_bytes < file, "{before:?}");
    for (number, view) in views.iter().enumerate().take(6) {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    h.pass(Duration::from_secs(1));
    assert!(h.write_all().contains(&views[6].copy), "what is left of the first file moves");
    assert!(h.spill().file_bytes <= 3 * file, "{:?}", h.spill());
    assert_eq!(h.removed(), 1);
}

#[test]
fn a_compaction_blames_the_disk_that_cannot_be_read() {
    let mut h = Harness::spilling_to(&["old", "new"], None, limits());
    let views = h.put_sized(100, UNCONFIRMED);
    for (number, view) in views.iter().enumerate().take(6) {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    let mut spills = h.spills();
    let (mut file, _) = spills.remove(0);
    if file.directory == 0 {
        h.event(Event::Spilled { file, outcome: Err(SpillFault::Failed("no".to_owned())) });
        (file, _) = h.spills().remove(0);
    }
    let fault = SpillFault::Unread("cannot read it".to_owned());
    let failures = h.spill().failures;
    h.event(Event::Spilled { file, outcome: Err(fault.clone()) });
    let troubles = h.troubles().spill;
    assert!(
        troubles.iter().any(|trouble| trouble.directory == "old" && trouble.fault == fault),
        "{troubles:?}"
    );
    assert!(troubles.iter().all(|trouble| trouble.directory != "new"), "{troubles:?}");
    assert_eq!(h.spill().failures, failures + 1);
    assert!(h.spills().is_empty(), "it does not fail again and again");
}

#[test]
fn a_load_is_no_new_object() {
    let mut h = Harness::spilling_to(&["disk"], None, Limits { max_objects: 14, ..limits() });
    h.put_many(14);
    let call = h.get(B, "0");
    h.read_all();
    h.view(call);
}

#[test]
fn a_put_in_a_file_that_cannot_be_read_learns_later_if_it_was_the_first() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    h.event(Event::ShardDown { shard: 0 });
    h.sent();
    h.event(up(0));
    let publications = h.publications();
    let (shard, publish) = publications
        .into_iter()
        .find(|(_, publish)| publish.put == views[0].put)
        .expect("it is published");
    h.pass(SETTLING);
    let holder = Some((node_id("holder"), address("holder")));
    let conflict = Verdict::Conflict { winner: PutId(77), equality: Equality::Unknown { holder } };
    h.verdict(shard, &publish, conflict.clone());
    let copy = h.loads()[0];
    h.event(Event::Loaded { copy, outcome: Err(SpillFault::Failed("busy".to_owned())) });
    for _ in 0..2 {
        h.sent();
        h.pass(Duration::from_millis(200));
        let (shard, publish) = h.publication();
        assert_eq!(publish.put, views[0].put);
        h.verdict(shard, &publish, conflict.clone());
    }
    h.pass(Duration::from_secs(2));
    let (shard, publish) = h.publications().pop().expect("it is published again");
    h.verdict(shard, &publish, conflict);
    h.read_all();
    assert!(
        h.effects.iter().any(|effect| matches!(effect, Effect::Compare { winner: PutId(77), .. }))
    );
}

fn hop_of(views: &[ObjectView]) -> Hop {
    let inputs = views.iter().enumerate().map(|(number, view)| HopInput {
        id: id(&number.to_string()),
        put: view.put,
        size_bytes: SIZE,
        base_bytes: 0,
        node: node_id("here"),
        address: address("here"),
        is_hop: false,
    });
    Hop {
        output: ObjectId::of_hop(PutId(900)),
        put: PutId(900),
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        size_bytes: SIZE,
        offset_bytes: 0,
        inputs: inputs.collect(),
        timeout: Duration::from_secs(5),
    }
}

#[test]
fn a_hop_streams_inputs_from_files_so_they_need_no_room() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(30);
    let hosting = h.host(hop_of(&views));
    h.write_all();
    let combine = h.combine();
    let from_files =
        combine.inputs.iter().filter(|input| matches!(input, CombineInput::Remote(_))).count();
    assert!(from_files >= 20 && combine.inputs.len() == 30, "{from_files} of 30");
    assert!(h.loads().is_empty());
    h.combined(&combine);
    assert_eq!(h.report(hosting), Some(HopReport::Complete));
}

#[test]
fn a_reduce_streams_its_own_sources_from_files() {
    let mut h = Harness::spilling(None);
    let (a, b) = (h.put_f32("a", SIZE), h.put_f32("b", SIZE));
    h.put_many(14);
    let call = h.reduce("t", &["a", "b"]);
    h.tell(complete("a", a.put.0, &["here"]));
    h.tell(complete("b", b.put.0, &["here"]));
    h.write_all();
    let combine = h.combine();
    assert!(
        combine.inputs.iter().all(|input| matches!(input, CombineInput::Remote(_))),
        "{combine:?}"
    );
    assert!(h.loads().is_empty());
    h.combined(&combine);
    assert_eq!(h.reduced(call), [0, 1]);
}

#[test]
fn a_fetch_that_fails_again_and_again_gives_its_room_to_others() {
    let mut h = Harness::new();
    let waiting = h.get(A, "large");
    for failure in 0..2 {
        let pull = h.grant("large", 5, 8 * SIZE, "sender");
        h.pull_ended(
            &pull,
            if failure == 0 { SIZE } else { pull.offset_bytes },
            PullOutcome::SenderStalled,
        );
        h.pass(Duration::from_secs(1));
    }
    let pull = h.grant("large", 5, 8 * SIZE, "sender");
    assert_eq!(pull.offset_bytes, SIZE);
    let put = h.create(B, "put", 5 * SIZE);
    h.assert_waits(put);
    h.pull_ended(&pull, SIZE, PullOutcome::SenderStalled);
    h.view(put);
    h.assert_waits(waiting);
    h.pass(Duration::from_secs(1));
    let (shard, query) = h.query();
    assert_eq!(
        h.grant_query(shard, query.request, "large", 5, 8 * SIZE, "sender"),
        None,
        "no room now"
    );
    h.gone(B);
    let pull = h.grant("large", 5, 8 * SIZE, "sender");
    assert_eq!(pull.offset_bytes, 0, "it begins again");
    h.pull_ended(&pull, 8 * SIZE, PullOutcome::Complete);
    h.view(waiting);
}

#[test]
fn a_put_gets_the_room_of_a_fetch_that_has_failed_before() {
    let mut h = Harness::new();
    let waiting = h.get(A, "large");
    for _ in 0..2 {
        let pull = h.grant("large", 5, 8 * SIZE, "sender");
        h.pull_ended(&pull, 0, PullOutcome::SenderStalled);
    }
    let put = h.create(B, "put", 5 * SIZE);
    h.view(put);
    h.assert_waits(waiting);
}

#[test]
fn sources_in_files_are_loaded_all_together_and_stay_until_the_exchange() {
    let mut h = Harness::spilling(None);
    let a = h.put_f32("a", 3 * SIZE);
    let b = h.put_f32("b", 3 * SIZE);
    h.put_many(14);
    assert!(h.is_closed(a.copy) && h.is_closed(b.copy), "they are only in files");
    let held = h.hold(10..13);
    let mut plan = plan(a.put);
    (plan.sources, plan.size_bytes) = (vec![(id("a"), a.put), (id("b"), b.put)], 3 * SIZE);
    collective(&mut h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan });
    h.write_all();
    assert!(h.loads().is_empty(), "there is room for a part, but not for all");
    for view in held {
        h.release(A, view.copy);
    }
    h.write_all();
    let loads = h.loads();
    assert_eq!(loads, [a.copy, b.copy]);
    h.event(Event::Loaded { copy: a.copy, outcome: Ok(()) });
    let put = h.create(B, "large", 2 * SIZE);
    h.write_all();
    h.assert_waits(put);
    assert!(
        !h.effects
            .iter()
            .rev()
            .take(3)
            .any(|effect| *effect == Effect::CopyClosed { copy: a.copy })
    );
    h.event(Event::Loaded { copy: b.copy, outcome: Ok(()) });
    let combine = exchange(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
    h.write_all();
    h.view(put);
    leave(&mut h);
}

#[test]
fn sources_that_are_never_in_memory_together_are_a_typed_error() {
    let mut h = Harness::spilling(None);
    let a = h.put_f32("a", 6 * SIZE);
    let plan = Box::new(Plan { size_bytes: 6 * SIZE, ..*plan(a.put) });
    collective(&mut h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan });
    let reports = reports(&mut h);
    let [Report::Failed(Failure::Refused(error))] = reports.as_slice() else {
        panic!("{reports:?}")
    };
    assert!(
        matches!(error, Error::StoreFull { needed_bytes, capacity_bytes: CAPACITY, holders, .. }
            if *needed_bytes > CAPACITY && holders.contains("must be in memory together")),
        "{error:?}"
    );
    leave(&mut h);
}

#[test]
fn a_member_that_leaves_gives_up_its_loaded_sources() {
    let mut h = Harness::spilling(None);
    let a = h.put_f32("a", SIZE);
    h.put_many(14);
    ask(&mut h, a.put);
    h.write_all();
    let free = h.node.status().free_bytes;
    assert_eq!(h.loads(), [a.copy]);
    leave(&mut h);
    assert!(h.node.status().free_bytes > free, "the room of the target is free");
    h.event(Event::Loaded { copy: a.copy, outcome: Ok(()) });
    assert_eq!(h.node.status().reserved_bytes, 0);
    let call = h.create(B, "large", 9 * SIZE);
    h.write_all();
    h.view(call);
}
