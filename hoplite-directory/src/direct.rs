//! Sessions over direct connections, whose frames the shard's thread handles. gRPC costs a shard
//! several times as much for a small message.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use hoplite_core::error::Result;
use hoplite_core::session::SHARD_PINGS;
use hoplite_daemon::EventLoop;
use hoplite_net::opening::Records;
use hoplite_net::{FrameWriter, Socket, frames};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::error::encode;
use hoplite_proto::v1::ShardMessages;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::send_queue::SendQueue;
use crate::session::{self, Host};

/// Time in which the store of an ended session must receive the queued frames and close.
const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct DirectSessions {
    pub(crate) host: Host,
    pub(crate) event_loop: EventLoop,
    pub(crate) tasks: TaskTracker,
}

impl DirectSessions {
    /// Serves a connection until it, its session or the daemon ends. Until then, `held` takes one
    /// of the shard's permits and delays the shutdown.
    pub(crate) fn adopt(
        &self,
        socket: Socket,
        records: Records,
        abort: CancellationToken,
        held: (TaskTrackerToken, OwnedSemaphorePermit),
    ) {
        let Ok(detached) = socket.detach() else { return };
        let (host, task) = (self.host.clone(), self.tasks.token());
        self.event_loop.spawn(async move {
            let serving = async {
                let Ok(socket) = detached.attach() else { return };
                // A failure only slows the connection.
                let _ = socket.prepare();
                serve(host, socket, records).await;
            };
            abort.run_until_cancelled(serving).await;
            drop((task, held));
        });
    }
}

async fn serve(host: Host, socket: Socket, records: Records) {
    let (mut reader, writer) = frames(socket, records);
    let (opened, answer) = oneshot::channel();
    let inbound = stream::unfold(&mut reader, async |reader| {
        let frame = reader.next(MAX_BATCH_BYTES).await;
        Some((frame.transpose()?, reader))
    });
    // Stores send pings: a silent one counts as gone.
    let silence_limit = SHARD_PINGS.silence_limit();
    tokio::join!(session::serve(host, inbound, silence_limit, opened), write(writer, answer));
    // If this side closed first, the store's system might discard the last frame.
    let _ = timeout(FINAL_FRAMES_TIMEOUT, reader.closed()).await;
}

async fn write(mut writer: FrameWriter, opened: oneshot::Receiver<Result<Arc<SendQueue>>>) {
    let send_queue = match opened.await {
        Ok(Ok(send_queue)) => send_queue,
        Ok(Err(error)) => {
            let frame = ShardMessages { error: Some(encode(&error)), ..Default::default() };
            if writer.write(&frame).await.is_ok() {
                let _ = writer.end().await;
            }
            return;
        }
        Err(_) => return,
    };
    let overdue = async {
        send_queue.closed().await;
        sleep(FINAL_FRAMES_TIMEOUT).await;
    };
    let writing = async {
        let mut outbound = pin!(send_queue.clone().into_stream());
        while let Some(next) = outbound.next().await {
            let frame = next.unwrap_or_else(|error| ShardMessages {
                error: Some(encode(&error)),
                ..Default::default()
            });
            writer.write(&frame).await?;
        }
        writer.end().await
    };
    tokio::select! {
        _ = writing => {}
        () = overdue => {}
    }
}
