//! The state machine of a shard, also under stores that break the protocol.
//!
//! Names and numbers come from small sets, so that events interact. Sessions open and close in
//! order, and time never goes back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::Error;
use hoplite_core::id::Incarnation;
use hoplite_core::link::Uplink;
use hoplite_core::metadata::Replicas;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, Effect, Event, GrantId, Lead, LocationState, NodeInfo, Obstacle,
    Placed, Publish, PullOutcome, Query, Reception, RequestId, Retention, Shard, ShardConfig,
    ToShard, ToStore, UnpublishReason, Wants,
};
use hoplite_core::{Limits, Metadata, NodeId, ObjectId, PutId, Time};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
const OBJECTS: [&str; 3] = ["x", "y", "z"];
/// Enough ticks for all deadlines: a few for each open request, copy and tombstone.
const MAX_LAST_TICKS: usize = 10_000;
const TICK: Duration = Duration::from_secs(600);

/// Feeds a shard with events.
pub fn events(bytes: &[u8]) {
    let _ = run(&mut Unstructured::new(bytes));
}

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new(config(input)?);
    while !input.is_empty() {
        match input.int_in_range(0..=7)? {
            0 => world.connect(info(input)?),
            _ => {
                let event = event(input, &mut world)?;
                world.apply(event);
            }
        }
    }
    world.finish();
    Ok(())
}

struct World {
    shard: Shard,
    now: Time,
    sessions: BTreeMap<NodeId, Session>,
    grants: BTreeSet<GrantId>,
}

struct Session {
    incarnation: Incarnation,
    unanswered: BTreeMap<RequestId, usize>,
    queries: BTreeSet<RequestId>,
    subscriptions: BTreeSet<RequestId>,
    /// Deletes that wait for absent nodes, and are answered again later.
    patient: BTreeSet<RequestId>,
}

impl World {
    fn new(config: ShardConfig) -> Self {
        let shard = Shard::new(config, Time::ZERO);
        Self { shard, now: Time::ZERO, sessions: BTreeMap::new(), grants: BTreeSet::new() }
    }

    fn apply(&mut self, event: Event) {
        if let Event::Message { node, message } = &event
            && let Some(session) = self.sessions.get_mut(node)
        {
            session.asks(message);
        }
        let mut effects = Vec::new();
        self.shard.apply(self.now, event.clone(), &mut effects);
        if let Event::Disconnected { node, .. } = &event {
            self.sessions.remove(node);
        }
        for effect in effects {
            self.check(effect);
        }
        if self.shard.next_deadline().is_some_and(|due| due <= self.now) {
            assert_ne!(event, Event::Tick, "nothing is due right after a tick");
            self.apply(Event::Tick);
        }
    }

    fn connect(&mut self, info: NodeInfo) {
        let (node, incarnation) = (info.node.clone(), info.incarnation);
        let mut effects = Vec::new();
        let reception = self.shard.connect(self.now, info, &mut effects);
        if !matches!(reception, Reception::Refused(_)) {
            let session = Session {
                incarnation,
                unanswered: BTreeMap::new(),
                queries: BTreeSet::new(),
                subscriptions: BTreeSet::new(),
                patient: BTreeSet::new(),
            };
            let previous = self.sessions.insert(node, session);
            assert_eq!(
                previous.is_some(),
                reception == Reception::Replaces,
                "only an open session is replaced"
            );
        }
        for effect in effects {
            self.check(effect);
        }
        if self.shard.next_deadline().is_some_and(|due| due <= self.now) {
            self.apply(Event::Tick);
        }
    }

    fn check(&mut self, effect: Effect) {
        match effect {
            Effect::Send { node, message } => {
                if let ToStore::Granted(grant) = &message {
                    assert!(
                        self.grants.insert(grant.grant),
                        "{grant:?} has the number of an earlier one"
                    );
                    assert_ne!(grant.sender, node, "nobody pulls from itself");
                    assert!(
                        self.sessions.contains_key(&grant.sender),
                        "the sender of {grant:?} is away"
                    );
                }
                let session = self.sessions.get_mut(&node);
                session
                    .unwrap_or_else(|| panic!("{node} is not connected: {message:?}"))
                    .is_told(&message);
            }
            Effect::Granted { record, .. } => {
                let is_connected = |node| self.sessions.contains_key(node);
                assert!(
                    is_connected(&record.sender) && is_connected(&record.receiver),
                    "{record:?}"
                );
            }
            Effect::PlaceKeysDiffer { .. } => {}
        }
    }

    /// Lets the queries' deadlines pass, ends all sessions, and lets all deadlines pass.
    fn finish(mut self) {
        self.tick_while(|world| world.sessions.values().any(|session| !session.queries.is_empty()));
        for (node, session) in &self.sessions {
            assert!(session.queries.is_empty(), "{node} waits for {:?}", session.queries);
        }
        let open = self.sessions.iter().map(|(node, session)| (node.clone(), session.incarnation));
        for (node, incarnation) in open.collect::<Vec<_>>() {
            self.apply(Event::Disconnected { node, incarnation });
        }
        self.tick_while(|_| true);
        assert!(self.next_deadline().is_none(), "it comes to rest");
    }

    fn tick_while(&mut self, goes_on: impl Fn(&Self) -> bool) {
        for _ in 0..MAX_LAST_TICKS {
            let Some(due) = self.next_deadline().filter(|_| goes_on(self)) else { break };
            self.now = due.max(self.now + TICK);
            self.apply(Event::Tick);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.shard.next_deadline().filter(|due| *due != Time::NEVER)
    }
}

impl Session {
    fn asks(&mut self, message: &ToShard) {
        match message {
            ToShard::Query(Query { request, .. }) => {
                self.queries.insert(*request);
                *self.unanswered.entry(*request).or_default() += 1;
            }
            ToShard::Delete { request, terms, .. } => {
                *self.unanswered.entry(*request).or_default() += 1;
                if terms.wait == DeleteWait::All {
                    self.patient.insert(*request);
                }
            }
            ToShard::Subscribe { request, .. } => {
                self.subscriptions.insert(*request);
                *self.unanswered.entry(*request).or_default() += 1;
            }
            ToShard::Cancel { request } => drop(self.queries.remove(request)),
            ToShard::Unsubscribe { request } => {
                self.queries.remove(request);
                self.subscriptions.remove(request);
            }
            _ => {}
        }
    }

    fn is_told(&mut self, message: &ToStore) {
        let request = match message {
            ToStore::Granted(grant) => grant.request,
            ToStore::Failed { request, error: Error::Deleted { .. } }
                if self.subscriptions.contains(request) =>
            {
                return;
            }
            ToStore::Inline { request, .. } if self.subscriptions.contains(request) => return,
            ToStore::DeleteDone { request, absent, .. }
                if !absent.is_empty() && self.patient.contains(request) =>
            {
                return;
            }
            ToStore::Inline { request, .. }
            | ToStore::Failed { request, .. }
            | ToStore::DeleteDone { request, .. } => *request,
            ToStore::Published { .. }
            | ToStore::Drop { .. }
            | ToStore::Promote { .. }
            | ToStore::GiveWay { .. }
            | ToStore::Placed(_)
            | ToStore::TakeOver { .. }
            | ToStore::Replicate(_)
            | ToStore::Replication(_)
            | ToStore::Shards(_)
            | ToStore::Locations { .. } => return,
        };
        self.queries.remove(&request);
        let unanswered = self.unanswered.entry(request).or_default();
        *unanswered =
            unanswered.checked_sub(1).unwrap_or_else(|| panic!("nobody asked for {message:?}"));
    }
}

fn config(input: &mut Unstructured<'_>) -> Result<ShardConfig> {
    let limits = Limits {
        slots_per_location: input.int_in_range(1..=3)?,
        max_objects: input.int_in_range(1..=4)?,
        max_requests_per_client: 1,
        tombstone_ttl: Duration::from_secs(5),
        ..Limits::default()
    };
    Ok(ShardConfig { limits, warm_up: Duration::from_secs(input.int_in_range(0..=1)?) })
}

fn event(input: &mut Unstructured<'_>, world: &mut World) -> Result<Event> {
    let event = match input.int_in_range(0..=12)? {
        0 => match world.sessions.get_key_value(&node(input)?) {
            Some((node, session)) => {
                Event::Disconnected { node: node.clone(), incarnation: session.incarnation }
            }
            None => Event::Tick,
        },
        1 | 2 => {
            world.now = world.now + Duration::from_millis(input.int_in_range(0..=2000)?);
            Event::Tick
        }
        _ => Event::Message { node: node(input)?, message: message(input)? },
    };
    Ok(event)
}

fn info(input: &mut Unstructured<'_>) -> Result<NodeInfo> {
    Ok(NodeInfo {
        node: node(input)?,
        incarnation: Incarnation(input.int_in_range(1..=3)?),
        data_address: SocketAddr::from(([127, 0, 0, 1], input.int_in_range(7000..=7003)?)),
        labels: match input.int_in_range(0..=2)? {
            0 => Vec::new(),
            rack => vec![("rack".to_owned(), rack.to_string())],
        },
        shards: shard_list(input)?,
        version: hoplite_core::Version::NEWEST,
    })
}

fn shard_list(input: &mut Unstructured<'_>) -> Result<ShardList> {
    let list = ShardList::new([if input.ratio(1, 8)? { "a:1" } else { "b:1" }, "c:1"]);
    Ok(list.with_version(if input.ratio(1, 4)? { input.int_in_range(1..=3)? } else { 0 }))
}

fn message(input: &mut Unstructured<'_>) -> Result<ToShard> {
    Ok(match input.int_in_range(0..=20)? {
        0..=4 => ToShard::Publish(publish(input)?),
        5 => ToShard::Unpublish {
            id: object(input)?,
            put: put(input)?,
            reason: unpublish_reason(input)?,
        },
        6..=9 => ToShard::Query(query(input)?),
        10 => ToShard::Cancel { request: request(input)? },
        11 => ToShard::ReturnSlot {
            grant: GrantId(input.int_in_range(0..=31)?),
            outcome: *input.choose(&[
                PullOutcome::Complete,
                PullOutcome::SenderUnreachable,
                PullOutcome::SenderHasNoCopy,
                PullOutcome::Cancelled,
                PullOutcome::GaveWay,
            ])?,
        },
        12 => {
            ToShard::Delete { request: request(input)?, id: object(input)?, terms: terms(input)? }
        }
        13 => ToShard::Forget { id: object(input)?, put: put(input)? },
        14 => {
            let (request, id) = (request(input)?, object(input)?);
            let wants = if input.arbitrary()? { Wants::Bytes } else { Wants::Locations };
            ToShard::Subscribe { request, id, wants, makes: input.arbitrary()? }
        }
        15 => ToShard::Unsubscribe { request: request(input)? },
        16 => ToShard::Lead(Lead {
            id: object(input)?,
            put: put(input)?,
            leads: input.arbitrary()?,
            is_new: input.arbitrary()?,
        }),
        17 => ToShard::NotReplicated {
            id: object(input)?,
            put: put(input)?,
            reason: Obstacle::NoRoom,
        },
        18 => ToShard::Drain { is_draining: input.arbitrary()? },
        19 => ToShard::Shards(shard_list(input)?),
        _ => ToShard::Placed(Placed {
            version: input.int_in_range(1..=3)?,
            path: [0, 0, input.int_in_range(0..=2)?, 0],
            uplink: Uplink::measured(input.int_in_range(0..=1)?),
        }),
    })
}

fn publish(input: &mut Unstructured<'_>) -> Result<Publish> {
    const STATES: [LocationState; 3] =
        [LocationState::Producing, LocationState::Partial, LocationState::Complete];
    let is_small = input.ratio(1, 3)?;
    Ok(Publish {
        id: object(input)?,
        put: put(input)?,
        size_bytes: if is_small { 4 } else { 1 << 20 },
        metadata: Metadata {
            replicas: Replicas { wanted: input.int_in_range(0..=3)?, awaited: 0, quorum: false },
            ..Metadata::default()
        },
        state: *input.choose(&STATES)?,
        retention: *input.choose(&[Retention::Pinned, Retention::Evictable])?,
        pulling_from: if input.arbitrary()? { Some(node(input)?) } else { None },
        inline: match input.int_in_range(0..=3)? {
            0 => Some(Bytes::from_static(b"1234").into()),
            1 => Some(Bytes::from_static(b"12345").into()),
            _ => None,
        },
        slot: if input.ratio(1, 4)? { Some(GrantId(input.int_in_range(0..=40)?)) } else { None },
        wants_answer: input.arbitrary()?,
        returning: if input.ratio(1, 4)? {
            Some(Duration::from_millis(input.int_in_range(0..=60_000)?))
        } else {
            None
        },
    })
}

fn query(input: &mut Unstructured<'_>) -> Result<Query> {
    Ok(Query {
        request: request(input)?,
        id: object(input)?,
        timeout: Duration::from_millis(*input.choose(&[
            0,
            1,
            500,
            3000,
            30 * 24 * 60 * 60 * 1000,
        ])?),
        resume: if input.ratio(1, 4)? { Some(put(input)?) } else { None },
        avoid: (0..input.int_in_range(0..=2)?).map(|_| node(input)).collect::<Result<_>>()?,
    })
}

fn unpublish_reason(input: &mut Unstructured<'_>) -> Result<UnpublishReason> {
    input
        .choose(&[
            UnpublishReason::Evicted,
            UnpublishReason::PullEnded,
            UnpublishReason::Aborted,
            UnpublishReason::Deleted,
        ])
        .copied()
}

fn terms(input: &mut Unstructured<'_>) -> Result<DeleteTerms> {
    let only = if input.arbitrary()? { Some(put(input)?) } else { None };
    Ok(DeleteTerms {
        only,
        wait: if input.arbitrary()? { DeleteWait::All } else { DeleteWait::Reachable },
    })
}

fn request(input: &mut Unstructured<'_>) -> Result<RequestId> {
    input.int_in_range(0..=23).map(RequestId)
}

fn put(input: &mut Unstructured<'_>) -> Result<PutId> {
    input.int_in_range(1..=3).map(PutId)
}

fn object(input: &mut Unstructured<'_>) -> Result<ObjectId> {
    input.choose(&OBJECTS).map(|name| ObjectId::new(name).expect("the name is short"))
}

fn node(input: &mut Unstructured<'_>) -> Result<NodeId> {
    input.choose(&NODES).map(|name| named(name))
}

fn named(name: &str) -> NodeId {
    NodeId::new(name).expect("the name is valid")
}
