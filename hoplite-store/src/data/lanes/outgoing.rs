//! The streams that a store sends: what each has left, its lanes, and what a lane does next.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::merge::LaneId;
use hoplite_core::plan::lanes::{HostLanes, LaneAction, Progress, Start, StreamId, lane_limit};
use hoplite_core::time::Time;
use hoplite_net::nonce;
use hoplite_proto::data::lanes::{KEY_BYTES, StreamKey};
use tokio::sync::MutexGuard as TurnGuard;
use tokio::time::Instant;

use super::super::serving::Ending;
use super::content::{Content, Cursor, Piece};

/// The streams that a store sends.
#[derive(Debug)]
pub(in super::super) struct OutgoingStreams {
    /// The streams that other connections may join.
    open: Mutex<HashMap<StreamKey, Weak<Outgoing>>>,
    host: Mutex<HostLanes>,
    /// The bytes that receivers have acknowledged, of all streams.
    acknowledged_bytes: AtomicU64,
}

impl OutgoingStreams {
    /// No streams. The first one to a store begins with `first`.
    pub(in super::super) fn new(first: Start) -> Self {
        let host = Mutex::new(HostLanes::new(first));
        Self { open: Mutex::default(), host, acknowledged_bytes: AtomicU64::new(0) }
    }

    /// Returns the key of a stream. From the first call on, other connections may join the stream.
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

    /// Begins a stream over a connection with this `delivery`. Returns it with its first lane.
    pub(super) fn begin(
        &self,
        (now, peer): (Time, &NodeId),
        (content, cursor): (Content, Cursor),
        max_lanes: usize,
        delivery: Option<Delivery>,
    ) -> (Arc<Outgoing>, LaneId) {
        let limit = lane_limit(max_lanes, cursor.left_bytes());
        let supply = content.supply(&cursor);
        let id = (limit > 1).then(|| lock(&self.host).begin(now, peer, limit, supply));
        let lane = id.and_then(|id| lock(&self.host).join(id, delivery, 0)).unwrap_or(LaneId(0));
        let cursor = tokio::sync::Mutex::new(cursor);
        (Arc::new(Outgoing { peer: peer.clone(), content, key: OnceLock::new(), cursor, id }), lane)
    }

    /// Ends a stream: no lane can join it from now on.
    pub(super) fn end(&self, stream: &Outgoing) {
        if let Some(key) = stream.key.get() {
            lock(&self.open).remove(key);
        }
        if let Some(id) = stream.id {
            lock(&self.host).end(id);
        }
    }

    /// Adds a lane to the stream of `peer` with this key, if that wants one. The peer takes in
    /// `others` further streams.
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

    /// Ends a lane, which broke unless it `is_whole`.
    pub(super) fn end_lane(&self, stream: &Outgoing, lane: LaneId, is_whole: bool) {
        if let Some(id) = stream.id {
            lock(&self.host).leave(id, lane, is_whole);
        }
    }

    /// Decides what the lane does whose turn it is. It sends at most `block_bytes`, and `new_bytes` of its bytes have been
    /// acknowledged since its last turn.
    pub(super) fn take_turn(
        &self,
        stream: &Outgoing,
        lane: LaneId,
        mut ready: Ready<'_>,
        delivery: Option<Delivery>,
        (block_bytes, new_bytes): (u64, u64),
        now: Time,
    ) -> Turn {
        let acknowledged_bytes = self.acknowledged_bytes.fetch_add(new_bytes, Ordering::Relaxed) + new_bytes;
        let turn = stream.id.map(|id| {
            let (starved, left_bytes) = (ready.starved, ready.cursor.left_bytes());
            let progress = Progress { delivery, starved, left_bytes, acknowledged_bytes };
            lock(&self.host).turn(now, id, lane, &progress)
        });
        if let Some(Start { lanes, is_settled }) = turn.and_then(|turn| turn.result) {
            tracing::debug!(peer = %stream.peer, lanes, is_settled, "has tried more lanes");
        }
        let action = match turn.map_or(LaneAction::Send, |turn| turn.action) {
            LaneAction::Leave => Action::Leave,
            LaneAction::Ask(count) => Action::Ask(count),
            LaneAction::Send => {
                Action::Send(stream.content.take(&mut ready.cursor, ready.piece, block_bytes))
            }
        };
        let delivery = turn.map_or(delivery, |turn| turn.delivery);
        Turn { action, lanes: turn.map(|turn| turn.lanes), delivery }
    }
}

/// A stream to one receiver.
#[derive(Debug)]
pub(in super::super) struct Outgoing {
    pub(super) peer: NodeId,
    pub(super) content: Content,
    key: OnceLock<StreamKey>,
    /// The holder of the lock takes the next piece, so the lanes wait in line.
    cursor: tokio::sync::Mutex<Cursor>,
    /// `None` if the stream stays with one lane.
    id: Option<StreamId>,
}

/// The turn of a lane.
pub(super) struct Turn {
    pub(super) action: Action,
    /// The number of lanes that the stream has, or is about to have; `None` if it stays with one.
    pub(super) lanes: Option<usize>,
    /// The delivery of all lanes together.
    pub(super) delivery: Option<Delivery>,
}

pub(super) enum Action {
    /// Send this piece.
    Send(Piece),
    /// Ask the receiver for so many further lanes.
    Ask(usize),
    /// Leave the stream, which needs fewer lanes.
    Leave,
}

/// The next piece of a stream, for the lane whose turn it is.
pub(super) struct Ready<'a> {
    cursor: TurnGuard<'a, Cursor>,
    piece: Piece,
    starved: Duration,
}

impl Outgoing {
    /// Waits for the turn of a lane, and for bytes. The error is the end of the stream.
    /// The lane sends at most `most_bytes` of them.
    pub(super) async fn ready(&self, most_bytes: u64) -> Result<Ready<'_>, Ending> {
        let cursor = self.cursor.lock().await;
        let begun = Instant::now();
        let piece = self.content.ready(&cursor, most_bytes).await?;
        Ok(Ready { cursor, piece, starved: begun.elapsed() })
    }

    /// Returns `true` if the sizes of blocks depend on the rate, not on the plan of a collective.
    pub(super) const fn is_measured(&self) -> bool {
        self.id.is_some() || !matches!(self.content, Content::Gift(_))
    }

    /// Returns `true` if other connections may have joined the stream.
    pub(super) fn has_key(&self) -> bool {
        self.key.get().is_some()
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one call, so a panic elsewhere leaves the state whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
