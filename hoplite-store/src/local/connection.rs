//! One client: its handshake, its requests, its answers.
//!
//! A get passes six files; this is number 2. Next: `hoplite-store/src/engine.rs`.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use futures::StreamExt;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use hoplite_core::error::{Error, Plane};
use hoplite_core::node::{CallId, ClientId, Event};
use hoplite_core::peer::HANDSHAKE_TIMEOUT;
use hoplite_proto::framing::{self, MAX_HELLO_BYTES, MAX_RESPONSE_BYTES, max_request_bytes};
use hoplite_proto::local::{Request, Response, decode_request, encode_response};
use hoplite_proto::{PROTOCOL_VERSION, trace, v1};
use prost::Message;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, Answers, CallWork};
use super::socket::Socket;
use super::{LocalPeer, LocalPlane, Role, inspect};

/// While so many bytes of answers wait to be written, no further request is read and no further answer is made.
const MAX_UNWRITTEN_BYTES: usize = 1 << 20;
/// How many requests of one client are handled before others have their turn.
const MAX_REQUESTS_PER_TURN: usize = 256;
/// How much is read at once: at first, and at least.
const READ_BYTES: usize = 64 << 10;
const MIN_READ_BYTES: usize = 4 << 10;

/// What is done for a call, and what comes of it; `None` if the call ended before.
type Working = Pin<Box<dyn Future<Output = (CallId, Option<WorkResult>)> + Send>>;

/// What a call was waiting for.
enum WorkResult {
    /// How much of a copy is valid, or that it has failed.
    Progress(Result<u64, Error>),
    /// What the shards have said.
    Inspected(Box<Result<Response, Error>>),
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
    intake: AnswerIntake,
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
    let greeted = tokio::select! {
        greeted = timeout(HANDSHAKE_TIMEOUT, greet(&mut stream, &plane, role)) => greeted,
        () = shutdown.cancelled() => return,
    };
    let Greeted { program, role, seat, inbox } = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(error)) => return tracing::debug!(%error, user, "a connection was no client"),
        Err(_) => return tracing::debug!("a connection said nothing"),
    };
    let socket = match Socket::new(stream) {
        Ok(socket) => socket,
        Err(error) => return tracing::debug!(%error, user, "a client that cannot be listened to"),
    };
    let mut connection = Connection::new(plane, seat, role);
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
    let mut inbox = BytesMut::with_capacity(READ_BYTES);
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
    fn new(plane: Arc<LocalPlane>, seat: OwnedSemaphorePermit, role: Role) -> Self {
        let (client, answers) = plane.engine.client_connected();
        Self {
            plane,
            client,
            role,
            answers,
            works: FuturesUnordered::new(),
            ends: HashMap::new(),
            outbox: BytesMut::new(),
            intake: AnswerIntake::Open,
            _seat: seat,
        }
    }

    async fn run(
        &mut self,
        socket: &Socket,
        mut inbox: BytesMut,
        shutdown: &CancellationToken,
    ) -> Result<(), ConnectionError> {
        let frame_limit = max_request_bytes(&self.plane.limits);
        let answers = Arc::clone(&self.answers);
        loop {
            // Asked here, since a client that never pauses would keep the select below from looking.
            let stopping = shutdown.is_cancelled();
            let mut handled = 0;
            while handled < MAX_REQUESTS_PER_TURN
                && let Some(request) = framing::decode::<v1::Request>(&mut inbox, frame_limit)?
            {
                self.handle(request)?;
                handled += 1;
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
            inbox.reserve(MIN_READ_BYTES);
            let has_room = self.outbox.len() < MAX_UNWRITTEN_BYTES;
            tokio::select! {
                // Requests first: a reader that is ready is the common case, and polling the others costs.
                biased;
                read = socket.read(&mut inbox), if has_room => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
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
                    let plane = Arc::clone(&self.plane);
                    self.begin(call, async move {
                        WorkResult::Inspected(Box::new(inspect::answer(&plane, inspection, &shards).await))
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
            WorkResult::Inspected(answer) => {
                self.plane.engine.apply(Event::Inspected { client, call });
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
        if self.intake == AnswerIntake::Closed {
            return Ok(());
        }
        let mut message = encode_response(call, response);
        if message.encoded_len() > MAX_RESPONSE_BYTES {
            let error = Error::limit_exceeded("bytes of an answer", MAX_RESPONSE_BYTES as u64);
            message = encode_response(call, Err(error));
        }
        framing::encode(&message, &mut self.outbox)
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
    }

    /// Says why the connection is closed, under the number of no call; if the client takes it at once.
    fn say_last(&mut self, socket: &Socket, error: Error) {
        if self.write((CallId(0), Err(error))).is_ok() {
            self.flush(socket);
        }
    }

    fn handle(&mut self, request: v1::Request) -> Result<(), Error> {
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
        match request {
            Request::Node(request) => {
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

impl Drop for Connection {
    fn drop(&mut self) {
        self.plane.engine.client_gone(self.client);
    }
}
