//! Random events under the checker. Small numbers make many steps concern the same object.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::metadata::Replicas;
use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::quota::{QuotaLimits, QuotaSubject};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    DeleteWait, DropReason, Equality, LocationState, PullOutcome, Query, Replicate, Replication,
    RequestId, ToShard, ToStore, Verdict,
};
use hoplite_core::{Dtype, Error, Limits, Metadata, ObjectId, Operation, PutId};
use proptest::prelude::*;

use crate::harness::*;
use crate::reducing::*;

const CLIENTS: u64 = 3;
const SHARDS: usize = 2;

fn job() -> Owner {
    Owner::new("job").expect("a valid name")
}

fn lifetime(number: u64) -> Option<Arc<Lifetime>> {
    let ttl = |action| Ttl::new(Duration::from_millis(200), action).ok();
    match number % 7 {
        0 => Lifetime::of(None, ttl(TtlAction::Delete)),
        1 => Lifetime::of(None, ttl(TtlAction::Free)),
        2 => Lifetime::of(Some(job()), None),
        3 => Lifetime::of(Some(job()), ttl(TtlAction::Delete)),
        _ => None,
    }
}

/// A step's number selects a candidate (modulo their count).
#[derive(Debug, Clone)]
enum Step {
    Create { client: u64, id: usize, size_bytes: u64, timeout: u64 },
    Put { client: u64, id: usize, size_bytes: u64, is_confirmed: bool, timeout: u64 },
    Seal { client: u64, which: usize, is_confirmed: bool },
    Abort { client: u64, which: usize },
    Release { client: u64, which: usize },
    Get { client: u64, id: usize, is_patient: bool, timeout: u64 },
    Delete { client: u64, id: usize },
    Batch { client: u64, items: Vec<(usize, u8)>, timeout: u64 },
    Wait { client: u64, id: usize },
    Subscribe { client: u64, id: usize },
    Cancel { client: u64, back: u64 },
    ClientGone { client: u64 },
    SetQuota { client: u64, subject: u8, limits: u8 },
    ShardUp { shard: usize },
    ShardDown { shard: usize },
    AnswerQuery { which: usize, put: u64, answer: u8 },
    Verdict { which: usize, verdict: u8 },
    Drop { shard: usize, id: usize, put: u64, is_deleted: bool },
    Promote { shard: usize, id: usize, put: u64 },
    Replicate { shard: usize, id: usize, put: u64, size: u64 },
    Replication { shard: usize, id: usize, put: u64, copies: u32, nodes: u32 },
    DeleteDone { which: usize },
    Locations { which: usize, kind: u8, put: u64, nodes: u8 },
    Reduce { client: u64, target: usize, sources: u8, count: usize, kind: u8, timeout: u64 },
    CombineEnded { which: usize, blocks: u64, outcome: u8 },
    HopReported { which: usize, report: u8 },
    HopRequested { output: u64, inputs: Vec<(u8, u64)>, blocks: u64, timeout: u64 },
    HopReleased { which: usize },
    ServeOutput { output: u64 },
    Disk { fault: u8 },
    PullEnded { which: usize, blocks: u64, outcome: u8 },
    Serve { id: usize, put: u64, peer: usize },
    ServeEnded { which: usize },
    Compared { which: usize, equal: Option<bool> },
    Pass { milliseconds: u64 },
    Nonsense { kind: u8, number: u64 },
}

fn batch_item(id: ObjectId, kind: u8, timeout: Duration) -> Request {
    let put = |size_bytes: u64, confirm| Request::Put {
        id: id.clone(),
        metadata: f32s(),
        bytes: vec![1; usize::try_from(size_bytes).expect("it is small")].into(),
        confirm,
        timeout,
    };
    match kind {
        0 => put(SMALL, Confirm::No),
        1 => put(SMALL, Confirm::Yes),
        2 => put(SIZE, Confirm::No),
        3 => Request::Delete { ids: vec![id], timeout, wait: DeleteWait::Reachable },
        _ => Request::Get { id, until: Until::Contents, timeout, allow_stale: false },
    }
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    let size = prop_oneof![
        2 => Just(0_u64),
        4 => Just(SMALL),
        8 => Just(SIZE),
        4 => Just(3 * SIZE),
        1 => Just(CAPACITY - 64),
        1 => Just(CAPACITY),
    ];
    let timeout = prop_oneof![Just(0_u64), Just(100), Just(60_000)];
    prop_oneof![
        8 => (client.clone(), 0..5_usize, size, timeout.clone())
            .prop_map(|(client, id, size_bytes, timeout)| Step::Create { client, id, size_bytes, timeout }),
        3 => (client.clone(), 0..5_usize, prop_oneof![Just(0), Just(SMALL), Just(SIZE)], any::<bool>(), timeout.clone())
            .prop_map(|(client, id, size_bytes, is_confirmed, timeout)| Step::Put {
                client, id, size_bytes, is_confirmed, timeout,
            }),
        8 => (client.clone(), 0..4_usize, any::<bool>())
            .prop_map(|(client, which, is_confirmed)| Step::Seal { client, which, is_confirmed }),
        2 => (client.clone(), 0..4_usize).prop_map(|(client, which)| Step::Abort { client, which }),
        6 => (client.clone(), 0..4_usize).prop_map(|(client, which)| Step::Release { client, which }),
        6 => (client.clone(), 4..6_usize, 1..64_u8, 1..4_usize, any::<u8>(), timeout.clone()).prop_map(
            |(client, target, sources, count, kind, timeout)| Step::Reduce {
                client, target, sources, count, kind, timeout,
            }
        ),
        10 => (client.clone(), 0..6_usize, any::<bool>(), timeout.clone())
            .prop_map(|(client, id, is_patient, timeout)| Step::Get { client, id, is_patient, timeout }),
        1 => (client.clone(), 0..6_usize).prop_map(|(client, id)| Step::Delete { client, id }),
        4 => (client.clone(), prop::collection::vec((0..6_usize, 0..6_u8), 1..5), timeout.clone())
            .prop_map(|(client, items, timeout)| Step::Batch { client, items, timeout }),
        1 => (client.clone(), 0..4_usize).prop_map(|(client, id)| Step::Wait { client, id }),
        1 => (client.clone(), 0..4_usize).prop_map(|(client, id)| Step::Subscribe { client, id }),
        3 => (client.clone(), 0..4_u64).prop_map(|(client, back)| Step::Cancel { client, back }),
        2 => (client.clone(), 0..3_u8, 0..16_u8)
            .prop_map(|(client, subject, limits)| Step::SetQuota { client, subject, limits }),
        1 => client.prop_map(|client| Step::ClientGone { client }),
        2 => (0..SHARDS).prop_map(|shard| Step::ShardUp { shard }),
        1 => (0..SHARDS).prop_map(|shard| Step::ShardDown { shard }),
        12 => (0..4_usize, 0..3_u64, any::<u8>())
            .prop_map(|(which, put, answer)| Step::AnswerQuery { which, put, answer }),
        8 => (0..4_usize, any::<u8>()).prop_map(|(which, verdict)| Step::Verdict { which, verdict }),
        2 => (0..SHARDS, 0..6_usize, 0..6_u64, any::<bool>())
            .prop_map(|(shard, id, put, is_deleted)| Step::Drop { shard, id, put, is_deleted }),
        1 => (0..SHARDS, 0..6_usize, 0..6_u64).prop_map(|(shard, id, put)| Step::Promote { shard, id, put }),
        3 => (0..SHARDS, 0..6_usize, 0..6_u64, 0..3_u64)
            .prop_map(|(shard, id, put, size)| Step::Replicate { shard, id, put, size }),
        2 => (0..SHARDS, 0..6_usize, 0..6_u64, 0..4_u32, 0..4_u32)
            .prop_map(|(shard, id, put, copies, nodes)| Step::Replication { shard, id, put, copies, nodes }),
        1 => (0..4_usize).prop_map(|which| Step::DeleteDone { which }),
        24 => (0..8_usize, any::<u8>(), 0..3_u64, 0..16_u8)
            .prop_map(|(which, kind, put, nodes)| Step::Locations { which, kind, put, nodes }),
        8 => (0..4_usize, 0..12_u64, any::<u8>())
            .prop_map(|(which, blocks, outcome)| Step::CombineEnded { which, blocks, outcome }),
        6 => (0..4_usize, any::<u8>()).prop_map(|(which, report)| Step::HopReported { which, report }),
        3 => (1..4_u64, proptest::collection::vec((any::<u8>(), 0..4_u64), 2..4), 0..3_u64, timeout)
            .prop_map(|(output, inputs, blocks, timeout)| Step::HopRequested { output, inputs, blocks, timeout }),
        2 => (0..4_usize).prop_map(|which| Step::HopReleased { which }),
        1 => (1..4_u64).prop_map(|output| Step::ServeOutput { output }),
        8 => (0..12_u8).prop_map(|fault| Step::Disk { fault }),
        10 => (0..4_usize, 0..40_u64, any::<u8>())
            .prop_map(|(which, blocks, outcome)| Step::PullEnded { which, blocks, outcome }),
        3 => (0..6_usize, 0..6_u64, 0..2_usize).prop_map(|(id, put, peer)| Step::Serve { id, put, peer }),
        3 => (0..4_usize).prop_map(|which| Step::ServeEnded { which }),
        3 => (0..4_usize, any::<Option<bool>>()).prop_map(|(which, equal)| Step::Compared { which, equal }),
        4 => (0..2000_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
        2 => (any::<u8>(), 0..40_u64).prop_map(|(kind, number)| Step::Nonsense { kind, number }),
    ]
}

fn reducing_step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    let news =
        prop_oneof![12 => Just(8_u8), 2 => Just(72), 2 => Just(4), 1 => Just(0), 1 => Just(2)];
    let nodes = prop_oneof![8 => 1..8_u8, 1 => 0..16_u8];
    let combined =
        prop_oneof![2 => Just(4_u8), 3 => Just(0), 3 => (0..32_u8).prop_map(|kind| kind * 8 + 1)];
    let hop_said = prop_oneof![6 => Just(4_u8), 3 => any::<u8>()];
    prop_oneof![
        40 => (0..8_usize, news, prop_oneof![4 => Just(4_u64), 1 => Just(5)], nodes)
            .prop_map(|(which, kind, put, nodes)| Step::Locations { which, kind, put, nodes }),
        20 => (0..4_usize, 0..10_u64, combined)
            .prop_map(|(which, blocks, outcome)| Step::CombineEnded { which, blocks, outcome }),
        20 => (0..4_usize, hop_said).prop_map(|(which, report)| Step::HopReported { which, report }),
        20 => (1..200_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
        2 => (client.clone(), 4..6_usize, 1..64_u8, 1..4_usize, any::<u8>()).prop_map(
            |(client, target, sources, count, kind)| Step::Reduce {
                client, target, sources, count, kind, timeout: 60_000,
            }
        ),
        4 => (client.clone(), 0..4_usize)
            .prop_map(|(client, id)| Step::Create { client, id, size_bytes: SIZE, timeout: 60_000 }),
        4 => (client.clone(), 0..4_usize)
            .prop_map(|(client, which)| Step::Seal { client, which, is_confirmed: false }),
        3 => (client.clone(), 0..6_usize, any::<bool>())
            .prop_map(|(client, id, is_patient)| Step::Get { client, id, is_patient, timeout: 60_000 }),
        2 => (client.clone(), 0..4_usize).prop_map(|(client, which)| Step::Release { client, which }),
        1 => (client.clone(), 0..4_u64).prop_map(|(client, back)| Step::Cancel { client, back }),
        1 => client.prop_map(|client| Step::ClientGone { client }),
        4 => (0..4_usize).prop_map(|which| Step::AnswerQuery { which, put: 4, answer: 1 }),
        4 => (0..4_usize, 0..10_u64, any::<u8>())
            .prop_map(|(which, blocks, outcome)| Step::PullEnded { which, blocks, outcome }),
        1 => (0..SHARDS, 0..6_usize, 0..4_u64)
            .prop_map(|(shard, id, put)| Step::Drop { shard, id, put, is_deleted: true }),
        8 => (0..4_usize).prop_map(|which| Step::Verdict { which, verdict: 15 }),
        1 => (0..SHARDS).prop_map(|shard| Step::ShardDown { shard }),
        2 => (0..SHARDS).prop_map(|shard| Step::ShardUp { shard }),
    ]
}

fn object(number: usize) -> ObjectId {
    id(["w", "x", "y", "z", "t", "u"][number % 6])
}

fn failure(number: u8) -> PullOutcome {
    match number % 5 {
        0 => PullOutcome::SenderUnreachable,
        1 => PullOutcome::SenderStalled,
        2 => PullOutcome::SenderHasNoCopy,
        3 => PullOutcome::Corrupt,
        _ => PullOutcome::Cancelled,
    }
}

fn pick<T>(items: &[T], which: usize) -> Option<&T> {
    if items.is_empty() { None } else { items.get(which % items.len()) }
}

fn number(client: u64) -> usize {
    usize::try_from(client).expect("a small number")
}

struct World {
    h: Harness,
    clients: Vec<ClientId>,
    calls: Vec<(ClientId, CallId)>,
    queries: Vec<(usize, Query)>,
    publications: Vec<(usize, ObjectId, PutId)>,
    deletes: Vec<(usize, RequestId)>,
    next_serve: u64,
    next_hosting: u64,
}

impl World {
    fn new() -> Self {
        Self::of(Harness::connected(SHARDS, Self::limits()))
    }

    fn spilling() -> Self {
        Self::of(Harness::spilling_with(SHARDS, 2 * CAPACITY, Self::limits()))
    }

    fn limits() -> Limits {
        Limits {
            max_requests_per_client: 12,
            max_references_per_client: 6,
            max_objects: 8,
            owner_grace: Duration::from_millis(300),
            ..limits()
        }
    }

    fn of(mut h: Harness) -> Self {
        h.event(Event::Measured { link: SLOW });
        Self {
            h,
            clients: (0..=CLIENTS).map(ClientId).collect(),
            calls: Vec::new(),
            queries: Vec::new(),
            publications: Vec::new(),
            deletes: Vec::new(),
            next_serve: 1_000,
            next_hosting: 0,
        }
    }

    fn client(&self, client: u64) -> ClientId {
        self.clients[number(client)]
    }

    fn request(&mut self, client: u64, request: Request) {
        let call = self.h.request(self.client(client), request);
        self.calls.push(call);
    }

    fn put_of(&self, id: &ObjectId, number: u64) -> PutId {
        let known: Vec<PutId> = self
            .publications
            .iter()
            .filter(|(_, other, _)| other == id)
            .map(|(_, _, put)| *put)
            .collect();
        let which = usize::try_from(number).expect("a small number");
        if number < 4 {
            known.iter().rev().nth(which).copied().unwrap_or(PutId(number))
        } else {
            PutId(number)
        }
    }

    fn say(&mut self, shard: usize, message: ToStore) {
        self.h.event(Event::FromShard { shard, message });
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::ShardUp { shard } => self.h.event(up(shard)),
            Step::ShardDown { shard } => self.h.event(Event::ShardDown { shard }),
            Step::AnswerQuery { which, put, answer } => self.answer_query(which, put, answer),
            Step::Verdict { which, verdict } => self.verdict(which, verdict),
            Step::Drop { shard, id, put, is_deleted } => {
                let reason = if is_deleted { DropReason::Deleted } else { DropReason::Lost };
                let (id, put) = (object(id), self.put_of(&object(id), put));
                self.say(shard, ToStore::Drop { id, put, reason });
            }
            Step::Promote { shard, id, put } => {
                let (id, put) = (object(id), self.put_of(&object(id), put));
                self.say(shard, ToStore::Promote { id, put });
            }
            Step::Replicate { shard, id, put, size } => {
                let (id, put) = (object(id), self.put_of(&object(id), put));
                let size_bytes = [SMALL, SIZE, CAPACITY][size as usize % 3] / 4 * 4;
                let order = Replicate { id, put, size_bytes, metadata: f32s() };
                self.say(shard, ToStore::Replicate(order));
            }
            Step::Replication { shard, id, put, copies, nodes } => {
                let (id, put) = (object(id), self.put_of(&object(id), put));
                let news =
                    Replication { id, put, copies, nodes, is_draining: true, obstacle: None };
                self.say(shard, ToStore::Replication(news));
            }
            Step::DeleteDone { which } => {
                if let Some((shard, request)) = pick(&self.deletes, which).copied() {
                    let (put, absent) = (Some(PutId(1)), Named::of([]));
                    self.say(shard, ToStore::DeleteDone { request, put, absent });
                }
            }
            Step::Locations { which, kind, put, nodes } => self.locate(which, kind, put, nodes),
            Step::PullEnded { which, blocks, outcome } => self.pull_ended(which, blocks, outcome),
            Step::Serve { id, put, peer } => {
                self.next_serve += 1;
                let serve = ServeId(self.next_serve);
                let (id, put) = (object(id), self.put_of(&object(id), put));
                let peer = node_id(["n1", "n2"][peer]);
                self.h.event(Event::ServeRequested { serve, peer, id, put, awaits_hop: false });
            }
            Step::ServeEnded { which } => {
                if let Some(serve) = pick(&self.h.checker.open_serves(), which).copied() {
                    self.h.event(Event::ServeEnded { serve });
                }
            }
            Step::Compared { which, equal } => {
                if let Some(copy) = pick(&self.h.checker.compared_copies(), which).copied() {
                    self.h.event(Event::Compared { copy, equal });
                }
            }
            Step::Pass { milliseconds } => self.h.pass(Duration::from_millis(milliseconds)),
            Step::Nonsense { kind, number } => self.nonsense(kind, number),
            Step::HopReleased { which } => {
                if let Some(hosting) = pick(&self.h.checker.open_hostings(), which).copied() {
                    self.h.event(Event::HopReleased { hosting });
                }
            }
            Step::Disk { fault } => _ = self.h.answer_disk(fault),
            Step::ServeOutput { output } => {
                self.next_serve += 1;
                let (id, put) = (ObjectId::of_hop(PutId(output)), PutId(output));
                let serve = ServeId(self.next_serve);
                let peer = node_id("n1");
                self.h.event(Event::ServeRequested { serve, peer, id, put, awaits_hop: true });
            }
            step => self.take_of_client(step),
        }
        self.look();
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn take_of_client(&mut self, step: Step) {
        match step {
            Step::Create { client, id, size_bytes, timeout } => {
                let replicas = Replicas { wanted: (timeout % 3) as u8, awaited: 0, quorum: false };
                let lifetime = lifetime(timeout);
                let timeout = Duration::from_millis(timeout);
                let id = object(id);
                let metadata = Metadata { replicas, lifetime, ..f32s() };
                self.request(client, Request::Create { id, size_bytes, metadata, timeout });
            }
            Step::Put { client, id, size_bytes, is_confirmed, timeout } => {
                let bytes = vec![1; usize::try_from(size_bytes).expect("it is small")].into();
                let confirm = if is_confirmed { Confirm::Yes } else { Confirm::No };
                let (id, timeout) = (object(id), Duration::from_millis(timeout));
                let metadata = Metadata { lifetime: lifetime(size_bytes + client), ..f32s() };
                self.request(client, Request::Put { id, metadata, bytes, confirm, timeout });
            }
            Step::Seal { client, which, is_confirmed } => {
                let held = self.h.checker.references(self.client(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                let request = if is_confirmed {
                    Request::Seal { copy, timeout: Duration::from_secs(1) }
                } else {
                    Request::SealUnconfirmed { copy }
                };
                self.request(client, request);
            }
            Step::Abort { client, which } => {
                let held = self.h.checker.references(self.client(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                self.request(client, Request::Abort { copy });
            }
            Step::Release { client, which } => {
                let held = self.h.checker.references(self.client(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                self.request(client, Request::Release { copy });
            }
            Step::Get { client, id, is_patient, timeout } => {
                let until = if is_patient { Until::Complete } else { Until::Started };
                let timeout = Duration::from_millis(timeout);
                self.request(
                    client,
                    Request::Get { id: object(id), until, timeout, allow_stale: false },
                );
            }
            Step::Delete { client, id } => {
                let ids = vec![object(id), object(id + 1)];
                self.request(
                    client,
                    Request::Delete {
                        ids,
                        timeout: Duration::from_secs(1),
                        wait: DeleteWait::Reachable,
                    },
                );
            }
            Step::Batch { client, items, timeout } => {
                let timeout = Duration::from_millis(timeout);
                let requests =
                    items.into_iter().map(|(id, kind)| batch_item(object(id), kind, timeout));
                self.request(client, Request::Batch(requests.collect()));
            }
            Step::Wait { client, id } => {
                let ids = vec![object(id), object(id + 1)];
                self.request(
                    client,
                    Request::Wait { ids, count: 1, timeout: Duration::from_secs(1) },
                );
            }
            Step::Subscribe { client, id } => {
                self.request(client, Request::Subscribe { id: object(id) })
            }
            Step::Cancel { client, back } => {
                let back = usize::try_from(back).expect("a small number");
                if let Some((_, call)) = self.calls.iter().rev().nth(back).copied() {
                    self.request(client, Request::Cancel { call });
                }
            }
            Step::SetQuota { client, subject, limits } => {
                let user = u32::try_from(client).expect("a small number");
                let subject = match subject {
                    0 => QuotaSubject::Prefix(object(number(client))),
                    1 => QuotaSubject::User(user),
                    _ => QuotaSubject::EachClient,
                };
                let limits = (limits < 12).then(|| QuotaLimits {
                    memory_bytes: (limits % 4 > 0).then_some(u64::from(limits) * SIZE),
                    disk_bytes: (limits % 3 > 0).then_some(u64::from(limits) * SIZE),
                    objects: Some(u64::from(limits % 5) + 1),
                });
                self.request(client, Request::SetQuota { subject, limits });
            }
            Step::ClientGone { client } => {
                self.h.gone(self.client(client));
                // A connection's number is never used again.
                self.clients[number(client)].0 += 100;
                let owners = if client == 0 { Vec::new() } else { vec![job()] };
                self.h.event(Event::ClientConnected {
                    client: self.client(client),
                    user: client as u32,
                    owners,
                });
            }
            step => self.take_of_reduce(step),
        }
    }

    fn take_of_reduce(&mut self, step: Step) {
        match step {
            Step::Reduce { client, target, sources, count, kind, timeout } => {
                let is_source = |number: &usize| *number != target && sources & (1 << number) != 0;
                let sources: Vec<ObjectId> = (0..6).filter(is_source).map(object).collect();
                let order =
                    if kind.is_multiple_of(3) { ReduceOrder::Fixed } else { ReduceOrder::Any };
                let range = ByteRange { offset_bytes: 4096, length_bytes: 8192 };
                self.request(
                    client,
                    Request::Reduce(Reduce {
                        target: object(target),
                        count: count.min(sources.len()),
                        sources,
                        op: ReduceOp::Max,
                        order,
                        range: kind.is_multiple_of(8).then_some(range),
                        replicas: 0,
                        timeout: Duration::from_millis(timeout),
                    }),
                );
            }
            Step::CombineEnded { which, blocks, outcome } => {
                let running = self.h.checker.running_combinations();
                if let Some((combine, offset_bytes)) = pick(&running, which).copied() {
                    let index = usize::from(outcome / 64);
                    let outcome = match outcome % 8 {
                        0 => CombineOutcome::Cancelled,
                        1..4 => {
                            CombineOutcome::InputFailed { index, outcome: failure(outcome / 8) }
                        }
                        _ => CombineOutcome::Complete,
                    };
                    let valid_bytes = offset_bytes.max(blocks * 4096);
                    self.h.event(Event::CombineEnded { combine, valid_bytes, outcome });
                }
            }
            Step::HopReported { which, report } => {
                if let Some(hop) = pick(&self.h.checker.running_hops(), which).copied() {
                    let index = usize::from(report / 64);
                    let report = match report % 8 {
                        0 => HopReport::Failed(HopFailure::Unreachable),
                        1 => HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)),
                        2 | 3 => HopReport::Failed(HopFailure::Input {
                            index,
                            outcome: failure(report / 8),
                        }),
                        _ => HopReport::Complete,
                    };
                    self.h.event(Event::HopReported { hop, report });
                }
            }
            Step::HopRequested { output, inputs, blocks, timeout } => {
                self.next_hosting += 1;
                let hosting = HostingId(self.next_hosting);
                let inputs =
                    inputs.into_iter().map(|(kind, number)| self.hop_input(kind, number)).collect();
                let hop = Hop {
                    output: ObjectId::of_hop(PutId(output)),
                    put: PutId(output),
                    op: ReduceOp::Sum,
                    dtype: Dtype::F32,
                    size_bytes: SIZE,
                    offset_bytes: blocks * 4096,
                    inputs,
                    timeout: Duration::from_millis(timeout),
                };
                self.h.event(Event::HopRequested { hosting, hop });
            }
            step => panic!("{step:?}"),
        }
    }

    fn locate(&mut self, which: usize, kind: u8, put: u64, nodes: u8) {
        let recent: Vec<_> = self.h.subscriptions.iter().rev().take(8).cloned().collect();
        let Some((shard, request, id)) = pick(&recent, which).cloned() else { return };
        let name = id.to_string();
        let put = if kind < 64 { put } else { self.put_of(&id, 0).0 };
        let is_target = id == object(4) || id == object(5);
        if is_target && kind % 16 > 3 {
            let own = self.publications.iter().rev().find(|(_, published, _)| *published == id);
            let news =
                own.map(|(_, _, put)| located(&name, put.0, LocationState::Producing, &["here"]));
            let locations = news.unwrap_or_else(|| unknown(&name));
            return self.say(shard, ToStore::Locations { request, locations });
        }
        let all = ["n1", "n2", "n3", "here"];
        let nodes: Vec<&str> =
            (0..4).filter(|node| nodes & (1 << node) != 0).map(|node| all[node]).collect();
        let mut locations = match kind % 16 {
            0 | 1 => unknown(&name),
            2 => lost(&name, put),
            3 => inline(&name, put),
            4 | 5 => located(&name, put, LocationState::Producing, &nodes),
            6 => {
                let mut other = complete(&name, put, &nodes);
                other.object.iter_mut().for_each(|object| object.metadata = Metadata::default());
                other
            }
            _ => complete(&name, put, &nodes),
        };
        for (number, location) in
            locations.locations.iter_mut().enumerate().filter(|_| which % 2 == 1)
        {
            let is_slow = |peer: &usize| (which >> (number + peer)) & 2 == 2;
            location.slow_peers =
                (0..all.len()).filter(is_slow).map(|peer| node_id(all[peer])).collect();
        }
        self.say(shard, ToStore::Locations { request, locations });
    }

    fn hop_input(&self, kind: u8, number: u64) -> HopInput {
        let local = object(usize::from(kind / 4));
        let (id, put, node, is_hop) = match kind % 4 {
            0 => (id("elsewhere"), PutId(number), "n1", false),
            1 => (ObjectId::of_hop(PutId(number)), PutId(number), "n2", true),
            2 => (ObjectId::of_hop(PutId(number)), PutId(number), "here", true),
            _ => (local.clone(), self.put_of(&local, number), "here", false),
        };
        let (size_bytes, base_bytes) = (SIZE, 0);
        HopInput {
            id,
            put,
            size_bytes,
            base_bytes,
            node: node_id(node),
            address: address(node),
            is_hop,
        }
    }

    fn answer_query(&mut self, which: usize, put: u64, answer: u8) {
        let Some((shard, query)) = pick(&self.queries, which).cloned() else { return };
        let name = query.id.to_string();
        let put = if answer.is_multiple_of(2) {
            query.resume.map_or(put, |resume| resume.0)
        } else {
            put
        };
        match answer % 8 {
            0..4 => {
                let size_bytes =
                    [SIZE, SMALL, 0, 5 * SIZE][usize::try_from(put % 4).expect("below four")];
                self.h.grant_as(shard, query.request, (&name, put, size_bytes, f32s()), "n1");
            }
            4 => {
                let message = ToStore::Inline {
                    request: query.request,
                    id: query.id,
                    put: PutId(put),
                    metadata: f32s(),
                    bytes: Bytes::from_static(&[7; SMALL as usize]).into(),
                };
                self.say(shard, message);
            }
            5 => {
                let error = Error::ObjectLost { id: query.id };
                self.say(shard, ToStore::Failed { request: query.request, error });
            }
            6 => {
                let error = Error::timeout(Operation::Get, query.timeout);
                self.say(shard, ToStore::Failed { request: query.request, error });
            }
            _ => {}
        }
    }

    fn verdict(&mut self, which: usize, verdict: u8) {
        let recent: Vec<_> = self.publications.iter().rev().take(4).cloned().collect();
        let Some((shard, id, put)) = pick(&recent, which).cloned() else { return };
        let winner = PutId(u64::from(verdict % 3));
        let holder = Some((node_id("n2"), address("n2")));
        let conflict = |equality| Verdict::Conflict { winner, equality };
        let verdict = match verdict % 16 {
            0 => Verdict::Deleted,
            1 => Verdict::ShardFull,
            2 => conflict(Equality::Equal),
            3 => conflict(Equality::Different),
            4 | 5 => conflict(Equality::Unknown { holder }),
            6 => conflict(Equality::Unknown { holder: None }),
            7 => Verdict::Cyclic { sender: node_id(["n1", "n2"][usize::from(verdict / 16 % 2)]) },
            _ => Verdict::Accepted,
        };
        self.say(shard, ToStore::Published { id, put, verdict });
    }

    fn pull_ended(&mut self, which: usize, blocks: u64, outcome: u8) {
        let Some(pull) = pick(&self.h.checker.running_pulls(), which).copied() else { return };
        let outcome = if outcome % 8 < 5 { failure(outcome % 8) } else { PullOutcome::Complete };
        self.h.event(Event::PullEnded { pull, valid_bytes: blocks * 4096, outcome });
    }

    fn nonsense(&mut self, kind: u8, number: u64) {
        let copy = CopyId(number);
        match kind % 12 {
            0 => self.h.event(Event::PullEnded {
                pull: PullId(u64::MAX - number),
                valid_bytes: 1,
                outcome: PullOutcome::Complete,
            }),
            1 => self.h.event(Event::ServeEnded { serve: ServeId(number) }),
            2 => self
                .h
                .event(Event::Compared { copy: CopyId(u64::MAX - number), equal: Some(false) }),
            3 => self.request(number % CLIENTS, Request::Release { copy }),
            4 => self.request(number % CLIENTS, Request::Seal { copy, timeout: Duration::ZERO }),
            5 => self.say(9, ToStore::Promote { id: object(0), put: PutId(number) }),
            6 => {
                let error = Error::ShuttingDown;
                self.say(0, ToStore::Failed { request: RequestId(number), error });
            }
            7 => self.say(
                1,
                ToStore::DeleteDone {
                    request: RequestId(number),
                    put: None,
                    absent: Named::of([]),
                },
            ),
            8 => self.h.event(Event::CombineEnded {
                combine: CombineId(u64::MAX - number),
                valid_bytes: number,
                outcome: CombineOutcome::Complete,
            }),
            9 => self.h.event(Event::HopReleased { hosting: HostingId(u64::MAX - number) }),
            10 => {
                let (hop, report) = (HopId(u64::MAX - number), HopReport::Complete);
                self.h.event(Event::HopReported { hop, report });
            }
            _ => {
                let (id, put) = (ObjectId::of_hop(PutId(number)), PutId(number));
                self.say(0, ToStore::Drop { id, put, reason: DropReason::Deleted });
            }
        }
    }

    fn look(&mut self) {
        for (shard, message) in self.h.sent() {
            match message {
                ToShard::Publish(publish) => {
                    self.publications.push((shard, publish.id, publish.put))
                }
                ToShard::Query(query) => self.queries.push((shard, query)),
                ToShard::Delete { request, .. } => self.deletes.push((shard, request)),
                _ => {}
            }
        }
        let excess = self.queries.len().saturating_sub(4);
        self.queries.drain(..excess);
    }

    fn recover(&mut self) {
        for client in 0..CLIENTS {
            self.h.gone(self.client(client));
        }
        for shard in 0..SHARDS {
            self.h.event(up(shard));
        }
        for _ in 0..12 {
            for (shard, request, id) in self.h.subscriptions.clone() {
                let name = id.to_string();
                let locations =
                    if id == object(4) { unknown(&name) } else { complete(&name, 4, &["n1"]) };
                self.say(shard, ToStore::Locations { request, locations });
            }
            for pull in self.h.checker.running_pulls() {
                let outcome = PullOutcome::Complete;
                self.h.event(Event::PullEnded { pull, valid_bytes: SIZE, outcome });
            }
            for hop in self.h.checker.running_hops() {
                self.h.event(Event::HopReported { hop, report: HopReport::Complete });
            }
            for (combine, _) in self.h.checker.running_combinations() {
                let is_cancelled = self.h.was_cancelled(combine);
                let outcome =
                    if is_cancelled { CombineOutcome::Cancelled } else { CombineOutcome::Complete };
                self.h.event(Event::CombineEnded { combine, valid_bytes: SIZE, outcome });
            }
            self.h.accept_all();
            self.h.pass(Duration::from_millis(1100));
            self.look();
        }
        assert_eq!(
            self.h.checker.open_calls(),
            0,
            "a reduce that nothing stands in the way of comes to its end"
        );
    }

    fn wind_down(mut self) {
        self.h.pass(Duration::from_secs(100));
        assert_eq!(self.h.checker.open_calls(), 0, "every call is answered by its deadline");
        for client in 0..=CLIENTS {
            self.h.gone(self.client(client));
        }
        for pull in self.h.checker.running_pulls() {
            self.h.event(Event::PullEnded {
                pull,
                valid_bytes: 0,
                outcome: PullOutcome::SenderUnreachable,
            });
        }
        for hosting in self.h.checker.open_hostings() {
            self.h.event(Event::HopReleased { hosting });
        }
        for (combine, _) in self.h.checker.running_combinations() {
            let outcome = CombineOutcome::Cancelled;
            self.h.event(Event::CombineEnded { combine, valid_bytes: 0, outcome });
        }
        for serve in self.h.checker.open_serves() {
            self.h.event(Event::ServeEnded { serve });
        }
        for copy in self.h.checker.compared_copies() {
            self.h.event(Event::Compared { copy, equal: None });
        }
        self.h.pass(Duration::from_secs(2));
        self.look();
        self.h.event(up(0));
        self.h.pass(Duration::from_secs(2));
        self.look();
        let published = self.publications.clone();
        for (_, id, put) in published {
            self.say(0, ToStore::Drop { id, put, reason: DropReason::Deleted });
        }
        while self.h.answer_disk(u8::MAX) {}
        self.h.pass(Duration::from_secs(30));
        self.h.assert_empty();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_an_invariant(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.wind_down();
    }

    #[test]
    fn no_sequence_of_events_breaks_an_invariant_of_a_store_that_spills(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::spilling();
        for step in steps {
            world.take(step);
        }
        world.wind_down();
    }

    #[test]
    fn each_source_counts_once_in_all_bytes(
        (sources, count, kind) in (prop_oneof![Just(0b10_1111_u8), 1..64_u8], 1..6_usize, any::<u8>()),
        link in prop_oneof![Just(SLOW), Just(LinkEstimate::default())],
        steps in proptest::collection::vec(reducing_step(), 20..200),
    ) {
        let mut world = World::new();
        world.h.event(Event::Measured { link });
        world.take(Step::Reduce { client: CLIENTS, target: 4, sources, count, kind, timeout: 60_000 });
        for step in steps {
            world.take(step);
        }
        world.recover();
        world.wind_down();
    }

    #[test]
    fn shutdown_is_clean_at_any_time(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.h.event(Event::ShutDown);
        world.look();
        world.wind_down();
    }
}
