//! One client: its handshake, its requests, its answers.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hoplite_core::error::{Error, Operation, Plane};
use hoplite_core::node::{CallId, ClientId, CopyId, Event};
use hoplite_proto::framing::{self, MAX_HELLO_BYTES, max_request_bytes};
use hoplite_proto::local::{Request, Response, decode_request, encode_response};
use hoplite_proto::{PROTOCOL_VERSION, v1};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{LocalPlane, inspect};
use crate::engine::Answer;

/// How long a client may take to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers that a client may leave in its queue, beyond one for each call it may make: updates of subscriptions.
const SPARE_ANSWERS: usize = 1024;
/// While so many bytes of answers wait to be written, no further request is read.
const OUTBOX_BYTES: usize = 1 << 20;
/// How much is read at once.
const INBOX_BYTES: usize = 64 << 10;

type Errand = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A connected client.
struct Connection {
    plane: Arc<LocalPlane>,
    client: ClientId,
    /// Calls that are answered here and not by the node: waits for progress, questions to the directory.
    errands: FuturesUnordered<Errand>,
    outbox: BytesMut,
}

/// Serves one client until it leaves, or the daemon does.
pub(super) async fn serve(mut stream: UnixStream, plane: Arc<LocalPlane>, shutdown: CancellationToken) {
    let greeted = tokio::select! {
        greeted = timeout(HANDSHAKE_TIMEOUT, greet(&mut stream, &plane)) => greeted,
        () = shutdown.cancelled() => return,
    };
    match greeted {
        Ok(Ok(program)) => tracing::debug!(program, "client connected"),
        Ok(Err(error)) => return tracing::debug!(%error, "a connection was no client"),
        Err(_) => return tracing::debug!("a connection said nothing"),
    }
    let queue = plane.limits.max_requests_per_client + SPARE_ANSWERS;
    let (client, answers, overflow) = plane.engine.client_connected(queue);
    let engine = Arc::clone(&plane.engine);
    let mut connection =
        Connection { plane, client, errands: FuturesUnordered::new(), outbox: BytesMut::new() };
    let ended = tokio::select! {
        ended = connection.run(&mut stream, answers, &shutdown) => ended,
        () = overflow.cancelled() => Err(ConnectionError::Overflow),
    };
    if let Err(error) = ended {
        tracing::debug!(?client, %error, "client dropped");
    }
    engine.client_gone(client);
}

/// Why a connection ended, other than by the client's will.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Protocol(#[from] Error),
    #[error("the client does not take its answers")]
    Overflow,
}

/// Exchanges the first messages; returns the name of the client's program.
async fn greet(stream: &mut UnixStream, plane: &LocalPlane) -> Result<String, ConnectionError> {
    let mut inbox = BytesMut::new();
    let hello = loop {
        if let Some(hello) = framing::decode::<v1::ClientHello>(&mut inbox, MAX_HELLO_BYTES)? {
            break hello;
        }
        if stream.read_buf(&mut inbox).await? == 0 {
            return Err(Error::malformed(Plane::Local, "closed before its first message").into());
        }
    };
    let limit = plane.limits.max_clients;
    let refusal = if hello.version != PROTOCOL_VERSION {
        Some(Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs: hello.version })
    } else if plane.engine.clients() >= limit {
        Some(Error::limit_exceeded("clients of a store", limit as u64))
    } else {
        None
    };
    let arena = plane.engine.arena();
    let answer = v1::ServerHello {
        version: PROTOCOL_VERSION,
        error: refusal.as_ref().map(hoplite_proto::error::encode),
        node: plane.node.as_str().to_owned(),
        arena_bytes: arena.capacity_bytes(),
        inline_below_bytes: plane.limits.inline_below_bytes,
    };
    let mut frame = BytesMut::new();
    framing::encode(&answer, &mut frame)?;
    let fds = [arena.read_only_fd(), arena.writable_fd()];
    let fds = if refusal.is_some() { &[][..] } else { &fds[..] };
    // The file descriptors travel with the first byte that is sent.
    let sent =
        stream.async_io(Interest::WRITABLE, || hoplite_shm::fds::send(stream.as_fd(), &frame, fds)).await?;
    let mut rest = &frame[sent..];
    tokio::io::AsyncWriteExt::write_all_buf(stream, &mut rest).await?;
    match refusal {
        Some(error) => Err(error.into()),
        None => Ok(hello.program.chars().take(64).collect()),
    }
}

impl Connection {
    async fn run(
        &mut self,
        stream: &mut UnixStream,
        mut answers: mpsc::Receiver<Answer>,
        shutdown: &CancellationToken,
    ) -> Result<(), ConnectionError> {
        let frame_limit = max_request_bytes(&self.plane.limits);
        let (mut reader, writer) = stream.split();
        let mut inbox = BytesMut::with_capacity(INBOX_BYTES);
        loop {
            while let Some(request) = framing::decode::<v1::Request>(&mut inbox, frame_limit)? {
                self.handle(request);
            }
            while let Ok(answer) = answers.try_recv() {
                self.write(answer)?;
            }
            flush(&writer, &mut self.outbox)?;
            tokio::select! {
                // Requests first: a reader that is ready is the common case, and polling the others costs.
                biased;
                read = reader.read_buf(&mut inbox), if self.outbox.len() < OUTBOX_BYTES => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                Some(answer) = answers.recv() => self.write(answer)?,
                Some(answer) = self.errands.next(), if !self.errands.is_empty() => self.write(answer)?,
                writable = writer.writable(), if !self.outbox.is_empty() => writable?,
                () = shutdown.cancelled() => {
                    // What was answered because of the shutdown still goes out, if the client takes it at once.
                    while let Ok(answer) = answers.try_recv() {
                        self.write(answer)?;
                    }
                    return Ok(flush(&writer, &mut self.outbox)?);
                }
            }
        }
    }

    fn write(&mut self, (call, response): Answer) -> Result<(), Error> {
        framing::encode(&encode_response(call, response), &mut self.outbox)
    }

    fn handle(&mut self, request: v1::Request) {
        let engine = &self.plane.engine;
        let (call, request) = decode_request(request, self.plane.limits.max_ids_per_request);
        match request {
            Ok(Request::Node(request)) => engine.apply(Event::Request { client: self.client, call, request }),
            Ok(Request::Doorbell { copy }) => {
                if let Some(live) = engine.copies().get(copy) {
                    live.ring();
                }
            }
            Ok(Request::Follow { copy, beyond_bytes, timeout }) => {
                let plane = Arc::clone(&self.plane);
                self.errand(call, async move { follow(&plane, copy, beyond_bytes, timeout).await });
            }
            Ok(Request::List { prefix, after, limit }) => {
                let plane = Arc::clone(&self.plane);
                self.errand(call, async move { inspect::list(&plane, prefix, after, limit).await });
            }
            Ok(Request::Describe { id }) => {
                let plane = Arc::clone(&self.plane);
                self.errand(call, async move { inspect::describe(&plane, &id).await });
            }
            Ok(Request::Status) => {
                let plane = Arc::clone(&self.plane);
                self.errand(call, async move { Ok(inspect::status(&plane).await) });
            }
            Err(error) => self.errand(call, async move { Err(error) }),
        }
    }

    fn errand(
        &mut self,
        call: CallId,
        errand: impl Future<Output = Result<Response, Error>> + Send + 'static,
    ) {
        let limit = self.plane.limits.max_requests_per_client;
        if self.errands.len() >= limit {
            let error = Error::limit_exceeded("open calls of a client", limit as u64);
            self.errands.push(Box::pin(async move { (call, Err(error)) }));
        } else {
            self.errands.push(Box::pin(async move { (call, errand.await) }));
        }
    }
}

fn flush(writer: &tokio::net::unix::WriteHalf<'_>, outbox: &mut BytesMut) -> std::io::Result<()> {
    while !outbox.is_empty() {
        match writer.try_write(outbox) {
            Ok(written) => drop(outbox.split_to(written)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn follow(
    plane: &LocalPlane,
    copy: CopyId,
    beyond_bytes: u64,
    patience: Duration,
) -> Result<Response, Error> {
    let live = plane.engine.copies().get(copy).ok_or(Error::UnknownReference { reference: copy.0 })?;
    match timeout(patience, live.beyond(beyond_bytes)).await {
        Ok(valid_bytes) => Ok(Response::Progress { valid_bytes: valid_bytes? }),
        Err(_) => Err(Error::Timeout { operation: Operation::Get, waited: patience }),
    }
}
