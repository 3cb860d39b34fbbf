use std::time::Duration;

use hoplite_core::lifetime::{Lifetime, Ttl, TtlAction};
use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, ShardRun, ToShard, ToStore, UnpublishReason};
use hoplite_core::{Error, Metadata, PutId, Time};

use crate::harness::*;

impl Harness {
    pub(crate) fn spills(&mut self) -> Vec<(SpillFile, Vec<CopyId>)> {
        let mut found = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Spill { file, items } => {
                found.push((*file, items.iter().map(|item| item.copy).collect()));
                false
            }
            _ => true,
        });
        found
    }

    pub(crate) fn write_all(&mut self) -> Vec<CopyId> {
        let mut written = Vec::new();
        loop {
            let spills = self.spills();
            if spills.is_empty() {
                return written;
            }
            for (file, copies) in spills {
                written.extend(copies);
                self.event(Event::Spilled { file, outcome: Ok(()) });
            }
        }
    }

    pub(crate) fn loads(&mut self) -> Vec<CopyId> {
        let mut found = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Load { copy, .. } => {
                found.push(*copy);
                false
            }
            _ => true,
        });
        found
    }

    pub(crate) fn read_all(&mut self) -> usize {
        let mut count = 0;
        loop {
            let loads = self.loads();
            if loads.is_empty() {
                return count;
            }
            for copy in loads {
                count += 1;
                self.event(Event::Loaded { copy, outcome: Ok(()) });
            }
        }
    }

    /// Returns `false` if no write and no read was open.
    pub(crate) fn answer_disk(&mut self, fault: u8) -> bool {
        let (spills, loads) = (self.spills(), self.loads());
        let is_any_open = !spills.is_empty() || !loads.is_empty();
        let reason = || "reason".to_owned();
        let outcome = match fault {
            0 => Err(SpillFault::Full(reason())),
            1 => Err(SpillFault::Failed(reason())),
            2 => Err(SpillFault::Unread(reason())),
            3 => Err(SpillFault::Damaged(reason())),
            _ => Ok(()),
        };
        for (file, _) in spills {
            self.event(Event::Spilled { file, outcome: outcome.clone() });
        }
        for copy in loads {
            self.event(Event::Loaded { copy, outcome: outcome.clone() });
        }
        is_any_open
    }

    pub(crate) fn removed(&self) -> usize {
        self.effects
            .iter()
            .filter(|effect| matches!(effect, Effect::RemoveSpillFile { .. }))
            .count()
    }

    pub(crate) fn spill(&self) -> SpillStatus {
        self.node.status().spill
    }

    pub(crate) fn put_many(&mut self, count: usize) -> Vec<ObjectView> {
        self.put_sized(count, SIZE)
    }

    pub(crate) fn put_sized(&mut self, count: usize, size_bytes: u64) -> Vec<ObjectView> {
        let put = |number: usize| {
            let name = number.to_string();
            let call = self.create(A, &name, size_bytes);
            self.write_all();
            let view = self.view(call);
            let sealed = self.seal(A, view.copy);
            self.accept_all();
            assert_eq!(self.answer(sealed), Some(Ok(Response::Sealed)));
            self.release(A, view.copy);
            self.write_all();
            view
        };
        (0..count).map(put).collect()
    }
}

#[test]
fn three_arenas_of_pinned_objects_fit_and_come_back() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(30);
    let status = h.node.status();
    assert_eq!(status.copies, 30);
    assert!(status.spill.objects >= 20, "{status:?}");
    assert!(
        h.told().iter().all(|line| !line.contains("unpublish")),
        "the directory does not notice"
    );
    for round in 0..2 {
        for (number, put) in views.iter().enumerate() {
            let call = h.get(B, &number.to_string());
            h.write_all();
            h.read_all();
            let view = h.view(call);
            assert_eq!((view.copy, view.put), (put.copy, put.put), "round {round}");
            h.release(B, view.copy);
        }
    }
    let written = h.spill().spilled_objects;
    assert!(written <= 30, "an object is written once, not {written} of 30 times");
}

#[test]
fn the_least_recently_used_copies_are_spilled_down_to_the_stop_watermark() {
    let mut h = Harness::spilling(None);
    let views: Vec<ObjectView> = (0..7).map(|number| h.put(A, &number.to_string(), SIZE)).collect();
    assert!(h.spills().is_empty(), "70% is below the watermark");
    let call = h.get(B, "0");
    let held = h.view(call);
    h.release(B, held.copy);
    h.put(A, "7", SIZE);
    assert_eq!(h.write_all(), [views[1].copy], "the one that was used again stays");
    let status = h.node.status();
    assert_eq!(status.spill.clean_bytes, views[1].extent.length_bytes);
    assert_eq!(
        (status.spill.objects, h.free_objects()),
        (0, 2),
        "memory is freed only when needed"
    );
    let call = h.get(B, "1");
    h.view(call);
    assert!(h.loads().is_empty(), "it is still in the arena");
}

#[test]
fn copies_in_use_stay() {
    let mut h = Harness::spilling(None);
    let held: Vec<ObjectView> =
        (0..8).map(|number| h.put_held(A, &number.to_string(), SIZE)).collect();
    let served = h.put(A, "served", SIZE);
    h.write_all();
    let serve = h.serve("served", served.put).expect("it is in the arena");
    let call = h.create_within(B, "large", 2 * SIZE, Duration::from_secs(1));
    assert!(h.write_all().is_empty());
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
    h.event(Event::ServeEnded { serve });
    for view in held {
        h.release(A, view.copy);
    }
    let call = h.create(B, "large", 2 * SIZE);
    h.write_all();
    h.view(call);
}

#[test]
fn a_copy_that_is_used_while_it_is_written_stays_in_the_arena() {
    let mut h = Harness::spilling(None);
    for number in 0..8 {
        h.put(A, &number.to_string(), SIZE);
    }
    let (file, copies) = h.spills().remove(0);
    let call = h.get(B, "0");
    let view = h.view(call);
    assert_eq!(copies, [view.copy]);
    h.event(Event::Spilled { file, outcome: Ok(()) });
    assert!(!h.is_closed(view.copy));
    assert_eq!(h.spill().clean_bytes, 0, "it is in use");
    h.release(B, view.copy);
    assert_eq!(h.spill().clean_bytes, view.extent.length_bytes);
}

#[test]
fn a_deleted_object_leaves_its_file_which_is_removed_after_the_last_one() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let files = h.spill().files;
    assert!(views.iter().any(|view| h.is_closed(view.copy)));
    for (number, view) in views.iter().enumerate() {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    assert_eq!(h.removed() as u64, files);
    assert_eq!(
        h.spill(),
        SpillStatus { spilled_objects: files, spilled_bytes: files * SIZE, ..h.spill() }
    );
    assert_eq!((h.spill().objects, h.spill().files, h.spill().file_bytes), (0, 0, 0));
    h.assert_empty();
}

#[test]
fn a_copy_that_is_deleted_while_it_is_written_or_read_ends_afterwards() {
    let mut h = Harness::spilling(None);
    let views: Vec<ObjectView> = (0..8).map(|number| h.put(A, &number.to_string(), SIZE)).collect();
    let (file, _) = h.spills().remove(0);
    h.drop_put(0, "0", views[0].put, DropReason::Deleted);
    assert!(!h.is_closed(views[0].copy), "the shell still reads it");
    h.event(Event::Spilled { file, outcome: Ok(()) });
    assert!(h.is_closed(views[0].copy));
    assert_eq!((h.removed(), h.spill().files), (1, 0));

    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let call = h.get(B, "0");
    assert_eq!(h.loads(), [views[0].copy]);
    h.drop_put(0, "0", views[0].put, DropReason::Deleted);
    assert_eq!(h.error(call), Error::Deleted { id: id("0") });
    h.event(Event::Loaded { copy: views[0].copy, outcome: Ok(()) });
    assert_eq!(h.removed(), 1);
}

#[test]
fn what_is_needed_of_a_mostly_dead_file_moves_to_another_one() {
    let mut h = Harness::spilling(None);
    let views = h.put_sized(100, UNCONFIRMED);
    let before = h.spill();
    assert!(before.spilled_objects > 5 * before.files, "small objects share files: {before:?}");
    for (number, view) in views.iter().enumerate().take(5) {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    let (new, moved) = h.spills().remove(0);
    assert_eq!(moved, views[5..10].iter().map(|view| view.copy).collect::<Vec<_>>());
    h.drop_put(0, "5", views[5].put, DropReason::Deleted);
    assert_eq!(h.removed(), 0);
    h.event(Event::Spilled { file: new, outcome: Ok(()) });
    assert_eq!(h.removed(), 1, "the old file is gone");
    assert_eq!(h.spill().files, before.files);
    assert!(h.spill().file_bytes < before.file_bytes);
    let call = h.get(B, "7");
    let is_from_new =
        |effect: &Effect| matches!(effect, Effect::Load { record, .. } if record.file == new);
    assert!(h.effects.iter().any(is_from_new));
    h.read_all();
    h.view(call);
    for (number, view) in views.iter().enumerate().skip(6) {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
        h.write_all();
    }
    assert_eq!((h.spill().files, h.spill().file_bytes), (0, 0));
}

#[test]
fn a_full_disk_leaves_the_objects_and_is_tried_again() {
    let mut h = Harness::spilling(None);
    for number in 0..9 {
        h.put(A, &number.to_string(), SIZE);
    }
    let call = h.create_within(B, "new", 2 * SIZE, Duration::from_secs(5));
    for (file, _) in h.spills() {
        h.event(Event::Spilled {
            file,
            outcome: Err(SpillFault::Full("no space left".to_owned())),
        });
    }
    assert!(h.spills().is_empty(), "the disk rests");
    let troubles = h.troubles().spill;
    assert_eq!(troubles[0].directory, "disk");
    assert_eq!(troubles[0].fault.to_string(), "no space left");
    assert!(
        h.load().troubles.iter().any(|trouble| trouble.text == "spilling to disk: no space left")
    );
    h.assert_waits(call);
    h.pass(Duration::from_secs(2));
    assert!(!h.spills().is_empty(), "it is tried again");
    h.pass(Duration::from_secs(3));
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
    assert_eq!(h.node.status().copies, 9, "no object is lost");
}

#[test]
fn the_limit_of_the_files_is_kept() {
    let record = SpillRecord::length_bytes(SIZE) + SpillRecord::FILE_HEADER_BYTES;
    let mut h = Harness::spilling(Some(3 * record));
    let views = h.put_many(12);
    assert_eq!(h.spill().file_bytes, 3 * record);
    let call = h.create_within(B, "new", 2 * SIZE, Duration::from_secs(1));
    assert!(h.write_all().is_empty());
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(call), Error::StoreFull { .. }));
    assert!(h.troubles().spill[0].fault.to_string().contains("limit"));
    assert_eq!(h.spill().failures, 1, "the store tried again for a second, and counts the change");
    h.drop_put(0, "0", views[0].put, DropReason::Deleted);
    let call = h.create(B, "new", SIZE);
    h.write_all();
    h.view(call);
}

#[test]
fn above_half_of_the_limit_an_object_that_is_read_leaves_its_file() {
    let record = SpillRecord::length_bytes(SIZE) + SpillRecord::FILE_HEADER_BYTES;
    let mut h = Harness::spilling(Some(6 * record));
    h.put_many(14);
    assert!(h.spill().file_bytes > 3 * record);
    let files = h.spill().files;
    let call = h.get(B, "0");
    h.write_all();
    h.read_all();
    h.view(call);
    assert_eq!(h.removed(), 1);
    assert!(h.spill().files <= files, "its room in the files is free");
}

#[test]
fn a_damaged_record_is_a_typed_error_and_the_copy_is_lost() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    h.sent();
    let call = h.get(B, "0");
    let copy = h.loads()[0];
    let fault = SpillFault::Damaged("the file is truncated".to_owned());
    h.event(Event::Loaded { copy, outcome: Err(fault) });
    assert_eq!(
        h.error(call),
        Error::SpillFailed { id: id("0"), reason: "the file is truncated".into() }
    );
    let gone =
        ToShard::Unpublish { id: id("0"), put: views[0].put, reason: UnpublishReason::Evicted };
    assert!(h.sent().iter().any(|(_, message)| *message == gone));
    assert!(h.is_closed(copy) && h.removed() == 1);
}

#[test]
fn a_record_that_cannot_be_read_now_stays() {
    let mut h = Harness::spilling(None);
    h.put_many(14);
    let call = h.get(B, "0");
    let copy = h.loads()[0];
    let serve = h.ask_to_serve(id("0"), PutId(0), false);
    assert!(h.is_refused(serve), "another put");
    h.event(Event::Loaded {
        copy,
        outcome: Err(SpillFault::Failed("input/output error".to_owned())),
    });
    let failed = Error::SpillFailed { id: id("0"), reason: "input/output error".into() };
    assert_eq!(h.error(call), failed);
    let again = h.get(B, "0");
    assert_eq!(h.error(again), failed, "the disk rests for a moment");
    h.pass(Duration::from_secs(1));
    let again = h.get(B, "0");
    h.read_all();
    h.view(again);
}

#[test]
fn a_repeated_put_waits_for_the_copy_and_refers_to_it() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    let call = h.create(B, "0", SIZE);
    h.assert_waits(call);
    h.read_all();
    assert_eq!(h.view(call).copy, views[0].copy);
}

#[test]
fn a_spilled_copy_is_published_at_a_shard_that_comes_back() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(14);
    h.event(Event::ShardDown { shard: 0 });
    h.sent();
    h.event(Event::ShardUp {
        shard: 0,
        run: ShardRun(2),
        asked_at: Time::NEVER,
        version: hoplite_core::Version::NEWEST,
    });
    let told = h.told();
    assert!(told.contains(&"0 publish 0 Complete".to_owned()), "{told:?}");
    assert!(h.is_closed(views[0].copy));
}

#[test]
fn a_wait_knows_spilled_objects_and_a_shutdown_ends_them() {
    let mut h = Harness::spilling(None);
    h.put_many(14);
    let request = Request::Wait { ids: vec![id("0")], count: 1, timeout: LONG };
    let call = h.request(B, request);
    assert_eq!(h.answer(call), Some(Ok(Response::Ready { indices: vec![0] })));
    let reading = h.get(B, "0");
    let copy = h.loads()[0];
    h.event(Event::ShutDown);
    assert_eq!(h.error(reading), Error::ShuttingDown);
    h.event(Event::Loaded { copy, outcome: Ok(()) });
    h.write_all();
    assert_eq!(h.node.status().copies, 0);
}

#[test]
fn a_promotion_makes_a_fetched_copy_spillable() {
    let mut h = Harness::spilling(None);
    for number in 0..8 {
        h.fetch(A, &number.to_string(), 100 + number, SIZE);
    }
    assert!(h.spills().is_empty(), "unpinned copies are evicted instead");
    for number in 0..8 {
        let (id, put) = (id(&number.to_string()), PutId(100 + number));
        h.event(Event::FromShard { shard: 0, message: ToStore::Promote { id, put } });
    }
    assert!(!h.spills().is_empty());
}

#[test]
fn objects_in_files_end_at_their_ttl() {
    for action in [TtlAction::Delete, TtlAction::Free] {
        let mut h = Harness::spilling(None);
        let ttl = Ttl::new(Duration::from_secs(3600), action).expect("a valid ttl");
        let metadata = Metadata { lifetime: Lifetime::of(None, Some(ttl)), ..Metadata::default() };
        let request = Request::Create { id: id("x"), size_bytes: SIZE, metadata, timeout: LONG };
        let call = h.request(A, request);
        let view = h.view(call);
        h.seal(A, view.copy);
        h.accept_all();
        h.release(A, view.copy);
        h.put_many(14);
        assert!(h.is_closed(view.copy), "it is only in a file");
        h.told();
        h.pass(Duration::from_secs(3600));
        let told = h.told();
        if action == TtlAction::Free {
            assert!(told.contains(&"0 unpublish x Evicted".to_owned()), "{told:?}");
        } else {
            assert!(told.contains(&"0 delete x".to_owned()), "{told:?}");
            h.drop_put(0, "x", view.put, DropReason::Deleted);
        }
        assert_eq!(h.node.status().copies, 14);
        assert_eq!(h.node.object_of(view.copy), None);
    }
}

#[test]
fn a_full_store_names_clients_that_map_copies_which_could_be_spilled() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(2);
    let call = h.get(B, "0");
    h.view(call);
    let bytes = views[0].extent.length_bytes;
    let holders = h.node.holders();
    assert_eq!(holders.clients, [Holder { client: B, copies: 1, bytes }]);
    assert_eq!(holders.pinned_bytes, bytes);
    assert_eq!(
        h.node.client_uses().iter().find(|used| used.client == B).unwrap().held_bytes,
        bytes
    );
}
