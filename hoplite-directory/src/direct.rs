//! Direct connections: once a session is open, its store may connect once more, and have its messages go over that connection.
//!
//! gRPC costs a shard several times what it does for a small message. gRPC still authorises the session and reports why it
//! ends; and its pings tell whether the other side lives. Pings of the store tell whether anything passes here.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_daemon::EventLoop;
use hoplite_net::{Opener, Sealer, Socket};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::directory::{BypassKey, KEY_BYTES};
use hoplite_proto::framing;
use hoplite_proto::v1::StoreMessages;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::owner::{SessionId, ShardHandle};
use crate::said::decode;
use crate::send_queue::SendQueue;

/// The time that the store may take to accept what was queued when its session ended.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The sessions that may have a direct connection.
#[derive(Debug, Clone)]
pub(crate) struct DirectConnections {
    shard: ShardHandle,
    /// Where the shard is.
    event_loop: EventLoop,
    offered: Arc<Mutex<Offered>>,
}

/// The sessions to which a direct connection was offered, and their queues.
type Offered = HashMap<BypassKey, (SessionId, Arc<SendQueue>)>;

/// The offer to one session, taken back when this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    connections: DirectConnections,
    pub(crate) key: BypassKey,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.key);
    }
}

/// A connection that was opened for the messages of one session.
pub(crate) struct Direct {
    pub(crate) socket: Socket,
    /// The session that the peer has named.
    pub(crate) session: BypassKey,
    pub(crate) records: (Sealer, Opener),
}

impl DirectConnections {
    /// Direct connections to `shard`, which lives on `event_loop`.
    pub(crate) fn new(shard: ShardHandle, event_loop: EventLoop) -> Self {
        Self { shard, event_loop, offered: Arc::default() }
    }

    /// Lets the store of a session connect once more; `None` if the operating system has no random numbers.
    pub(crate) fn offer(&self, session: SessionId, send_queue: Arc<SendQueue>) -> Option<Offer> {
        let mut key = [0; KEY_BYTES];
        getrandom(&mut key, GetRandomFlags::empty()).ok().filter(|length| *length == KEY_BYTES)?;
        let key = BypassKey(key);
        self.lock().insert(key, (session, send_queue));
        Some(Offer { connections: self.clone(), key })
    }

    /// Serves a connection until it, its session or the daemon ends; `held` is dropped then. Returns `false` if there is
    /// no session of that key.
    pub(crate) fn adopt(
        &self,
        direct: Direct,
        abort: CancellationToken,
        held: (TaskTrackerToken, OwnedSemaphorePermit),
    ) -> bool {
        let Direct { socket, session, records } = direct;
        let Some((session, send_queue)) = self.lock().remove(&session) else { return false };
        // It was accepted on another runtime.
        let Ok(detached) = socket.detach() else { return true };
        let connections = self.clone();
        self.event_loop.spawn(async move {
            let serving = async {
                let Ok(socket) = detached.attach() else { return };
                // If it cannot be set the connection works nevertheless.
                let _ = socket.prepare();
                connections.serve(session, &send_queue, socket, records).await;
            };
            abort.run_until_cancelled(serving).await;
            drop(held);
        });
        true
    }

    async fn serve(
        &self,
        session: SessionId,
        send_queue: &SendQueue,
        socket: Socket,
        (sealer, opener): (Sealer, Opener),
    ) {
        send_queue.divert();
        let (reader, writer) = tokio::io::split(socket);
        let overdue = async {
            send_queue.closed().await;
            sleep(LAST_WORD_TIMEOUT).await;
        };
        let ended = tokio::select! {
            ended = self.read(session, send_queue, reader, opener) => ended,
            ended = write(send_queue, writer, sealer) => ended.map_err(|_| Error::unavailable("the store")),
            () = overdue => Ok(()),
        };
        match ended {
            Ok(()) => send_queue.close(),
            Err(error) => send_queue.fail(error),
        }
    }

    async fn read(
        &self,
        session: SessionId,
        send_queue: &SendQueue,
        mut reader: ReadHalf<Socket>,
        mut opener: Opener,
    ) -> Result<()> {
        let (mut raw, mut received) = (BytesMut::new(), BytesMut::new());
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
            framing::make_room(&mut raw);
            match reader.read_buf(&mut raw).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => opener
                    .open(&mut raw, &mut received)
                    .map_err(|_| Error::malformed(Plane::Control, "a record was changed on its way"))?,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Offered> {
        // Each change is one call, so a panic elsewhere leaves it whole.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(send_queue: &SendQueue, mut writer: WriteHalf<Socket>, mut sealer: Sealer) -> io::Result<()> {
    let (mut frame, mut records) = (BytesMut::new(), BytesMut::new());
    while let Some(messages) = send_queue.next_of_bypass().await {
        framing::make_room(&mut frame);
        framing::encode(&messages, &mut frame).map_err(|_| io::ErrorKind::InvalidData)?;
        framing::make_room(&mut records);
        sealer.seal(&frame, &mut records);
        frame.clear();
        writer.write_all_buf(&mut records).await?;
    }
    Ok(())
}
