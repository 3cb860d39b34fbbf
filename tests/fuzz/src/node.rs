//! The object table of a store under any sequence of events, also from clients and shards that do not follow the
//! protocol.
//!
//! The shell's promises are kept: what was started ends once, a connection that is gone says nothing more, and shards
//! speak only in a session. What clients and shards say is otherwise anything that the decoders let through.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::node::{
    CallId, ClientId, CopyId, Effect, Event, Node, NodeConfig, PullId, Request, Response, ServeId, Until,
};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::broadcast::Topology;
use hoplite_core::shard::{
    DropReason, Equality, Grant, GrantId, GrantReason, Location, LocationState, Locations, ObjectSummary,
    PullOutcome, RequestId, Retention, ToShard, ToStore, Verdict,
};
use hoplite_core::{Error, Limits, Metadata, NodeId, ObjectId, Operation, PutId, Time};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::checker::Checker;

const OBJECTS: [&str; 4] = ["w", "x", "y", "z"];
const SENDERS: [&str; 3] = ["a", "b", "c"];
const CLIENTS: usize = 3;
const SHARDS: usize = 3;
/// Room for a few objects of [`LARGE`].
const CAPACITY: u64 = 5 * (LARGE + HEADER_BYTES);
const LARGE: u64 = 40_960;
/// Objects of fewer bytes are inline.
const INLINE_BELOW: u64 = 4096;
/// Most steps of an input: more of them find nothing that fewer do not.
const MAX_STEPS: usize = 2_000;

/// Feeds a node with the events that `bytes` describe, and checks what it does.
pub fn events(bytes: &[u8]) {
    // The only error is that the bytes are used up.
    let _ = run(&mut Unstructured::new(bytes));
}

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new(input.arbitrary()?);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        step(input, &mut world)?;
    }
    world.finish();
    Ok(())
}

/// A node, and what the shell around it knows.
struct World {
    node: Node,
    now: Time,
    /// Checks the calls of clients too, which then use no number of a call twice.
    checker: Option<Checker>,
    clients: [ClientId; CLIENTS],
    last_number: u64,
    is_up: [bool; SHARDS],
    /// The pulls that run: where they began and where the object ends.
    pulls: BTreeMap<PullId, (u64, u64)>,
    serves: BTreeSet<ServeId>,
    comparisons: BTreeSet<CopyId>,
    open_copies: BTreeSet<CopyId>,
    /// Copies that clients were told of.
    told: Vec<CopyId>,
    calls: Vec<CallId>,
    /// What the shards were asked, with the object of it, and which puts they were told of.
    asked: Vec<(usize, RequestId, ObjectId)>,
    published: Vec<(usize, ObjectId, PutId)>,
}

impl World {
    fn new(is_checked: bool) -> Self {
        let limits = Limits {
            inline_below_bytes: INLINE_BELOW,
            max_requests_per_client: 12,
            max_references_per_client: 6,
            max_ids_per_request: 3,
            ..Limits::default()
        };
        let shards = ShardMap::new((0..SHARDS).map(|shard| format!("shard-{shard}")));
        let config = NodeConfig {
            node: NodeId::new("here").expect("a valid name"),
            topology: Topology::Uniform,
            capacity_bytes: CAPACITY,
            limits,
            shards,
            seed: 1,
        };
        Self {
            node: Node::new(config),
            now: Time::ZERO,
            checker: is_checked.then(Checker::default),
            clients: [1, 2, 3].map(ClientId),
            last_number: 100,
            is_up: [false; SHARDS],
            pulls: BTreeMap::new(),
            serves: BTreeSet::new(),
            comparisons: BTreeSet::new(),
            open_copies: BTreeSet::new(),
            told: Vec::new(),
            calls: Vec::new(),
            asked: Vec::new(),
            published: Vec::new(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn apply(&mut self, event: Event) {
        if let Some(checker) = &mut self.checker {
            checker.event(&event);
        }
        let mut effects = Vec::new();
        self.node.apply(self.now, event, &mut effects);
        if let Some(checker) = &mut self.checker {
            checker.effects(&effects, self.node.status());
        }
        for effect in effects {
            self.perform(effect);
        }
        // A deadline that is past would have the shell tick for ever.
        assert!(self.node.next_deadline().is_none_or(|due| due > self.now), "what is due was done");
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { response: Ok(response), .. } => {
                if let Response::Created(view) | Response::Existing(view) | Response::Object(view) = response
                {
                    assert!(self.open_copies.contains(&view.copy), "{view:?} is open");
                    self.told.push(view.copy);
                }
            }
            Effect::Reply { response: Err(_), .. } => {}
            Effect::ToShard { shard, message, inline_from, .. } => {
                assert!(inline_from.is_none_or(|copy| self.open_copies.contains(&copy)), "{message:?}");
                self.note(shard, message);
            }
            Effect::CopyOpened { copy, extent, size_bytes, .. } => {
                let end = extent.offset_bytes + extent.length_bytes;
                assert!(end <= CAPACITY && extent.length_bytes >= size_bytes + HEADER_BYTES, "{extent:?}");
                assert!(self.open_copies.insert(copy), "{copy:?} is opened once");
            }
            Effect::CopyClosed { copy } => {
                assert!(!self.comparisons.contains(&copy), "{copy:?} is being compared");
                assert!(self.open_copies.remove(&copy), "{copy:?} was open");
            }
            Effect::Fill { copy, .. }
            | Effect::CopyCompleted { copy }
            | Effect::CopyFailed { copy, .. }
            | Effect::ServeAccepted { copy, .. } => {
                assert!(self.open_copies.contains(&copy), "{copy:?} is open");
            }
            Effect::StartPull { pull, copy, size_bytes, offset_bytes, .. } => {
                assert!(self.open_copies.contains(&copy) && offset_bytes <= size_bytes, "{pull:?}");
                assert!(self.pulls.insert(pull, (offset_bytes, size_bytes)).is_none(), "{pull:?} is new");
            }
            Effect::CancelPull { pull } => assert!(self.pulls.contains_key(&pull), "{pull:?} runs"),
            Effect::ServeRefused { serve } => {
                assert!(self.serves.contains(&serve), "{serve:?} was asked for")
            }
            Effect::Compare { copy, .. } => {
                assert!(self.open_copies.contains(&copy), "{copy:?} is open");
                assert!(self.comparisons.insert(copy), "{copy:?} is compared once at a time");
            }
        }
    }

    fn note(&mut self, shard: usize, message: ToShard) {
        assert!(shard < SHARDS, "there is a shard {shard}");
        match message {
            ToShard::Publish(publish) => self.published.push((shard, publish.id, publish.put)),
            ToShard::Query(query) => self.asked.push((shard, query.request, query.id)),
            ToShard::Delete { request, id } | ToShard::Subscribe { request, id } => {
                self.asked.push((shard, request, id));
            }
            _ => {}
        }
    }

    fn say(&mut self, shard: usize, message: ToStore) {
        if self.is_up[shard] {
            self.apply(Event::FromShard { shard, message });
        }
    }

    fn client_gone(&mut self, which: usize) {
        self.apply(Event::ClientGone { client: self.clients[which] });
        self.clients[which] = ClientId(self.next_number());
    }

    fn end_pull(&mut self, pull: PullId, valid_bytes: u64, outcome: PullOutcome) {
        if self.pulls.remove(&pull).is_some() {
            self.apply(Event::PullEnded { pull, valid_bytes, outcome });
        }
    }

    /// Ends everything: then all memory is free.
    fn finish(mut self) {
        self.apply(Event::ShutDown);
        for pull in self.pulls.keys().copied().collect::<Vec<_>>() {
            self.end_pull(pull, 0, PullOutcome::Cancelled);
        }
        for serve in std::mem::take(&mut self.serves) {
            self.apply(Event::ServeEnded { serve });
        }
        for copy in std::mem::take(&mut self.comparisons) {
            self.apply(Event::Compared { copy, equal: None });
        }
        for which in 0..CLIENTS {
            self.client_gone(which);
        }
        let status = self.node.status();
        assert_eq!((status.copies, status.pulls), (0, 0), "{status:?}");
        assert_eq!(status.free_bytes, status.capacity_bytes, "nothing leaks");
        assert!(self.open_copies.is_empty() && self.pulls.is_empty(), "all copies are closed");
    }
}

fn step(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    match input.int_in_range(0..=31)? {
        0..=13 => {
            let client = world.clients[input.choose_index(CLIENTS)?];
            let call = match (&world.checker, input.int_in_range(0..=7)?) {
                // A client that uses the number of a call again.
                (None, number @ 0..=3) => CallId(number),
                _ => CallId(world.next_number()),
            };
            let request = request(input, world)?;
            if world.calls.len() < 64 {
                world.calls.push(call);
            }
            world.apply(Event::Request { client, call, request });
        }
        14 => {
            let which = input.choose_index(CLIENTS)?;
            world.client_gone(which);
        }
        15 | 16 => {
            let shard = input.choose_index(SHARDS)?;
            let is_up = world.is_up[shard];
            world.is_up[shard] = !is_up;
            world.apply(if is_up { Event::ShardDown { shard } } else { Event::ShardUp { shard } });
        }
        17..=23 => {
            let (shard, message) = message(input, world)?;
            world.say(shard, message);
        }
        24..=26 => pull_ended(input, world)?,
        27 => {
            let serve = ServeId(world.next_number());
            let (_, id, put) = publication(input, world)?;
            world.serves.insert(serve);
            world.apply(Event::ServeRequested { serve, id, put });
        }
        28 => {
            let serves: Vec<ServeId> = world.serves.iter().copied().collect();
            if let Some(serve) = pick(input, &serves)? {
                world.serves.remove(&serve);
                world.apply(Event::ServeEnded { serve });
            }
        }
        29 => {
            let comparisons: Vec<CopyId> = world.comparisons.iter().copied().collect();
            if let Some(copy) = pick(input, &comparisons)? {
                world.comparisons.remove(&copy);
                world.apply(Event::Compared { copy, equal: input.arbitrary()? });
            }
        }
        _ => {
            world.now = world.now + Duration::from_millis(input.int_in_range(0..=2000)?);
            world.apply(Event::Tick);
        }
    }
    Ok(())
}

fn request(input: &mut Unstructured<'_>, world: &World) -> Result<Request> {
    Ok(match input.int_in_range(0..=15)? {
        0..=2 => Request::Create {
            id: object(input)?,
            size_bytes: *input.choose(&[0, 100, LARGE, LARGE, 3 * LARGE, CAPACITY, 1 << 40, u64::MAX])?,
            metadata: Metadata::default(),
            timeout: timeout(input)?,
        },
        3 => Request::Seal { copy: copy(input, world)?, timeout: timeout(input)? },
        4 => Request::SealUnconfirmed { copy: copy(input, world)? },
        5 => Request::Abort { copy: copy(input, world)? },
        6..=8 => {
            let until = *input.choose(&[Until::Started, Until::Complete])?;
            Request::Get { id: object(input)?, until, timeout: timeout(input)? }
        }
        9 | 10 => Request::Release { copy: copy(input, world)? },
        11 => Request::Delete { ids: objects(input)?, timeout: timeout(input)? },
        12 => {
            let ids = objects(input)?;
            // The decoders refuse a larger count.
            let count = input.int_in_range(0..=ids.len())?;
            Request::Wait { ids, count, timeout: timeout(input)? }
        }
        13 => Request::Locate { id: object(input)?, timeout: timeout(input)? },
        14 => Request::Subscribe { id: object(input)? },
        _ => {
            let call = pick(input, &world.calls)?.unwrap_or(CallId(0));
            if input.arbitrary()? { Request::Cancel { call } } else { Request::Unsubscribe { call } }
        }
    })
}

/// What a shard says: mostly an answer to something, sometimes nonsense.
fn message(input: &mut Unstructured<'_>, world: &World) -> Result<(usize, ToStore)> {
    let asked = pick(input, &world.asked)?;
    let (shard, request, id) = match asked {
        Some(asked) => asked,
        None => (input.choose_index(SHARDS)?, RequestId(input.int_in_range(0..=40)?), object(input)?),
    };
    let message = match input.int_in_range(0..=15)? {
        0..=3 => ToStore::Granted(grant(input, world, request, id)?),
        4 | 5 => {
            let length = *input.choose(&[0, 100, 100, 5000])?;
            let bytes = Bytes::from(vec![7; length]);
            ToStore::Inline {
                request,
                put: put(input, world, &id)?,
                id,
                metadata: Metadata::default(),
                bytes,
            }
        }
        6 => ToStore::Failed { request, error: failure(input, id)? },
        7 => {
            let put = if input.arbitrary()? { Some(put(input, world, &id)?) } else { None };
            ToStore::DeleteDone { request, put }
        }
        8 => ToStore::Locations { request, locations: locations(input, world, id)? },
        9..=12 => {
            let (shard, id, put) = publication(input, world)?;
            let verdict = verdict(input, world, &id)?;
            return Ok((shard, ToStore::Published { id, put, verdict }));
        }
        13 | 14 => {
            let (shard, id, put) = publication(input, world)?;
            let reason = *input.choose(&[DropReason::Deleted, DropReason::Lost])?;
            return Ok((shard, ToStore::Drop { id, put, reason }));
        }
        _ => {
            let (shard, id, put) = publication(input, world)?;
            return Ok((shard, ToStore::Promote { id, put }));
        }
    };
    Ok((shard, message))
}

fn grant(input: &mut Unstructured<'_>, world: &World, request: RequestId, id: ObjectId) -> Result<Grant> {
    let (sender, sender_address) = sender(input)?;
    Ok(Grant {
        request,
        grant: GrantId(input.int_in_range(0..=255)?),
        put: put(input, world, &id)?,
        id,
        size_bytes: *input.choose(&[LARGE, LARGE, 0, 3 * LARGE, CAPACITY, u64::MAX])?,
        metadata: Metadata::default(),
        sender,
        sender_address,
        sender_state: *input.choose(&[LocationState::Complete, LocationState::Partial])?,
        reason: GrantReason::OnlyCandidate,
    })
}

fn verdict(input: &mut Unstructured<'_>, world: &World, id: &ObjectId) -> Result<Verdict> {
    let equality = match input.int_in_range(0..=9)? {
        0..=3 => return Ok(Verdict::Accepted),
        4 => return Ok(Verdict::Deleted),
        5 => return Ok(Verdict::ShardFull),
        6 => Equality::Equal,
        7 => Equality::Different,
        8 => Equality::Unknown { holder: None },
        _ => Equality::Unknown { holder: Some(sender(input)?) },
    };
    Ok(Verdict::Conflict { winner: put(input, world, id)?, equality })
}

fn locations(input: &mut Unstructured<'_>, world: &World, id: ObjectId) -> Result<Locations> {
    let object = if input.arbitrary()? {
        let put = put(input, world, &id)?;
        let (inline, lost) = input.arbitrary()?;
        Some(ObjectSummary { put, size_bytes: LARGE, metadata: Metadata::default(), inline, lost })
    } else {
        None
    };
    let count = input.int_in_range(0..=2)?;
    let location = |_| {
        let (node, data_address) = sender(input)?;
        let state = *input.choose(&[LocationState::Complete, LocationState::Producing])?;
        Ok(Location { node, data_address, state, retention: Retention::Pinned, pulling_from: None })
    };
    let locations = (0..count).map(location).collect::<Result<_>>()?;
    Ok(Locations { id, object, locations })
}

fn failure(input: &mut Unstructured<'_>, id: ObjectId) -> Result<Error> {
    let errors = [
        Error::Timeout { operation: Operation::Get, waited: Duration::from_secs(1) },
        Error::ObjectLost { id: id.clone() },
        Error::Deleted { id },
        Error::ShuttingDown,
    ];
    input.choose(&errors).cloned()
}

fn pull_ended(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let pulls: Vec<(PullId, (u64, u64))> = world.pulls.iter().map(|(pull, range)| (*pull, *range)).collect();
    let Some((pull, (start, end))) = pick(input, &pulls)? else { return Ok(()) };
    let outcome = *input.choose(&[
        PullOutcome::Complete,
        PullOutcome::Complete,
        PullOutcome::SenderUnreachable,
        PullOutcome::SenderStalled,
        PullOutcome::SenderHasNoCopy,
        PullOutcome::Corrupt,
        PullOutcome::Cancelled,
    ])?;
    let valid_bytes = if outcome == PullOutcome::Complete {
        end
    } else {
        *input.choose(&[start, end, start.midpoint(end)])?
    };
    world.end_pull(pull, valid_bytes, outcome);
    Ok(())
}

/// A put that a shard was told of, or one that nobody ever heard of.
fn publication(input: &mut Unstructured<'_>, world: &World) -> Result<(usize, ObjectId, PutId)> {
    match pick(input, &world.published)? {
        Some(publication) => Ok(publication),
        None => Ok((input.choose_index(SHARDS)?, object(input)?, PutId(input.int_in_range(0..=3)?))),
    }
}

/// A put of `id` that a shard was told of, or one of another node.
fn put(input: &mut Unstructured<'_>, world: &World, id: &ObjectId) -> Result<PutId> {
    let ours = world.published.iter().rev().find(|(_, published, _)| published == id);
    match (input.int_in_range(0..=3)?, ours) {
        (0, Some((_, _, put))) => Ok(*put),
        (number, _) => Ok(PutId(number)),
    }
}

/// One of the last of `items`, usually.
fn pick<T: Clone>(input: &mut Unstructured<'_>, items: &[T]) -> Result<Option<T>> {
    let back = usize::from(input.int_in_range::<u8>(0..=7)?);
    Ok(items.iter().rev().nth(back.min(items.len().saturating_sub(1))).filter(|_| back < 7).cloned())
}

fn copy(input: &mut Unstructured<'_>, world: &World) -> Result<CopyId> {
    Ok(pick(input, &world.told)?.unwrap_or(CopyId(3)))
}

fn objects(input: &mut Unstructured<'_>) -> Result<Vec<ObjectId>> {
    // One more than the limit allows.
    (0..input.int_in_range(0..=4)?).map(|_| object(input)).collect()
}

fn object(input: &mut Unstructured<'_>) -> Result<ObjectId> {
    input.choose(&OBJECTS).map(|name| ObjectId::new(name).expect("the name is short"))
}

fn sender(input: &mut Unstructured<'_>) -> Result<(NodeId, SocketAddr)> {
    let which = input.choose_index(SENDERS.len())?;
    let port = 7000 + u16::try_from(which).expect("there are a few senders");
    let name = NodeId::new(SENDERS[which]).expect("the name is valid");
    Ok((name, SocketAddr::from(([127, 0, 0, 1], port))))
}

fn timeout(input: &mut Unstructured<'_>) -> Result<Duration> {
    // The last is the longest that the decoders let through.
    input.choose(&[0, 100, 60_000, 30 * 24 * 60 * 60 * 1000]).copied().map(Duration::from_millis)
}
