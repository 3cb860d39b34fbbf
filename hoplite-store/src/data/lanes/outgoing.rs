use std::collections::HashMap;
use std::io;
use std::mem::replace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::merge::LaneId;
use hoplite_core::plan::lanes::{
    HostLanes, LaneAction, Progress, REST_LIMIT, Start, StreamId, lane_limit,
};
use hoplite_core::time::Time;
use hoplite_net::nonce;
use hoplite_proto::data::lanes::{KEY_BYTES, StreamKey};
use tokio::sync::{MutexGuard as TurnGuard, watch};
use tokio::time::{Instant, timeout};

use super::super::serving::Ending;
use super::content::{Content, Cursor, Piece};

#[derive(Debug)]
pub(in super::super) struct OutgoingStreams {
    open: Mutex<HashMap<StreamKey, Weak<Outgoing>>>,
    host: Mutex<HostLanes>,
    acknowledged_bytes: AtomicU64,
}

impl OutgoingStreams {
    /// A stream starts with `first`, or a recently tested number of lanes, but one for each route.
    pub(in super::super) fn new(first: Start) -> Self {
        let host = Mutex::new(HostLanes::new(first));
        Self { open: Mutex::default(), host, acknowledged_bytes: AtomicU64::new(0) }
    }

    pub(in super::super) fn lanes_to(&self, peer: &NodeId) -> Option<usize> {
        lock(&self.host).last_result(peer)
    }

    pub(super) fn key_of(&self, stream: &Arc<Outgoing>) -> io::Result<StreamKey> {
        if let Some(key) = stream.key.get() {
            return Ok(*key);
        }
        let mut bytes = [0; KEY_BYTES];
        bytes.copy_from_slice(&nonce()?[..KEY_BYTES]);
        let key = *stream.key.get_or_init(|| StreamKey(bytes));
        lock(&self.open).insert(key, Arc::downgrade(stream));
        Ok(key)
    }

    pub(super) fn begin(
        &self,
        (now, peer): (Time, &NodeId),
        (content, cursor): (Content, Cursor),
        (routes, max_lanes): (usize, usize),
        delivery: Option<Delivery>,
    ) -> (Arc<Outgoing>, LaneId) {
        let limit = lane_limit(max_lanes, cursor.left_bytes());
        let supply = content.supply(&cursor);
        let id = (limit > 1).then(|| lock(&self.host).begin(now, peer, (routes, limit), supply));
        let lane = id.and_then(|id| lock(&self.host).join(id, delivery, 0)).unwrap_or(LaneId(0));
        let cursor = tokio::sync::Mutex::new(cursor);
        let (peer, key, resting) = (peer.clone(), OnceLock::new(), watch::Sender::new(false));
        (Arc::new(Outgoing { peer, content, key, cursor, resting, id }), lane)
    }

    pub(super) fn end(&self, stream: &Outgoing) {
        if let Some(key) = stream.key.get() {
            lock(&self.open).remove(key);
        }
        if let Some(id) = stream.id {
            lock(&self.host).end(id);
        }
    }

    /// Adds a lane if the stream needs one. `others` counts further streams that the peer receives.
    pub(super) fn join(
        &self,
        (key, others): (StreamKey, usize),
        peer: &NodeId,
        delivery: Option<Delivery>,
    ) -> Option<(Arc<Outgoing>, LaneId)> {
        let stream = lock(&self.open).get(&key).and_then(Weak::upgrade)?;
        let id = stream.id.filter(|_| stream.peer == *peer)?;
        let lane = lock(&self.host).join(id, delivery, others)?;
        Some((stream, lane))
    }

    /// Ends a lane. `is_whole` is `false` if the lane's connection broke.
    pub(super) fn end_lane(&self, stream: &Outgoing, lane: LaneId, is_whole: bool) {
        if let Some(id) = stream.id {
            lock(&self.host).leave(id, lane, is_whole);
            stream.resting.send_replace(false);
        }
    }

    /// Decides the next action of `lane`: a send has at most `block_bytes`. The peer has
    /// acknowledged `new_bytes` since the last turn.
    pub(super) fn take_turn(
        &self,
        stream: &Outgoing,
        lane: LaneId,
        mut ready: Ready<'_>,
        delivery: Option<Delivery>,
        (block_bytes, new_bytes): (u64, u64),
        now: Time,
    ) -> Turn {
        let acknowledged_bytes =
            self.acknowledged_bytes.fetch_add(new_bytes, Ordering::Relaxed) + new_bytes;
        let turn = stream.id.map(|id| {
            let (starved, left_bytes) = (ready.starved, ready.cursor.left_bytes());
            let progress = Progress { delivery, starved, left_bytes, acknowledged_bytes };
            lock(&self.host).turn(now, id, lane, &progress)
        });
        if let Some(Start { lanes, is_settled }) = turn.and_then(|turn| turn.result) {
            tracing::debug!(peer = %stream.peer, lanes, is_settled, "has tried more lanes");
        }
        if let Some(turn) = turn {
            let set =
                |is_resting: &mut bool| replace(is_resting, turn.is_resting) != turn.is_resting;
            stream.resting.send_if_modified(set);
        }
        let action = match turn.map_or(LaneAction::Send, |turn| turn.action) {
            LaneAction::Leave => Action::Leave,
            LaneAction::Rest => Action::Rest,
            LaneAction::Ask(count) => Action::Ask(count),
            LaneAction::Send => {
                Action::Send(stream.content.claim(&mut ready.cursor, ready.piece, block_bytes))
            }
        };
        let delivery = turn.map_or(delivery, |turn| turn.delivery);
        Turn { action, lanes: turn.map(|turn| turn.lanes), delivery }
    }
}

#[derive(Debug)]
pub(in super::super) struct Outgoing {
    pub(super) peer: NodeId,
    pub(super) content: Content,
    key: OnceLock<StreamKey>,
    /// The lock's holder takes the next bytes.
    cursor: tokio::sync::Mutex<Cursor>,
    /// `true` while some connections pause. The end of a connection wakes them.
    resting: watch::Sender<bool>,
    /// `None` if the stream may have only one connection.
    id: Option<StreamId>,
}

pub(super) struct Turn {
    pub(super) action: Action,
    /// Number of active or requested connections; `None` if only one is permitted.
    pub(super) lanes: Option<usize>,
    pub(super) delivery: Option<Delivery>,
}

pub(super) enum Action {
    Send(Piece),
    Ask(usize),
    /// End this connection, because the stream needs fewer.
    Leave,
    /// Pause in [`Outgoing::rest`], to measure the stream without this connection.
    Rest,
}

/// The next bytes of the stream, and the lock that lets one connection at a time take them.
pub(super) struct Ready<'a> {
    cursor: TurnGuard<'a, Cursor>,
    piece: Piece,
    starved: Duration,
}

impl Outgoing {
    /// Waits for the connection's turn, and then for bytes.
    pub(super) async fn ready(&self, most_bytes: u64) -> Result<Ready<'_>, Ending> {
        let cursor = self.cursor.lock().await;
        let begun = Instant::now();
        let piece = self.content.ready(&cursor, most_bytes).await?;
        Ok(Ready { cursor, piece, starved: begun.elapsed() })
    }

    /// Pauses a connection until the stream needs it again, for at most [`REST_LIMIT`].
    pub(super) async fn rest(&self) {
        let mut resting = self.resting.subscribe();
        let _ = timeout(REST_LIMIT, resting.wait_for(|is_resting| !is_resting)).await;
    }

    /// `true` if block sizes depend on the measured rate instead of a collective's plan.
    pub(super) const fn is_measured(&self) -> bool {
        self.id.is_some() || !matches!(self.content, Content::ProgramBlocks(_))
    }

    pub(super) fn has_key(&self) -> bool {
        self.key.get().is_some()
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
