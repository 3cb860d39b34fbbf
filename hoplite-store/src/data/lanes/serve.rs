use std::sync::Arc;
use std::sync::atomic::Ordering;

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::merge::LaneId;
use hoplite_core::plan::blocks::{BlockSizes, MIN_BLOCK_BYTES};
use hoplite_core::plan::link::SAMPLE_INTERVAL;
use hoplite_core::time::Time;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::lanes::{StreamKey, encode_lanes};
use hoplite_proto::v1;
use tokio::time::Instant;

use super::super::collective::MemberHost;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::metrics::count;
use super::super::server::Server;
use super::super::serving::{Ending, HopHost, ServeSource, end_message};
use super::content::{Content, Cursor};
use super::outgoing::{Action, Outgoing};

/// Two of the smallest blocks: few, because a faster connection cannot take over bytes that the
/// kernel has accepted.
const MIN_UNSENT_BYTES: u64 = 32 << 10;

enum LaneEnd {
    WithStream(Ending),
    Left,
}

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Sends a stream over this connection and further lanes. Returns the end of the stream, and
    /// `true` if this store requested lanes.
    pub(in super::super) async fn send_stream(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        stream: (Content, Cursor),
        max_lanes: usize,
    ) -> (Result<Ending, ConnectionError>, bool) {
        let max_lanes = max_lanes.min(self.config.max_lanes);
        let delivery = if self.config.max_lanes > 1 { connection.delivery() } else { None };
        let lanes = (self.config.rails.routes(peer), max_lanes);
        let (stream, lane) = self.streams.begin((self.now(), peer), stream, lanes, delivery);
        let ended = self.send_lane(connection, &stream, (lane, delivery)).await;
        self.streams.end(&stream);
        let ended = ended.and_then(|ended| match ended {
            LaneEnd::WithStream(ending) => Ok(ending),
            LaneEnd::Left => Err(ConnectionError::Nonsense("the last lane of a stream left it")),
        });
        (ended, stream.has_key())
    }

    /// Makes a connection, which the receiver of a stream has opened, a lane of the stream.
    /// [`ConnectionError::Closed`] if the stream no longer needs it.
    pub(in super::super) async fn answer_lane(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        lane: (StreamKey, usize),
    ) -> Result<(), ConnectionError> {
        let delivery = connection.delivery();
        let Some((stream, lane)) = self.streams.join(lane, peer, delivery) else {
            return connection.write_control(Kind::End, &end_message(Ending::NoCopy)).await;
        };
        count(&self.metrics.lanes_opened, 1);
        self.metrics.lanes.fetch_add(1, Ordering::Relaxed);
        let ended = self.send_lane(connection, &stream, (lane, delivery)).await;
        self.metrics.lanes.fetch_sub(1, Ordering::Relaxed);
        // Nothing may touch the copy once the receiver has the answer.
        drop(stream);
        match ended {
            Ok(LaneEnd::WithStream(ending)) => {
                count(&self.metrics.lanes_ended, 1);
                connection.write_control(Kind::End, &end_message(ending)).await
            }
            Ok(LaneEnd::Left) => {
                count(&self.metrics.lanes_left, 1);
                let released =
                    v1::End { outcome: v1::end::Outcome::Released.into(), ..v1::End::default() };
                connection.write_control(Kind::End, &released).await?;
                Err(ConnectionError::Closed)
            }
            Err(error) => {
                count(&self.metrics.lanes_lost, 1);
                Err(error)
            }
        }
    }

    /// `delivery` has the connection's statistics at the start.
    async fn send_lane(
        &self,
        connection: &mut PeerConnection,
        stream: &Arc<Outgoing>,
        (lane, delivery): (LaneId, Option<Delivery>),
    ) -> Result<LaneEnd, ConnectionError> {
        let ended = self.send_blocks(connection, stream, lane, delivery).await;
        self.streams.end_lane(stream, lane, ended.is_ok());
        connection.limit_unsent(0);
        ended
    }

    async fn send_blocks(
        &self,
        connection: &mut PeerConnection,
        stream: &Arc<Outgoing>,
        lane: LaneId,
        delivery: Option<Delivery>,
    ) -> Result<LaneEnd, ConnectionError> {
        let keepalive = self.keepalive(stream.content.awaited());
        let (mut sizes, begun) = (BlockSizes::default(), Instant::now());
        let mut sample_at = begun + SAMPLE_INTERVAL;
        let is_measured = stream.is_measured();
        let acknowledged =
            |delivery: Option<Delivery>| delivery.map_or(0, |known| known.acknowledged_bytes);
        let mut before_bytes = acknowledged(delivery);
        let mut most_bytes = if is_measured { MIN_BLOCK_BYTES } else { u64::MAX };
        loop {
            // The next block has at most twice the size of this one.
            let ready = stream.ready(most_bytes.saturating_mul(2));
            let ready = match keepalive.during(connection, ready).await? {
                Ok(ready) => ready,
                Err(ending) => return Ok(LaneEnd::WithStream(ending)),
            };
            let now = Instant::now();
            let delivery =
                if is_measured || now >= sample_at { connection.delivery() } else { None };
            let mut new_bytes = 0;
            if is_measured {
                most_bytes = sizes.next(Time::ZERO + now.duration_since(begun), delivery);
                new_bytes = acknowledged(delivery).saturating_sub(before_bytes);
                before_bytes = acknowledged(delivery);
            }
            let bytes = (most_bytes, new_bytes);
            let turn = self.streams.take_turn(stream, lane, ready, delivery, bytes, self.now());
            if stream.content.measures_link() {
                self.sample(&mut sample_at, now, &stream.peer, turn.delivery);
            }
            match turn.action {
                Action::Leave => return Ok(LaneEnd::Left),
                Action::Rest => keepalive.during(connection, stream.rest()).await?,
                Action::Ask(count) => {
                    let key = self.streams.key_of(stream)?;
                    connection.write_control(Kind::Lanes, &encode_lanes(key, count)).await?;
                }
                Action::Send(piece) => {
                    connection.limit_unsent(unsent_limit(turn.lanes, most_bytes));
                    stream.content.send(connection, &piece).await?;
                    let sent_bytes = piece.range.end - piece.range.start;
                    count(&self.metrics.sent_bytes, sent_bytes);
                    self.config.rails.sent(connection.rail, sent_bytes);
                }
            }
        }
    }
}

/// A lane's limit of unsent bytes in the kernel; zero for its default. A stream that may get
/// further lanes has a limit from the start, because no lane can take over bytes in the kernel.
fn unsent_limit(lanes: Option<usize>, block_bytes: u64) -> u64 {
    match lanes {
        None => 0,
        Some(1) => 4 * MIN_UNSENT_BYTES.max(block_bytes),
        Some(_) => MIN_UNSENT_BYTES.max(block_bytes),
    }
}
