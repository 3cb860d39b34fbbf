//! One session with a store, from its hello to its end.

use std::sync::Arc;

use hoplite_core::error::{Error, Operation, Plane, Result};
use hoplite_core::id::ClusterId;
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_proto::directory::{BypassKey, decode_hello};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::StoreMessages;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use crate::direct::DirectConnections;
use crate::owner::{SessionId, ShardHandle};
use crate::said::decode;
use crate::send_queue::SendQueue;
use crate::watch::Loads;

/// The shard that a session is opened with, and the cluster that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The task that owns the shard.
    pub(crate) shard: ShardHandle,
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// How the stores are.
    pub(crate) loads: Loads,
    /// The direct connections of sessions, if they are allowed.
    pub(crate) direct: Option<DirectConnections>,
    /// Says that the daemon stops.
    pub(crate) stop: CancellationToken,
}

/// Serves what arrives in one session.
///
/// `opened` is given the queue once the store is accepted, and its direct connection if it has one, or else the reason. The session is closed in any case,
/// also when the call that opened it is gone by then.
pub(crate) async fn serve(
    host: Host,
    mut inbound: Streaming<StoreMessages>,
    opened: oneshot::Sender<Result<(Arc<SendQueue>, Option<BypassKey>)>>,
) {
    let opening = tokio::select! {
        opening = open(&host, &mut inbound) => opening,
        () = host.stop.cancelled() => Err(Error::ShuttingDown),
    };
    let (session, send_queue) = match opening {
        Ok(session) => session,
        Err(error) => {
            tracing::debug!(%error, "a session was not opened");
            let _ = opened.send(Err(error));
            return;
        }
    };
    let offer = host.direct.as_ref().and_then(|direct| direct.offer(session, send_queue.clone()));
    if opened.send(Ok((send_queue.clone(), offer.as_ref().map(|offer| offer.key)))).is_ok() {
        match read(&host.shard, session, &send_queue, inbound).await {
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "a session was broken");
                send_queue.fail(error);
            }
        }
    }
    // An error means that the shard is gone, and the session with it.
    let _ = host.shard.close(session).await;
}

async fn open(host: &Host, inbound: &mut Streaming<StoreMessages>) -> Result<(SessionId, Arc<SendQueue>)> {
    let first = timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Error::timeout(Operation::Connect, HELLO_TIMEOUT))?
        .map_err(|status| from_status(&status))?;
    let Some(StoreMessages { hello: Some(hello), messages }) = first else {
        return Err(Error::malformed(Plane::Control, "a session starts with a hello"));
    };
    let info = decode_hello(hello, &host.cluster)?;
    let early = decode(StoreMessages { hello: None, messages })?;
    let send_queue = Arc::new(SendQueue::default());
    let session = host.shard.open(info, send_queue.clone()).await?;
    if !early.is_empty() {
        host.shard.say(session, early).await?;
    }
    Ok((session, send_queue))
}

/// Reads until the store or the shard ends the session.
async fn read(
    shard: &ShardHandle,
    session: SessionId,
    send_queue: &SendQueue,
    mut inbound: Streaming<StoreMessages>,
) -> Result<()> {
    loop {
        let next = async {
            send_queue.room().await;
            inbound.message().await
        };
        let batch = tokio::select! {
            next = next => next.map_err(|status| from_status(&status))?,
            () = send_queue.closed() => None,
        };
        let Some(batch) = batch else { return Ok(()) };
        shard.say(session, decode(batch)?).await?;
    }
}
