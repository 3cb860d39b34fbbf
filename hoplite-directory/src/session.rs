use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use hoplite_core::Version;
use hoplite_core::error::{Error, Operation, Plane, Result};
use hoplite_core::id::ClusterId;
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_core::shard::ShardRun;
use hoplite_proto::directory::decode_hello;
use hoplite_proto::v1::StoreMessages;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::batch::decode;
use crate::events::Events;
use crate::owner::{SessionId, ShardHandle};
use crate::refusals::Refusals;
use crate::send_queue::SendQueue;
use crate::watch::Loads;

#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) shard: ShardHandle,
    pub(crate) cluster: ClusterId,
    pub(crate) run: ShardRun,
    pub(crate) newest: Version,
    pub(crate) loads: Loads,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) events: Events,
    pub(crate) stop: CancellationToken,
}

/// Serves one session's frames, and closes the session in any case.
///
/// `opened` receives the send queue, or the reason of a refusal. The session ends if the store
/// sends no frame, or takes none, for `silence_limit`.
pub(crate) async fn serve(
    host: Host,
    inbound: impl Stream<Item = Result<StoreMessages>>,
    silence_limit: Duration,
    opened: oneshot::Sender<Result<Arc<SendQueue>>>,
) {
    let mut inbound = pin!(inbound);
    let opening = tokio::select! {
        opening = open(&host, &mut inbound) => opening,
        () = host.stop.cancelled() => Err(Error::ShuttingDown),
    };
    let (session, send_queue) = match opening {
        Ok(session) => session,
        Err(error) => {
            match &error {
                Error::VersionMismatch { .. } => {
                    host.refusals.report(&host.events, "a store", &error)
                }
                error => tracing::debug!(%error, "a session was not opened"),
            }
            let _ = opened.send(Err(error));
            return;
        }
    };
    if opened.send(Ok(send_queue.clone())).is_ok()
        && let Err(error) = read(&host.shard, session, &send_queue, inbound, silence_limit).await
    {
        tracing::debug!(%error, "a session was broken");
        send_queue.fail(error);
    }
    // Fails only if the shard's task has ended.
    let _ = host.shard.close(session).await;
}

async fn open(
    host: &Host,
    mut inbound: impl Stream<Item = Result<StoreMessages>> + Unpin,
) -> Result<(SessionId, Arc<SendQueue>)> {
    let first = timeout(HELLO_TIMEOUT, inbound.next())
        .await
        .map_err(|_| Error::timeout(Operation::Connect, HELLO_TIMEOUT))?;
    let Some(StoreMessages { hello: Some(hello), messages }) = first.transpose()? else {
        return Err(Error::malformed(Plane::Control, "a session starts with a hello"));
    };
    let info = decode_hello(hello, &host.cluster, host.newest)?;
    let early = decode(StoreMessages { hello: None, messages })?;
    let send_queue = Arc::new(SendQueue::of(host.run, host.newest));
    let session = host.shard.open(info, send_queue.clone()).await?;
    if !early.is_empty() {
        host.shard.send_messages(session, early).await?;
    }
    Ok((session, send_queue))
}

async fn read(
    shard: &ShardHandle,
    session: SessionId,
    send_queue: &SendQueue,
    mut inbound: impl Stream<Item = Result<StoreMessages>> + Unpin,
    silence_limit: Duration,
) -> Result<()> {
    loop {
        let next = async {
            send_queue.wait_for_space(silence_limit).await?;
            timeout(silence_limit, inbound.next())
                .await
                .map_err(|_| Error::unavailable("the store"))
        };
        let batch = tokio::select! {
            next = next => next?,
            () = send_queue.closed() => None,
        };
        match batch.transpose()? {
            Some(batch) if batch == StoreMessages::default() => send_queue.answer_ping(),
            Some(batch) => shard.send_messages(session, decode(batch)?).await?,
            None => return Ok(()),
        }
    }
}
