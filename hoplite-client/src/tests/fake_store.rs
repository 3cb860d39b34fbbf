//! An independent implementation of the protocol with clients: one node, no directory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::BytesMut;
use hoplite_core::block::publishable_unsealed;
use hoplite_core::error::{Error, Operation};
use hoplite_core::extent::{Extent, HEADER_BYTES};
use hoplite_core::missing::Named;
use hoplite_core::node::{self, CallId, CopyId, Inspection, ObjectView, Until};
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{Location, LocationState, Locations, ObjectSummary, Retention};
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::{Limits, Metadata, NodeId, ObjectId, PutId};
use hoplite_proto::local::{Request, Response, decode_request, encode_response};
use hoplite_proto::{PROTOCOL_VERSION, framing, v1};
use hoplite_shm::{Arena, Backing, Buffer};

pub(super) const CAPACITY_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone)]
pub(super) enum Greeting {
    Friendly,
    Raw(Vec<u8>),
    Hello(Box<v1::ServerHello>),
    Silence,
}

pub(super) struct FakeStore {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    greeting: Greeting,
    arena: Arc<Arena>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    clients: Vec<UnixStream>,
    copies: BTreeMap<CopyId, Copy>,
    next_offset_bytes: u64,
    waiting: Vec<Waiting>,
    pub(super) requests: Vec<Request>,
    held: Option<Vec<(usize, v1::Response)>>,
    pub(super) paused: bool,
    pub(super) ended_clients: usize,
    pub(super) deletes_are_late: bool,
}

struct Copy {
    id: ObjectId,
    view: ObjectView,
    buffer: Buffer,
    sealed: bool,
    deleted: bool,
    references: i64,
}

struct Waiting {
    client: usize,
    call: CallId,
    request: Request,
}

impl FakeStore {
    pub(super) fn start() -> Self {
        Self::greeting(Greeting::Friendly)
    }

    pub(super) fn greeting(greeting: Greeting) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("store.sock")).unwrap();
        let arena = Arena::create(Backing::Pages, CAPACITY_BYTES).unwrap();
        let shared =
            Arc::new(Shared { greeting, arena, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&accepting);
                let stream = stream.unwrap();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { directory, shared }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("store.sock")
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    pub(super) fn wait_until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.state(), super::LONG, |state| !condition(state));
        assert!(!waited.unwrap().1.timed_out(), "in vain: {what}");
    }

    pub(super) async fn until(
        &self,
        what: &'static str,
        condition: impl Fn(&State) -> bool + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || {
            let state = shared.state.lock().unwrap();
            let waited =
                shared.changed.wait_timeout_while(state, super::LONG, |state| !condition(state));
            assert!(!waited.unwrap().1.timed_out(), "in vain: {what}");
        })
        .await
        .unwrap();
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.state().paused = paused;
        self.shared.changed.notify_all();
    }

    pub(super) fn hold_answers(&self) {
        self.state().held = Some(Vec::new());
    }

    pub(super) fn send_held(&self) {
        let mut state = self.state();
        for (client, response) in state.held.take().unwrap() {
            state.send(client, &response);
        }
    }

    pub(super) fn send_raw(&self, bytes: &[u8]) {
        for mut client in &self.state().clients {
            client.write_all(bytes).unwrap();
        }
    }

    pub(super) fn send_response(&self, call: u64, response: Result<Response, Error>) {
        let mut wire = BytesMut::new();
        framing::encode(&encode_response(CallId(call), response), &mut wire).unwrap();
        self.send_raw(&wire);
    }

    pub(super) fn close_all(&self) {
        for client in &self.state().clients {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }

    pub(super) fn produce(&self, id: &str, bytes: &[u8], valid: usize) -> CopyId {
        let mut state = self.state();
        let view = state.create(
            &self.shared.arena,
            ObjectId::new(id).unwrap(),
            bytes.len() as u64,
            Metadata::default(),
        );
        let copy = state.copies.get_mut(&view.copy).unwrap();
        copy.references = 0;
        copy.buffer.write(0, &bytes[..valid]);
        copy.buffer.publish(valid as u64);
        if valid == bytes.len() {
            copy.sealed = true;
            copy.buffer.set_complete();
        }
        state.look_again(&self.shared.arena);
        self.shared.changed.notify_all();
        view.copy
    }

    pub(super) fn produce_more(&self, copy: CopyId, bytes: &[u8], valid: std::ops::Range<usize>) {
        let mut state = self.state();
        let copy = state.copies.get_mut(&copy).unwrap();
        copy.buffer.write(valid.start as u64, &bytes[valid.clone()]);
        copy.buffer.publish(valid.end as u64);
        if valid.end == bytes.len() {
            copy.sealed = true;
            copy.buffer.set_complete();
        }
        state.look_again(&self.shared.arena);
        self.shared.changed.notify_all();
    }

    pub(super) fn lose(&self, copy: CopyId) {
        let mut state = self.state();
        let copy = state.copies.get_mut(&copy).unwrap();
        copy.deleted = true;
        copy.buffer.set_failed();
        state.look_again(&self.shared.arena);
    }
}

impl Shared {
    fn serve(&self, mut stream: UnixStream) {
        let mut received = BytesMut::new();
        let mut chunk = vec![0; 1 << 16];
        while framing::decode::<v1::ClientHello>(&mut received, framing::MAX_HELLO_BYTES)
            .unwrap()
            .is_none()
        {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(length) => received.extend_from_slice(&chunk[..length]),
            }
        }
        let client = {
            let mut state = self.state.lock().unwrap();
            if !self.greet(&mut stream) {
                return;
            }
            state.clients.push(stream.try_clone().unwrap());
            self.changed.notify_all();
            state.clients.len() - 1
        };
        loop {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => break,
                Ok(length) => received.extend_from_slice(&chunk[..length]),
            }
            let state = self.state.lock().unwrap();
            drop(self.changed.wait_while(state, |state| state.paused).unwrap());
            let limits = Limits::default();
            let limit = framing::max_request_bytes(&limits);
            while let Some(request) = framing::decode::<v1::Request>(&mut received, limit).unwrap()
            {
                let (call, request) = decode_request(request, limits.max_ids_per_request);
                let mut state = self.state.lock().unwrap();
                state.handle(&self.arena, client, call, request.unwrap());
                self.changed.notify_all();
            }
        }
        let mut state = self.state.lock().unwrap();
        state.ended_clients += 1;
        self.changed.notify_all();
    }

    fn greet(&self, stream: &mut UnixStream) -> bool {
        let mut hello = v1::ServerHello {
            newest_version: PROTOCOL_VERSION,
            version: PROTOCOL_VERSION,
            error: None,
            node: "fake".to_owned(),
            cluster: "fakes".to_owned(),
            max_object_bytes: self.arena.capacity_bytes(),
            arena_bytes: self.arena.capacity_bytes(),
            confirmed_from_bytes: 64 << 10,
            max_calls: Limits::default().max_requests_per_client as u64,
            max_ids: Limits::default().max_ids_per_request as u64,
        };
        match &self.greeting {
            Greeting::Friendly => {}
            Greeting::Hello(other) => hello = (**other).clone(),
            Greeting::Raw(bytes) => {
                stream.write_all(bytes).unwrap();
                return false;
            }
            Greeting::Silence => {
                let _ = stream.read(&mut [0; 1]);
                return false;
            }
        }
        let mut wire = BytesMut::new();
        framing::encode(&hello, &mut wire).unwrap();
        let fds = [self.arena.read_only_fd(), self.arena.writable_fd()];
        let sent = hoplite_shm::fds::send(stream.as_fd(), &wire, &fds).unwrap();
        stream.write_all(&wire[sent..]).unwrap();
        true
    }
}

impl State {
    pub(super) fn references(&self) -> i64 {
        self.copies.values().map(|copy| copy.references).sum()
    }

    pub(super) fn count(&self, wanted: impl Fn(&Request) -> bool) -> usize {
        self.requests.iter().filter(|request| wanted(request)).count()
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.find(&ObjectId::new(id).unwrap()).is_some()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn find(&self, id: &ObjectId) -> Option<CopyId> {
        self.copies.iter().find(|(_, copy)| copy.id == *id && !copy.deleted).map(|(key, _)| *key)
    }

    fn create(
        &mut self,
        arena: &Arc<Arena>,
        id: ObjectId,
        size_bytes: u64,
        metadata: Metadata,
    ) -> ObjectView {
        let length_bytes = (HEADER_BYTES + size_bytes).next_multiple_of(64);
        let extent = Extent { offset_bytes: self.next_offset_bytes, length_bytes };
        self.next_offset_bytes += length_bytes;
        let buffer = arena.buffer(extent, size_bytes).unwrap();
        buffer.initialise();
        let copy = CopyId(self.copies.len() as u64 + 100);
        let view = ObjectView {
            copy,
            extent,
            put: PutId(copy.0 + 7),
            size_bytes,
            metadata,
            is_stale: false,
        };
        let entry =
            Copy { id, view: view.clone(), buffer, sealed: false, deleted: false, references: 1 };
        self.copies.insert(copy, entry);
        view
    }

    fn handle(&mut self, arena: &Arc<Arena>, client: usize, call: CallId, request: Request) {
        self.requests.push(request.clone());
        match &request {
            Request::Node(node::Request::Create { id, size_bytes, metadata, .. }) => {
                let answer = match self.find(id) {
                    Some(copy) => {
                        let entry = self.copies.get_mut(&copy).unwrap();
                        if entry.view.size_bytes == *size_bytes
                            && entry.view.metadata.describes_same(metadata)
                        {
                            entry.references += 1;
                            Ok(Response::Node(node::Response::Existing(entry.view.clone())))
                        } else {
                            Err(Error::AlreadyExists { id: id.clone() })
                        }
                    }
                    None => {
                        let view = self.create(arena, id.clone(), *size_bytes, metadata.clone());
                        Ok(Response::Node(node::Response::Created(view)))
                    }
                };
                self.answer(client, call, answer);
            }
            Request::Node(node::Request::Put { id, metadata, bytes, .. }) => {
                let answer = self.put(arena, id, metadata, bytes);
                self.answer(client, call, answer);
            }
            Request::Node(node::Request::Seal { copy, .. }) => {
                self.seal(*copy);
                self.answer(client, call, Ok(Response::Node(node::Response::Sealed)));
            }
            Request::Node(node::Request::SealUnconfirmed { copy }) => self.seal(*copy),
            Request::Node(node::Request::Abort { copy }) => {
                let copy = self.copies.get_mut(copy).unwrap();
                assert!(!copy.sealed, "a sealed copy was aborted");
                copy.references -= 1;
                copy.deleted = true;
                copy.buffer.set_failed();
            }
            Request::Node(node::Request::Release { copy }) => {
                if let Some(copy) = self.copies.get_mut(copy) {
                    copy.references -= 1;
                    assert!(copy.references >= 0, "a reference was released twice");
                }
            }
            Request::Node(node::Request::Cancel { call }) => {
                self.waiting.retain(|waiting| waiting.client != client || waiting.call != *call);
            }
            Request::Node(node::Request::Unsubscribe { call }) => {
                self.waiting.retain(|waiting| waiting.client != client || waiting.call != *call);
            }
            Request::Doorbell { .. } => {}
            _ => self.waiting.push(Waiting { client, call, request }),
        }
        self.look_again(arena);
    }

    fn put(
        &mut self,
        arena: &Arc<Arena>,
        id: &ObjectId,
        metadata: &Metadata,
        bytes: &[u8],
    ) -> Result<Response, Error> {
        match self.find(id).and_then(|copy| self.copies.get_mut(&copy)) {
            Some(entry)
                if entry.view.size_bytes == bytes.len() as u64
                    && entry.view.metadata == *metadata =>
            {
                entry.references += 1;
                Ok(Response::Node(node::Response::Existing(entry.view.clone())))
            }
            Some(_) => Err(Error::AlreadyExists { id: id.clone() }),
            None => {
                let view = self.create(arena, id.clone(), bytes.len() as u64, metadata.clone());
                let entry = self.copies.get_mut(&view.copy).unwrap();
                entry.buffer.write(0, bytes);
                entry.references -= 1;
                entry.sealed = true;
                entry.buffer.set_complete();
                Ok(Response::Node(node::Response::Sealed))
            }
        }
    }

    fn seal(&mut self, copy: CopyId) {
        let copy = self.copies.get_mut(&copy).unwrap();
        let held_back = publishable_unsealed(copy.view.size_bytes, copy.view.size_bytes);
        assert_eq!(
            copy.buffer.valid_bytes(),
            held_back,
            "sealed before all was written, or published before"
        );
        copy.sealed = true;
        copy.buffer.set_complete();
    }

    fn look_again(&mut self, arena: &Arc<Arena>) {
        let before = self.copies.len();
        for waiting in std::mem::take(&mut self.waiting) {
            let answer = match &waiting.request {
                Request::Node(node::Request::Collective(Collective::AllToAll, reduce)) => {
                    self.do_without_session(arena, reduce)
                }
                Request::Node(
                    node::Request::Reduce(reduce) | node::Request::Collective(_, reduce),
                ) => self.try_reduce(arena, reduce),
                request => self.try_answer(request),
            };
            let Some(answer) = answer else {
                self.waiting.push(waiting);
                continue;
            };
            self.answer(waiting.client, waiting.call, answer);
            if matches!(waiting.request, Request::Node(node::Request::Subscribe { .. })) {
                self.waiting.push(waiting);
            }
        }
        if self.copies.len() > before {
            self.look_again(arena);
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each request")]
    fn try_answer(&mut self, request: &Request) -> Option<Result<Response, Error>> {
        let answer = match request {
            Request::Node(node::Request::Get { id, until, timeout, .. }) => {
                return self.try_get(id, *until, *timeout);
            }
            Request::Node(node::Request::Join { target, timeout, .. }) => {
                return self.try_get(target, Until::Started, *timeout);
            }
            Request::Node(node::Request::Follow { copy, beyond_bytes, .. }) => {
                let copy = &self.copies[copy];
                let shown_bytes = copy.buffer.want_doorbell();
                let valid_bytes = if copy.sealed { copy.view.size_bytes } else { shown_bytes };
                if copy.deleted {
                    Err(Error::ObjectLost { id: copy.id.clone() })
                } else if valid_bytes > *beyond_bytes {
                    Ok(Response::Node(node::Response::Progress { valid_bytes }))
                } else {
                    return None;
                }
            }
            Request::Node(node::Request::Delete { ids, .. }) => {
                let found: Vec<CopyId> = ids.iter().filter_map(|id| self.find(id)).collect();
                for copy in &found {
                    self.copies.get_mut(copy).unwrap().deleted = true;
                }
                if self.deletes_are_late {
                    Err(Error::timeout(Operation::Delete, Duration::ZERO))
                } else {
                    Ok(Response::Node(node::Response::Deleted {
                        count: found.len(),
                        absent: Named::of([]),
                    }))
                }
            }
            Request::Node(node::Request::Wait { ids, count, timeout }) => {
                let indices: Vec<usize> = (0..ids.len())
                    .filter(|&index| self.locations(&ids[index]).is_available())
                    .collect();
                if indices.len() < *count && *timeout > Duration::ZERO {
                    return None;
                }
                Ok(Response::Node(node::Response::Ready { indices }))
            }
            Request::Node(node::Request::Locate { id, timeout }) => {
                let locations = self.locations(id);
                if locations.object.is_none() && *timeout > Duration::ZERO {
                    return None;
                }
                Ok(Response::Node(node::Response::Locations(locations)))
            }
            Request::Node(node::Request::Subscribe { id }) => {
                Ok(Response::Node(node::Response::Locations(self.locations(id))))
            }
            Request::Node(node::Request::Inspect(Inspection::List { prefix, after, limit })) => {
                Ok(self.list(prefix, after, *limit))
            }
            Request::Node(node::Request::Inspect(Inspection::Describe { .. })) => {
                Ok(Response::Description(Box::new(v1::response::Description {
                    reduce: None,
                    shard: "fake:1".to_owned(),
                    object: None,
                    lifetime: None,
                })))
            }
            Request::Node(node::Request::Inspect(Inspection::Status)) => {
                Ok(Response::Status(Box::new(v1::NodeStatus {
                    node: "fake".to_owned(),
                    ..Default::default()
                })))
            }
            other => panic!("not a request that waits: {other:?}"),
        };
        Some(answer)
    }

    fn try_get(
        &mut self,
        id: &ObjectId,
        until: Until,
        timeout: Duration,
    ) -> Option<Result<Response, Error>> {
        let found =
            self.find(id).filter(|copy| until == Until::Started || self.copies[copy].sealed);
        let answer = match found {
            Some(copy) => {
                let copy = self.copies.get_mut(&copy).unwrap();
                if until == Until::Contents && copy.view.size_bytes <= node::MAX_CONTENTS_BYTES {
                    let mut bytes = vec![0; copy.view.size_bytes as usize];
                    copy.buffer.read(0, &mut bytes);
                    let view = copy.view.clone();
                    Ok(Response::Node(node::Response::Contents { view, bytes: bytes.into() }))
                } else {
                    copy.references += 1;
                    Ok(Response::Node(node::Response::Object(copy.view.clone())))
                }
            }
            None if timeout == Duration::ZERO => {
                Err(Error::timeout(Operation::Get, Duration::ZERO))
            }
            None => return None,
        };
        Some(answer)
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Response {
        let mut ids: Vec<&ObjectId> = self
            .copies
            .values()
            .filter(|copy| !copy.deleted)
            .map(|copy| &copy.id)
            .filter(|id| id.as_bytes().starts_with(prefix) && id.as_bytes() > after)
            .collect();
        ids.sort();
        let objects = ids.iter().take(limit).map(|id| self.locations(id)).collect();
        Response::Listing { objects, more: ids.len() > limit }
    }

    fn try_reduce(
        &mut self,
        arena: &Arc<Arena>,
        reduce: &node::Reduce,
    ) -> Option<Result<Response, Error>> {
        let node::Reduce { target, sources, count, range, .. } = reduce;
        assert_eq!(reduce.op, ReduceOp::Sum, "this store can do nothing else");
        if self.find(target).is_some_and(|copy| self.copies[&copy].sealed) {
            return Some(Err(Error::AlreadyExists { id: target.clone() }));
        }
        let mut found: Vec<(CopyId, usize)> = (0..sources.len())
            .filter_map(|index| {
                Some((self.find(&sources[index]).filter(|copy| self.copies[copy].sealed)?, index))
            })
            .collect();
        found.sort();
        let Some(joined) = found.get(..*count) else {
            let waited = Duration::ZERO;
            return (reduce.timeout == waited)
                .then_some(Err(Error::timeout(Operation::Reduce, waited)));
        };
        let first = self.copies[&joined[0].0].view.clone();
        let range = range.map_or(0..first.size_bytes, |range| {
            range.offset_bytes..range.offset_bytes + range.length_bytes
        });
        let mut sum = vec![0_i32; usize::try_from((range.end - range.start) / 4).unwrap()];
        for (copy, index) in joined {
            let Copy { view, buffer, .. } = &self.copies[copy];
            if view.size_bytes != first.size_bytes || view.metadata != first.metadata {
                let reason = "it is not like the first".into();
                return Some(Err(Error::TypeMismatch { id: sources[*index].clone(), reason }));
            }
            let mut bytes = vec![0; sum.len() * 4];
            buffer.read(range.start, &mut bytes);
            for (sum, element) in sum.iter_mut().zip(bytes.chunks(4)) {
                *sum = sum.wrapping_add(i32::from_le_bytes(element.try_into().unwrap()));
            }
        }
        let indices = joined.iter().map(|(_, index)| *index).collect();
        let bytes: Vec<u8> = sum.into_iter().flat_map(i32::to_le_bytes).collect();
        let shape = if reduce.range.is_some() { None } else { first.metadata.shape };
        let metadata = Metadata { shape, ..first.metadata };
        let view = self.create(arena, target.clone(), bytes.len() as u64, metadata);
        let copy = self.copies.get_mut(&view.copy).unwrap();
        copy.references = 0;
        copy.buffer.write(0, &bytes);
        copy.buffer.set_complete();
        copy.sealed = true;
        Some(Ok(Response::Node(node::Response::Reduced { indices })))
    }

    fn do_without_session(
        &mut self,
        arena: &Arc<Arena>,
        reduce: &node::Reduce,
    ) -> Option<Result<Response, Error>> {
        if self.find(&reduce.target).is_some() {
            return Some(Err(Error::AlreadyExists { id: reduce.target.clone() }));
        }
        if !reduce.sources.iter().all(|source| self.find(source).is_some()) {
            let waited = Duration::ZERO;
            return (reduce.timeout == waited)
                .then_some(Err(Error::timeout(Operation::Reduce, waited)));
        }
        let view = self.create(arena, reduce.target.clone(), 0, Metadata::default());
        let copy = self.copies.get_mut(&view.copy).unwrap();
        copy.references = 0;
        copy.buffer.set_complete();
        copy.sealed = true;
        let indices = (0..reduce.sources.len()).collect();
        Some(Ok(Response::Node(node::Response::Reduced { indices })))
    }

    fn locations(&self, id: &ObjectId) -> Locations {
        let copy = self.find(id).map(|copy| &self.copies[&copy]);
        Locations {
            id: id.clone(),
            object: copy.map(|copy| ObjectSummary {
                put: copy.view.put,
                size_bytes: copy.view.size_bytes,
                metadata: copy.view.metadata.clone(),
                inline: false,
                lost: false,
                origin: None,
            }),
            locations: copy
                .map(|copy| Location {
                    node: NodeId::new("fake").unwrap(),
                    data_address: "127.0.0.1:1".parse().unwrap(),
                    state: if copy.sealed {
                        LocationState::Complete
                    } else {
                        LocationState::Producing
                    },
                    retention: Retention::Pinned,
                    pulling_from: None,
                    path: EVERYWHERE,
                    slow_peers: Vec::new(),
                })
                .into_iter()
                .collect(),
        }
    }

    fn answer(&mut self, client: usize, call: CallId, answer: Result<Response, Error>) {
        let response = encode_response(call, answer);
        match &mut self.held {
            Some(held) => held.push((client, response)),
            None => self.send(client, &response),
        }
    }

    fn send(&self, client: usize, response: &v1::Response) {
        let mut wire = BytesMut::new();
        framing::encode(response, &mut wire).unwrap();
        let _ = (&self.clients[client]).write_all(&wire);
    }
}
