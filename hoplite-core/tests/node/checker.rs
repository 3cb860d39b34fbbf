//! Checks events and effects against the invariants of `node/mod.rs`.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_core::collective::{
    CollectiveEffect, CollectiveEvent, Decision, EnlistmentId, MembershipId, Report,
};
use hoplite_core::extent::Extent;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{
    CallId, ClientId, CombineId, CombineInput, CopyId, Effect, Event, HopId, HopReport, HostingId,
    NodeStatus, Producer, PullId, Request, Response, ServeId, SpillFile,
};
use hoplite_core::shard::{Replicate, Replication, RequestId, Retention, ToShard, ToStore};

#[derive(Debug, Default)]
struct Copy {
    length_bytes: u64,
    size_bytes: u64,
    references: BTreeMap<ClientId, u32>,
    serves: u32,
    pulls: u32,
    comparisons: u32,
    combinations: u32,
    readers: u32,
    is_combined: bool,
    /// `true` for an exchange, which goes on after completion.
    is_exchanged: bool,
    is_writing: bool,
    is_complete: bool,
    has_failed: bool,
    is_pinned: bool,
}

impl Copy {
    fn is_idle(&self) -> bool {
        let users = self.serves + self.pulls + self.comparisons + self.combinations + self.readers;
        self.references.is_empty() && users == 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Subscription,
    Reduce,
    Batch,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Serve {
    Asked { peer: NodeId, id: ObjectId, awaits_hop: bool },
    Accepted(CopyId),
    Spilled,
    Refused,
}

#[derive(Debug)]
struct Combination {
    copy: CopyId,
    offset_bytes: u64,
    inputs: Vec<CopyId>,
}

#[derive(Debug, Default)]
pub(crate) struct Checker {
    copies: BTreeMap<CopyId, Copy>,
    extents: BTreeMap<CopyId, Extent>,
    seen: BTreeSet<CopyId>,
    open_calls: BTreeMap<(ClientId, CallId), Kind>,
    pulls: BTreeMap<PullId, CopyId>,
    senders: BTreeMap<CopyId, NodeId>,
    serves: BTreeMap<ServeId, Serve>,
    combinations: BTreeMap<CombineId, Combination>,
    hops: BTreeMap<HopId, Option<HopReport>>,
    hostings: BTreeMap<HostingId, Option<HopReport>>,
    enlistments: BTreeMap<EnlistmentId, PutId>,
    memberships: BTreeMap<MembershipId, Vec<Report>>,
    coordinated: BTreeSet<PutId>,
    seen_combinations: BTreeSet<CombineId>,
    seen_hops: BTreeSet<HopId>,
    promoted: BTreeSet<ObjectId>,
    queries: BTreeMap<RequestId, (usize, ObjectId)>,
    shards_up: BTreeSet<usize>,
    follows: BTreeSet<(ClientId, CallId)>,
    is_shutting_down: bool,
    spills: BTreeMap<SpillFile, Vec<CopyId>>,
    spilled: BTreeSet<CopyId>,
}

impl Checker {
    #[expect(clippy::too_many_lines, reason = "one arm for each event")]
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Request { client, call, request } => self.request(*client, *call, request),
            Event::ClientGone { client } => {
                self.open_calls.retain(|(owner, _), _| owner != client);
                for copy in self.copies.values_mut() {
                    copy.references.remove(client);
                }
            }
            Event::Followed { client, call, .. } => {
                self.follows.remove(&(*client, *call));
            }
            Event::Inspected { client, call } => {
                self.follows.remove(&(*client, *call));
                self.open_calls.remove(&(*client, *call));
            }
            Event::PullEnded { pull, .. } => {
                if let Some(copy) = self.pulls.remove(pull) {
                    self.copy(copy).pulls -= 1;
                    self.senders.remove(&copy);
                }
            }
            Event::ServeRequested { serve, peer, id, awaits_hop, .. } => {
                let asked =
                    Serve::Asked { peer: peer.clone(), id: id.clone(), awaits_hop: *awaits_hop };
                let previous = self.serves.insert(*serve, asked);
                assert_eq!(previous, None, "the test used {serve:?} twice");
            }
            Event::ServeEnded { serve } => {
                if let Some(Serve::Accepted(copy)) = self.serves.remove(serve) {
                    self.copy(copy).serves -= 1;
                }
            }
            Event::CombineEnded { combine, .. } => {
                if let Some(Combination { copy, inputs, .. }) = self.combinations.remove(combine) {
                    self.copy(copy).combinations -= 1;
                    for input in inputs {
                        self.copy(input).readers -= 1;
                    }
                }
            }
            Event::HopReported { hop, report } => {
                if let Some(reported) = self.hops.get_mut(hop) {
                    *reported = Some(report.clone());
                }
            }
            Event::HopRequested { hosting, .. } => {
                let previous = self.hostings.insert(*hosting, None);
                assert_eq!(previous, None, "the test used {hosting:?} twice");
            }
            Event::HopReleased { hosting } => {
                self.hostings.remove(hosting);
            }
            Event::Collective(event) => self.collective_event(event),
            Event::Compared { copy, .. } => {
                if let Some(copy) = self.copies.get_mut(copy) {
                    copy.comparisons = copy.comparisons.saturating_sub(1);
                }
            }
            Event::FromShard { shard, message } => self.shard_said(*shard, message),
            Event::ShardUp { shard, .. } => {
                self.shards_up.insert(*shard);
            }
            Event::ShardDown { shard } => {
                self.shards_up.remove(shard);
            }
            Event::Spilled { file, outcome } => {
                for copy in
                    self.spills.remove(file).unwrap_or_else(|| panic!("{file:?} is not written"))
                {
                    self.copy(copy).readers -= 1;
                    if outcome.is_ok() {
                        self.spilled.insert(copy);
                    }
                }
            }
            Event::Loaded { copy, .. } => self.copy(*copy).pulls -= 1,
            Event::ShutDown => self.is_shutting_down = true,
            _ => {}
        }
    }

    fn shard_said(&mut self, shard: usize, message: &ToStore) {
        let (answered, object) = match message {
            ToStore::Promote { id, .. }
            | ToStore::TakeOver { id, .. }
            | ToStore::Replicate(Replicate { id, .. })
            // A draining store unpins its copy after this report.
            | ToStore::Replication(Replication { id, .. }) => {
                self.promoted.insert(id.clone());
                return;
            }
            ToStore::Granted(grant) => (grant.request, Some(&grant.id)),
            ToStore::Inline { request, id, .. } => (*request, Some(id)),
            ToStore::Failed { request, .. } => (*request, None),
            _ => return,
        };
        let is_answer = |(asked, id): &(usize, ObjectId)| {
            *asked == shard && object.is_none_or(|object| object == id)
        };
        if self.queries.get(&answered).is_some_and(is_answer) {
            self.queries.remove(&answered);
        }
    }

    fn request(&mut self, client: ClientId, call: CallId, request: &Request) {
        match request {
            Request::Release { copy } | Request::Abort { copy } => self.release(client, *copy),
            Request::SealUnconfirmed { .. } => {}
            Request::Cancel { call } | Request::Unsubscribe { call } => {
                self.open_calls.remove(&(client, *call));
            }
            Request::Subscribe { .. } => self.enter(client, call, Kind::Subscription),
            Request::Reduce(_) | Request::Collective(..) => self.enter(client, call, Kind::Reduce),
            Request::Batch(_) => self.enter(client, call, Kind::Batch),
            _ => self.enter(client, call, Kind::Other),
        }
    }

    fn enter(&mut self, client: ClientId, call: CallId, kind: Kind) {
        let previous = self.open_calls.insert((client, call), kind);
        assert!(previous.is_none(), "the test used {call:?} of {client:?} twice");
    }

    fn release(&mut self, client: ClientId, copy: CopyId) {
        if let Some(copy) = self.copies.get_mut(&copy)
            && let Some(count) = copy.references.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                copy.references.remove(&client);
            }
        }
    }

    fn copy(&mut self, copy: CopyId) -> &mut Copy {
        self.copies.get_mut(&copy).unwrap_or_else(|| panic!("{copy:?} is not open"))
    }

    pub(crate) fn effects(&mut self, effects: &[Effect], status: NodeStatus) {
        // A recovered copy is opened when its file is first read.
        let loads = effects.iter().filter_map(|effect| match effect {
            Effect::Load { copy, .. } => Some(*copy),
            _ => None,
        });
        self.spilled.extend(loads);
        for effect in effects {
            self.effect(effect);
        }
        self.status(status);
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each effect")]
    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Reply { client, call, response } => self.reply(*client, *call, response),
            Effect::Follow { client, call, copy, .. } => {
                let copy = self.copy(*copy);
                assert!(
                    copy.references.contains_key(client),
                    "{client:?} follows {copy:?}, which it holds"
                );
                assert!(
                    self.follows.insert((*client, *call)),
                    "{call:?} of {client:?} follows once"
                );
            }
            Effect::Inspect { client, call, shards, .. } => {
                assert!(!shards.is_empty(), "somebody is asked");
                assert!(
                    self.follows.insert((*client, *call)),
                    "{call:?} of {client:?} inspects once"
                );
            }
            Effect::CallEnded { client, call } => {
                assert!(
                    self.follows.remove(&(*client, *call)),
                    "the shell works for {call:?} of {client:?}"
                );
            }
            Effect::ToShard { shard, message, inline_from, .. } => {
                match message {
                    ToShard::Query(query) => {
                        self.queries.insert(query.request, (*shard, query.id.clone()));
                    }
                    ToShard::Cancel { request } => {
                        self.queries.remove(request);
                    }
                    // A coordinator keeps the target if its own member failed before.
                    ToShard::Publish(publish)
                        if self.coordinated.contains(&publish.put)
                            && publish.retention == Retention::Pinned
                            && !self
                                .copies
                                .values()
                                .any(|copy| copy.is_exchanged && copy.is_complete) =>
                    {
                        self.promoted.insert(publish.id.clone());
                    }
                    _ => {}
                }
                if let Some(copy) = inline_from {
                    assert!(self.copy(*copy).is_complete, "the bytes of {message:?} are not there");
                }
            }
            Effect::DrainEnded { .. } | Effect::ShardsChanged { .. } => {}
            Effect::Collective(effect) => self.collective_effect(effect),
            Effect::StartPull { pull, copy, size_bytes, sender, offset_bytes, .. } => {
                let local = self.copy(*copy);
                local.pulls += 1;
                assert!(
                    local.pulls == 1
                        && !local.is_writing
                        && !local.is_complete
                        && !local.is_combined,
                    "{local:?} is pulled once"
                );
                assert!(*offset_bytes <= *size_bytes && *size_bytes == local.size_bytes);
                assert!(self.pulls.insert(*pull, *copy).is_none(), "{pull:?} was used before");
                self.senders.insert(*copy, sender.clone());
            }
            Effect::CancelPull { pull } => {
                let pulled = self.pulls.get(pull);
                let copy = pulled
                    .unwrap_or_else(|| panic!("{pull:?} is cancelled though it does not run"));
                self.senders.remove(copy);
            }
            Effect::ServeAccepted { serve, copy, .. } => {
                assert!(!self.copy(*copy).has_failed, "{copy:?} is served, but has failed");
                self.copy(*copy).serves += 1;
                if let Some(Serve::Asked { peer, awaits_hop: false, .. }) = self.serves.get(serve) {
                    assert_ne!(
                        self.senders.get(copy),
                        Some(peer),
                        "{copy:?} is pulled from its receiver"
                    );
                }
                self.serve_answered(*serve, Serve::Accepted(*copy));
            }
            Effect::ServeSpilled { serve, copy, .. } => {
                let is_here = self.copies.get(copy).is_some_and(|copy| copy.is_complete);
                assert!(!is_here, "{copy:?} is in the arena");
                self.serve_answered(*serve, Serve::Spilled);
            }
            Effect::ServeRefused { serve } => self.serve_answered(*serve, Serve::Refused),
            _ => self.effect_on_copies(effect),
        }
    }

    fn effect_on_copies(&mut self, effect: &Effect) {
        match effect {
            Effect::CopyOpened { copy, extent, size_bytes, producer } => {
                self.opened(*copy, *extent, *size_bytes, *producer);
            }
            Effect::Fill { copy, bytes } => {
                let size_bytes = self.copy(*copy).size_bytes;
                assert_eq!(bytes.len() as u64, size_bytes, "{copy:?} is filled with all its bytes");
            }
            Effect::CopyCompleted { copy } => {
                let copy = self.copy(*copy);
                let is_filled = copy.pulls + copy.combinations > 0 && !copy.is_exchanged;
                assert!(
                    !copy.is_complete && !copy.has_failed && !is_filled,
                    "{copy:?} completes once"
                );
                copy.is_complete = true;
                copy.is_writing = false;
            }
            Effect::CopyFailed { copy, .. } => {
                let copy = self.copy(*copy);
                assert!(!copy.has_failed, "{copy:?} fails once");
                copy.has_failed = true;
            }
            Effect::CopyClosed { copy: closed } => {
                let copy =
                    self.copies.remove(closed).unwrap_or_else(|| panic!("{closed:?} is not open"));
                let may_end = copy.has_failed || self.spilled.contains(closed);
                assert!(copy.is_idle() && may_end, "{closed:?} is closed in use: {copy:?}");
                self.extents.remove(closed);
            }
            Effect::Spill { file, items } => {
                let mut copies = Vec::new();
                assert!(!items.is_empty(), "{file:?} has records");
                for item in items.iter().filter(|item| item.from.is_none()) {
                    let copy = self.copy(item.copy);
                    assert!(copy.is_complete && copy.is_idle(), "{copy:?} is cold");
                    assert_eq!(copy.size_bytes, item.size_bytes);
                    copy.readers += 1;
                    copies.push(item.copy);
                }
                assert!(self.spills.insert(*file, copies).is_none(), "{file:?} is written once");
            }
            Effect::Load { copy, .. } => self.copy(*copy).pulls += 1,
            Effect::RemoveSpillFile { file } => {
                assert!(!self.spills.contains_key(file), "{file:?} is being written");
            }
            Effect::PutLost { .. }
            | Effect::IndexSpillFile { .. }
            | Effect::RetireSpillRecord { .. }
            | Effect::NoteShardRun { .. }
            | Effect::Unrecovered { .. } => {}
            Effect::Compare { copy, .. } => {
                let copy = self.copy(*copy);
                copy.comparisons += 1;
                assert!(
                    copy.is_complete && copy.comparisons == 1,
                    "{copy:?} is compared once, when complete"
                );
            }
            _ => self.effect_of_reduces(effect),
        }
    }

    fn effect_of_reduces(&mut self, effect: &Effect) {
        match effect {
            Effect::StartCombine { combine, copy, offset_bytes, inputs, .. } => {
                assert!(self.seen_combinations.insert(*combine), "{combine:?} was used before");
                let read_bytes = self.copy(*copy).size_bytes;
                self.combination_started(*combine, *copy, (*offset_bytes, read_bytes), inputs);
            }
            Effect::CancelCombine { combine } => {
                assert!(
                    self.combinations.contains_key(combine),
                    "{combine:?} is cancelled, but does not run"
                );
            }
            Effect::StartHop { hop, spec, .. } => {
                assert!(self.seen_hops.insert(*hop), "{hop:?} was used before");
                assert!(spec.offset_bytes <= spec.size_bytes, "{spec:?} ends before it begins");
                assert!((2..=64).contains(&spec.inputs.len()), "{spec:?} has something to combine");
                self.hops.insert(*hop, None);
            }
            Effect::EndHop { hop } => {
                assert!(
                    self.hops.remove(hop).is_some(),
                    "{hop:?} is ended, but was never begun, or ended before"
                );
            }
            Effect::HopReport { hosting, report } => {
                let said = self.hostings.get_mut(hosting);
                let said = said
                    .unwrap_or_else(|| panic!("{report:?} of {hosting:?}, which nobody waits for"));
                assert!(
                    !matches!(said, Some(HopReport::Failed(_))),
                    "{report:?} of {hosting:?} after {said:?}"
                );
                assert!(said.as_ref() != Some(report), "{report:?} of {hosting:?} is said once");
                *said = Some(report.clone());
            }
            _ => panic!("{effect:?}"),
        }
    }

    fn collective_event(&mut self, event: &CollectiveEvent) {
        match event {
            CollectiveEvent::Asked { membership, .. } => {
                let previous = self.memberships.insert(*membership, Vec::new());
                assert_eq!(previous, None, "the test used {membership:?} twice");
            }
            CollectiveEvent::Left { membership } => {
                self.memberships.remove(membership);
            }
            CollectiveEvent::Reported { enlistment, report: Report::Done | Report::Failed(_) } => {
                self.enlistments.remove(enlistment);
            }
            CollectiveEvent::Reported { .. }
            | CollectiveEvent::Told { .. }
            | CollectiveEvent::Filled { .. }
            | CollectiveEvent::Rejected { .. } => {}
        }
    }

    fn collective_effect(&mut self, effect: &CollectiveEffect) {
        match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let previous = self.enlistments.insert(*enlistment, plan.put);
                assert_eq!(previous, None, "{enlistment:?} was used before");
                self.coordinated.insert(plan.put);
            }
            CollectiveEffect::Tell { enlistment, decision: Decision::Commit } => {
                assert!(
                    self.enlistments.contains_key(enlistment),
                    "{enlistment:?} is there to be told"
                );
            }
            CollectiveEffect::Tell { enlistment, decision: Decision::Stop(_) }
            | CollectiveEffect::Dismiss { enlistment } => {
                assert!(
                    self.enlistments.remove(enlistment).is_some(),
                    "{enlistment:?} is ended once"
                );
            }
            CollectiveEffect::Report { membership, report } => {
                let said = self.memberships.get_mut(membership);
                let said =
                    said.unwrap_or_else(|| panic!("{report:?} of {membership:?}, which is over"));
                let is_after_end = said.iter().any(|report| *report != Report::Filled);
                assert!(!is_after_end && !said.contains(report), "{report:?} after {said:?}");
                said.push(report.clone());
            }
            CollectiveEffect::Reject { .. } => {}
            CollectiveEffect::StartExchange { combine, copy, sources, plan } => {
                assert!(self.seen_combinations.insert(*combine), "{combine:?} was used before");
                assert!(!sources.is_empty(), "a member has something of its own");
                let inputs: Vec<CombineInput> = sources
                    .iter()
                    .map(|copy| CombineInput::Local { copy: *copy, base_bytes: 0 })
                    .collect();
                self.combination_started(*combine, *copy, (0, plan.source_bytes()), &inputs);
                let is_pinned =
                    self.coordinated.contains(&plan.put) && plan.properties().makes_target;
                let copy = self.copy(*copy);
                (copy.is_exchanged, copy.is_pinned) = (true, is_pinned);
            }
        }
    }

    fn serve_answered(&mut self, serve: ServeId, answer: Serve) {
        match self.serves.get_mut(&serve) {
            Some(asked @ Serve::Asked { .. }) => *asked = answer,
            other => panic!("{serve:?} is answered by {answer:?}, but is {other:?}"),
        }
    }

    fn combination_started(
        &mut self,
        combine: CombineId,
        copy: CopyId,
        (offset_bytes, read_bytes): (u64, u64),
        inputs: &[CombineInput],
    ) {
        let output = self.copy(copy);
        let size_bytes = output.size_bytes;
        output.combinations += 1;
        assert!(
            output.is_combined && output.combinations == 1,
            "{output:?} is combined once at a time"
        );
        assert!(!output.is_complete && !output.has_failed, "{output:?} is not over");
        assert!(offset_bytes <= size_bytes && !inputs.is_empty(), "{combine:?} makes sense");
        let mut local = Vec::new();
        for input in inputs {
            match input {
                CombineInput::Local { copy: input, base_bytes } => {
                    let read = self.copy(*input);
                    let is_inside = base_bytes
                        .checked_add(read_bytes)
                        .is_some_and(|end| end <= read.size_bytes);
                    assert!(is_inside, "{combine:?} reads beyond the end of {read:?}");
                    read.readers += 1;
                    local.push(*input);
                }
                CombineInput::Remote(_) => {}
            }
        }
        self.combinations.insert(combine, Combination { copy, offset_bytes, inputs: local });
    }

    fn opened(&mut self, copy: CopyId, extent: Extent, size_bytes: u64, producer: Producer) {
        let is_spilled = self.spilled.contains(&copy) && !self.copies.contains_key(&copy);
        assert!(self.seen.insert(copy) || is_spilled, "{copy:?} was used before");
        assert!(
            extent.length_bytes >= size_bytes + 64,
            "{extent:?} is too short for {size_bytes} bytes"
        );
        let end = extent.offset_bytes + extent.length_bytes;
        for other in self.extents.values() {
            let is_disjoint = end <= other.offset_bytes
                || other.offset_bytes + other.length_bytes <= extent.offset_bytes;
            assert!(is_disjoint, "{extent:?} overlaps {other:?}");
        }
        self.extents.insert(copy, extent);
        let is_combined = producer == Producer::Reduce;
        let is_pinned = producer != Producer::Store || is_spilled;
        let length_bytes = extent.length_bytes;
        self.copies.insert(
            copy,
            Copy { length_bytes, size_bytes, is_combined, is_pinned, ..Copy::default() },
        );
    }

    fn reply(
        &mut self,
        client: ClientId,
        call: CallId,
        response: &Result<Response, hoplite_core::Error>,
    ) {
        let kind = self.open_calls.get(&(client, call)).copied();
        let kind = kind.unwrap_or_else(|| {
            panic!("{call:?} of {client:?} is answered, but not open: {response:?}")
        });
        let is_reduced = matches!(response, Ok(Response::Reduced { .. }));
        assert!(
            response.is_err() || is_reduced == (kind == Kind::Reduce),
            "{kind:?} is answered {response:?}"
        );
        if kind != Kind::Subscription || response.is_err() {
            self.open_calls.remove(&(client, call));
        }
        match response {
            Ok(Response::Batch(answers)) => {
                for answer in answers {
                    if let Ok(Response::Existing(view) | Response::Object(view)) = answer {
                        *self.copy(view.copy).references.entry(client).or_default() += 1;
                    }
                }
            }
            response => self.refer(client, response),
        }
    }

    fn refer(&mut self, client: ClientId, response: &Result<Response, hoplite_core::Error>) {
        let Ok(
            Response::Created(view)
            | Response::Existing(view)
            | Response::Object(view)
            | Response::Ranges { view, .. },
        ) = response
        else {
            return;
        };
        let is_created = matches!(response, Ok(Response::Created(_)));
        let must_be_complete = matches!(response, Ok(Response::Existing(_)));
        let copy = self.copy(view.copy);
        assert!(!copy.has_failed, "{client:?} is given {copy:?}, which has failed");
        assert!(!must_be_complete || copy.is_complete, "an existing object is complete: {copy:?}");
        *copy.references.entry(client).or_default() += 1;
        if is_created {
            copy.is_writing = true;
        }
    }

    fn status(&self, status: NodeStatus) {
        let used: u64 = self.extents.values().map(|extent| extent.length_bytes).sum();
        let used = used + status.reserved_bytes;
        assert_eq!(status.free_bytes, status.capacity_bytes - used, "free bytes");
        let away = usize::try_from(status.spill.objects).expect("a count of copies");
        let from_files = self.serves.values().filter(|serve| **serve == Serve::Spilled).count();
        let open = self.copies.len() + away;
        assert!(
            (open..=open + from_files).contains(&status.copies),
            "{} open copies, not {open}",
            status.copies
        );
        assert_eq!(status.pulls, self.pulls.len(), "pulls under way");
        for serve in self.serves.values() {
            let Serve::Asked { id, awaits_hop: false, .. } = serve else { continue };
            let is_asking =
                self.queries.values().any(|(_, of)| of == id) || self.shards_up.is_empty();
            assert!(is_asking, "a serve waits for what nobody asks for: {serve:?}");
        }
        self.reduces(status);
        assert!(
            self.follows.iter().all(|call| self.open_calls.contains_key(call)),
            "what the shell does for a call ends with it"
        );
        if self.promoted.is_empty() {
            let is_evictable = |copy: &&Copy| {
                copy.is_complete && !copy.is_pinned && !copy.has_failed && copy.is_idle()
            };
            let evictable: u64 =
                self.copies.values().filter(is_evictable).map(|copy| copy.length_bytes).sum();
            // Effects do not show copies held by a reduce or batch.
            if self.open(Kind::Reduce) + self.open(Kind::Batch) > 0 {
                assert!(status.evictable_bytes <= evictable, "evictable bytes");
            } else {
                assert_eq!(status.evictable_bytes, evictable, "evictable bytes");
            }
        }
        if self.is_shutting_down {
            assert!(
                self.open_calls.is_empty(),
                "calls are answered at shutdown: {:?}",
                self.open_calls
            );
            assert!(
                self.copies.values().all(|copy| copy.has_failed),
                "no copy is live after shutdown"
            );
        }
    }

    fn reduces(&self, status: NodeStatus) {
        assert_eq!(status.combinations, self.combinations.len(), "combinations under way");
        let (open, elsewhere) = (self.open(Kind::Reduce), self.hops.len());
        let open = open + self.enlistments.values().collect::<BTreeSet<_>>().len();
        assert!(status.reductions <= open, "{} reductions of {open} calls", status.reductions);
        assert!(
            status.reductions > 0 || status.directed_hops == 0,
            "hops outlive it: {:?}",
            self.hops
        );
        let elsewhere = elsewhere + self.enlistments.len();
        assert!(elsewhere <= status.directed_hops, "hops were not ended: {:?}", self.hops);
        let here = status.directed_hops - elsewhere;
        let hosted = self.hostings.len() + self.memberships.len();
        assert!(status.hops <= hosted + here, "hops were not released: {:?}", self.hostings);
    }

    fn open(&self, kind: Kind) -> usize {
        self.open_calls.values().filter(|open| **open == kind).count()
    }

    pub(crate) fn running_pulls(&self) -> Vec<PullId> {
        self.pulls.keys().copied().collect()
    }

    pub(crate) fn open_serves(&self) -> Vec<ServeId> {
        self.serves.keys().copied().collect()
    }

    pub(crate) fn running_combinations(&self) -> Vec<(CombineId, u64)> {
        self.combinations
            .iter()
            .map(|(combine, running)| (*combine, running.offset_bytes))
            .collect()
    }

    pub(crate) fn running_hops(&self) -> Vec<HopId> {
        let running =
            self.hops.iter().filter(|(_, report)| !matches!(report, Some(HopReport::Failed(_))));
        running.map(|(hop, _)| *hop).collect()
    }

    pub(crate) fn open_hostings(&self) -> Vec<HostingId> {
        self.hostings.keys().copied().collect()
    }

    pub(crate) fn compared_copies(&self) -> Vec<CopyId> {
        self.copies.iter().filter(|(_, copy)| copy.comparisons > 0).map(|(copy, _)| *copy).collect()
    }

    pub(crate) fn references(&self, client: ClientId) -> Vec<CopyId> {
        let holds = |copy: &Copy| copy.references.contains_key(&client);
        self.copies.iter().filter(|(_, copy)| holds(copy)).map(|(copy, _)| *copy).collect()
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.open_calls.values().filter(|kind| **kind != Kind::Subscription).count()
    }
}
