//! The state machine of a store, also under clients and shards that break the protocol.
//!
//! Events keep the promises of a shell.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::missing::Named;
use hoplite_core::node::{
    ByteRange, CallId, ClientId, CombineId, CombineInput, CombineOutcome, Confirm, CopyId, Effect,
    Event, Hop, HopFailure, HopId, HopInput, HopReport, HostingId, MAX_HOP_INPUTS, Node,
    NodeConfig, PullId, Reduce, ReduceOrder, Request, Response, ServeId, Until,
};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    DeleteWait, DropReason, Equality, Grant, GrantId, GrantReason, Location, LocationState,
    Locations, ObjectSummary, PullOutcome, Replicate, Replication, RequestId, Retention, ShardRun,
    ToShard, ToStore, Verdict,
};
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::{
    Dtype, Error, Limits, Metadata, NodeId, ObjectId, Operation, PutId, Time, Version,
};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::checker::Checker;

const OBJECTS: [&str; 4] = ["w", "x", "y", "z"];
const SENDERS: [&str; 3] = ["a", "b", "c"];
const OUTPUTS: u64 = 3;
const CLIENTS: usize = 3;
const SHARDS: usize = 3;
const CAPACITY: u64 = 5 * (LARGE + HEADER_BYTES);
const LARGE: u64 = 40_960;
const INLINE_BELOW: u64 = 4096;
const MAX_STEPS: usize = 2_000;

/// Feeds a node with events.
pub fn events(bytes: &[u8]) {
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

struct World {
    node: Node,
    now: Time,
    /// Checks the answers to clients; `None` if clients break the protocol.
    checker: Option<Checker>,
    clients: [ClientId; CLIENTS],
    last_number: u64,
    is_up: [bool; SHARDS],
    pulls: BTreeMap<PullId, (u64, u64)>,
    serves: BTreeSet<ServeId>,
    combinations: BTreeMap<CombineId, (u64, u64)>,
    /// The hops that the node has not ended. `audible_hops` may still report.
    hops: BTreeSet<HopId>,
    audible_hops: BTreeSet<HopId>,
    hostings: BTreeSet<HostingId>,
    comparisons: BTreeSet<CopyId>,
    open_copies: BTreeMap<CopyId, u64>,
    told: Vec<CopyId>,
    calls: Vec<CallId>,
    follows: BTreeSet<(ClientId, CallId)>,
    asked: Vec<(usize, RequestId, ObjectId)>,
    published: Vec<(usize, ObjectId, PutId)>,
}

impl World {
    fn new(is_checked: bool) -> Self {
        let limits = Limits {
            inline_below_bytes: INLINE_BELOW,
            confirmed_from_bytes: 2 * INLINE_BELOW,
            max_requests_per_client: 12,
            max_references_per_client: 6,
            max_ids_per_request: 3,
            ..Limits::default()
        };
        let shards = ShardMap::new((0..SHARDS).map(|shard| format!("shard-{shard}")));
        let config = NodeConfig {
            node: NodeId::new("here").expect("a valid name"),
            path: [1, 0, 1, 0],
            capacity_bytes: CAPACITY,
            limits,
            shards,
            allreduce_schedule: SchedulePreference::Auto,
            replicas: 1,
            spill: None,
            serves_directory: false,
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
            combinations: BTreeMap::new(),
            hops: BTreeSet::new(),
            audible_hops: BTreeSet::new(),
            hostings: BTreeSet::new(),
            comparisons: BTreeSet::new(),
            open_copies: BTreeMap::new(),
            told: Vec::new(),
            calls: Vec::new(),
            follows: BTreeSet::new(),
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
        assert!(self.node.next_deadline().is_none_or(|due| due > self.now), "what is due was done");
    }

    fn note_answer(&mut self, response: &Response) {
        if let Response::Created(view) | Response::Existing(view) | Response::Object(view) =
            response
        {
            assert!(self.open_copies.contains_key(&view.copy), "{view:?} is open");
            self.told.push(view.copy);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { response: Ok(Response::Batch(answers)), .. } => {
                answers.into_iter().flatten().for_each(|answer| self.note_answer(&answer));
            }
            Effect::Reply { response: Ok(response), .. } => self.note_answer(&response),
            Effect::Reply { response: Err(_), .. } => {}
            Effect::ToShard { shard, message, inline_from, .. } => {
                assert!(
                    inline_from.is_none_or(|copy| self.open_copies.contains_key(&copy)),
                    "{message:?}"
                );
                self.note(shard, message);
            }
            Effect::Follow { client, call, copy, .. } => {
                assert!(self.open_copies.contains_key(&copy), "{copy:?} is open");
                assert!(self.follows.insert((client, call)), "{call:?} follows once");
            }
            Effect::Inspect { client, call, .. } => {
                assert!(self.follows.insert((client, call)), "{call:?} inspects once");
            }
            Effect::CallEnded { client, call } => {
                assert!(self.follows.remove(&(client, call)), "the shell works for {call:?}");
            }
            Effect::CopyOpened { copy, extent, size_bytes, .. } => {
                let end = extent.offset_bytes + extent.length_bytes;
                assert!(
                    end <= CAPACITY && extent.length_bytes >= size_bytes + HEADER_BYTES,
                    "{extent:?}"
                );
                assert!(
                    self.open_copies.insert(copy, size_bytes).is_none(),
                    "{copy:?} is opened once"
                );
            }
            Effect::CopyClosed { copy } => {
                assert!(!self.comparisons.contains(&copy), "{copy:?} is being compared");
                assert!(self.open_copies.remove(&copy).is_some(), "{copy:?} was open");
            }
            Effect::Fill { copy, .. }
            | Effect::CopyCompleted { copy }
            | Effect::CopyFailed { copy, .. }
            | Effect::ServeAccepted { copy, .. } => {
                assert!(self.open_copies.contains_key(&copy), "{copy:?} is open");
            }
            Effect::ServeRefused { serve } => {
                assert!(self.serves.contains(&serve), "{serve:?} was asked for")
            }
            Effect::StartPull { .. }
            | Effect::CancelPull { .. }
            | Effect::Compare { .. }
            | Effect::StartCombine { .. }
            | Effect::CancelCombine { .. }
            | Effect::StartHop { .. }
            | Effect::EndHop { .. }
            | Effect::HopReport { .. } => self.perform_work(effect),
            Effect::DrainEnded { .. } | Effect::PutLost { .. } | Effect::ShardsChanged { .. } => {}
            Effect::Spill { .. }
            | Effect::ServeSpilled { .. }
            | Effect::Load { .. }
            | Effect::RemoveSpillFile { .. }
            | Effect::IndexSpillFile { .. }
            | Effect::RetireSpillRecord { .. }
            | Effect::NoteShardRun { .. }
            | Effect::Unrecovered { .. } => {
                unreachable!("the store has no spill directory")
            }
            Effect::Collective(_) => unreachable!("nobody asks for an allreduce"),
        }
    }

    fn perform_work(&mut self, effect: Effect) {
        match effect {
            Effect::StartPull { pull, copy, size_bytes, offset_bytes, .. } => {
                assert!(
                    self.open_copies.contains_key(&copy) && offset_bytes <= size_bytes,
                    "{pull:?}"
                );
                assert!(
                    self.pulls.insert(pull, (offset_bytes, size_bytes)).is_none(),
                    "{pull:?} is new"
                );
            }
            Effect::CancelPull { pull } => assert!(self.pulls.contains_key(&pull), "{pull:?} runs"),
            Effect::Compare { copy, .. } => {
                assert!(self.open_copies.contains_key(&copy), "{copy:?} is open");
                assert!(self.comparisons.insert(copy), "{copy:?} is compared once at a time");
            }
            Effect::StartCombine { combine, copy, offset_bytes, inputs, .. } => {
                let size_bytes = self.open_copies[&copy];
                assert!(
                    offset_bytes <= size_bytes && !inputs.is_empty(),
                    "{combine:?} makes sense"
                );
                for input in inputs {
                    if let CombineInput::Local { copy, base_bytes } = input {
                        let is_inside = base_bytes.checked_add(size_bytes);
                        assert!(
                            is_inside.is_some_and(|end| end <= self.open_copies[&copy]),
                            "{combine:?}"
                        );
                    }
                }
                let range = (offset_bytes, size_bytes);
                assert!(self.combinations.insert(combine, range).is_none(), "{combine:?} is new");
            }
            Effect::CancelCombine { combine } => {
                assert!(self.combinations.contains_key(&combine), "{combine:?} runs")
            }
            Effect::StartHop { hop, spec, .. } => {
                assert!(
                    (2..=MAX_HOP_INPUTS).contains(&spec.inputs.len()),
                    "{spec:?} can be asked for"
                );
                assert!(spec.offset_bytes <= spec.size_bytes, "{spec:?} makes sense");
                assert!(self.hops.insert(hop) && self.audible_hops.insert(hop), "{hop:?} is new");
            }
            Effect::EndHop { hop } => {
                assert!(self.hops.remove(&hop), "{hop:?} is ended once");
                self.audible_hops.remove(&hop);
            }
            Effect::HopReport { hosting, .. } => {
                assert!(self.hostings.contains(&hosting), "somebody waits for {hosting:?}");
            }
            other => unreachable!("{other:?} is no work"),
        }
    }

    fn note(&mut self, shard: usize, message: ToShard) {
        assert!(shard < SHARDS, "there is a shard {shard}");
        match message {
            ToShard::Publish(publish) => self.published.push((shard, publish.id, publish.put)),
            ToShard::Query(query) => self.asked.push((shard, query.request, query.id)),
            ToShard::Delete { request, id, .. } | ToShard::Subscribe { request, id, .. } => {
                self.asked.push((shard, request, id));
            }
            _ => {}
        }
    }

    fn send(&mut self, shard: usize, message: ToStore) {
        if self.is_up[shard] {
            self.apply(Event::FromShard { shard, message });
        }
    }

    fn client_gone(&mut self, which: usize) {
        self.apply(Event::ClientGone { client: self.clients[which] });
        let client = ClientId(self.next_number());
        self.clients[which] = client;
        self.apply(Event::ClientConnected { client, user: 1, owners: vec![job()] });
    }

    fn end_pull(&mut self, pull: PullId, valid_bytes: u64, outcome: PullOutcome) {
        if self.pulls.remove(&pull).is_some() {
            self.apply(Event::PullEnded { pull, valid_bytes, outcome });
        }
    }

    fn end_combination(&mut self, combine: CombineId, valid_bytes: u64, outcome: CombineOutcome) {
        if self.combinations.remove(&combine).is_some() {
            self.apply(Event::CombineEnded { combine, valid_bytes, outcome });
        }
    }

    fn finish(mut self) {
        self.apply(Event::ShutDown);
        for pull in self.pulls.keys().copied().collect::<Vec<_>>() {
            self.end_pull(pull, 0, PullOutcome::Cancelled);
        }
        for combine in self.combinations.keys().copied().collect::<Vec<_>>() {
            self.end_combination(combine, 0, CombineOutcome::Cancelled);
        }
        for hosting in std::mem::take(&mut self.hostings) {
            self.apply(Event::HopReleased { hosting });
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
        assert_eq!((status.reductions, status.hops, status.combinations), (0, 0, 0), "{status:?}");
        assert!(
            self.hops.is_empty() && status.directed_hops == 0,
            "all hops are ended: {status:?}"
        );
        assert_eq!(status.free_bytes, status.capacity_bytes, "nothing leaks");
        assert!(self.follows.is_empty(), "nobody follows anything");
        assert!(self.open_copies.is_empty() && self.pulls.is_empty(), "all copies are closed");
    }
}

fn step(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    match input.int_in_range(0..=39)? {
        0..=13 => call_begins(input, world)?,
        14 => {
            let which = input.choose_index(CLIENTS)?;
            world.client_gone(which);
        }
        15 | 16 => {
            let shard = input.choose_index(SHARDS)?;
            let is_up = world.is_up[shard];
            world.is_up[shard] = !is_up;
            let session = Event::ShardUp {
                shard,
                run: ShardRun(input.int_in_range(0..=1)?),
                asked_at: world.now,
                version: *input.choose(&[Version::OLDEST, Version::NEWEST])?,
            };
            world.apply(if is_up { Event::ShardDown { shard } } else { session });
        }
        17..=23 => {
            let (shard, message) = message(input, world)?;
            world.send(shard, message);
        }
        24 | 25 => pull_ended(input, world)?,
        26 => {
            if let Some((client, call)) = world.follows.pop_first() {
                world.apply(Event::Followed { client, call, progress: Ok(input.arbitrary()?) });
                world.apply(Event::Inspected { client, call });
            }
        }
        27 => serve_requested(input, world)?,
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
        30..=33 => combination_ended(input, world)?,
        34 | 35 => hop_reported(input, world)?,
        36 => {
            let hop = hop(input, world)?;
            let hosting = HostingId(world.next_number());
            world.hostings.insert(hosting);
            world.apply(Event::HopRequested { hosting, hop });
        }
        37 => {
            let hostings: Vec<HostingId> = world.hostings.iter().copied().collect();
            if let Some(hosting) = pick(input, &hostings)? {
                world.apply(Event::HopReleased { hosting });
                world.hostings.remove(&hosting);
            }
        }
        _ => {
            let most = *input.choose(&[5, 100, 2000])?;
            world.now = world.now + Duration::from_millis(input.int_in_range(0..=most)?);
            world.apply(Event::Tick);
        }
    }
    Ok(())
}

fn call_begins(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let client = world.clients[input.choose_index(CLIENTS)?];
    let call = match (&world.checker, input.int_in_range(0..=7)?) {
        (None, number @ 0..=3) => CallId(number),
        _ => CallId(world.next_number()),
    };
    let request = request(input, world)?;
    if world.calls.len() < 64 {
        world.calls.push(call);
    }
    world.apply(Event::Request { client, call, request });
    Ok(())
}

fn serve_requested(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let serve = ServeId(world.next_number());
    let awaits_hop = input.arbitrary()?;
    let (id, put) = if awaits_hop {
        output(input)?
    } else {
        let (_, id, put) = publication(input, world)?;
        (id, put)
    };
    world.serves.insert(serve);
    let (peer, _) = sender(input)?;
    world.apply(Event::ServeRequested { serve, peer, id, put, awaits_hop });
    Ok(())
}

fn request(input: &mut Unstructured<'_>, world: &World) -> Result<Request> {
    Ok(match input.int_in_range(0..=21)? {
        0..=2 => Request::Create {
            id: object(input)?,
            size_bytes: *input.choose(&[
                0,
                100,
                LARGE,
                LARGE,
                3 * LARGE,
                CAPACITY,
                1 << 40,
                u64::MAX,
            ])?,
            metadata: Metadata { lifetime: lifetime(input)?, ..f32s() },
            timeout: timeout(input)?,
        },
        3 => Request::Seal { copy: copy(input, world)?, timeout: timeout(input)? },
        4 => Request::SealUnconfirmed { copy: copy(input, world)? },
        5 => Request::Abort { copy: copy(input, world)? },
        6 => {
            Request::Follow { copy: copy(input, world)?, beyond_bytes: 0, timeout: timeout(input)? }
        }
        7 | 8 => {
            let until = *input.choose(&[Until::Started, Until::Complete, Until::Contents])?;
            let allow_stale = input.arbitrary()?;
            Request::Get { id: object(input)?, until, timeout: timeout(input)?, allow_stale }
        }
        9 | 10 => Request::Release { copy: copy(input, world)? },
        11 => Request::Delete {
            ids: objects(input)?,
            timeout: timeout(input)?,
            wait: delete_wait(input)?,
        },
        12 => {
            let ids = objects(input)?;
            let count = input.int_in_range(0..=ids.len())?;
            Request::Wait { ids, count, timeout: timeout(input)? }
        }
        13 => Request::Locate { id: object(input)?, timeout: timeout(input)? },
        14 => Request::Subscribe { id: object(input)? },
        15..=18 => Request::Reduce(reduce(input)?),
        19 => put_request(input)?,
        20 => {
            let items = input.int_in_range(1..=4)?;
            Request::Batch((0..items).map(|_| batch_item(input)).collect::<Result<_>>()?)
        }
        _ => {
            let call = pick(input, &world.calls)?.unwrap_or(CallId(0));
            if input.arbitrary()? {
                Request::Cancel { call }
            } else {
                Request::Unsubscribe { call }
            }
        }
    })
}

fn put_request(input: &mut Unstructured<'_>) -> Result<Request> {
    Ok(Request::Put {
        id: object(input)?,
        metadata: Metadata { lifetime: lifetime(input)?, ..f32s() },
        bytes: vec![7; *input.choose(&[0, 100, 8192])?].into(),
        confirm: *input.choose(&[Confirm::Yes, Confirm::No])?,
        timeout: timeout(input)?,
    })
}

fn batch_item(input: &mut Unstructured<'_>) -> Result<Request> {
    Ok(match input.int_in_range(0..=2)? {
        0 => put_request(input)?,
        1 => Request::Get {
            id: object(input)?,
            until: Until::Contents,
            timeout: timeout(input)?,
            allow_stale: false,
        },
        _ => Request::Delete {
            ids: vec![object(input)?],
            timeout: timeout(input)?,
            wait: delete_wait(input)?,
        },
    })
}

fn reduce(input: &mut Unstructured<'_>) -> Result<Reduce> {
    let sources = objects(input)?;
    let range =
        ByteRange { offset_bytes: 4096, length_bytes: *input.choose(&[0, 8192, 6, 1 << 40])? };
    Ok(Reduce {
        target: object(input)?,
        count: input.int_in_range(0..=sources.len())?,
        sources,
        op: *input.choose(ReduceOp::ALL)?,
        order: *input.choose(&[ReduceOrder::Any, ReduceOrder::Fixed])?,
        range: if input.ratio(1, 8)? { Some(range) } else { None },
        replicas: *input.choose(&[0, 2])?,
        timeout: timeout(input)?,
    })
}

fn hop(input: &mut Unstructured<'_>, world: &World) -> Result<Hop> {
    let (output, put) = output(input)?;
    let size_bytes = *input.choose(&[LARGE, LARGE, 0, CAPACITY])?;
    let count = input.int_in_range(1..=3)?;
    Ok(Hop {
        output,
        put,
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        size_bytes,
        offset_bytes: *input.choose(&[0, size_bytes / 2, size_bytes])?,
        inputs: (0..count).map(|_| hop_input(input, world, size_bytes)).collect::<Result<_>>()?,
        timeout: timeout(input)?,
    })
}

fn hop_input(input: &mut Unstructured<'_>, world: &World, length_bytes: u64) -> Result<HopInput> {
    let is_hop = input.arbitrary()?;
    let (id, put) = if is_hop {
        output(input)?
    } else {
        let id = object(input)?;
        let put = put(input, world, &id)?;
        (id, put)
    };
    let (node, address) = sender(input)?;
    let node =
        if input.arbitrary()? { NodeId::new("here").expect("the name is valid") } else { node };
    let base_bytes = *input.choose(&[0, 0, 4096])?;
    let size_bytes = base_bytes + length_bytes + *input.choose(&[0, 0, 4])?;
    Ok(HopInput { id, put, size_bytes, base_bytes, node, address, is_hop })
}

fn output(input: &mut Unstructured<'_>) -> Result<(ObjectId, PutId)> {
    let put = PutId(input.int_in_range(1..=OUTPUTS)?);
    Ok((ObjectId::of_hop(put), put))
}

fn combination_ended(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let running: Vec<_> =
        world.combinations.iter().map(|(combine, range)| (*combine, *range)).collect();
    let Some((combine, (start, end))) = pick(input, &running)? else { return Ok(()) };
    let outcome = match input.int_in_range(0..=3)? {
        0 => CombineOutcome::Complete,
        1 => CombineOutcome::Cancelled,
        _ => CombineOutcome::InputFailed {
            index: input.int_in_range(0..=3)?,
            outcome: ended(input)?,
        },
    };
    let reached = *input.choose(&[start, end, start.midpoint(end)])?;
    let valid_bytes = if outcome == CombineOutcome::Complete { end } else { reached };
    world.end_combination(combine, valid_bytes, outcome);
    Ok(())
}

fn hop_reported(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let hops: Vec<HopId> = world.audible_hops.iter().copied().collect();
    let Some(hop) = pick(input, &hops)? else { return Ok(()) };
    let report = match input.int_in_range(0..=7)? {
        0 => HopReport::Failed(HopFailure::Unreachable),
        1 => HopReport::Failed(HopFailure::Refused(Error::ShuttingDown)),
        2 | 3 => {
            let (index, outcome) = (input.int_in_range(0..=3)?, ended(input)?);
            HopReport::Failed(HopFailure::Input { index, outcome })
        }
        _ => HopReport::Complete,
    };
    if report != HopReport::Complete {
        world.audible_hops.remove(&hop);
    }
    world.apply(Event::HopReported { hop, report });
    Ok(())
}

fn message(input: &mut Unstructured<'_>, world: &World) -> Result<(usize, ToStore)> {
    let asked = pick(input, &world.asked)?;
    let (shard, request, id) = match asked {
        Some(asked) => asked,
        None => {
            (input.choose_index(SHARDS)?, RequestId(input.int_in_range(0..=40)?), object(input)?)
        }
    };
    let message = match input.int_in_range(0..=18)? {
        0..=3 => ToStore::Granted(grant(input, world, request, id)?),
        4 | 5 => {
            let length = *input.choose(&[0, 100, 100, 5000])?;
            let bytes = Bytes::from(vec![7; length]);
            ToStore::Inline {
                request,
                put: put(input, world, &id)?,
                id,
                metadata: f32s(),
                bytes: bytes.into(),
            }
        }
        6 => ToStore::Failed { request, error: failure(input, id)? },
        7 => {
            let put = if input.arbitrary()? { Some(put(input, world, &id)?) } else { None };
            let absent = Named::of(if input.arbitrary()? {
                Some(NodeId::new(input.choose(&SENDERS)?).expect("the name is valid"))
            } else {
                None
            });
            ToStore::DeleteDone { request, put, absent }
        }
        8 => ToStore::Locations { request, locations: locations(input, world, id)? },
        9..=12 => {
            let (shard, id, put) = publication(input, world)?;
            let verdict = verdict(input, world, &id)?;
            return Ok((shard, ToStore::Published { id, put, verdict }));
        }
        13 | 14 => {
            let (shard, id, put) = publication(input, world)?;
            let reason =
                *input.choose(&[DropReason::Deleted, DropReason::Lost, DropReason::Superseded])?;
            return Ok((shard, ToStore::Drop { id, put, reason }));
        }
        15 => {
            let (shard, id, put) = publication(input, world)?;
            let order = Replicate { id, put, size_bytes: LARGE, metadata: f32s() };
            return Ok((shard, ToStore::Replicate(order)));
        }
        16 => {
            let (shard, id, put) = publication(input, world)?;
            let (copies, nodes) = (input.int_in_range(0..=3)?, input.int_in_range(0..=3)?);
            let news = Replication {
                id,
                put,
                copies,
                nodes,
                is_draining: input.arbitrary()?,
                obstacle: None,
            };
            return Ok((shard, ToStore::Replication(news)));
        }
        _ => {
            let (shard, id, put) = publication(input, world)?;
            return Ok((shard, ToStore::Promote { id, put }));
        }
    };
    Ok((shard, message))
}

fn grant(
    input: &mut Unstructured<'_>,
    world: &World,
    request: RequestId,
    id: ObjectId,
) -> Result<Grant> {
    let (sender, sender_address) = sender(input)?;
    Ok(Grant {
        request,
        grant: GrantId(input.int_in_range(0..=255)?),
        put: put(input, world, &id)?,
        id,
        size_bytes: *input.choose(&[LARGE, LARGE, 0, 3 * LARGE, CAPACITY, u64::MAX])?,
        metadata: f32s(),
        sender,
        sender_address,
        sender_state: *input.choose(&[LocationState::Complete, LocationState::Partial])?,
        reason: GrantReason::OnlyCandidate,
        complete_copies: input.arbitrary()?,
    })
}

fn verdict(input: &mut Unstructured<'_>, world: &World, id: &ObjectId) -> Result<Verdict> {
    let equality = match input.int_in_range(0..=9)? {
        0..=2 => return Ok(Verdict::Accepted),
        3 => return Ok(Verdict::Cyclic { sender: sender(input)?.0 }),
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
        let size_bytes = *input.choose(&[LARGE, LARGE, LARGE, 100])?;
        let metadata = if input.ratio(1, 16)? { Metadata::default() } else { f32s() };
        Some(ObjectSummary { put, size_bytes, metadata, inline, lost, origin: None })
    } else {
        None
    };
    let count = input.int_in_range(0..=2)?;
    let location = |_| {
        let (node, data_address) = sender(input)?;
        let here = NodeId::new("here").expect("the name is valid");
        let node = if input.ratio(1, 4)? { here } else { node };
        let state = *input.choose(&[LocationState::Complete, LocationState::Producing])?;
        let path = *input.choose(&[EVERYWHERE, EVERYWHERE, [1, 0, 1, 0], [1, 0, 2, 0]])?;
        let (retention, pulling_from, slow_peers) = (Retention::Pinned, None, Vec::new());
        Ok(Location { node, data_address, state, retention, pulling_from, path, slow_peers })
    };
    let locations = (0..count).map(location).collect::<Result<_>>()?;
    Ok(Locations { id, object, locations })
}

fn failure(input: &mut Unstructured<'_>, id: ObjectId) -> Result<Error> {
    let errors = [
        Error::timeout(Operation::Get, Duration::from_secs(1)),
        Error::ObjectLost { id: id.clone() },
        Error::Deleted { id },
        Error::ShuttingDown,
    ];
    input.choose(&errors).cloned()
}

fn pull_ended(input: &mut Unstructured<'_>, world: &mut World) -> Result<()> {
    let pulls: Vec<(PullId, (u64, u64))> =
        world.pulls.iter().map(|(pull, range)| (*pull, *range)).collect();
    let Some((pull, (start, end))) = pick(input, &pulls)? else { return Ok(()) };
    let outcome = if input.ratio(1, 3)? { PullOutcome::Complete } else { ended(input)? };
    let valid_bytes = if outcome == PullOutcome::Complete {
        end
    } else {
        *input.choose(&[start, end, start.midpoint(end)])?
    };
    world.end_pull(pull, valid_bytes, outcome);
    Ok(())
}

fn ended(input: &mut Unstructured<'_>) -> Result<PullOutcome> {
    let outcomes = [
        PullOutcome::SenderUnreachable,
        PullOutcome::SenderStalled,
        PullOutcome::SenderHasNoCopy,
        PullOutcome::Corrupt,
        PullOutcome::Cancelled,
    ];
    input.choose(&outcomes).copied()
}

fn publication(input: &mut Unstructured<'_>, world: &World) -> Result<(usize, ObjectId, PutId)> {
    match pick(input, &world.published)? {
        Some(publication) => Ok(publication),
        None => {
            Ok((input.choose_index(SHARDS)?, object(input)?, PutId(input.int_in_range(0..=3)?)))
        }
    }
}

fn put(input: &mut Unstructured<'_>, world: &World, id: &ObjectId) -> Result<PutId> {
    let ours = world.published.iter().rev().find(|(_, published, _)| published == id);
    match (input.int_in_range(0..=3)?, ours) {
        (0, Some((_, _, put))) => Ok(*put),
        (number, _) => Ok(PutId(number)),
    }
}

fn pick<T: Clone>(input: &mut Unstructured<'_>, items: &[T]) -> Result<Option<T>> {
    let back = usize::from(input.int_in_range::<u8>(0..=7)?);
    Ok(items
        .iter()
        .rev()
        .nth(back.min(items.len().saturating_sub(1)))
        .filter(|_| back < 7)
        .cloned())
}

fn copy(input: &mut Unstructured<'_>, world: &World) -> Result<CopyId> {
    Ok(pick(input, &world.told)?.unwrap_or(CopyId(3)))
}

fn objects(input: &mut Unstructured<'_>) -> Result<Vec<ObjectId>> {
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

fn job() -> Owner {
    Owner::new("job").expect("the name is valid")
}

fn lifetime(input: &mut Unstructured<'_>) -> Result<Option<Arc<Lifetime>>> {
    let action = *input.choose(&[TtlAction::Delete, TtlAction::Free])?;
    let ttl = Ttl::new(Duration::from_millis(*input.choose(&[0, 1, 5000])?), action).ok();
    Ok(Lifetime::of(input.arbitrary::<bool>()?.then(job), ttl))
}

fn f32s() -> Metadata {
    Metadata { dtype: Dtype::F32, ..Metadata::default() }
}

fn delete_wait(input: &mut Unstructured<'_>) -> Result<DeleteWait> {
    Ok(if input.arbitrary()? { DeleteWait::All } else { DeleteWait::Reachable })
}

fn timeout(input: &mut Unstructured<'_>) -> Result<Duration> {
    input.choose(&[0, 100, 60_000, 30 * 24 * 60 * 60 * 1000]).copied().map(Duration::from_millis)
}
