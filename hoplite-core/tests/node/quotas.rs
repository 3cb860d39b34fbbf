use std::time::Duration;

use hoplite_core::error::{Missing, QuotaExcess};
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::node::*;
use hoplite_core::quota::{Quota, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse};
use hoplite_core::shard::{DropReason, PullOutcome};
use hoplite_core::{Error, ObjectId};

use crate::harness::*;
use crate::reducing::*;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
const SHORT: Duration = Duration::from_millis(10);
const EXTENT: u64 = HEADER_BYTES + SIZE;

const MEMORY: QuotaLimits = limits(Some(2 * EXTENT), None);
const TWO: QuotaLimits = limits(None, Some(2));

const fn limits(memory_bytes: Option<u64>, objects: Option<u64>) -> QuotaLimits {
    QuotaLimits { memory_bytes, disk_bytes: None, objects }
}

impl Harness {
    fn with_users(mut self) -> Self {
        for (client, user) in [(A, ALICE), (B, BOB)] {
            self.event(Event::ClientConnected { client, user, owners: Vec::new() });
        }
        self
    }

    #[track_caller]
    fn quota(&mut self, subject: QuotaSubject, limits: Option<QuotaLimits>) -> Quota {
        let call = self.request(B, Request::SetQuota { subject, limits });
        match self.answer(call) {
            Some(Ok(Response::Quotas(quotas))) => {
                quotas.into_iter().next().expect("it is this quota")
            }
            other => panic!("expected a quota, got {other:?}"),
        }
    }

    #[track_caller]
    fn uses(&mut self) -> impl Iterator<Item = QuotaUse> {
        let call = self.request(B, Request::ListQuotas);
        let Some(Ok(Response::Quotas(quotas))) = self.answer(call) else { panic!("no quotas") };
        quotas.into_iter().map(|quota| quota.used)
    }

    #[track_caller]
    fn disk(&mut self) -> Vec<u64> {
        self.uses().map(|used| used.disk_bytes).collect()
    }

    #[track_caller]
    fn used(&mut self) -> Vec<(u64, u64)> {
        let used = self.uses();
        used.map(|QuotaUse { memory_bytes, objects, .. }| (memory_bytes / EXTENT, objects))
            .collect()
    }
}

fn prefix(name: &str) -> QuotaSubject {
    QuotaSubject::Prefix(id(name))
}

#[track_caller]
fn excess(error: Error) -> QuotaExcess {
    match error {
        Error::QuotaExceeded(excess) => *excess,
        other => panic!("expected an exceeded quota, got {other:?}"),
    }
}

#[test]
fn a_put_over_its_quota_waits_until_an_object_is_deleted() {
    let mut h = Harness::new().with_users();
    h.quota(QuotaSubject::User(ALICE), Some(TWO));
    h.put(A, "a", SIZE);
    let put = h.put(A, "b", SIZE).put;
    let call = h.create(A, "c", SIZE);
    h.assert_waits(call);
    h.put(B, "of another user", SIZE);
    h.drop_put(0, "b", put, DropReason::Deleted);
    let view = h.view(call);
    assert_eq!(h.used(), [(2, 2)]);
    h.request(A, Request::Abort { copy: view.copy });
    assert_eq!(h.used(), [(1, 1)]);
    assert_eq!(h.node.status().over_quota_puts, 0);
}

#[test]
fn each_client_waits_for_its_own_objects_only() {
    let mut h = Harness::new().with_users();
    let put = h.put(A, "a", SIZE).put;
    assert_eq!(h.quota(QuotaSubject::EachClient, Some(TWO)).used.objects, 1);
    h.put(A, "b", SIZE);
    let call = h.create(A, "c", SIZE);
    h.put(B, "d", SIZE);
    h.assert_waits(call);
    assert_eq!(h.used(), [(2, 2)], "the most of any client");
    h.drop_put(0, "a", put, DropReason::Deleted);
    h.view(call);
    h.gone(A);
    assert_eq!(h.used(), [(1, 1)]);
    let again = ClientId(17);
    h.event(Event::ClientConnected { client: again, user: ALICE, owners: Vec::new() });
    h.put(again, "e", SIZE);
    h.put(again, "f", SIZE);
    let call = h.create(again, "g", SIZE);
    h.assert_waits(call);
    h.quota(QuotaSubject::EachClient, None);
    h.view(call);
}

#[test]
fn a_client_over_its_quota_of_memory_spills_its_own_objects() {
    let mut h = Harness::spilling(None).with_users();
    h.quota(QuotaSubject::EachClient, Some(MEMORY));
    h.put(B, "other", SIZE);
    let own = ["a", "b"].map(|name| h.put(A, name, SIZE).copy);
    let call = h.create(A, "c", SIZE);
    assert_eq!(h.write_all(), own[..1]);
    h.view(call);
}

#[test]
fn a_put_over_its_quota_fails_at_its_timeout_and_a_larger_one_at_once() {
    let mut h = Harness::new().with_users();
    h.quota(prefix("x/"), Some(MEMORY));
    h.put(A, "x/1", SIZE);
    let call = h.create_within(B, "x/2", 2 * SIZE, SHORT);
    h.assert_waits(call);
    assert_eq!(h.troubles().full_waiters, 0, "the store has room");
    h.pass(SHORT);
    let late = excess(h.error(call));
    let expected = QuotaExcess {
        subject: prefix("x/"),
        resource: QuotaResource::Memory,
        needed: 2 * SIZE + HEADER_BYTES,
        used: EXTENT,
        limit: 2 * EXTENT,
    };
    assert_eq!(late, expected);
    let call = h.create(B, "x/3", 3 * SIZE);
    assert!(excess(h.error(call)).is_final());
    let call = h.create(B, "y/3", 3 * SIZE);
    h.view(call);
    assert_eq!(h.node.status().over_quota_puts, 2);
    h.pass(LONG_WAIT);
    let waiting = h.create(B, "x/4", 2 * SIZE);
    h.pass(LONG_WAIT);
    let waits = h.troubles().waits;
    assert!(
        matches!(&waits[..], [LongWait { missing: Some(Missing::Quota { .. }), .. }]),
        "{waits:?}"
    );
    h.quota(prefix("x/"), Some(limits(Some(CAPACITY), None)));
    h.view(waiting);
}

#[test]
fn a_quota_below_its_use_deletes_nothing_and_its_removal_admits_puts() {
    let mut h = Harness::new().with_users();
    let views = ["a", "b", "c"].map(|name| h.put(A, name, SIZE));
    assert_eq!(h.quota(QuotaSubject::User(ALICE), Some(TWO)).used.objects, 3);
    let call = h.create(A, "d", SIZE);
    h.drop_put(0, "a", views[0].put, DropReason::Deleted);
    h.assert_waits(call);
    assert!(!h.is_failed(views[1].copy));
    assert_eq!(h.quota(QuotaSubject::User(ALICE), None).used.objects, 2);
    h.view(call);
    assert_eq!(h.used(), []);
    let call = h.request(A, Request::SetQuota { subject: prefix("a"), limits: None });
    assert!(matches!(h.error(call), Error::InvalidRequest { .. }));
}

#[test]
fn a_deleted_object_counts_until_its_last_view_is_gone() {
    let mut h = Harness::new().with_users();
    h.quota(QuotaSubject::User(ALICE), Some(TWO));
    let held = h.put_held(A, "a", SIZE);
    h.drop_put(0, "a", held.put, DropReason::Deleted);
    assert_eq!(h.used(), [(1, 1)]);
    h.release(A, held.copy);
    assert_eq!(h.used(), [(0, 0)]);
}

#[test]
fn copies_of_other_nodes_are_charged_to_no_quota() {
    let mut h = Harness::new().with_users();
    h.quota(prefix("x"), Some(limits(Some(0), Some(0))));
    h.fetch(A, "x", 1, SIZE);
    let call = h.get(A, "xy");
    let pull = h.grant("xy", 2, SIZE, "n1");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.view(call);
    assert_eq!(h.used(), [(0, 0)]);
}

#[test]
fn the_objects_of_a_client_that_is_gone_stay_charged_and_its_unfinished_put_is_not() {
    let mut h = Harness::new().with_users();
    h.quota(QuotaSubject::User(ALICE), Some(TWO));
    h.put(A, "a", SIZE);
    let call = h.create(A, "b", SIZE);
    h.view(call);
    let call = h.create(A, "c", SIZE);
    h.assert_waits(call);
    assert_eq!(h.used(), [(2, 2)]);
    h.gone(A);
    assert_eq!(h.used(), [(1, 1)]);
}

#[test]
fn spilled_objects_take_no_memory_of_a_quota_but_count() {
    let mut h = Harness::spilling(None).with_users();
    h.quota(QuotaSubject::User(ALICE), Some(limits(Some(9 * EXTENT), None)));
    let views = h.put_many(10 - 1);
    h.write_all();
    h.quota(prefix("0"), Some(TWO));
    assert_eq!(h.used(), [(9, 9), (1, 1)]);
    let large = h.create(B, "large", 4 * SIZE);
    h.write_all();
    let large = h.view(large);
    let used = h.used();
    assert!(used[0].0 < 9 && used[0].1 == 9, "{used:?}");
    h.release(B, large.copy);
    h.event(Event::ClientGone { client: B });
    for name in 0..9 {
        let call = h.get(A, &name.to_string());
        h.write_all();
        h.read_all();
        let view = h.view(call);
        h.release(A, view.copy);
    }
    for (number, view) in views.iter().enumerate() {
        h.drop_put(0, &number.to_string(), view.put, DropReason::Deleted);
    }
    assert_eq!(h.used(), [(0, 0), (0, 0)]);
}

#[test]
fn a_put_that_lacks_memory_of_its_quota_spills_unused_objects_of_that_quota() {
    let mut h = Harness::spilling(None).with_users();
    h.quota(prefix("q"), Some(MEMORY));
    h.put(A, "other", SIZE);
    let (first, second) = (h.put(A, "q1", SIZE).copy, h.put(A, "q2", SIZE).copy);
    let read = h.get(A, "q2");
    h.view(read);
    assert!(h.spills().is_empty());
    let third = h.create(B, "q3", SIZE);
    h.assert_waits(third);
    let spills = h.spills();
    assert_eq!(spills[0].1, [first]);
    h.event(Event::Spilled { file: spills[0].0, outcome: Ok(()) });
    h.view(third);
    assert_eq!(h.used(), [(2, 3)]);
    let fourth = h.create(B, "q4", SIZE);
    h.assert_waits(fourth);
    assert!(h.spills().is_empty(), "one copy of the quota is read, the other one is written");
    h.release(A, second);
    let spills = h.spills();
    assert_eq!(spills[0].1, [second]);
    let full = SpillFault::Full("no space left".to_owned());
    h.event(Event::Spilled { file: spills[0].0, outcome: Err(full) });
    h.assert_waits(fourth);
    h.pass(Duration::from_secs(1));
    assert_eq!(h.write_all(), [second]);
    h.view(fourth);
    assert_eq!(h.used(), [(2, 4)]);
    assert_eq!(h.node.status().over_quota_puts, 0);
}

#[test]
fn a_put_that_lacks_memory_of_its_quota_drops_objects_that_a_file_has() {
    let mut h = Harness::spilling(None).with_users();
    h.put_many(8);
    assert!(h.spill().clean_bytes > 0);
    h.quota(prefix("0"), Some(limits(Some(EXTENT), None)));
    assert_eq!(h.used(), [(1, 1)]);
    let call = h.create(B, "00", SIZE);
    h.view(call);
    assert_eq!(h.used(), [(1, 2)]);
}

#[test]
fn a_put_that_spilling_cannot_help_moves_nothing() {
    let mut h = Harness::spilling(None).with_users();
    h.put(A, "x1", SIZE);
    h.put_held(A, "x2", SIZE);
    h.quota(prefix("x"), Some(MEMORY));
    let large = h.create_within(B, "x3", SIZE + EXTENT, SHORT);
    assert!(h.spills().is_empty(), "one object is in use");
    h.quota(prefix("x"), Some(limits(Some(2 * EXTENT), Some(2))));
    let another = h.create_within(B, "x4", SIZE, SHORT);
    assert!(h.spills().is_empty(), "the number of objects is exceeded, too");
    h.pass(SHORT);
    assert_eq!(excess(h.error(large)).resource, QuotaResource::Objects);
    assert_eq!(excess(h.error(another)).resource, QuotaResource::Objects);
    assert_eq!(h.spill().files, 0);
}

#[test]
fn puts_of_two_quotas_spill_at_once() {
    let mut h = Harness::spilling(None).with_users();
    let copies = ["q1", "q2", "r1", "r2"].map(|name| h.put(A, name, SIZE).copy);
    for name in ["q", "r"] {
        h.quota(prefix(name), Some(MEMORY));
    }
    let calls = [h.create(B, "q3", SIZE), h.create(B, "r3", SIZE), h.create(B, "r4", SIZE)];
    assert_eq!(h.write_all(), [copies[0], copies[2], copies[3]]);
    for call in calls {
        h.view(call);
    }
    assert_eq!(h.used(), [(2, 3), (2, 4)]);
}

#[test]
fn a_quota_whose_objects_do_not_fit_the_files_delays_no_other_object() {
    let record = SpillRecord::length_bytes(SIZE) + SpillRecord::FILE_HEADER_BYTES;
    let mut h = Harness::spilling(Some(record)).with_users();
    h.quota(prefix("large"), Some(limits(Some(4 * EXTENT), None)));
    h.put(A, "large1", 3 * SIZE);
    let large = h.create(B, "large2", 2 * SIZE);
    h.assert_waits(large);
    let first = h.put(A, "first", SIZE).copy;
    for number in 0..6 {
        h.put(A, &number.to_string(), SIZE);
    }
    let call = h.create(B, "new", SIZE);
    h.assert_waits(call);
    h.pass(Duration::from_secs(2));
    assert_eq!(h.write_all(), [first]);
    h.view(call);
    h.assert_waits(large);
}

#[test]
fn objects_over_their_quota_of_disk_stay_in_memory_and_others_are_spilled() {
    let record = SpillRecord::length_bytes(SIZE);
    let mut h = Harness::spilling(None).with_users();
    let disk = |records: u64| {
        Some(QuotaLimits { disk_bytes: Some(records * record), ..QuotaLimits::default() })
    };
    h.quota(QuotaSubject::User(ALICE), disk(2));
    h.quota(prefix("free"), disk(100));
    let views = ["1", "2", "3", "4"].map(|name| h.put(A, name, SIZE));
    let copies = views.each_ref().map(|view| view.copy);
    let free = ["free1", "free2", "free3"].map(|name| h.put(B, name, SIZE).copy);
    let large = h.create(B, "large", 6 * EXTENT - HEADER_BYTES);
    let mut written = h.write_all();
    h.pass(Duration::from_secs(1));
    written.extend(h.write_all());
    assert_eq!(written, [&copies[..2], &free[..]].concat());
    h.view(large);
    assert_eq!(h.disk(), [2 * record, 3 * record]);
    assert!(h.troubles().spill.is_empty(), "no disk is full");
    assert_eq!(h.node.holders().barred_bytes, 2 * EXTENT);
    h.drop_put(0, "1", views[0].put, DropReason::Deleted);
    assert_eq!(h.write_all(), [copies[2]], "it fits now");
    assert_eq!(h.disk(), [2 * record, 3 * record]);
    h.quota(QuotaSubject::User(ALICE), None);
    let last = h.create(B, "last", 4 * EXTENT - HEADER_BYTES);
    assert_eq!(h.write_all(), [copies[3]]);
    h.view(last);
}

#[test]
fn an_object_that_exceeds_two_quotas_of_disk_is_held_back_once() {
    let record = SpillRecord::length_bytes(SIZE);
    let mut h = Harness::spilling(None).with_users();
    let disk = |bytes| Some(QuotaLimits { disk_bytes: Some(bytes), ..QuotaLimits::default() });
    h.quota(QuotaSubject::User(ALICE), disk(0));
    let limits = QuotaLimits {
        memory_bytes: Some(5 * EXTENT / 2),
        disk_bytes: Some(7 * record / 10),
        objects: None,
    };
    h.quota(prefix("a"), Some(limits));
    for (name, size_bytes) in [("d", SIZE / 16), ("a1", SIZE), ("a2", SIZE)] {
        h.put(A, name, size_bytes);
    }
    for number in 0..6 {
        h.put_held(B, &number.to_string(), SIZE);
    }
    h.pass(Duration::from_secs(1));
    let call = h.create(A, "a3", SIZE);
    h.assert_waits(call);
    h.quota(QuotaSubject::User(ALICE), disk(21 * record / 20));
    assert_eq!(h.node.holders().barred_bytes, 2 * EXTENT);
}

#[test]
fn room_on_disk_lets_a_put_try_again_that_lacks_memory() {
    let record = SpillRecord::length_bytes(SIZE);
    let mut h = Harness::spilling(None).with_users();
    let disk = |bytes| Some(QuotaLimits { disk_bytes: Some(bytes), ..QuotaLimits::default() });
    h.quota(QuotaSubject::User(ALICE), disk(record));
    let spilled = h.put(A, "spilled", SIZE).put;
    h.put(A, "a1", SIZE);
    let large = h.create(B, "large", 7 * EXTENT - HEADER_BYTES);
    h.write_all();
    let copy = h.view(large).copy;
    h.request(B, Request::Abort { copy });
    h.quota(prefix("a"), Some(limits(Some(EXTENT), None)));
    assert_eq!(h.node.holders().barred_bytes, EXTENT);
    let call = h.create(A, "a2", SIZE);
    h.assert_waits(call);
    h.drop_put(0, "spilled", spilled, DropReason::Deleted);
    h.write_all();
    h.view(call);
}

#[test]
fn a_small_object_is_spilled_once_it_fits_though_a_larger_one_does_not() {
    let record = SpillRecord::length_bytes(SIZE);
    let mut h = Harness::spilling(None).with_users();
    let disk = |bytes| Some(QuotaLimits { disk_bytes: Some(bytes), ..QuotaLimits::default() });
    h.quota(prefix("q"), disk(2 * record));
    h.quota(QuotaSubject::User(BOB), disk(0));
    let spilled = ["q1", "q2"].map(|name| h.put(A, name, SIZE));
    h.put(A, "q3", 2 * SIZE);
    let small = [h.put(B, "q4", SIZE / 2).copy, h.put(A, "q5", SIZE).copy];
    h.put(A, "other", 2 * SIZE);
    let large = h.create(B, "large", 4 * EXTENT - HEADER_BYTES);
    assert!(h.write_all().starts_with(&spilled.each_ref().map(|view| view.copy)));
    h.view(large);
    h.drop_put(0, "q1", spilled[0].put, DropReason::Deleted);
    let last = h.create(A, "last", 2 * EXTENT - HEADER_BYTES);
    assert_eq!(h.write_all(), [small[1]], "the user of the other has no disk");
    h.view(last);
}

#[test]
fn a_failed_write_and_a_changed_limit_change_the_use_of_a_disk() {
    let mut h = Harness::spilling(None).with_users();
    h.put(A, "x1", SIZE);
    h.put(A, "x2", SIZE);
    let limits = QuotaLimits { disk_bytes: Some(CAPACITY), ..limits(Some(2 * EXTENT), None) };
    h.quota(prefix("x"), Some(limits));
    let call = h.create(A, "x3", SIZE);
    let [(file, copies)] = &h.spills()[..] else { panic!("one batch") };
    let used = copies.len() as u64 * SpillRecord::length_bytes(SIZE);
    assert_eq!(h.disk(), [used]);
    h.event(Event::Spilled { file: *file, outcome: Err(SpillFault::Full("full".to_owned())) });
    assert_eq!(h.disk(), [0]);
    let limits = QuotaLimits { disk_bytes: Some(0), ..limits };
    assert_eq!(h.quota(prefix("x"), Some(limits)).limits.disk_bytes, Some(0));
    h.pass(Duration::from_secs(2));
    assert!(h.spills().is_empty());
    h.assert_waits(call);
    h.quota(prefix("x"), Some(QuotaLimits { disk_bytes: None, ..limits }));
    h.pass(Duration::from_secs(1));
    assert!(!h.write_all().is_empty());
    h.view(call);
    assert_eq!(h.disk(), [used]);
}

#[test]
fn a_put_that_lacks_memory_of_its_quota_waits_for_room_in_the_files() {
    let record = SpillRecord::length_bytes(SIZE) + SpillRecord::FILE_HEADER_BYTES;
    let mut h = Harness::spilling(Some(record)).with_users();
    h.quota(prefix("q"), Some(MEMORY));
    h.quota(prefix("r"), Some(MEMORY));
    let put = h.put(A, "q1", SIZE).put;
    h.put(A, "q2", SIZE);
    for name in ["r1", "r2"] {
        h.put(A, name, SIZE);
    }
    let call = h.create(B, "q3", SIZE);
    h.write_all();
    h.view(call);
    let call = h.create(B, "r3", SIZE);
    assert!(h.write_all().is_empty());
    assert!(h.troubles().spill[0].fault.to_string().contains("does not fit below the limit"));
    h.drop_put(0, "q1", put, DropReason::Deleted);
    h.pass(Duration::from_secs(2));
    assert_eq!(h.write_all().len(), 1);
    h.view(call);
    assert_eq!(h.used(), [(2, 2), (2, 3)]);
}

#[test]
fn the_target_of_a_reduce_is_charged_from_its_reservation() {
    let mut h = Harness::with_slow_links().with_users();
    h.quota(QuotaSubject::User(ALICE), Some(limits(None, Some(1))));
    let call = h.reduce("t", &["a", "b", "c"]);
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    h.hop_at("n2");
    assert!(h.has_no_combine(), "a source is missing");
    assert_eq!(h.used(), [(1, 1)]);
    let put = h.create_within(A, "c", SIZE, SHORT);
    h.pass(SHORT);
    assert_eq!(excess(h.error(put)).resource, QuotaResource::Objects);
    let (client, call) = call;
    h.request(client, Request::Cancel { call });
    assert_eq!(h.used(), [(0, 0)]);
}

#[test]
fn a_reduce_over_its_quota_waits_for_room_in_it() {
    let mut h = Harness::with_slow_links().with_users();
    h.quota(prefix("t"), Some(limits(None, Some(1))));
    let put = h.put(A, "t0", SIZE).put;
    let timeout = Duration::from_secs(5);
    let waits = h.request_reduce(Reduce { timeout, ..reduce("t1", &["a", "b"]) });
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    h.assert_waits(waits);
    assert!(h.has_no_combine());
    h.pass(timeout);
    assert_eq!(excess(h.error(waits)).subject, prefix("t"));
    h.drop_put(0, "t0", put, DropReason::Deleted);
    assert_eq!(h.used(), [(0, 0)]);
}

#[test]
fn ids_of_a_batch_are_charged_one_by_one() {
    let mut h = Harness::new().with_users();
    h.quota(prefix("x"), Some(TWO));
    let put = |name: &ObjectId| Request::Put {
        id: name.clone(),
        metadata: Default::default(),
        bytes: vec![1; 100].into(),
        confirm: Confirm::No,
        timeout: SHORT,
    };
    let ids = ["x1", "x2", "x3"].map(id);
    let call = h.request(A, Request::Batch(ids.iter().map(put).collect()));
    h.pass(SHORT);
    let Some(Ok(Response::Batch(answers))) = h.answer(call) else { panic!("no batch") };
    assert!(matches!(answers[..], [Ok(_), Ok(_), Err(Error::QuotaExceeded(_))]), "{answers:?}");
    assert_eq!(h.used(), [(0, 2)]);
}
