use std::time::Duration;

use hoplite_core::metadata::Replicas;
use hoplite_core::node::*;
use hoplite_core::shard::{Obstacle, Replication, Retention, ToShard, ToStore};
use hoplite_core::{Error, Metadata};

use crate::harness::*;

const TIMEOUT: Duration = Duration::from_secs(30);

impl Harness {
    fn told_copies(&mut self, name: &str, copies: u32, nodes: u32, obstacle: Option<Obstacle>) {
        let put = self.lead_put(name);
        self.told_copies_of(name, put, (copies, nodes), obstacle);
    }

    fn told_copies_of(
        &mut self,
        name: &str,
        put: hoplite_core::PutId,
        (copies, nodes): (u32, u32),
        obstacle: Option<Obstacle>,
    ) {
        let news = Replication { id: id(name), put, copies, nodes, is_draining: true, obstacle };
        self.event(Event::FromShard { shard: 0, message: ToStore::Replication(news) });
    }

    fn lead_put(&mut self, name: &str) -> hoplite_core::PutId {
        let sent = self.sent();
        let lead = sent.iter().find_map(|(_, message)| match message {
            ToShard::Lead(lead) if lead.id == id(name) && lead.leads => Some(lead.put),
            _ => None,
        });
        lead.unwrap_or_else(|| panic!("no lead of {name} in {sent:?}"))
    }

    #[track_caller]
    fn drained(&mut self, call: (ClientId, CallId)) -> DrainReport {
        match self.answer(call) {
            Some(Ok(Response::Drain(report))) => report,
            other => panic!("expected a report, got {other:?}"),
        }
    }
}

#[test]
fn a_count_of_copies_from_before_the_drain_moves_nothing() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    let put = h.lead_put("x");
    let news = |is_draining| {
        let news =
            Replication { id: id("x"), put, copies: 1, nodes: 2, is_draining, obstacle: None };
        Event::FromShard { shard: 0, message: ToStore::Replication(news) }
    };
    h.event(news(false));
    h.assert_waits(call);
    h.event(news(true));
    let report = h.drained(call);
    assert_eq!((report.moved_objects + report.held_objects, report.left_objects), (1, 0));
}

#[test]
fn a_drain_ends_when_every_object_is_elsewhere() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    assert!(h.node.status().is_draining);
    h.assert_waits(call);
    let put = h.lead_put("x");
    h.told_copies_of("x", put, (0, 2), None);
    h.assert_waits(call);
    h.told_copies_of("x", put, (1, 2), None);
    let published = h.publication().1;
    assert_eq!(published.retention, Retention::Evictable, "the pin is given up");
    let report = h.drained(call);
    assert_eq!(
        (report.state, report.moved_objects, report.moved_bytes),
        (DrainState::Drained, 1, SIZE)
    );
    assert!(h.effects.iter().any(|effect| matches!(effect, Effect::DrainEnded { .. })));
}

#[test]
fn a_store_without_objects_is_drained_at_once() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Drain { timeout: TIMEOUT });
    assert_eq!(h.drained(call).state, DrainState::Drained);
}

#[test]
fn a_drain_refuses_puts_and_waits_for_earlier_ones() {
    let mut h = Harness::new();
    let created = h.create(A, "x", SIZE);
    let view = h.view(created);
    let waits = h.get(A, "late");
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    let refused = h.create(A, "y", SIZE);
    assert_eq!(h.error(refused), Error::Draining);
    let sealed = h.seal(A, view.copy);
    h.accept_all();
    h.told_copies("x", 1, 1, None);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    h.assert_waits(call);
    h.request(A, Request::Cancel { call: waits.1 });
    assert_eq!(h.drained(call).held_objects, 1);
}

#[test]
fn a_drain_reports_objects_that_others_have_already_and_missing_copies() {
    let mut h = Harness::new();
    let replicas = Replicas { wanted: 2, awaited: 0, quorum: false };
    let metadata = Metadata { replicas, ..Metadata::default() };
    let created =
        h.request(A, Request::Create { id: id("x"), size_bytes: SIZE, metadata, timeout: TIMEOUT });
    let view = h.view(created);
    h.seal(A, view.copy);
    h.accept_all();
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    h.told_copies("x", 1, 1, Some(Obstacle::NoNode));
    let report = h.drained(call);
    assert_eq!(
        (report.state, report.moved_objects, report.moved_bytes),
        (DrainState::Drained, 0, 0)
    );
    assert_eq!((report.held_objects, report.short_objects), (1, 1));
}

#[test]
fn the_last_store_fails_at_once_and_accepts_puts_again() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    h.told_copies("x", 0, 0, Some(Obstacle::NoNode));
    let report = h.drained(call);
    assert_eq!(
        (report.state, report.left_objects, report.left_bytes),
        (DrainState::Failed, 1, SIZE)
    );
    assert_eq!(report.unmoved[0].obstacle, Some(Obstacle::NoNode));
    assert!(h.told().contains(&"0 drain false".to_owned()));
    h.put(A, "y", SIZE);
}

#[test]
fn a_drain_without_room_elsewhere_fails_at_its_deadline_with_the_reason() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    h.sent();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    h.told_copies("x", 0, 1, Some(Obstacle::NoRoom));
    h.assert_waits(call);
    let progress = h.request(A, Request::DrainProgress);
    assert_eq!(h.drained(progress).state, DrainState::Draining);
    h.pass(TIMEOUT);
    let report = h.drained(call);
    assert_eq!((report.state, report.unmoved.len()), (DrainState::Failed, 1));
    assert_eq!(report.unmoved[0].obstacle, Some(Obstacle::NoRoom));
}

#[test]
fn an_open_call_ends_a_drain_at_its_deadline_without_a_failure() {
    let mut h = Harness::new();
    h.get(A, "never");
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    h.pass(TIMEOUT);
    let report = h.drained(call);
    assert_eq!((report.state, report.open_calls), (DrainState::Drained, 1));
}

#[test]
fn a_deleted_object_need_not_move() {
    let mut h = Harness::new();
    let view = h.put(A, "x", SIZE);
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    h.drop_put(0, "x", view.put, hoplite_core::shard::DropReason::Deleted);
    assert_eq!(h.drained(call).state, DrainState::Drained);
}

#[test]
fn a_shard_that_comes_back_hears_of_the_drain_before_the_copies() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    h.event(Event::Drain { timeout: TIMEOUT });
    h.event(Event::ShardDown { shard: 0 });
    h.sent();
    h.event(up(0));
    assert_eq!(h.told(), ["0 drain true", "0 publish x Complete", "0 lead x true"]);
}

#[test]
fn callers_are_answered_before_the_store_may_stop() {
    let mut h = Harness::new();
    let call = h.request(B, Request::Drain { timeout: TIMEOUT });
    let position = |found: fn(&Effect) -> bool| h.effects.iter().position(found);
    let answered = position(|effect| matches!(effect, Effect::Reply { .. }));
    let ended = position(|effect| matches!(effect, Effect::DrainEnded { .. }));
    assert!(answered.is_some() && answered < ended, "{answered:?} {ended:?}");
    assert_eq!(h.drained(call).state, DrainState::Drained);
}
