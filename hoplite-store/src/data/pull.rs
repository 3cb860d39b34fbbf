use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::plan::link::RateSample;
use hoplite_core::shard::PullOutcome;
use hoplite_core::trace::TraceContext;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::v1;
use tokio_util::sync::CancellationToken;

use super::call::{Call, CallError};
use super::connection::ConnectionError;
use super::digest::digest;
use super::metrics::count;
use super::puller::{Flow, Puller};
use super::stream::{Arrived, InputStream, RemoteCopy, Sink};
use crate::copies::LiveCopy;

#[derive(Debug, Clone)]
pub(crate) struct PullRequest {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    /// All bytes before this offset are valid.
    pub(crate) offset_bytes: u64,
    pub(crate) sender: NodeId,
    pub(crate) sender_address: SocketAddr,
    /// Longest time without bytes before the pull gives its sender up; `None` for the limit of all
    /// peers.
    pub(crate) silence_limit: Option<Duration>,
    pub(crate) trace: Option<TraceContext>,
}

#[derive(Debug, Clone)]
pub(crate) struct CompareRequest {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    pub(crate) holder: NodeId,
    pub(crate) holder_address: SocketAddr,
}

impl Puller {
    /// Pulls an object into `live`, until all bytes have arrived or the pull must end.
    ///
    /// Returns the number of valid leading bytes, all checked, and the outcome. No memory is
    /// touched after the future ends or is dropped.
    pub(crate) async fn pull(
        &self,
        request: &PullRequest,
        live: &LiveCopy,
        cancel: &CancellationToken,
    ) -> (u64, PullOutcome) {
        let ended = cancel.run_until_cancelled(self.receive(request, live)).await;
        let valid_bytes = live.known_bytes().min(live.size_bytes());
        let all_arrived = valid_bytes == live.size_bytes();
        let outcome = match ended {
            None => PullOutcome::Cancelled,
            // Each byte was checked, so the outcome of the transfer no longer matters.
            Some(_) if all_arrived && request.offset_bytes < valid_bytes => PullOutcome::Complete,
            Some(outcome) => outcome,
        };
        tracing::debug!(
            id = %request.id, put = %request.put, sender = %request.sender, offset_bytes = request.offset_bytes,
            valid_bytes, ?outcome, "pulled"
        );
        (valid_bytes, outcome)
    }

    async fn receive(&self, request: &PullRequest, live: &LiveCopy) -> PullOutcome {
        let size_bytes = live.size_bytes();
        let mut offset_bytes = request.offset_bytes.min(live.known_bytes());
        let copy = RemoteCopy {
            id: &request.id,
            put: request.put,
            size_bytes,
            node: &request.sender,
            address: request.sender_address,
            awaits_hop: false,
            silence_limit: request.silence_limit,
            trace: request.trace,
        };
        let mut stream = InputStream::new(self, copy, size_bytes, *live.signs().borrow());
        let (mut sample, mut flow) = (RateSample::default(), None);
        loop {
            let sink = Sink::Arena { buffer: live.buffer(), base_bytes: 0 };
            match stream.next(offset_bytes, sink).await {
                Ok(Arrived::Block { length_bytes }) => {
                    offset_bytes += length_bytes;
                    live.advance(offset_bytes);
                    let now = self.now();
                    sample.arrived(now, length_bytes);
                    flow.get_or_insert_with(|| Flow::begin(self));
                    self.lock_intake().arrived(now, length_bytes);
                }
                Ok(Arrived::Sign(sign)) => live.heard(sign),
                Ok(Arrived::End(end)) => {
                    self.transferred(sample);
                    return stream.ended(&end, offset_bytes == size_bytes);
                }
                Err(outcome) => return outcome,
            }
        }
    }

    pub(super) fn outcome(&self, id: &ObjectId, sender: &NodeId, error: &CallError) -> PullOutcome {
        warn_repeated!(%id, %sender, %error, "a transfer failed");
        match error {
            CallError::Connection(ConnectionError::Idle(_) | ConnectionError::Stalled(_)) => {
                PullOutcome::SenderStalled
            }
            CallError::Connection(error) if error.is_malformed() => {
                count(&self.metrics.corrupt_frames, 1);
                PullOutcome::Corrupt
            }
            CallError::Connect(_) | CallError::Connection(_) => PullOutcome::SenderUnreachable,
        }
    }

    /// Returns `true` if the complete copy `live` has the same bytes as another store's put in
    /// `request`; `None` if the comparison failed. Waits while that store sends keepalives. No
    /// memory is touched after the future ends or is dropped.
    pub(crate) async fn compare(
        &self,
        request: &CompareRequest,
        live: &LiveCopy,
        cancel: &CancellationToken,
    ) -> Option<bool> {
        let theirs = self.request_digest(request);
        let (ours, theirs) =
            cancel.run_until_cancelled(async { tokio::join!(digest(live), theirs) }).await?;
        match (ours, theirs) {
            (Ok(ours), Ok(Some(theirs))) => Some(*theirs == ours),
            (Err(_), _) | (_, Ok(None)) => None,
            (_, Err(error)) => {
                warn_repeated!(id = %request.id, holder = %request.holder, %error, "a comparison failed");
                None
            }
        }
    }

    /// Returns `None` if the other store has no copy.
    async fn request_digest(&self, request: &CompareRequest) -> Result<Option<Bytes>, CallError> {
        let id = Bytes::copy_from_slice(request.id.as_bytes());
        let message = v1::DigestRequest { id, put: request.put.0 };
        let peer = (request.holder.clone(), request.holder_address);
        let mut call = Call::begin(self, peer, Kind::DigestRequest, &message).await?;
        let digest = loop {
            let header = call.read_header().await?;
            let connection = call.connection();
            match header.kind() {
                Kind::Keepalive => drop(connection.read_control::<v1::Keepalive>(&header).await?),
                Kind::Digest => {
                    break Some(connection.read_control::<v1::Digest>(&header).await?.xxh3_128);
                }
                Kind::End => {
                    connection.read_control::<v1::End>(&header).await?;
                    break None;
                }
                kind => return Err(ConnectionError::Unexpected(kind).into()),
            }
        };
        call.finish();
        Ok(digest)
    }
}
