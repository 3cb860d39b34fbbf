use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use futures::StreamExt;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use hoplite_core::TraceContext;
use hoplite_core::error::Error;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{self, CallId, ClientId, Event, Inspection};
use hoplite_core::peer::HANDSHAKE_TIMEOUT;
use hoplite_core::text::escape;
use hoplite_daemon::warn_repeated;
use hoplite_proto::framing::{self, MAX_RESPONSE_BYTES, max_request_bytes};
use hoplite_proto::local::{Request, Response, decode_request, encode_response};
use hoplite_proto::{trace, v1};
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, Answers, CallWork};
use super::handshake::{ConnectionError, Greeted, greet};
use super::inbox::{READ_BYTES, has_request, make_room, usual};
use super::long_request::{LongRequest, ROOM_TIMEOUT, no_room, progress};
use super::rights::check_right;
use super::shares::{OpenRoom, Seat};
use super::socket::Socket;
use super::turns::Turn;
use super::{LocalPeer, LocalPlane, Role, inspect};
use crate::engine::Engine;

/// Number of unwritten bytes at which the connection stops reading requests and taking answers.
const MAX_UNWRITTEN_BYTES: usize = 256 << 10;
const MAX_COST_PER_TURN: usize = 256;
/// Memory that one listing takes from its user's limit.
const INSPECTION_BYTES: usize = 4 << 20;

type Working = Pin<Box<dyn Future<Output = (CallId, Option<WorkResult>)> + Send>>;

enum WorkResult {
    Progress(Result<u64, Error>),
    Inspected(Box<Result<Response, Error>>, Option<OwnedSemaphorePermit>),
}

/// Dropping a client's connection ends all its references to copies.
struct Connection {
    plane: Arc<LocalPlane>,
    client: ClientId,
    role: Role,
    answers: Arc<Answers>,
    works: FuturesUnordered<Working>,
    ends: HashMap<CallId, AbortHandle>,
    outbox: BytesMut,
    is_outbox_stretched: bool,
    intake: AnswerIntake,
    /// A place for one client, and its user's limits.
    seat: Seat,
    /// Memory and object ids that each open call takes from the user's limits.
    open_requests: HashMap<CallId, OpenRoom>,
    /// Permits for the memory of long answers in the outbox.
    unwritten: Vec<OwnedSemaphorePermit>,
    /// Tells the engine that the client is gone. Dropped last: `seat` must be free by then.
    _entry: Entry,
}

struct Entry {
    engine: Arc<Engine>,
    client: ClientId,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.engine.client_gone(self.client);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum AnswerIntake {
    Open,
    Closed,
}

pub(super) async fn serve(
    mut stream: UnixStream,
    plane: Arc<LocalPlane>,
    shutdown: CancellationToken,
) {
    let peer = match LocalPeer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => return tracing::debug!(%error, "the user of a connection is unknown"),
    };
    let (user, role) = (peer.user, plane.access.role(&peer));
    let place = plane.half_open.admit();
    let greeted = tokio::select! {
        greeted = timeout(HANDSHAKE_TIMEOUT, greet(&mut stream, &plane, user, role)) => greeted,
        () = place.evicted() => return tracing::debug!(user, "closed an idle connection: too many have sent no hello"),
        () = shutdown.cancelled() => return,
    };
    drop(place);
    let Greeted { program, version, role, seat, owners, inbox } = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(ConnectionError::Protocol(error @ Error::VersionMismatch { .. }))) => {
            warn_repeated!(user, %error, "refused a client");
            return plane.engine.refused_version(error);
        }
        Ok(Err(error)) => return tracing::debug!(%error, user, "a connection failed the handshake"),
        Err(_) => return tracing::debug!("a connection sent no hello in time"),
    };
    // 0 for a process in another PID namespace, for example in another pod.
    let process_id = stream
        .peer_cred()
        .ok()
        .and_then(|credentials| credentials.pid())
        .filter(|process| *process != 0);
    let socket = match Socket::new(stream) {
        Ok(socket) => socket,
        Err(error) => return tracing::debug!(%error, user, "cannot watch the socket of a client"),
    };
    let process = process_id.map_or_else(String::new, |process| format!(" (process {process})"));
    let name = if program.is_empty() { "a program" } else { &program };
    let name = format!("{}{process}", escape(name));
    let mut connection = Connection::new(plane, seat, role, (name, user, owners));
    let client = connection.client;
    tracing::debug!(?client, program, protocol = version.number(), user, ?role, "client connected");
    if let Err(error) = connection.run(&socket, inbox, &shutdown).await {
        tracing::debug!(?client, %error, "client dropped");
        if let ConnectionError::Protocol(error) = error {
            connection.say_last(&socket, error);
        }
    }
}

impl Connection {
    fn new(
        plane: Arc<LocalPlane>,
        seat: Seat,
        role: Role,
        (name, user, owners): (String, u32, Vec<Owner>),
    ) -> Self {
        let (client, answers) = plane.engine.client_connected(name, user, owners);
        let entry = Entry { engine: Arc::clone(&plane.engine), client };
        Self {
            plane,
            seat,
            client,
            role,
            answers,
            works: FuturesUnordered::new(),
            ends: HashMap::new(),
            outbox: BytesMut::new(),
            is_outbox_stretched: false,
            intake: AnswerIntake::Open,
            open_requests: HashMap::new(),
            unwritten: Vec::new(),
            _entry: entry,
        }
    }

    async fn run(
        &mut self,
        socket: &Socket,
        mut inbox: BytesMut,
        shutdown: &CancellationToken,
    ) -> Result<(), ConnectionError> {
        inbox = usual(&inbox);
        let (answers, share) = (Arc::clone(&self.answers), Arc::clone(&self.seat.share));
        let (turns, mut last) = (Arc::clone(&self.plane.turns), self.plane.turns.first());
        let (mut turn, mut long_request) = (None::<Turn>, None);
        loop {
            // Checked here: the select below is not reached while a client sends without pause.
            let stopping = shutdown.is_cancelled();
            if turn.is_none() && self.has_room() && has_request(&inbox) {
                turn = Some(turns.enter(last, inbox.len()));
            }
            let is_waiting = turn.as_ref().is_some_and(Turn::is_waiting);
            let mut is_left = false;
            if !is_waiting {
                let cost;
                (cost, is_left) = self.handle_all(&mut inbox, &mut long_request)?;
                if let Some(turn) = turn.take() {
                    last = turns.end(&turn, cost);
                }
            }
            self.take_work();
            self.write_answers()?;
            self.flush(socket);
            if (is_left || !self.answers.is_empty()) && self.has_room() {
                tokio::task::yield_now().await;
                continue;
            }
            if stopping && !is_waiting {
                return Ok(());
            }
            let length = framing::announced_bytes(&inbox).filter(|length| *length > READ_BYTES);
            if let Some(length) = length {
                long_request.get_or_insert_with(|| LongRequest::begin(Arc::clone(&share), length));
            }
            make_room(&mut inbox, length);
            let has_room = self.has_room();
            let may_read =
                !is_waiting && long_request.as_ref().is_none_or(LongRequest::may_be_read);
            tokio::select! {
                // Reads come first, because polling the other branches costs time.
                biased;
                read = socket.read(&mut inbox), if has_room && may_read => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                () = granted(&mut turn), if is_waiting => {}
                moved = progress(&mut long_request), if long_request.is_some() => moved?,
                () = answers.added(), if has_room => {}
                Some((call, finding)) = self.works.next(), if has_room && !self.works.is_empty() => {
                    if let Some(finding) = finding {
                        self.found(call, finding)?;
                    }
                }
                writable = socket.writable(), if !self.outbox.is_empty() => writable?,
                () = shutdown.cancelled(), if !stopping => {}
            }
        }
    }

    fn has_room(&self) -> bool {
        self.outbox.len() < MAX_UNWRITTEN_BYTES
    }

    /// Handles the requests in `inbox`. Returns their cost, and `true` if some may be left.
    fn handle_all(
        &mut self,
        inbox: &mut BytesMut,
        long_request: &mut Option<LongRequest>,
    ) -> Result<(usize, bool), Error> {
        let frame_limit = max_request_bytes(&self.plane.limits);
        let mut cost = 0;
        while cost < MAX_COST_PER_TURN && self.has_room() {
            let before = inbox.len();
            let Some(request) = framing::decode::<v1::Request>(inbox, frame_limit)? else {
                return Ok((cost, false));
            };
            cost += self.handle(request, before - inbox.len())?;
            if long_request.take().is_some() {
                *inbox = usual(inbox);
            }
        }
        Ok((cost, true))
    }

    fn take_work(&mut self) {
        while let Some(work) = self.answers.take_work() {
            match work {
                CallWork::Follow { call, live, beyond_bytes } => {
                    self.begin(call, async move {
                        WorkResult::Progress(live.beyond(beyond_bytes).await)
                    });
                }
                CallWork::Inspect { call, inspection, shards } => {
                    let (plane, share) = (Arc::clone(&self.plane), Arc::clone(&self.seat.share));
                    self.begin(call, async move {
                        let room = match inspection {
                            Inspection::List { .. } => {
                                timeout(ROOM_TIMEOUT, share.arrive(INSPECTION_BYTES)).await
                            }
                            _ => Ok(None),
                        };
                        let Ok(room) = room else {
                            return WorkResult::Inspected(Box::new(Err(no_room())), None);
                        };
                        let answer = inspect::answer(&plane, inspection, &shards).await;
                        WorkResult::Inspected(Box::new(answer), room)
                    });
                }
                CallWork::End { call } => {
                    if let Some(end) = self.ends.remove(&call) {
                        end.abort();
                    }
                }
            }
        }
    }

    fn begin(&mut self, call: CallId, work: impl Future<Output = WorkResult> + Send + 'static) {
        let (work, end) = abortable(work);
        self.ends.insert(call, end);
        self.works.push(Box::pin(async move { (call, work.await.ok()) }));
    }

    fn found(&mut self, call: CallId, finding: WorkResult) -> Result<(), Error> {
        self.take_work();
        if self.ends.remove(&call).is_none() {
            return Ok(());
        }
        let client = self.client;
        match finding {
            WorkResult::Progress(progress) => {
                self.plane.engine.apply(Event::Followed { client, call, progress });
                Ok(())
            }
            WorkResult::Inspected(answer, room) => {
                self.plane.engine.apply(Event::Inspected { client, call });
                self.unwritten.extend(room);
                self.write((call, *answer))
            }
        }
    }

    fn write_answers(&mut self) -> Result<(), Error> {
        while self.outbox.len() < MAX_UNWRITTEN_BYTES
            && let Some(answer) = self.answers.take()
        {
            self.write(answer)?;
        }
        Ok(())
    }

    fn write(&mut self, (call, response): Answer) -> Result<(), Error> {
        if !self.open_requests.is_empty()
            && !matches!(response, Ok(Response::Node(node::Response::Locations(_))))
        {
            self.open_requests.remove(&call);
        }
        if self.intake == AnswerIntake::Closed {
            return Ok(());
        }
        let mut response = response.map_err(|error| self.with_holders(error));
        if let Ok(Response::Node(node::Response::Batch(answers))) = &mut response {
            for error in answers.iter_mut().filter_map(|answer| answer.as_mut().err()) {
                *error = self.with_holders(error.clone());
            }
        }
        let mut message = encode_response(call, response);
        if message.encoded_len() > MAX_RESPONSE_BYTES {
            let error = Error::limit_exceeded("bytes of an answer", MAX_RESPONSE_BYTES as u64);
            message = encode_response(call, Err(error));
        }
        framing::encode(&message, &mut self.outbox)?;
        self.is_outbox_stretched |= self.outbox.len() > MAX_UNWRITTEN_BYTES;
        Ok(())
    }

    /// Adds the holders of memory to an error that this store, not another one, is full.
    fn with_holders(&self, error: Error) -> Error {
        match error {
            Error::StoreFull { needed_bytes, free_bytes, capacity_bytes, holders }
                if holders.is_empty() || holders == format!("on {}", self.plane.node) =>
            {
                let holders = format!("on {}, {}", self.plane.node, self.plane.engine.holders());
                Error::StoreFull { needed_bytes, free_bytes, capacity_bytes, holders }
            }
            error => error,
        }
    }

    /// Writes the outbox. A failed write discards the answers, but does not end the connection:
    /// requests of a client that has left, such as a seal, may be unread.
    fn flush(&mut self, socket: &Socket) {
        while !self.outbox.is_empty() {
            match socket.write(&self.outbox) {
                Ok(written) => self.outbox.advance(written),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.intake = AnswerIntake::Closed;
                    self.outbox.clear();
                }
            }
        }
        self.unwritten.clear();
        if std::mem::take(&mut self.is_outbox_stretched) {
            self.outbox = BytesMut::new();
        }
    }

    /// Tells the client why its connection ends (call 0), if the socket takes the answer.
    fn say_last(&mut self, socket: &Socket, error: Error) {
        if self.write((CallId(0), Err(error))).is_ok() {
            self.flush(socket);
        }
    }

    /// Returns the request's cost: its number of object ids, at least 1.
    fn handle(&mut self, request: v1::Request, length_bytes: usize) -> Result<usize, Error> {
        let trace = trace::decode(&request.trace);
        let (call, request) = decode_request(request, self.plane.limits.max_ids_per_request);
        let ids = match &request {
            Ok(Request::Node(request)) => request.id_count(),
            _ => 0,
        };
        let accepted = request.and_then(|request| self.accept(call, request, length_bytes, ids));
        match accepted {
            Ok(request) => self.perform(call, request, trace),
            Err(error) => self.write((call, Err(error)))?,
        }
        Ok(ids.max(1))
    }

    /// Checks the right to a request, and takes room for it.
    fn accept(
        &mut self,
        call: CallId,
        request: Request,
        length_bytes: usize,
        ids: usize,
    ) -> Result<Request, Error> {
        if let Request::Node(request) = &request {
            check_right(self.role, request)?;
        }
        let counted_bytes = if length_bytes > READ_BYTES { length_bytes } else { 0 };
        if counted_bytes > 0 || ids > 1 {
            let room = self.seat.share.open(counted_bytes, ids)?;
            self.open_requests.insert(call, room);
        }
        Ok(request)
    }

    fn perform(&mut self, call: CallId, request: Request, trace: Option<TraceContext>) {
        match request {
            Request::Node(request) => {
                if let node::Request::Cancel { call } = &request {
                    self.open_requests.remove(call);
                }
                let event = Event::Request { client: self.client, call, request };
                self.plane.engine.apply_traced(event, trace);
            }
            Request::Doorbell { copy } => {
                if let Some(live) = self.plane.engine.copies().get(copy) {
                    live.ring();
                }
            }
        }
    }
}

async fn granted(turn: &mut Option<Turn>) {
    if let Some(turn) = turn {
        turn.granted().await;
    }
}
