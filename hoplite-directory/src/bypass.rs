//! Sessions past gRPC: once a session is open, its store may connect once more, and have its messages go over that connection.
//!
//! gRPC costs a shard several times what it does for a small message. Who may open a session, and why it ends, gRPC still says; and its
//! pings tell whether the other side lives.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::session::{HELLO_TIMEOUT, SHARD_PINGS};
use hoplite_daemon::{EventLoop, HalfOpenPlace};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::directory::{BypassKey, KEY_BYTES, OPENING_BYTES};
use hoplite_proto::framing;
use hoplite_proto::v1::StoreMessages;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::owner::{SessionId, ShardHandle};
use crate::send_queue::SendQueue;
use crate::session::decode;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// The sessions that may have a bypass.
#[derive(Debug, Clone)]
pub(crate) struct Bypasses {
    shard: ShardHandle,
    /// Where the shard is.
    event_loop: EventLoop,
    offered: Arc<Mutex<HashMap<BypassKey, (SessionId, Arc<SendQueue>)>>>,
}

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
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
    /// While it has not named its session.
    pub(crate) place: HalfOpenPlace,
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
        let Stranger { stream, place, abort, task, permit } = stranger;
        // It was accepted on another runtime.
        let Ok(stream) = stream.into_std() else { return };
        let bypasses = self.clone();
        self.event_loop.spawn(async move {
            let served = abort.run_until_cancelled(bypasses.serve(stream, place)).await;
            if let Some(Err(error)) = served {
                tracing::debug!(%error, "a connection past gRPC has ended");
            }
            drop((task, permit));
        });
    }

    async fn serve(&self, stream: std::net::TcpStream, place: HalfOpenPlace) -> io::Result<()> {
        let mut stream = TcpStream::from_std(stream)?;
        // Pings go over the connection of gRPC, and do not show that this one is dead.
        let limit = SHARD_PINGS.interval + SHARD_PINGS.timeout;
        let _ = set_tcp_user_timeout(&stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX));
        let mut opening = [0; OPENING_BYTES];
        tokio::select! {
            read = timeout(HELLO_TIMEOUT, stream.read_exact(&mut opening)) => read??,
            () = place.lost() => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let named = BypassKey::of_opening(&opening).and_then(|key| self.lock().remove(&key));
        let Some((session, send_queue)) = named else { return Err(io::ErrorKind::PermissionDenied.into()) };
        drop(place);
        send_queue.divert();
        let (reader, writer) = stream.split();
        let ended = tokio::select! {
            ended = self.read(session, &send_queue, reader) => ended,
            ended = write(&send_queue, writer) => ended.map_err(|_| Error::unavailable("the store")),
        };
        match ended {
            Ok(()) => send_queue.close(),
            Err(error) => send_queue.fail(error),
        }
        Ok(())
    }

    async fn read(&self, session: SessionId, send_queue: &SendQueue, mut reader: ReadHalf<'_>) -> Result<()> {
        let mut received = BytesMut::new();
        loop {
            while let Some(batch) =
                framing::decode_on::<StoreMessages>(Plane::Control, &mut received, MAX_BATCH_BYTES)?
            {
                self.shard.say(session, decode(batch)?).await?;
                send_queue.room().await;
            }
            received.reserve(READ_BYTES);
            match reader.read_buf(&mut received).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BypassKey, (SessionId, Arc<SendQueue>)>> {
        // Each change is one call, so a panic elsewhere leaves it whole.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(send_queue: &SendQueue, mut writer: WriteHalf<'_>) -> io::Result<()> {
    let mut frame = BytesMut::new();
    while let Some(messages) = send_queue.next_of_bypass().await {
        framing::encode(&messages, &mut frame).map_err(|_| io::ErrorKind::InvalidData)?;
        writer.write_all_buf(&mut frame).await?;
    }
    Ok(())
}
