use std::time::Duration;

use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::node::*;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    DropReason, Equality, LocationState, Publish, Retention, ShardRun, ToStore, UnpublishReason,
    Verdict,
};
use hoplite_core::{Error, Metadata, PutId, Time, Version};

use crate::harness::*;

const KNOWN: ShardRun = ShardRun(7);
const RESTARTED: ShardRun = ShardRun(8);
const SETTLING: Duration = Duration::from_secs(2);

fn connect(shard: usize, run: ShardRun) -> Event {
    Event::ShardUp { shard, run, asked_at: Time::NEVER, version: Version::NEWEST }
}

fn object(name: &str, put: u64) -> SpilledObject {
    SpilledObject {
        offset_bytes: 128 + put * SpillRecord::length_bytes(SIZE),
        id: id(name),
        put: PutId(put),
        size_bytes: SIZE,
        metadata: Metadata::default(),
        ends_in: None,
        ends_with_owner: false,
    }
}

fn file(number: u64) -> SpillFile {
    SpillFile { directory: 0, number: RecoveredFile::FIRST_NUMBER + number }
}

/// Files of a store that knew the run [`KNOWN`] of a shard.
fn files(files: Vec<Vec<SpilledObject>>) -> Recovered {
    let numbered = (0..).zip(files);
    let files = numbered.map(|(number, objects)| {
        let length_bytes = 128 + objects.len() as u64 * SpillRecord::length_bytes(SIZE);
        RecoveredFile { file: file(number), length_bytes, objects }
    });
    Recovered { runs: vec![KNOWN], files: files.collect() }
}

fn one(name: &str) -> Recovered {
    files(vec![vec![object(name, 1)]])
}

impl Harness {
    fn unrecovered(&self) -> Vec<(String, Unrecovered)> {
        let found = self.effects.iter().filter_map(|effect| match effect {
            Effect::Unrecovered { id, reason, .. } => Some((id.to_string(), reason.clone())),
            _ => None,
        });
        found.collect()
    }

    fn retired(&self) -> Vec<SpillRecord> {
        let found = self.effects.iter().filter_map(|effect| match effect {
            Effect::RetireSpillRecord { record } => Some(*record),
            _ => None,
        });
        found.collect()
    }

    fn indexed(&self) -> Vec<SpilledObject> {
        let found = self.effects.iter().filter_map(|effect| match effect {
            Effect::IndexSpillFile { objects, .. } => Some(objects.clone()),
            _ => None,
        });
        found.flatten().collect()
    }
}

#[test]
fn the_index_of_a_file_has_what_a_later_run_needs() {
    let mut h = Harness::spilling(None);
    let views = h.put_many(20);
    let indexed = h.indexed();
    assert_eq!(indexed.len() as u64, h.spill().spilled_objects);
    for object in &indexed {
        let number: usize = object.id.to_string().parse().unwrap();
        let expected = &views[number];
        assert_eq!((object.put, object.size_bytes), (expected.put, expected.size_bytes));
        assert_eq!((object.ends_in, object.ends_with_owner), (None, false));
    }
    assert!(h.effects.contains(&Effect::NoteShardRun { run: ShardRun(1) }));
}

#[test]
fn a_deleted_object_is_retired_in_its_file() {
    let mut h = Harness::spilling_to(&["disk"], None, limits());
    h.put_sized(60, SIZE / 4);
    let indexed = h.indexed();
    let shared = indexed
        .iter()
        .find(|object| object.offset_bytes > 128)
        .expect("files have several objects");
    h.drop_put(0, &shared.id.to_string(), shared.put, DropReason::Deleted);
    assert!(h.retired().iter().any(|record| record.offset_bytes == shared.offset_bytes));
}

#[test]
fn a_put_without_a_verdict_and_an_inline_object_are_not_indexed() {
    let mut h = Harness::spilling(None);
    for number in 0..9 {
        let call = h.create(A, &number.to_string(), SIZE);
        let view = h.view(call);
        h.seal(A, view.copy);
        h.release(A, view.copy);
    }
    assert!(!h.write_all().is_empty());
    assert!(h.indexed().is_empty(), "no shard has accepted a put");
    let mut h = Harness::spilling(None);
    for number in 0..60 {
        h.put(A, &format!("small{number}"), SMALL);
        h.accept_all();
    }
    h.put_many(9);
    assert!(h.indexed().iter().all(|object| object.size_bytes == SIZE));
}

#[test]
fn a_witness_confirms_a_recovered_copy_which_is_then_read_from_its_file() {
    let mut h = Harness::recovering(1, one("x"));
    assert_eq!((h.spill().recovered_objects, h.spill().objects, h.spill().files), (1, 1, 1));
    let call = h.get(A, "x");
    h.assert_waits(call);
    h.event(connect(0, KNOWN));
    let (_, publish) = h.publication();
    assert_eq!(
        (publish.put, publish.state, publish.retention, publish.returning),
        (PutId(1), LocationState::Complete, Retention::Pinned, Some(Duration::ZERO))
    );
    h.assert_waits(call);
    h.verdict(0, &publish, Verdict::Accepted);
    assert_eq!(h.read_all(), 1);
    let view = h.view(call);
    assert_eq!((view.put, view.size_bytes), (PutId(1), SIZE));
    assert!(h.unrecovered().is_empty() && h.removed() == 0);
    h.drop_put(0, "x", PutId(1), DropReason::Deleted);
    h.release(A, view.copy);
    assert_eq!(h.removed(), 1);
}

#[test]
fn a_witness_that_does_not_remember_the_loss_ends_the_copy() {
    let mut h = Harness::recovering(1, one("x"));
    h.event(connect(0, KNOWN));
    let (_, publish) = h.publication();
    h.verdict(0, &publish, Verdict::Deleted);
    assert_eq!(h.unrecovered(), [("x".to_owned(), Unrecovered::Deleted)]);
    assert_eq!((h.removed(), h.node.status().copies), (1, 0));
    assert_eq!((h.spill().unrecovered_objects, h.spill().objects), (1, 0));
    let told = h.told();
    assert!(
        told.iter().all(|line| !line.contains("deleted")),
        "the store does not know better: {told:?}"
    );
}

#[test]
fn any_conflict_ends_the_copy_even_at_the_shard_that_does_not_decide() {
    for equality in [Equality::Equal, Equality::Different, Equality::Unknown { holder: None }] {
        for decides in [true, false] {
            let mut h = Harness::recovering(2, one("x"));
            h.event(connect(0, KNOWN));
            h.event(connect(1, KNOWN));
            let ranked = h.shards.ranked(&id("x"));
            let shard = if decides { ranked[0] } else { ranked[1] };
            let publications = h.publications();
            assert_eq!(publications.len(), 2);
            let (_, publish) = &publications[0];
            let (winner, equality) = (PutId(2), equality.clone());
            h.verdict(shard, publish, Verdict::Conflict { winner, equality });
            assert_eq!(h.unrecovered(), [("x".to_owned(), Unrecovered::Conflict { winner })]);
            assert_eq!((h.removed(), h.node.status().copies), (1, 0));
            assert_eq!(h.node.status().put_conflicts, 0, "no client has lost a put");
        }
    }
}

#[test]
fn without_a_witness_the_copy_waits_until_other_stores_had_time_to_publish() {
    let mut h = Harness::recovering(2, one("x"));
    h.event(connect(0, RESTARTED));
    h.event(connect(1, RESTARTED));
    h.pass(SETTLING - Duration::from_millis(1));
    assert!(h.publications().is_empty());
    h.pass(Duration::from_millis(1));
    let publications = h.publications();
    assert_eq!(publications.len(), 2);
    assert!(
        publications.iter().all(|(_, publish)| publish.returning.is_none() && publish.wants_answer)
    );
    let call = h.get(A, "x");
    h.assert_waits(call);
    let (shard, publish) = &publications[0];
    h.verdict(*shard, publish, Verdict::Accepted);
    h.read_all();
    h.view(call);
}

#[test]
fn a_restarted_shard_hears_of_the_copy_after_the_witness() {
    let mut h = Harness::recovering(2, one("x"));
    h.event(connect(0, RESTARTED));
    h.event(connect(1, KNOWN));
    let (shard, publish) = h.publication();
    assert_eq!((shard, publish.returning), (1, Some(Duration::ZERO)));
    h.verdict(1, &publish, Verdict::Accepted);
    let (shard, publish): (usize, Publish) = h.publication();
    assert_eq!((shard, publish.returning), (0, None));
}

#[test]
fn a_shard_beyond_the_first_two_of_an_id_is_no_witness() {
    let mut h = Harness::recovering(3, one("x"));
    let third = h.shards.ranked(&id("x"))[2];
    h.event(connect(third, KNOWN));
    h.pass(SETTLING);
    let (_, publish) = h.publication();
    assert_eq!(publish.returning, None, "it has never listed the put, so it cannot know a delete");
}

#[test]
fn after_a_change_of_the_list_no_shard_is_a_witness() {
    let mut h = Harness::recovering(3, one("x"));
    let [first, second, third] =
        h.shards.ranked(&id("x")).try_into().expect("there are three shards");
    let names = [second, third].map(|shard| h.shards.name(shard).to_owned());
    let list = ShardList::new(names).with_version(1);
    h.event(Event::FromShard { shard: first, message: ToStore::Shards(list) });
    h.event(connect(third, KNOWN));
    h.pass(SETTLING);
    let (_, publish) = h.publication();
    assert_eq!(
        publish.returning, None,
        "it replaces the first shard, and may never have listed the put"
    );
}

#[test]
fn two_puts_of_an_id_are_both_dropped_and_a_put_in_two_files_comes_back_once() {
    let first = vec![object("x", 1), object("y", 2), object("z", 3)];
    let second = vec![object("x", 4), object("y", 2)];
    let third = vec![object("x", 5)];
    let mut h = Harness::recovering(1, files(vec![first, second, third]));
    let ambiguous = ("x".to_owned(), Unrecovered::Ambiguous);
    assert_eq!(h.unrecovered(), [ambiguous.clone(), ambiguous.clone(), ambiguous]);
    assert_eq!((h.node.status().copies, h.spill().files, h.removed()), (2, 1, 2));
    assert_eq!(
        h.retired(),
        [SpillRecord { file: file(0), offset_bytes: object("x", 1).offset_bytes }],
        "files without objects are removed"
    );
    h.event(connect(0, KNOWN));
    assert_eq!(h.publications().len(), 2);
}

#[test]
fn objects_that_have_ended_or_break_a_limit_do_not_come_back() {
    let mut ended = object("ended", 1);
    ended.ends_in = Some(Duration::ZERO);
    let mut large = object("large", 2);
    large.size_bytes = CAPACITY;
    let mut shaped = object("shaped", 3);
    shaped.metadata.shape = Some(vec![1]);
    let others = [("x", 4), ("y", 5), ("z", 6)].map(|(name, put)| object(name, put));
    let objects = [ended, large, shaped].into_iter().chain(others).collect();
    let h = Harness::recovering(1, files(vec![objects]));
    let unrecovered = h.unrecovered();
    assert_eq!(unrecovered[0], ("ended".to_owned(), Unrecovered::Expired));
    assert!(matches!(&unrecovered[1].1, Unrecovered::Refused(Error::ObjectTooLarge { .. })));
    assert!(matches!(&unrecovered[2].1, Unrecovered::Refused(Error::InvalidMetadata { .. })));
    assert_eq!((unrecovered.len(), h.node.status().copies, h.retired().len()), (3, 3, 3));
}

#[test]
fn lifetimes_go_on() {
    let ttl = Ttl::new(Duration::from_secs(100), TtlAction::Delete).unwrap();
    let lifetime = Lifetime::of(Some(Owner::new("job").unwrap()), Some(ttl));
    let metadata = Metadata { lifetime, ..Metadata::default() };
    let kept = SpilledObject { metadata: metadata.clone(), ..object("kept", 1) };
    let ending =
        SpilledObject { ends_in: Some(Duration::from_secs(30)), metadata, ..object("ending", 2) };
    let mut h = Harness::recovering(1, files(vec![vec![kept, ending]]));
    h.event(connect(0, KNOWN));
    h.accept_all();
    h.pass(Duration::from_secs(29));
    assert!(!h.told().iter().any(|line| line.contains("delete")));
    h.pass(Duration::from_secs(1));
    let told = h.told();
    let deletes = told.iter().filter(|line| line.contains("delete")).count();
    assert_eq!(deletes, 1, "{told:?}");
    h.pass(Duration::from_secs(1000));
    assert_eq!(h.node.status().abandoned, 0, "another store counts the owner");
}

#[test]
fn an_owner_that_nobody_holds_ends_a_recovered_object() {
    let lifetime = Lifetime::of(Some(Owner::new("job").unwrap()), None);
    let metadata = Metadata { lifetime, ..Metadata::default() };
    let owned = SpilledObject { metadata, ends_with_owner: true, ..object("x", 1) };
    let mut h = Harness::recovering(1, files(vec![vec![owned]]));
    h.event(connect(0, KNOWN));
    h.accept_all();
    h.pass(limits().owner_grace);
    assert_eq!(h.node.status().abandoned, 1);
}

#[test]
fn a_recovered_copy_is_withdrawn_like_any_other() {
    let mut h = Harness::recovering(1, one("x"));
    h.event(connect(0, KNOWN));
    let (_, publish) = h.publication();
    h.verdict(0, &publish, Verdict::Accepted);
    h.event(Event::ShutDown);
    let unpublished = h.sent().into_iter().any(|(_, message)| {
        matches!(
            message,
            hoplite_core::shard::ToShard::Unpublish { reason: UnpublishReason::Evicted, .. }
        )
    });
    assert!(unpublished);
    assert_eq!(h.node.status().copies, 0);
}
