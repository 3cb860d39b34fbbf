//! Sends a stream over its lanes. Each lane is a task.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::merge::LaneId;
use hoplite_core::plan::blocks::BlockSizes;
use hoplite_core::plan::link::SAMPLE_INTERVAL;
use hoplite_core::time::Time;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::lanes::{StreamKey, encode_lanes};
use hoplite_proto::v1;
use tokio::time::{Instant, timeout};

use super::super::collective::MemberHost;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::keepalive::Awaited;
use super::super::metrics::count;
use super::super::server::Server;
use super::super::serving::{Ending, HopHost, ServeSource, Served, end_message};
use super::outgoing::{Action, Outgoing};

/// Time limit for the block that is in flight when its copy fails. The end behind it tells the
/// receiver why the transfer ends.
const LAST_BLOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Fewest unsent bytes that the kernel accepts for a lane: two of the smallest blocks. A faster
/// lane cannot send what a slow one has accepted.
const MIN_UNSENT_BYTES: u64 = 32 << 10;

/// The end of a lane.
enum LaneEnd {
    /// The stream has ended.
    WithStream(Ending),
    /// The stream goes on with fewer lanes.
    Left,
}

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Sends a range of the bytes of one copy, over this connection and the lanes that join it.
    pub(in super::super) async fn send_stream(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        served: Served,
        part: (Range<u64>, bool),
        max_lanes: usize,
    ) -> Result<Ending, ConnectionError> {
        let (max_lanes, delivery) = (max_lanes.min(self.config.max_lanes), connection.delivery());
        let (stream, lane) = self.streams.begin((self.now(), peer), served, part, max_lanes, delivery);
        let ended = self.send_lane(connection, &stream, lane).await;
        self.streams.end(self.now(), &stream);
        match ended? {
            LaneEnd::WithStream(ending) => Ok(ending),
            LaneEnd::Left => Err(ConnectionError::Nonsense("the last lane of a stream left it")),
        }
    }

    /// Makes a connection a lane of a stream of its peer.
    ///
    /// # Errors
    /// The errors of the connection; [`ConnectionError::Closed`] if the stream needs it no longer.
    pub(in super::super) async fn answer_lane(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        key: &StreamKey,
    ) -> Result<(), ConnectionError> {
        let Some((stream, lane)) = self.streams.join(key, peer, connection.delivery()) else {
            // The stream may have ended in the meantime.
            return connection.write_control(Kind::End, &end_message(Ending::NoCopy)).await;
        };
        count(&self.metrics.lanes_opened, 1);
        self.metrics.lanes.fetch_add(1, Ordering::Relaxed);
        let ended = self.send_lane(connection, &stream, lane).await;
        self.metrics.lanes.fetch_sub(1, Ordering::Relaxed);
        // Before the answer, so that nothing touches the copy when the receiver has it.
        drop(stream);
        match ended {
            Ok(LaneEnd::WithStream(ending)) => {
                connection.write_control(Kind::End, &end_message(ending)).await
            }
            Ok(LaneEnd::Left) => {
                count(&self.metrics.lanes_left, 1);
                let released = v1::End { outcome: v1::end::Outcome::Released.into(), ..v1::End::default() };
                connection.write_control(Kind::End, &released).await?;
                Err(ConnectionError::Closed)
            }
            Err(error) => {
                count(&self.metrics.lanes_lost, 1);
                Err(error)
            }
        }
    }

    /// Sends blocks of a stream over one of its lanes until the stream ends, or needs fewer lanes.
    async fn send_lane(
        &self,
        connection: &mut PeerConnection,
        stream: &Arc<Outgoing>,
        lane: LaneId,
    ) -> Result<LaneEnd, ConnectionError> {
        let ended = self.send_blocks(connection, stream, lane).await;
        stream.end_lane(lane, ended.is_ok());
        connection.limit_unsent(0);
        ended
    }

    async fn send_blocks(
        &self,
        connection: &mut PeerConnection,
        stream: &Arc<Outgoing>,
        lane: LaneId,
    ) -> Result<LaneEnd, ConnectionError> {
        let keepalive = self.keepalive(Awaited::Copy(&stream.served));
        let (mut sizes, begun) = (BlockSizes::default(), Instant::now());
        let mut sample_at = begun + SAMPLE_INTERVAL;
        let mut before_bytes = connection.delivery().map_or(0, |delivery| delivery.acknowledged_bytes);
        loop {
            let ready = match keepalive.during(connection, stream.ready()).await? {
                Ok(ready) => ready,
                Err(ending) => return Ok(LaneEnd::WithStream(ending)),
            };
            let (delivery, now) = (connection.delivery(), Instant::now());
            let block_bytes = sizes.next(Time::ZERO + now.duration_since(begun), delivery);
            let acknowledged_bytes = delivery.map_or(0, |delivery| delivery.acknowledged_bytes);
            let new_bytes = acknowledged_bytes.saturating_sub(before_bytes);
            before_bytes = acknowledged_bytes;
            let total = &self.streams.acknowledged_bytes;
            let so_far = (self.now(), total.fetch_add(new_bytes, Ordering::Relaxed) + new_bytes);
            let turn = stream.take_turn(lane, ready, delivery, block_bytes, so_far);
            // A receiver of the output of a hop also waits for its other inputs, so the rate does not measure the link.
            if !stream.awaits_hop {
                self.sample(&mut sample_at, now, &stream.peer, turn.delivery);
            }
            match turn.action {
                Action::Leave => return Ok(LaneEnd::Left),
                Action::Ask(count) => {
                    let key = self.streams.key_of(stream)?;
                    connection.write_control(Kind::Lanes, &encode_lanes(key, count)).await?;
                }
                Action::Send(range) => {
                    connection.limit_unsent(unsent_limit(turn.lanes, block_bytes));
                    let length_bytes = range.end - range.start;
                    send_block(connection, &stream.served, range).await?;
                    count(&self.metrics.sent_bytes, length_bytes);
                }
            }
        }
    }
}

/// Returns the limit of the unsent bytes of a lane. A stream that may get further lanes starts with
/// a limit too, because they cannot overtake the bytes that the first one has accepted.
fn unsent_limit(lanes: Option<usize>, block_bytes: u64) -> u64 {
    match lanes {
        None => 0,
        Some(1) => 4 * MIN_UNSENT_BYTES.max(block_bytes),
        Some(_) => MIN_UNSENT_BYTES.max(block_bytes),
    }
}

async fn send_block(
    connection: &mut PeerConnection,
    served: &Served,
    range: Range<u64>,
) -> Result<(), ConnectionError> {
    let mut sending = pin!(connection.write_block(range, served.buffer()));
    tokio::select! {
        biased;
        sent = &mut sending => return sent,
        () = served.failed() => {}
    }
    let limit = LAST_BLOCK_TIMEOUT;
    timeout(limit, sending).await.map_err(|_| ConnectionError::Idle(limit))?
}
