//! Random sequences of events, also such that make no sense, under the checker.
//!
//! A step names what happens by small numbers, so that steps meet: four ids, three clients, two shards. What the node
//! asked for is answered at random as well: queries with grants, bytes or errors, pulls with any outcome.

use std::time::Duration;

use bytes::Bytes;
use hoplite_core::node::{CallId, ClientId, CopyId, Event, PullId, Request, ServeId, Until};
use hoplite_core::shard::{
    DropReason, Equality, Locations, PullOutcome, Query, RequestId, ToShard, ToStore, Verdict,
};
use hoplite_core::{Error, Limits, Metadata, ObjectId, Operation, PutId};
use proptest::prelude::*;

use crate::harness::*;

const CLIENTS: u64 = 3;
const SHARDS: usize = 2;

/// One thing that happens; the numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Create { client: u64, id: usize, size_bytes: u64, timeout: u64 },
    Seal { client: u64, which: usize, is_confirmed: bool },
    Abort { client: u64, which: usize },
    Release { client: u64, which: usize },
    Get { client: u64, id: usize, is_patient: bool, timeout: u64 },
    Delete { client: u64, id: usize },
    Wait { client: u64, id: usize },
    Subscribe { client: u64, id: usize },
    Cancel { client: u64, back: u64 },
    ClientGone { client: u64 },
    ShardUp { shard: usize },
    ShardDown { shard: usize },
    AnswerQuery { which: usize, put: u64, answer: u8 },
    Verdict { which: usize, verdict: u8 },
    Drop { shard: usize, id: usize, put: u64, is_deleted: bool },
    Promote { shard: usize, id: usize, put: u64 },
    DeleteDone { which: usize },
    Locations { which: usize },
    PullEnded { which: usize, blocks: u64, outcome: u8 },
    Serve { id: usize, put: u64 },
    ServeEnded { which: usize },
    Compared { which: usize, equal: Option<bool> },
    Pass { milliseconds: u64 },
    Nonsense { kind: u8, number: u64 },
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
        8 => (client.clone(), 0..4_usize, size, timeout.clone())
            .prop_map(|(client, id, size_bytes, timeout)| Step::Create { client, id, size_bytes, timeout }),
        8 => (client.clone(), 0..4_usize, any::<bool>())
            .prop_map(|(client, which, is_confirmed)| Step::Seal { client, which, is_confirmed }),
        2 => (client.clone(), 0..4_usize).prop_map(|(client, which)| Step::Abort { client, which }),
        6 => (client.clone(), 0..4_usize).prop_map(|(client, which)| Step::Release { client, which }),
        10 => (client.clone(), 0..4_usize, any::<bool>(), timeout)
            .prop_map(|(client, id, is_patient, timeout)| Step::Get { client, id, is_patient, timeout }),
        1 => (client.clone(), 0..4_usize).prop_map(|(client, id)| Step::Delete { client, id }),
        1 => (client.clone(), 0..4_usize).prop_map(|(client, id)| Step::Wait { client, id }),
        1 => (client.clone(), 0..4_usize).prop_map(|(client, id)| Step::Subscribe { client, id }),
        3 => (client.clone(), 0..4_u64).prop_map(|(client, back)| Step::Cancel { client, back }),
        1 => client.prop_map(|client| Step::ClientGone { client }),
        2 => (0..SHARDS).prop_map(|shard| Step::ShardUp { shard }),
        1 => (0..SHARDS).prop_map(|shard| Step::ShardDown { shard }),
        12 => (0..4_usize, 0..3_u64, any::<u8>())
            .prop_map(|(which, put, answer)| Step::AnswerQuery { which, put, answer }),
        8 => (0..4_usize, any::<u8>()).prop_map(|(which, verdict)| Step::Verdict { which, verdict }),
        2 => (0..SHARDS, 0..4_usize, 0..6_u64, any::<bool>())
            .prop_map(|(shard, id, put, is_deleted)| Step::Drop { shard, id, put, is_deleted }),
        1 => (0..SHARDS, 0..4_usize, 0..6_u64).prop_map(|(shard, id, put)| Step::Promote { shard, id, put }),
        1 => (0..4_usize).prop_map(|which| Step::DeleteDone { which }),
        1 => (0..4_usize).prop_map(|which| Step::Locations { which }),
        10 => (0..4_usize, 0..40_u64, any::<u8>())
            .prop_map(|(which, blocks, outcome)| Step::PullEnded { which, blocks, outcome }),
        3 => (0..4_usize, 0..6_u64).prop_map(|(id, put)| Step::Serve { id, put }),
        3 => (0..4_usize).prop_map(|which| Step::ServeEnded { which }),
        3 => (0..4_usize, any::<Option<bool>>()).prop_map(|(which, equal)| Step::Compared { which, equal }),
        4 => (0..2000_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
        2 => (any::<u8>(), 0..40_u64).prop_map(|(kind, number)| Step::Nonsense { kind, number }),
    ]
}

fn object(number: usize) -> ObjectId {
    id(["w", "x", "y", "z"][number % 4])
}

fn pick<T>(items: &[T], which: usize) -> Option<&T> {
    if items.is_empty() { None } else { items.get(which % items.len()) }
}

/// The machine and what of its messages the steps may answer.
struct World {
    h: Harness,
    calls: Vec<(ClientId, CallId)>,
    queries: Vec<(usize, Query)>,
    publications: Vec<(usize, ObjectId, PutId)>,
    deletes: Vec<(usize, RequestId)>,
    subscriptions: Vec<(usize, RequestId, ObjectId)>,
    next_serve: u64,
}

impl World {
    fn new() -> Self {
        let limits =
            Limits { max_requests_per_client: 12, max_references_per_client: 6, max_objects: 8, ..limits() };
        Self {
            h: Harness::connected(SHARDS, limits),
            calls: Vec::new(),
            queries: Vec::new(),
            publications: Vec::new(),
            deletes: Vec::new(),
            subscriptions: Vec::new(),
            next_serve: 1_000,
        }
    }

    fn request(&mut self, client: u64, request: Request) {
        let call = self.h.request(ClientId(client), request);
        self.calls.push(call);
    }

    /// The puts of `id` that were published, and some that nobody ever heard of.
    fn put_of(&self, id: &ObjectId, number: u64) -> PutId {
        let known: Vec<PutId> =
            self.publications.iter().filter(|(_, other, _)| other == id).map(|(_, _, put)| *put).collect();
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
            Step::Create { client, id, size_bytes, timeout } => {
                let timeout = Duration::from_millis(timeout);
                let id = object(id);
                self.request(
                    client,
                    Request::Create { id, size_bytes, metadata: Metadata::default(), timeout },
                );
            }
            Step::Seal { client, which, is_confirmed } => {
                let held = self.h.checker.references(ClientId(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                let request = if is_confirmed {
                    Request::Seal { copy, timeout: Duration::from_secs(1) }
                } else {
                    Request::SealUnconfirmed { copy }
                };
                self.request(client, request);
            }
            Step::Abort { client, which } => {
                let held = self.h.checker.references(ClientId(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                self.request(client, Request::Abort { copy });
            }
            Step::Release { client, which } => {
                let held = self.h.checker.references(ClientId(client));
                let copy = pick(&held, which).copied().unwrap_or(CopyId(3));
                self.request(client, Request::Release { copy });
            }
            Step::Get { client, id, is_patient, timeout } => {
                let until = if is_patient { Until::Complete } else { Until::Started };
                let timeout = Duration::from_millis(timeout);
                self.request(client, Request::Get { id: object(id), until, timeout });
            }
            Step::Delete { client, id } => {
                let ids = vec![object(id), object(id + 1)];
                self.request(client, Request::Delete { ids, timeout: Duration::from_secs(1) });
            }
            Step::Wait { client, id } => {
                let ids = vec![object(id), object(id + 1)];
                self.request(client, Request::Wait { ids, count: 1, timeout: Duration::from_secs(1) });
            }
            Step::Subscribe { client, id } => self.request(client, Request::Subscribe { id: object(id) }),
            Step::Cancel { client, back } => {
                let back = usize::try_from(back).expect("a small number");
                if let Some((_, call)) = self.calls.iter().rev().nth(back).copied() {
                    self.request(client, Request::Cancel { call });
                }
            }
            Step::ClientGone { client } => self.h.gone(ClientId(client)),
            Step::ShardUp { shard } => self.h.event(Event::ShardUp { shard }),
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
            Step::DeleteDone { which } => {
                if let Some((shard, request)) = pick(&self.deletes, which).copied() {
                    self.say(shard, ToStore::DeleteDone { request, put: Some(PutId(1)) });
                }
            }
            Step::Locations { which } => {
                if let Some((shard, request, id)) = pick(&self.subscriptions, which).cloned() {
                    let locations = Locations { id, object: None, locations: Vec::new() };
                    self.say(shard, ToStore::Locations { request, locations });
                }
            }
            Step::PullEnded { which, blocks, outcome } => self.pull_ended(which, blocks, outcome),
            Step::Serve { id, put } => {
                self.next_serve += 1;
                let serve = ServeId(self.next_serve);
                let (id, put) = (object(id), self.put_of(&object(id), put));
                self.h.event(Event::ServeRequested { serve, id, put, awaits_hop: false });
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
        }
        self.look();
    }

    fn answer_query(&mut self, which: usize, put: u64, answer: u8) {
        // Answers may come twice, or for queries that were taken back.
        let Some((shard, query)) = pick(&self.queries, which).cloned() else { return };
        let name = query.id.to_string();
        let put = if answer.is_multiple_of(2) { query.resume.map_or(put, |resume| resume.0) } else { put };
        match answer % 8 {
            0..4 => {
                let size_bytes = [SIZE, SMALL, 0, 5 * SIZE][usize::try_from(put % 4).expect("below four")];
                self.h.grant_query(shard, query.request, &name, put, size_bytes, "n1");
            }
            4 => {
                let message = ToStore::Inline {
                    request: query.request,
                    id: query.id,
                    put: PutId(put),
                    metadata: Metadata::default(),
                    bytes: Bytes::from_static(b"some bytes"),
                };
                self.say(shard, message);
            }
            5 => {
                let error = Error::ObjectLost { id: query.id };
                self.say(shard, ToStore::Failed { request: query.request, error });
            }
            6 => {
                let error = Error::Timeout { operation: Operation::Get, waited: query.timeout };
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
            _ => Verdict::Accepted,
        };
        self.say(shard, ToStore::Published { id, put, verdict });
    }

    fn pull_ended(&mut self, which: usize, blocks: u64, outcome: u8) {
        let Some(pull) = pick(&self.h.checker.running_pulls(), which).copied() else { return };
        let outcome = match outcome % 8 {
            0 => PullOutcome::SenderUnreachable,
            1 => PullOutcome::SenderStalled,
            2 => PullOutcome::SenderHasNoCopy,
            3 => PullOutcome::Corrupt,
            4 => PullOutcome::Cancelled,
            _ => PullOutcome::Complete,
        };
        self.h.event(Event::PullEnded { pull, valid_bytes: blocks * 4096, outcome });
    }

    /// What no correct peer would do.
    fn nonsense(&mut self, kind: u8, number: u64) {
        let copy = CopyId(number);
        match kind % 8 {
            0 => self.h.event(Event::PullEnded {
                pull: PullId(u64::MAX - number),
                valid_bytes: 1,
                outcome: PullOutcome::Complete,
            }),
            1 => self.h.event(Event::ServeEnded { serve: ServeId(number) }),
            2 => self.h.event(Event::Compared { copy: CopyId(u64::MAX - number), equal: Some(false) }),
            3 => self.request(number % CLIENTS, Request::Release { copy }),
            4 => self.request(number % CLIENTS, Request::Seal { copy, timeout: Duration::ZERO }),
            5 => self.say(9, ToStore::Promote { id: object(0), put: PutId(number) }),
            6 => {
                let error = Error::ShuttingDown;
                self.say(0, ToStore::Failed { request: RequestId(number), error });
            }
            _ => self.say(1, ToStore::DeleteDone { request: RequestId(number), put: None }),
        }
    }

    /// Notes what was sent, so that later steps can answer it.
    fn look(&mut self) {
        for (shard, message) in self.h.sent() {
            match message {
                ToShard::Publish(publish) => self.publications.push((shard, publish.id, publish.put)),
                ToShard::Query(query) => self.queries.push((shard, query)),
                ToShard::Delete { request, .. } => self.deletes.push((shard, request)),
                ToShard::Subscribe { request, id } => self.subscriptions.push((shard, request, id)),
                _ => {}
            }
        }
        let excess = self.queries.len().saturating_sub(4);
        self.queries.drain(..excess);
    }

    /// Lets everything end: all clients leave, all transfers end, all objects are deleted. Nothing must be left.
    fn wind_down(mut self) {
        self.h.pass(Duration::from_secs(100));
        assert_eq!(self.h.checker.open_calls(), 0, "every call is answered by its deadline");
        for client in 0..CLIENTS {
            self.h.gone(ClientId(client));
        }
        for pull in self.h.checker.running_pulls() {
            self.h.event(Event::PullEnded { pull, valid_bytes: 0, outcome: PullOutcome::SenderUnreachable });
        }
        for serve in self.h.checker.open_serves() {
            self.h.event(Event::ServeEnded { serve });
        }
        for copy in self.h.checker.compared_copies() {
            self.h.event(Event::Compared { copy, equal: None });
        }
        // A comparison that could not be made leads to another publication.
        self.h.pass(Duration::from_secs(2));
        self.look();
        self.h.event(Event::ShardUp { shard: 0 });
        self.look();
        let published = self.publications.clone();
        for (_, id, put) in published {
            self.say(0, ToStore::Drop { id, put, reason: DropReason::Deleted });
        }
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
