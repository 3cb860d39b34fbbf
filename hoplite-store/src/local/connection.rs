//! One client: its handshake, its requests, its answers.
//!
//! A get passes six files; this is number 2. Next: `hoplite-store/src/engine.rs`.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures::StreamExt;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use hoplite_core::error::{Error, Plane};
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::node::{self, CallId, ClientId, Event, Inspection};
use hoplite_core::peer::HANDSHAKE_TIMEOUT;
use hoplite_core::text::escape;
use hoplite_proto::framing::{self, MAX_HELLO_BYTES, MAX_RESPONSE_BYTES, max_request_bytes};
use hoplite_proto::local::{Request, Response, decode_request, encode_response};
use hoplite_proto::{PROTOCOL_VERSION, trace, v1};
use prost::Message;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, Answers, CallWork};
use super::shares::{MAX_ARRIVING_BYTES, MAX_OPEN_BYTES, Share};
use super::socket::Socket;
use super::{LocalPeer, LocalPlane, Role, inspect};

/// While so many bytes of answers wait to be written, no further request is read and no further answer is made.
const MAX_UNWRITTEN_BYTES: usize = 256 << 10;
/// How many requests of one client are handled before others have their turn.
const MAX_REQUESTS_PER_TURN: usize = 256;
/// How much is read at once: at first, and at least. A longer request needs room in the share of its user.
const READ_BYTES: usize = 64 << 10;
const MIN_READ_BYTES: usize = 4 << 10;
/// How long a request waits for that room, while other requests of the user arrive.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Room that the answer to an inspection takes in the share of its user: a page of a listing.
const INSPECTION_BYTES: usize = 4 << 20;

/// What is done for a call, and what comes of it; `None` if the call ended before.
type Working = Pin<Box<dyn Future<Output = (CallId, Option<WorkResult>)> + Send>>;

/// What a call was waiting for.
enum WorkResult {
    /// How much of a copy is valid, or that it has failed.
    Progress(Result<u64, Error>),
    /// What the shards have said, and the room that the answer takes.
    Inspected(Box<Result<Response, Error>>, Option<OwnedSemaphorePermit>),
}

/// A connected client. When this is dropped, all that the client held is taken back.
struct Connection {
    plane: Arc<LocalPlane>,
    client: ClientId,
    role: Role,
    answers: Arc<Answers>,
    /// What the node has asked for, for calls of this client.
    works: FuturesUnordered<Working>,
    /// How to end that.
    ends: HashMap<CallId, AbortHandle>,
    outbox: BytesMut,
    /// `true` while the outbox has grown beyond its usual size.
    is_outbox_stretched: bool,
    intake: AnswerIntake,
    /// What this and the other connections of the user may take for long requests and answers.
    share: Arc<Share>,
    /// The room of long requests whose calls are open.
    open_requests: HashMap<CallId, OwnedSemaphorePermit>,
    /// The room of long answers in the outbox.
    unwritten: Vec<OwnedSemaphorePermit>,
    _seat: OwnedSemaphorePermit,
}

/// Whether the client still takes answers.
#[derive(Debug, PartialEq, Eq)]
enum AnswerIntake {
    Open,
    Closed,
}

/// A client that has said who it is.
struct Greeted {
    program: String,
    role: Role,
    seat: OwnedSemaphorePermit,
    /// What it sent after its hello.
    inbox: BytesMut,
}

/// Serves one client until it leaves, or the daemon does.
pub(super) async fn serve(mut stream: UnixStream, plane: Arc<LocalPlane>, shutdown: CancellationToken) {
    let peer = match LocalPeer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => return tracing::debug!(%error, "a connection whose user is unknown"),
    };
    let (user, role) = (peer.user, plane.access.role(&peer));
    let place = plane.half_open.enter();
    let greeted = tokio::select! {
        greeted = timeout(HANDSHAKE_TIMEOUT, greet(&mut stream, &plane, role)) => greeted,
        () = place.lost() => return tracing::debug!(user, "too many connections that said nothing"),
        () = shutdown.cancelled() => return,
    };
    drop(place);
    let Greeted { program, role, seat, inbox } = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(error)) => return tracing::debug!(%error, user, "a connection was no client"),
        Err(_) => return tracing::debug!("a connection said nothing"),
    };
    let process_id = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
    let socket = match Socket::new(stream) {
        Ok(socket) => socket,
        Err(error) => return tracing::debug!(%error, user, "a client that cannot be listened to"),
    };
    let process = process_id.map_or_else(String::new, |process| format!(" (process {process})"));
    let name = if program.is_empty() { "a program" } else { &program };
    let name = format!("{}{process}", escape(name));
    let mut connection = Connection::new(plane, seat, user, role, name);
    let client = connection.client;
    tracing::debug!(?client, program, user, ?role, "client connected");
    if let Err(error) = connection.run(&socket, inbox, &shutdown).await {
        tracing::debug!(?client, %error, "client dropped");
        if let ConnectionError::Protocol(error) = error {
            connection.say_last(&socket, error);
        }
    }
}

/// Why a connection ended, other than by the client's will.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Protocol(#[from] Error),
}

/// Exchanges the first messages.
async fn greet(
    stream: &mut UnixStream,
    plane: &LocalPlane,
    role: Result<Role, Error>,
) -> Result<Greeted, ConnectionError> {
    let mut inbox = BytesMut::with_capacity(MIN_READ_BYTES);
    let hello = loop {
        match framing::decode::<v1::ClientHello>(&mut inbox, MAX_HELLO_BYTES) {
            Ok(None) => {}
            Ok(Some(hello)) => break Ok(hello),
            Err(error) => break Err(error),
        }
        if stream.read_buf(&mut inbox).await? == 0 {
            return Err(Error::malformed(Plane::Local, "closed before its first message").into());
        }
    };
    let accepted = hello.and_then(|hello| {
        if hello.version != PROTOCOL_VERSION {
            return Err(Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs: hello.version });
        }
        let role = role?;
        let limit = plane.limits.max_clients;
        let seat = Arc::clone(&plane.seats).try_acquire_owned();
        let seat = seat.map_err(|_| Error::limit_exceeded("clients of a store", limit as u64))?;
        Ok((hello.program.chars().take(64).collect(), role, seat))
    });
    let arena = plane.engine.arena();
    let answer = v1::ServerHello {
        version: PROTOCOL_VERSION,
        error: accepted.as_ref().err().map(hoplite_proto::error::encode),
        node: plane.node.as_str().to_owned(),
        cluster: plane.cluster.as_str().to_owned(),
        max_object_bytes: plane
            .limits
            .max_object_bytes
            .min(arena.capacity_bytes().saturating_sub(HEADER_BYTES)),
        arena_bytes: arena.capacity_bytes(),
        confirmed_from_bytes: plane.limits.confirmed_from_bytes,
        max_calls: plane.limits.max_requests_per_client as u64,
        max_ids: plane.limits.max_ids_per_request as u64,
    };
    let mut frame = BytesMut::new();
    framing::encode(&answer, &mut frame)?;
    let (readable, writable) = (arena.read_only_fd(), arena.writable_fd());
    let fds: &[_] = match &accepted {
        Ok((_, Role::Writer, _)) => &[readable, writable],
        Ok((_, Role::Reader, _)) => &[readable],
        Err(_) => &[],
    };
    // The file descriptors travel with the first byte that is sent.
    let sent =
        stream.async_io(Interest::WRITABLE, || hoplite_shm::fds::send(stream.as_fd(), &frame, fds)).await?;
    let mut rest = &frame[sent..];
    tokio::io::AsyncWriteExt::write_all_buf(stream, &mut rest).await?;
    let (program, role, seat) = accepted?;
    Ok(Greeted { program, role, seat, inbox })
}

/// What a reader is told that wants to change something.
const fn no_writer() -> Error {
    Error::permission_denied("this user may only read")
}

impl Connection {
    fn new(plane: Arc<LocalPlane>, seat: OwnedSemaphorePermit, user: u32, role: Role, name: String) -> Self {
        let (client, answers) = plane.engine.client_connected(name);
        Self {
            share: plane.shares.of(user),
            plane,
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
            _seat: seat,
        }
    }

    async fn run(
        &mut self,
        socket: &Socket,
        mut inbox: BytesMut,
        shutdown: &CancellationToken,
    ) -> Result<(), ConnectionError> {
        inbox = usual(&inbox);
        let frame_limit = max_request_bytes(&self.plane.limits);
        let (answers, share) = (Arc::clone(&self.answers), Arc::clone(&self.share));
        // The room of the long request that arrives, and until when it may wait for that.
        let (mut arriving, mut room_until) = (None, None);
        loop {
            // Asked here, since a client that never pauses would keep the select below from looking.
            let stopping = shutdown.is_cancelled();
            let mut handled = 0;
            loop {
                let before = inbox.len();
                if handled >= MAX_REQUESTS_PER_TURN {
                    break;
                }
                let Some(request) = framing::decode::<v1::Request>(&mut inbox, frame_limit)? else { break };
                self.handle(request, before - inbox.len())?;
                handled += 1;
                if arriving.take().is_some() {
                    // Gives back what the long request has stretched.
                    inbox = usual(&inbox);
                }
            }
            self.take_work();
            self.write_answers()?;
            self.flush(socket);
            if handled == MAX_REQUESTS_PER_TURN {
                tokio::task::yield_now().await;
                continue;
            }
            if stopping {
                // What was answered because of the shutdown has gone out, if the client takes it at once.
                return Ok(());
            }
            // The length was checked when it was there.
            let length = framing::announced_bytes(&inbox).filter(|length| *length > READ_BYTES);
            let needs_room = arriving.is_none() && length.is_some();
            make_room(&mut inbox, length);
            let room_timeout =
                needs_room.then(|| *room_until.get_or_insert_with(|| Instant::now() + ROOM_TIMEOUT));
            let has_room = self.outbox.len() < MAX_UNWRITTEN_BYTES;
            tokio::select! {
                // Requests first: a reader that is ready is the common case, and polling the others costs.
                biased;
                read = socket.read(&mut inbox), if has_room && !needs_room => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                permit = share.arrive(length.unwrap_or(0)), if needs_room => {
                    (arriving, room_until) = (permit, None);
                }
                () = until(room_timeout), if needs_room => return Err(no_room().into()),
                () = answers.added(), if has_room => {}
                Some((call, finding)) = self.works.next(), if has_room && !self.works.is_empty() => {
                    if let Some(finding) = finding {
                        self.found(call, finding)?;
                    }
                }
                writable = socket.writable(), if !self.outbox.is_empty() => writable?,
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Begins and ends what the node has decided to have done.
    fn take_work(&mut self) {
        while let Some(work) = self.answers.take_work() {
            match work {
                CallWork::Follow { call, live, beyond_bytes } => {
                    self.begin(call, async move { WorkResult::Progress(live.beyond(beyond_bytes).await) });
                }
                CallWork::Inspect { call, inspection, shards } => {
                    let (plane, share) = (Arc::clone(&self.plane), Arc::clone(&self.share));
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

    /// Something was found out for a call, which may have ended meanwhile.
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
        let response = response.map_err(|error| match error {
            Error::StoreFull { needed_bytes, free_bytes, capacity_bytes, .. } => {
                // Named, since the error may be that of another store, which takes part in a reduce.
                let holders = format!("on {}, {}", self.plane.node, self.plane.engine.holders());
                Error::StoreFull { needed_bytes, free_bytes, capacity_bytes, holders }
            }
            error => error,
        });
        let mut message = encode_response(call, response);
        if message.encoded_len() > MAX_RESPONSE_BYTES {
            let error = Error::limit_exceeded("bytes of an answer", MAX_RESPONSE_BYTES as u64);
            message = encode_response(call, Err(error));
        }
        framing::encode(&message, &mut self.outbox)?;
        self.is_outbox_stretched |= self.outbox.len() > MAX_UNWRITTEN_BYTES;
        Ok(())
    }

    /// Writes what the socket takes.
    ///
    /// A client that takes no more answers has left, but what it said before still counts: the seal of a put, say. So
    /// the connection ends only when all of that was read.
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

    /// Says why the connection is closed, under the number of no call; if the client takes it at once.
    fn say_last(&mut self, socket: &Socket, error: Error) {
        if self.write((CallId(0), Err(error))).is_ok() {
            self.flush(socket);
        }
    }

    /// Hands a request of `length_bytes` to the node, or answers it.
    fn handle(&mut self, request: v1::Request, length_bytes: usize) -> Result<(), Error> {
        let trace = trace::decode(&request.trace);
        let (call, request) = decode_request(request, self.plane.limits.max_ids_per_request);
        let request = match request {
            Ok(request) => request,
            Err(error) => return self.write((call, Err(error))),
        };
        if let (Role::Reader, Request::Node(request)) = (self.role, &request)
            && !request.is_for_readers()
        {
            return self.write((call, Err(no_writer())));
        }
        if length_bytes > READ_BYTES {
            let Some(room) = self.share.open(length_bytes) else {
                let limit = MAX_OPEN_BYTES as u64;
                return self
                    .write((call, Err(Error::limit_exceeded("bytes of a user's open requests", limit))));
            };
            self.open_requests.insert(call, room);
        }
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
        Ok(())
    }
}

/// Returns the error for a request or an answer that has waited too long for room in the share of its user.
const fn no_room() -> Error {
    Error::limit_exceeded("bytes of a user's requests and answers under way", MAX_ARRIVING_BYTES as u64)
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns a buffer of usual size with the bytes of `inbox`.
fn usual(inbox: &BytesMut) -> BytesMut {
    let mut usual = BytesMut::with_capacity(READ_BYTES.max(inbox.len()));
    usual.extend_from_slice(inbox);
    usual
}

/// Makes room to read in `inbox`, which grows with what has arrived, up to a message of `length` bytes.
fn make_room(inbox: &mut BytesMut, length: Option<usize>) {
    let rest = length.map_or(0, |length| length.saturating_sub(inbox.len()));
    if inbox.capacity() - inbox.len() < MIN_READ_BYTES {
        inbox.reserve(rest.min(inbox.len()).max(MIN_READ_BYTES));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.plane.engine.client_gone(self.client);
    }
}
