use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::load::Load;
use hoplite_core::node::*;
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::shard::{
    DeleteWait, DropReason, Grant, GrantId, GrantReason, LocationState, Publish, PullOutcome,
    Query, RequestId, ShardRun, ToShard, ToStore, Verdict,
};
use hoplite_core::topology::place::{EVERYWHERE, Path};
use hoplite_core::{Dtype, Error, Limits, Metadata, NodeId, ObjectId, PutId, Time};

use crate::checker::Checker;
use crate::ledger::Ledger;
use crate::reducing::Reduces;

pub(crate) const CAPACITY: u64 = 10 * (HEADER_BYTES + SIZE);
pub(crate) const SIZE: u64 = 40_960;
pub(crate) const SMALL: u64 = 1000;
/// Above `SMALL`, not inline. The put is confirmed only on request.
pub(crate) const UNCONFIRMED: u64 = 5000;
/// Time after which a returned shard again decides about puts.
pub(crate) const SETTLING: Duration = Duration::from_secs(2);
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) type Answer = Result<Response, Error>;

pub(crate) const A: ClientId = ClientId(1);
pub(crate) const B: ClientId = ClientId(2);

pub(crate) fn id(name: &str) -> ObjectId {
    ObjectId::new(name).expect("names of tests are short")
}

/// Session with a shard that never restarts; its lease does not expire.
pub(crate) const fn up(shard: usize) -> Event {
    Event::ShardUp {
        shard,
        run: ShardRun(1),
        asked_at: Time::NEVER,
        version: hoplite_core::Version::NEWEST,
    }
}

pub(crate) fn node_id(name: &str) -> NodeId {
    NodeId::new(name).expect("names of tests are valid")
}

pub(crate) fn address(name: &str) -> SocketAddr {
    let port = name.bytes().fold(7000_u16, |port, byte| port.wrapping_add(u16::from(byte)));
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) pull: PullId,
    pub(crate) copy: CopyId,
    pub(crate) sender: String,
    pub(crate) grant: GrantId,
    pub(crate) offset_bytes: u64,
}

pub(crate) struct Harness {
    pub(crate) node: Node,
    pub(crate) checker: Checker,
    pub(crate) shards: ShardMap,
    now: Time,
    next_call: u64,
    next_grant: u64,
    next_serve: u64,
    answers: BTreeMap<(ClientId, CallId), VecDeque<Answer>>,
    sent: Vec<(usize, ToShard)>,
    inline: Vec<CopyId>,
    pub(crate) subscriptions: Vec<(usize, RequestId, ObjectId)>,
    pub(crate) pulls: Vec<Pull>,
    cancelled: Vec<PullId>,
    pub(crate) reduces: Reduces,
    ledger: Ledger,
    pub(crate) effects: Vec<Effect>,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_shards(1)
    }

    pub(crate) fn with_shards(count: usize) -> Self {
        Self::connected(count, limits())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::connected(1, limits)
    }

    pub(crate) fn connected(count: usize, limits: Limits) -> Self {
        Self::connected_at(EVERYWHERE, count, limits)
    }

    pub(crate) fn at(path: Path) -> Self {
        Self::connected_at(path, 1, limits())
    }

    fn connected_at(path: Path, count: usize, limits: Limits) -> Self {
        let mut harness = Self::disconnected_at(path, count, limits);
        for shard in 0..count {
            harness.event(up(shard));
        }
        harness
    }

    pub(crate) fn disconnected(count: usize, limits: Limits) -> Self {
        Self::disconnected_at(EVERYWHERE, count, limits)
    }

    fn disconnected_at(path: Path, count: usize, limits: Limits) -> Self {
        Self::disconnected_with(path, count, limits, None)
    }

    pub(crate) fn spilling(limit_bytes: Option<u64>) -> Self {
        Self::spilling_to(&["disk"], limit_bytes, limits())
    }

    pub(crate) fn spilling_to(
        directories: &[&str],
        limit_bytes: Option<u64>,
        limits: Limits,
    ) -> Self {
        let directories = directories.iter().map(|name| (*name).to_owned()).collect();
        let spill = SpillConfig { directories, limit_bytes };
        let mut harness = Self::disconnected_with(EVERYWHERE, 1, limits, Some(spill));
        harness.event(up(0));
        harness
    }

    pub(crate) fn spilling_with(count: usize, limit_bytes: u64, limits: Limits) -> Self {
        let directories = vec!["disk".to_owned(), "another".to_owned()];
        let spill = SpillConfig { directories, limit_bytes: Some(limit_bytes) };
        let mut harness = Self::disconnected_with(EVERYWHERE, count, limits, Some(spill));
        (0..count).for_each(|shard| harness.event(up(shard)));
        harness
    }

    pub(crate) fn recovering(count: usize, recovered: Recovered) -> Self {
        let spill = SpillConfig { directories: vec!["disk".to_owned()], limit_bytes: None };
        let mut harness = Self::disconnected_with(EVERYWHERE, count, limits(), Some(spill));
        harness.event(Event::Recover(recovered));
        harness
    }

    fn disconnected_with(
        path: Path,
        count: usize,
        limits: Limits,
        spill: Option<SpillConfig>,
    ) -> Self {
        let shards = ShardMap::new((0..count).map(|shard| format!("shard-{shard}")));
        let config = NodeConfig {
            node: node_id("here"),
            path,
            capacity_bytes: CAPACITY,
            limits,
            shards: shards.clone(),
            allreduce_schedule: SchedulePreference::Auto,
            replicas: 1,
            spill,
            serves_directory: false,
            seed: 1,
        };
        Self {
            node: Node::new(config),
            checker: Checker::default(),
            shards,
            now: Time::ZERO,
            next_call: 0,
            next_grant: 0,
            next_serve: 0,
            answers: BTreeMap::new(),
            sent: Vec::new(),
            inline: Vec::new(),
            subscriptions: Vec::new(),
            pulls: Vec::new(),
            cancelled: Vec::new(),
            reduces: Reduces::default(),
            ledger: Ledger::default(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.checker.event(&event);
        self.ledger.event(&event);
        if let Event::ShardDown { shard: lost } = event {
            self.subscriptions.retain(|(shard, ..)| *shard != lost);
        }
        let mut effects = Vec::new();
        self.node.apply(self.now, event, &mut effects);
        self.checker.effects(&effects, self.node.status());
        for effect in &effects {
            self.reduces.effect(effect);
            self.ledger.effect(effect, &self.node);
            match effect.clone() {
                Effect::Reply { client, call, response } => {
                    self.answers.entry((client, call)).or_default().push_back(response);
                }
                Effect::ToShard { shard, message, inline_from, .. } => {
                    self.follow_subscriptions(shard, &message);
                    self.sent.push((shard, message));
                    self.inline.extend(inline_from);
                }
                Effect::StartPull { pull, copy, sender, offset_bytes, .. } => {
                    let grant = GrantId(self.next_grant);
                    self.pulls.push(Pull {
                        pull,
                        copy,
                        sender: sender.to_string(),
                        grant,
                        offset_bytes,
                    });
                }
                Effect::CancelPull { pull } => self.cancelled.push(pull),
                _ => {}
            }
        }
        self.effects.extend(effects);
    }

    fn follow_subscriptions(&mut self, shard: usize, message: &ToShard) {
        match message {
            ToShard::Subscribe { request, id, .. } => {
                self.subscriptions.push((shard, *request, id.clone()))
            }
            ToShard::Unsubscribe { request } => {
                self.subscriptions.retain(|(at, open, _)| (*at, *open) != (shard, *request));
            }
            _ => {}
        }
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.node.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.event(Event::Tick);
            assert!(
                self.node.next_deadline() != Some(deadline),
                "a tick consumes the deadlines that are due"
            );
        }
        self.now = end;
    }

    pub(crate) fn request(&mut self, client: ClientId, request: Request) -> (ClientId, CallId) {
        self.next_call += 1;
        let call = CallId(self.next_call);
        self.event(Event::Request { client, call, request });
        (client, call)
    }

    pub(crate) fn answer(&mut self, call: (ClientId, CallId)) -> Option<Answer> {
        self.answers.get_mut(&call)?.pop_front()
    }

    #[track_caller]
    pub(crate) fn view(&mut self, call: (ClientId, CallId)) -> ObjectView {
        match self.answer(call) {
            Some(Ok(
                Response::Created(view) | Response::Existing(view) | Response::Object(view),
            ))
            | Some(Ok(Response::Ranges { view, .. })) => view,
            other => panic!("expected a view, got {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn error(&mut self, call: (ClientId, CallId)) -> Error {
        match self.answer(call) {
            Some(Err(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn assert_waits(&mut self, call: (ClientId, CallId)) {
        let answer = self.answer(call);
        assert!(answer.is_none(), "expected no answer yet, got {answer:?}");
    }

    pub(crate) fn create(
        &mut self,
        client: ClientId,
        name: &str,
        size_bytes: u64,
    ) -> (ClientId, CallId) {
        self.create_within(client, name, size_bytes, LONG)
    }

    pub(crate) fn create_within(
        &mut self,
        client: ClientId,
        name: &str,
        size_bytes: u64,
        timeout: Duration,
    ) -> (ClientId, CallId) {
        let metadata = Metadata::default();
        self.request(client, Request::Create { id: id(name), size_bytes, metadata, timeout })
    }

    pub(crate) fn seal(&mut self, client: ClientId, copy: CopyId) -> (ClientId, CallId) {
        self.request(client, Request::Seal { copy, timeout: LONG })
    }

    pub(crate) fn get(&mut self, client: ClientId, name: &str) -> (ClientId, CallId) {
        self.get_within(client, name, LONG)
    }

    pub(crate) fn get_within(
        &mut self,
        client: ClientId,
        name: &str,
        timeout: Duration,
    ) -> (ClientId, CallId) {
        self.request(
            client,
            Request::Get { id: id(name), until: Until::Complete, timeout, allow_stale: false },
        )
    }

    pub(crate) fn get_started(&mut self, client: ClientId, name: &str) -> (ClientId, CallId) {
        self.request(
            client,
            Request::Get { id: id(name), until: Until::Started, timeout: LONG, allow_stale: false },
        )
    }

    pub(crate) fn delete(&mut self, client: ClientId, names: &[&str]) -> (ClientId, CallId) {
        let ids = names.iter().map(|name| id(name)).collect();
        self.request(client, Request::Delete { ids, timeout: LONG, wait: DeleteWait::Reachable })
    }

    pub(crate) fn release(&mut self, client: ClientId, copy: CopyId) {
        self.request(client, Request::Release { copy });
    }

    pub(crate) fn gone(&mut self, client: ClientId) {
        self.event(Event::ClientGone { client });
    }

    #[track_caller]
    pub(crate) fn put(&mut self, client: ClientId, name: &str, size_bytes: u64) -> ObjectView {
        let view = self.put_held(client, name, size_bytes);
        self.release(client, view.copy);
        view
    }

    #[track_caller]
    pub(crate) fn put_held(&mut self, client: ClientId, name: &str, size_bytes: u64) -> ObjectView {
        let call = self.create(client, name, size_bytes);
        let view = self.view(call);
        let sealed = self.seal(client, view.copy);
        self.accept_all();
        assert_eq!(self.answer(sealed), Some(Ok(Response::Sealed)));
        view
    }

    #[track_caller]
    pub(crate) fn fetch_held(
        &mut self,
        client: ClientId,
        name: &str,
        put: u64,
        size_bytes: u64,
    ) -> ObjectView {
        let call = self.get(client, name);
        let pull = self.grant(name, put, size_bytes, "sender");
        self.pull_ended(&pull, size_bytes, PullOutcome::Complete);
        self.accept_all();
        self.view(call)
    }

    #[track_caller]
    pub(crate) fn fetch(
        &mut self,
        client: ClientId,
        name: &str,
        put: u64,
        size_bytes: u64,
    ) -> ObjectView {
        let view = self.fetch_held(client, name, put, size_bytes);
        self.release(client, view.copy);
        view
    }

    pub(crate) fn sent(&mut self) -> Vec<(usize, ToShard)> {
        self.inline.clear();
        std::mem::take(&mut self.sent)
    }

    pub(crate) fn inline(&mut self) -> Vec<CopyId> {
        std::mem::take(&mut self.inline)
    }

    pub(crate) fn told(&mut self) -> Vec<String> {
        let sent = self.sent();
        sent.iter().map(|(shard, message)| format!("{shard} {}", in_short(message))).collect()
    }

    pub(crate) fn accept_all(&mut self) {
        loop {
            let publications = self.publications();
            if publications.is_empty() {
                return;
            }
            for (shard, publish) in
                publications.into_iter().filter(|(_, publish)| publish.wants_answer)
            {
                self.verdict(shard, &publish, Verdict::Accepted);
            }
        }
    }

    pub(crate) fn verdict(&mut self, shard: usize, publish: &Publish, verdict: Verdict) {
        let message = ToStore::Published { id: publish.id.clone(), put: publish.put, verdict };
        self.event(Event::FromShard { shard, message });
    }

    #[track_caller]
    pub(crate) fn publication(&mut self) -> (usize, Publish) {
        let mut publications = self.publications();
        assert_eq!(publications.len(), 1, "expected one publication: {publications:?}");
        publications.remove(0)
    }

    pub(crate) fn publications(&mut self) -> Vec<(usize, Publish)> {
        let mut publications = Vec::new();
        for (shard, message) in std::mem::take(&mut self.sent) {
            match message {
                ToShard::Publish(publish) => publications.push((shard, publish)),
                message => self.sent.push((shard, message)),
            }
        }
        publications
    }

    #[track_caller]
    pub(crate) fn query(&mut self) -> (usize, Query) {
        let mut queries = Vec::new();
        for (shard, message) in std::mem::take(&mut self.sent) {
            match message {
                ToShard::Query(query) => queries.push((shard, query)),
                message => self.sent.push((shard, message)),
            }
        }
        assert_eq!(queries.len(), 1, "expected one query: {queries:?}");
        queries.remove(0)
    }

    #[track_caller]
    pub(crate) fn query_of(&mut self, name: &str) -> (usize, Query) {
        let is_meant = |(_, message): &(usize, ToShard)| matches!(message, ToShard::Query(query) if query.id == id(name));
        let place = self
            .sent
            .iter()
            .position(is_meant)
            .unwrap_or_else(|| panic!("{name} was not asked for"));
        match self.sent.remove(place) {
            (shard, ToShard::Query(query)) => (shard, query),
            (_, message) => panic!("{message:?} is no query"),
        }
    }

    pub(crate) fn count_queries(&self) -> usize {
        self.sent.iter().filter(|(_, message)| matches!(message, ToShard::Query(_))).count()
    }

    #[track_caller]
    pub(crate) fn grant(&mut self, name: &str, put: u64, size_bytes: u64, sender: &str) -> Pull {
        let (shard, query) = self.query();
        let pulls = self.grant_query(shard, query.request, name, put, size_bytes, sender);
        pulls.unwrap_or_else(|| panic!("no pull of {name} was started"))
    }

    #[track_caller]
    pub(crate) fn grant_f32(&mut self, name: &str, put: u64) -> Pull {
        let (shard, query) = self.query_of(name);
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        self.grant_as(shard, query.request, (name, put, SIZE, metadata), "sender");
        self.pulls.pop().unwrap_or_else(|| panic!("no pull of {name} was started"))
    }

    pub(crate) fn grant_query(
        &mut self,
        shard: usize,
        request: RequestId,
        name: &str,
        put: u64,
        size_bytes: u64,
        sender: &str,
    ) -> Option<Pull> {
        self.grant_as(shard, request, (name, put, size_bytes, Metadata::default()), sender);
        self.pulls.pop()
    }

    pub(crate) fn grant_as(
        &mut self,
        shard: usize,
        request: RequestId,
        (name, put, size_bytes, metadata): (&str, u64, u64, Metadata),
        sender: &str,
    ) {
        self.next_grant += 1;
        let grant = Grant {
            request,
            grant: GrantId(self.next_grant),
            id: id(name),
            put: PutId(put),
            size_bytes,
            metadata,
            sender: node_id(sender),
            sender_address: address(sender),
            sender_state: LocationState::Complete,
            reason: GrantReason::OnlyCandidate,
            complete_copies: 2,
        };
        self.event(Event::FromShard { shard, message: ToStore::Granted(grant) });
    }

    #[track_caller]
    pub(crate) fn answer_inline(&mut self, name: &str, put: u64, bytes: &'static [u8]) {
        let (shard, query) = self.query();
        let message = ToStore::Inline {
            request: query.request,
            id: id(name),
            put: PutId(put),
            metadata: Metadata::default(),
            bytes: Bytes::from_static(bytes).into(),
        };
        self.event(Event::FromShard { shard, message });
    }

    #[track_caller]
    pub(crate) fn fail_query(&mut self, error: Error) {
        let (shard, query) = self.query();
        self.event(Event::FromShard {
            shard,
            message: ToStore::Failed { request: query.request, error },
        });
    }

    pub(crate) fn drop_put(&mut self, shard: usize, name: &str, put: PutId, reason: DropReason) {
        self.event(Event::FromShard {
            shard,
            message: ToStore::Drop { id: id(name), put, reason },
        });
    }

    pub(crate) fn pull_ended(&mut self, pull: &Pull, valid_bytes: u64, outcome: PullOutcome) {
        self.event(Event::PullEnded { pull: pull.pull, valid_bytes, outcome });
    }

    pub(crate) fn is_cancelled(&self, pull: &Pull) -> bool {
        self.cancelled.contains(&pull.pull)
    }

    pub(crate) fn serve(&mut self, name: &str, put: PutId) -> Option<ServeId> {
        let serve = self.ask_to_serve(id(name), put, false);
        self.is_served(serve).then_some(serve)
    }

    pub(crate) fn ask_to_serve(&mut self, id: ObjectId, put: PutId, awaits_hop: bool) -> ServeId {
        self.ask_to_serve_node("peer", id, put, awaits_hop)
    }

    pub(crate) fn ask_to_serve_node(
        &mut self,
        peer: &str,
        id: ObjectId,
        put: PutId,
        awaits_hop: bool,
    ) -> ServeId {
        self.next_serve += 1;
        let serve = ServeId(self.next_serve);
        self.event(Event::ServeRequested { serve, peer: node_id(peer), id, put, awaits_hop });
        serve
    }

    pub(crate) fn is_served(&self, asked: ServeId) -> bool {
        let is_accepted = |effect: &Effect| matches!(effect, Effect::ServeAccepted { serve, .. } if *serve == asked);
        self.effects.iter().any(is_accepted)
    }

    pub(crate) fn is_refused(&self, serve: ServeId) -> bool {
        self.effects.contains(&Effect::ServeRefused { serve })
    }

    pub(crate) const fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn load(&self) -> Load {
        self.node.load(self.now)
    }

    pub(crate) fn troubles(&self) -> Troubles {
        self.node.troubles(self.now)
    }

    pub(crate) fn free_objects(&self) -> u64 {
        self.node.status().free_bytes / (HEADER_BYTES + SIZE)
    }

    pub(crate) fn is_closed(&self, copy: CopyId) -> bool {
        self.effects.contains(&Effect::CopyClosed { copy })
    }

    pub(crate) fn is_failed(&self, copy: CopyId) -> bool {
        self.effects.iter().any(
            |effect| matches!(effect, Effect::CopyFailed { copy: failed, .. } if *failed == copy),
        )
    }

    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        let status = self.node.status();
        assert_eq!((status.free_bytes, status.copies, status.pulls), (status.capacity_bytes, 0, 0));
        assert_eq!((status.reductions, status.combinations), (0, 0), "no reduce is left");
        assert_eq!((status.hops, status.directed_hops), (0, 0), "no hop is left");
        assert_eq!(self.node.next_deadline(), None, "no deadline is left");
    }
}

pub(crate) fn limits() -> Limits {
    Limits { inline_below_bytes: 4096, confirmed_from_bytes: 8192, ..Limits::default() }
}

pub(crate) fn in_short(message: &ToShard) -> String {
    match message {
        ToShard::Publish(publish) if publish.slot.is_some() => {
            format!("publish {} {:?} and return", publish.id, publish.state)
        }
        ToShard::Publish(publish) => format!("publish {} {:?}", publish.id, publish.state),
        ToShard::Unpublish { id, reason, .. } => format!("unpublish {id} {reason:?}"),
        ToShard::Query(query) => format!("query {}", query.id),
        ToShard::Cancel { .. } => "cancel".to_owned(),
        ToShard::ReturnSlot { outcome, .. } => format!("return {outcome:?}"),
        ToShard::Delete { id, .. } => format!("delete {id}"),
        ToShard::Forget { id, .. } => format!("forget {id}"),
        ToShard::Subscribe { id, .. } => format!("subscribe {id}"),
        ToShard::Unsubscribe { .. } => "unsubscribe".to_owned(),
        ToShard::SlowLinks { peers } => format!("slow links {peers:?}"),
        ToShard::Lead(lead) => format!("lead {} {}", lead.id, lead.leads),
        ToShard::NotReplicated { id, reason, .. } => format!("not replicated {id} {reason:?}"),
        ToShard::Drain { is_draining } => format!("drain {is_draining}"),
        ToShard::Shards(list) => format!("shards {list}"),
        ToShard::Placed(placed) => format!("placed {} {:?}", placed.version, placed.path),
    }
}
