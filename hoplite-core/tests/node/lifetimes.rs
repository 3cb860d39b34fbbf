use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::metadata::Replicas;
use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::shard::{
    DropReason, PullOutcome, Replicate, Retention, ShardRun, ToShard, ToStore,
};
use hoplite_core::{Error, Limits, Metadata, PutId, Version};

use crate::harness::*;

const GRACE: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(10);
const INSTANT: Duration = Duration::from_millis(1);

fn owner(name: &str) -> Owner {
    Owner::new(name).expect("names of tests are short")
}

fn owned(name: &str) -> Option<Arc<Lifetime>> {
    Lifetime::of(Some(owner(name)), None)
}

fn ttl(action: TtlAction) -> Option<Arc<Lifetime>> {
    Lifetime::of(None, Some(Ttl::new(TTL, action).expect("a valid ttl")))
}

fn metadata(lifetime: Option<Arc<Lifetime>>) -> Metadata {
    Metadata { lifetime, ..Metadata::default() }
}

impl Harness {
    fn connect(&mut self, client: ClientId, owners: &[&str]) {
        let owners = owners.iter().map(|name| owner(name)).collect();
        self.event(Event::ClientConnected { client, user: 1, owners });
    }

    fn begin_put(
        &mut self,
        client: ClientId,
        name: &str,
        metadata: Metadata,
    ) -> (ClientId, CallId) {
        let request = Request::Create { id: id(name), size_bytes: SIZE, metadata, timeout: LONG };
        self.request(client, request)
    }

    #[track_caller]
    fn put_for(
        &mut self,
        client: ClientId,
        name: &str,
        lifetime: Option<Arc<Lifetime>>,
    ) -> ObjectView {
        let call = self.begin_put(client, name, metadata(lifetime));
        let view = self.view(call);
        let sealed = self.seal(client, view.copy);
        self.accept_all();
        assert_eq!(self.answer(sealed), Some(Ok(Response::Sealed)));
        self.sent();
        view
    }

    fn deleted(&mut self) -> Vec<String> {
        let told = self.told().into_iter();
        told.filter_map(|line| Some(line.split_once("delete ")?.1.to_owned())).collect()
    }

    fn drop_all(&mut self, name: &str) {
        let call = self.get(B, name);
        let put = match self.answer(call) {
            Some(Ok(Response::Object(view))) => view.put,
            other => panic!("expected a view, got {other:?}"),
        };
        self.drop_put(0, name, put, DropReason::Deleted);
    }

    #[track_caller]
    fn lifetime(&self, name: &str) -> LifetimeReport {
        self.node.lifetime(&id(name), self.now()).expect("the object ends here")
    }

    fn ownerless(&mut self, prefix: &'static [u8]) -> Vec<(String, Option<String>)> {
        let prefix = Bytes::from_static(prefix);
        let request = Request::ListOwnerless { prefix, after: Bytes::new(), limit: 10 };
        let call = self.request(B, request);
        let Some(Ok(Response::Ownerless(page))) = self.answer(call) else { panic!("no page") };
        assert_eq!(page.next, None);
        let text = |owner: Owner| owner.to_string();
        page.objects
            .into_iter()
            .map(|object| (object.id.to_string(), object.owner.map(text)))
            .collect()
    }
}

#[test]
fn an_object_is_deleted_at_its_ttl_which_no_read_extends() {
    let mut h = Harness::new();
    let view = h.put_for(A, "x", ttl(TtlAction::Delete));
    h.pass(TTL - INSTANT);
    let call = h.get(B, "x");
    h.view(call);
    assert!(h.deleted().is_empty());
    h.pass(INSTANT);
    assert_eq!(h.deleted(), ["x"]);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    assert!(!h.is_closed(view.copy), "the views of A and B keep their memory");
    h.release(A, view.copy);
    h.release(B, view.copy);
    assert!(h.is_closed(view.copy));
    assert_eq!(h.node.status().expired, 1);
}

#[test]
fn a_freed_object_leaves_this_store_alone() {
    let mut h = Harness::new();
    let view = h.put_for(A, "x", ttl(TtlAction::Free));
    h.pass(TTL);
    assert_eq!(h.told(), ["0 unpublish x Evicted"]);
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_shard_that_does_not_answer_is_asked_again() {
    let mut h = Harness::new();
    let view = h.put_for(A, "x", ttl(TtlAction::Delete));
    h.release(A, view.copy);
    h.pass(TTL);
    assert_eq!(h.deleted(), ["x"]);
    h.pass(Duration::from_secs(14));
    assert!(h.deleted().is_empty());
    h.pass(Duration::from_secs(1));
    assert_eq!(h.deleted(), ["x"]);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    h.pass(Duration::from_secs(60));
    assert!(h.deleted().is_empty());
    h.assert_empty();
}

#[test]
fn a_store_without_a_lease_deletes_nothing_because_the_id_may_name_a_newer_put() {
    let mut h = Harness::disconnected(1, limits());
    let up = |asked_at| Event::ShardUp {
        shard: 0,
        run: ShardRun(1),
        asked_at,
        version: Version::NEWEST,
    };
    h.event(up(h.now()));
    let view = h.put_for(A, "x", ttl(TtlAction::Delete));
    h.release(A, view.copy);
    h.pass(TTL);
    assert!(h.deleted().is_empty(), "the lease has ended");
    h.event(Event::ShardAnswered { shard: 0, pinged_at: h.now() });
    h.pass(Duration::from_secs(4));
    h.event(Event::ShardAnswered { shard: 0, pinged_at: h.now() });
    h.pass(Duration::from_secs(1));
    assert_eq!(h.deleted(), ["x"]);
    h.event(Event::ShardDown { shard: 0 });
    h.pass(Duration::from_secs(5));
    h.event(up(h.now()));
    assert!(h.deleted().is_empty());
}

#[test]
fn a_deleted_object_has_no_end_any_more() {
    let mut h = Harness::new();
    let view = h.put_for(A, "x", ttl(TtlAction::Delete));
    h.release(A, view.copy);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    h.assert_empty();
}

#[test]
fn the_lifetime_of_the_first_put_counts() {
    let mut h = Harness::new();
    h.put_for(A, "x", None);
    let again = h.begin_put(B, "x", metadata(ttl(TtlAction::Delete)));
    h.view(again);
    h.pass(TTL);
    assert!(h.deleted().is_empty());
}

#[test]
fn an_object_ends_when_its_owner_has_been_gone_for_the_grace_period() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    h.connect(B, &["job", "job"]);
    h.put_for(A, "x", owned("job"));
    h.gone(A);
    h.pass(2 * GRACE);
    assert!(h.deleted().is_empty(), "B holds the owner");
    h.gone(B);
    h.pass(GRACE - INSTANT);
    assert!(h.deleted().is_empty());
    h.pass(INSTANT);
    assert_eq!(h.deleted(), ["x"]);
    assert_eq!(h.node.status().abandoned, 1);
}

#[test]
fn a_holder_that_returns_in_time_keeps_the_objects() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    h.put_for(A, "x", owned("job"));
    h.gone(A);
    h.pass(GRACE - INSTANT);
    h.connect(B, &["job"]);
    h.pass(2 * GRACE);
    assert!(h.deleted().is_empty());
}

#[test]
fn an_owner_that_is_gone_when_the_put_ends_begins_its_grace_period_then() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    let call = h.begin_put(B, "x", metadata(owned("job")));
    let view = h.view(call);
    h.gone(A);
    h.pass(GRACE);
    h.seal(B, view.copy);
    h.accept_all();
    assert!(h.deleted().is_empty());
    h.pass(GRACE);
    assert_eq!(h.deleted(), ["x"]);
}

#[test]
fn many_objects_of_an_owner_are_deleted_in_turns() {
    let mut h = Harness::with_limits(Limits { owner_grace: Duration::ZERO, ..limits() });
    h.connect(A, &["job"]);
    let names: Vec<String> = (0..1500).map(|number| format!("{number:04}")).collect();
    for name in &names {
        let (metadata, bytes) = (metadata(owned("job")), Bytes::new());
        let confirm = Confirm::No;
        h.request(A, Request::Put { id: id(name), metadata, bytes, confirm, timeout: LONG });
    }
    h.accept_all();
    h.sent();
    h.gone(A);
    h.pass(INSTANT);
    let requests = |h: &mut Harness| -> Vec<_> {
        let sent = h.sent().into_iter();
        sent.filter_map(|(_, message)| match message {
            ToShard::Delete { request, id, .. } => Some((request, id)),
            _ => None,
        })
        .collect()
    };
    let first = requests(&mut h);
    assert_eq!(first.len(), 1024);
    for (request, id) in first {
        let put = Some(PutId(0));
        h.drop_all(&id.to_string());
        let message = ToStore::DeleteDone { request, put, absent: Named::of([]) };
        h.event(Event::FromShard { shard: 0, message });
    }
    assert_eq!(requests(&mut h).len(), 1500 - 1024);
}

#[test]
fn a_put_needs_a_holder_of_its_owner() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    let call = h.begin_put(A, "x", metadata(owned("other")));
    let error = h.error(call);
    assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
    assert!(error.to_string().contains("no client of this store holds the owner other"), "{error}");
    h.gone(A);
    let call = h.begin_put(B, "x", metadata(owned("job")));
    h.error(call);
    h.assert_empty();
}

#[test]
fn only_a_single_copy_can_be_freed() {
    let mut h = Harness::new();
    let replicas = Replicas { wanted: 2, awaited: 0, quorum: false };
    let call = h.begin_put(A, "x", Metadata { replicas, ..metadata(ttl(TtlAction::Free)) });
    let error = h.error(call);
    assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
}

#[test]
fn objects_for_which_no_client_stands_are_listed() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    h.connect(B, &[]);
    h.put_for(A, "tmp/owned", owned("job"));
    h.put_for(A, "tmp/plain", None);
    h.put_for(A, "tmp/ttl", ttl(TtlAction::Free));
    h.put_for(A, "other", None);
    h.put_for(B, "tmp/kept", None);
    h.fetch(B, "tmp/fetched", 99, SIZE);
    assert_eq!(h.ownerless(b""), []);
    h.gone(A);
    let plain = |name: &str| (name.to_owned(), None);
    let gone = ("tmp/owned".to_owned(), Some("job".to_owned()));
    assert_eq!(h.ownerless(b"tmp/"), [gone.clone(), plain("tmp/plain")]);
    assert_eq!(h.ownerless(b""), [plain("other"), gone, plain("tmp/plain")]);
}

#[test]
fn a_copy_kept_for_another_store_is_not_listed_because_the_owner_may_live_there() {
    let mut h = Harness::new();
    h.connect(B, &[]);
    let lifetime = || Lifetime::of(Some(owner("job")), Ttl::new(TTL, TtlAction::Delete).ok());
    let mut keep = |name: &str, put: u64, wanted: u8| {
        let replicas = Replicas { wanted, ..Replicas::default() };
        let metadata = Metadata { replicas, ..metadata(lifetime()) };
        let order = Replicate {
            id: id(name),
            put: PutId(put),
            size_bytes: SIZE,
            metadata: metadata.clone(),
        };
        h.event(Event::FromShard { shard: 0, message: ToStore::Replicate(order) });
        let (shard, query) = h.query();
        h.grant_as(shard, query.request, (name, put, SIZE, metadata), "sender");
        let pull = h.pulls.pop().expect("the store pulls");
        h.pull_ended(&pull, SIZE, PullOutcome::Complete);
        assert_eq!(h.publication().1.retention, Retention::Pinned);
    };
    keep("drained", 7, 1);
    keep("replica", 8, 2);
    assert_eq!(h.ownerless(b""), []);
}

#[test]
fn a_report_tells_the_rest_of_the_lifetime() {
    let mut h = Harness::new();
    h.connect(A, &["job"]);
    let lifetime = Lifetime::of(Some(owner("job")), Ttl::new(2 * GRACE, TtlAction::Delete).ok());
    h.put_for(A, "x", lifetime);
    h.pass(TTL);
    let report = h.lifetime("x");
    assert_eq!(report.expires_in, Some(2 * GRACE - TTL));
    assert_eq!((report.is_owner_gone, report.deleted_in), (false, None));
    h.gone(A);
    let report = h.lifetime("x");
    assert_eq!((report.is_owner_gone, report.deleted_in), (true, Some(GRACE)));
    h.pass(GRACE);
    assert_eq!(
        (h.lifetime("x").expires_in, h.lifetime("x").deleted_in),
        (None, Some(Duration::ZERO))
    );
}
