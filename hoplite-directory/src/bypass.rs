//! Sessions past gRPC: once a session is open, its store may connect once more, and have its messages go over that connection.
//!
//! gRPC costs a shard several times what it does for a small message. Who may open a session, and why it ends, gRPC still says; and its
//! pings tell whether the other side lives. Whether anything passes here, pings of the store tell it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_daemon::{EventLoop, HalfOpenPlace, prepare_idle_socket};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::directory::{BypassKey, KEY_BYTES, OPENING_BYTES};
use hoplite_proto::framing;
use hoplite_proto::v1::StoreMessages;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::connection::Strangers;
use crate::owner::{SessionId, ShardHandle};
use crate::send_queue::SendQueue;
use crate::session::decode;

/// How long the store may take to accept what was queued when its session ended.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The sessions that may have a bypass.
#[derive(Debug, Clone)]
pub(crate) struct Bypasses {
    shard: ShardHandle,
    /// Where the shard is.
    event_loop: EventLoop,
    offered: Arc<Mutex<Offered>>,
}

/// The sessions to which a bypass was offered, and what is to be said in them.
type Offered = HashMap<BypassKey, (SessionId, Arc<SendQueue>)>;

/// The offer to one session, taken back when this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    bypasses: Bypasses,
    pub(crate) key: BypassKey,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.bypasses.lock().remove(&self.key);
    }
}

/// A connection that began as a bypass does, and what it holds.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
    /// While it has not named its session.
    pub(crate) place: HalfOpenPlace,
    /// When it must have done so.
    pub(crate) deadline: Instant,
    /// Where it is counted if it does not.
    pub(crate) strangers: Option<Arc<Strangers>>,
    pub(crate) abort: CancellationToken,
    pub(crate) task: TaskTrackerToken,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Bypasses {
    /// Bypasses to `shard`, which lives on `event_loop`.
    pub(crate) fn new(shard: ShardHandle, event_loop: EventLoop) -> Self {
        Self { shard, event_loop, offered: Arc::default() }
    }

    /// Lets the store of a session connect once more; `None` if the operating system has no random numbers.
    pub(crate) fn offer(&self, session: SessionId, send_queue: Arc<SendQueue>) -> Option<Offer> {
        let mut key = [0; KEY_BYTES];
        getrandom(&mut key, GetRandomFlags::empty()).ok().filter(|length| *length == KEY_BYTES)?;
        let key = BypassKey(key);
        self.lock().insert(key, (session, send_queue));
        Some(Offer { bypasses: self.clone(), key })
    }

    /// Serves a connection until it, its session or the daemon ends.
    pub(crate) fn adopt(&self, stranger: Stranger) {
        let Stranger { stream, place, deadline, strangers, abort, task, permit } = stranger;
        // It was accepted on another runtime.
        let Ok(stream) = stream.into_std() else { return };
        let bypasses = self.clone();
        self.event_loop.spawn(async move {
            let serving = async {
                let Ok(mut stream) = TcpStream::from_std(stream) else { return };
                // If it cannot be set the connection works nevertheless.
                let _ = prepare_idle_socket(&stream);
                let named = tokio::select! {
                    named = timeout_at(deadline, bypasses.session_named(&mut stream)) => named.ok().flatten(),
                    () = place.lost() => None,
                };
                drop(place);
                match (named, strangers) {
                    (Some((session, send_queue)), _) => bypasses.serve(session, &send_queue, stream).await,
                    (None, Some(strangers)) => drop(strangers.connections.fetch_add(1, Ordering::Relaxed)),
                    (None, None) => {}
                }
            };
            abort.run_until_cancelled(serving).await;
            drop((task, permit));
        });
    }

    /// The session whose key is said first.
    async fn session_named(&self, stream: &mut TcpStream) -> Option<(SessionId, Arc<SendQueue>)> {
        let mut opening = [0; OPENING_BYTES];
        stream.read_exact(&mut opening).await.ok()?;
        let key = BypassKey::of_opening(&opening)?;
        self.lock().remove(&key)
    }

    async fn serve(&self, session: SessionId, send_queue: &SendQueue, mut stream: TcpStream) {
        send_queue.divert();
        let (reader, writer) = stream.split();
        let overdue = async {
            send_queue.closed().await;
            sleep(LAST_WORD_TIMEOUT).await;
        };
        let ended = tokio::select! {
            ended = self.read(session, send_queue, reader) => ended,
            ended = write(send_queue, writer) => ended.map_err(|_| Error::unavailable("the store")),
            () = overdue => Ok(()),
        };
        match ended {
            Ok(()) => send_queue.close(),
            Err(error) => send_queue.fail(error),
        }
    }

    async fn read(&self, session: SessionId, send_queue: &SendQueue, mut reader: ReadHalf<'_>) -> Result<()> {
        let mut received = BytesMut::new();
        loop {
            while let Some(batch) =
                framing::decode_on::<StoreMessages>(Plane::Control, &mut received, MAX_BATCH_BYTES)?
            {
                if batch == StoreMessages::default() {
                    send_queue.pinged();
                    continue;
                }
                self.shard.say(session, decode(batch)?).await?;
                send_queue.room().await;
            }
            framing::make_room(&mut received);
            match reader.read_buf(&mut received).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Offered> {
        // Each change is one call, so a panic elsewhere leaves it whole.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(send_queue: &SendQueue, mut writer: WriteHalf<'_>) -> io::Result<()> {
    let mut frame = BytesMut::new();
    while let Some(messages) = send_queue.next_of_bypass().await {
        framing::make_room(&mut frame);
        framing::encode(&messages, &mut frame).map_err(|_| io::ErrorKind::InvalidData)?;
        writer.write_all_buf(&mut frame).await?;
    }
    Ok(())
}
