//! The streams that a store sends: what each has left, its lanes, and what a lane does next.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::merge::LaneId;
use hoplite_core::plan::lanes::{LaneMemory, LanePlan, Start, lane_limit};
use hoplite_core::time::Time;
use hoplite_net::nonce;
use hoplite_proto::data::lanes::{KEY_BYTES, StreamKey};
use tokio::sync::MutexGuard as TurnGuard;
use tokio::time::Instant;

use super::super::serving::{Ending, Served};

/// The streams that a store sends.
#[derive(Debug)]
pub(in super::super) struct OutgoingStreams {
    /// The streams that other connections may join.
    open: Mutex<HashMap<StreamKey, Weak<Outgoing>>>,
    memory: Mutex<LaneMemory>,
    /// The bytes that receivers have acknowledged, of all streams.
    pub(super) acknowledged_bytes: AtomicU64,
}

impl OutgoingStreams {
    /// No streams. The first one to a store begins with `first`.
    pub(in super::super) fn new(first: Start) -> Self {
        let memory = Mutex::new(LaneMemory::new(first));
        Self { open: Mutex::default(), memory, acknowledged_bytes: AtomicU64::new(0) }
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

    /// Begins a stream of `range` of a copy, over a connection with this `delivery`. Returns it with its first lane.
    pub(super) fn begin(
        &self,
        (now, peer): (Time, &NodeId),
        served: Served,
        (range, awaits_hop): (Range<u64>, bool),
        max_lanes: usize,
        delivery: Option<Delivery>,
    ) -> (Arc<Outgoing>, LaneId) {
        let limit = lane_limit(max_lanes, range.end - range.start);
        let plan = LanePlan::new(limit, lock(&self.memory).start(now, peer));
        let mut lanes = Lanes { plan, next_lane: 0, asked: 1 };
        let lane = lanes.open(delivery);
        let stream = Outgoing {
            peer: peer.clone(),
            served,
            end_bytes: range.end,
            awaits_hop,
            key: OnceLock::new(),
            next_bytes: tokio::sync::Mutex::new(range.start),
            lanes: Mutex::new(lanes),
        };
        (Arc::new(stream), lane)
    }

    /// Ends a stream: no lane can join it from now on.
    pub(super) fn end(&self, now: Time, stream: &Outgoing) {
        if let Some(key) = stream.key.get() {
            lock(&self.open).remove(key);
        }
        if let Some(result) = lock(&stream.lanes).plan.result() {
            lock(&self.memory).ended(now, &stream.peer, result);
        }
    }

    /// Adds a lane to the stream of `peer` with this key, if that wants one.
    pub(super) fn join(
        &self,
        key: &StreamKey,
        peer: &NodeId,
        delivery: Option<Delivery>,
    ) -> Option<(Arc<Outgoing>, LaneId)> {
        let stream = lock(&self.open).get(key).and_then(Weak::upgrade)?;
        let mut lanes = lock(&stream.lanes);
        if stream.peer != *peer || lanes.plan.open() >= lanes.plan.wanted() {
            return None;
        }
        let lane = lanes.open(delivery);
        drop(lanes);
        Some((stream, lane))
    }
}

/// A stream of the bytes of one copy to one receiver.
#[derive(Debug)]
pub(in super::super) struct Outgoing {
    pub(super) peer: NodeId,
    pub(super) served: Served,
    end_bytes: u64,
    /// `true` if the copy is the output of a hop.
    pub(super) awaits_hop: bool,
    key: OnceLock<StreamKey>,
    /// The first byte that no lane has taken. The holder of the lock takes the next block, so the
    /// lanes wait in line.
    next_bytes: tokio::sync::Mutex<u64>,
    lanes: Mutex<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    plan: LanePlan,
    next_lane: usize,
    /// The number of lanes that are open, or that the receiver was asked to open.
    asked: usize,
}

impl Lanes {
    fn open(&mut self, delivery: Option<Delivery>) -> LaneId {
        let lane = LaneId(self.next_lane);
        self.next_lane += 1;
        self.plan.opened(lane, delivery);
        lane
    }
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
    /// Send these bytes.
    Send(Range<u64>),
    /// Ask the receiver for so many further lanes.
    Ask(usize),
    /// Leave the stream, which needs fewer lanes.
    Leave,
}

/// The next bytes of a stream, for the lane whose turn it is.
pub(super) struct Ready<'a> {
    next_bytes: TurnGuard<'a, u64>,
    valid_bytes: u64,
}

impl Outgoing {
    /// Waits for the turn of a lane, and for bytes. The error is the end of the stream.
    pub(super) async fn ready(&self) -> Result<Ready<'_>, Ending> {
        let next_bytes = self.next_bytes.lock().await;
        let begun = Instant::now();
        // A receiver of a part learns of its end when the object is complete, even if there are no more bytes to send.
        let valid_bytes = self.served.beyond_within(*next_bytes, self.end_bytes).await;
        lock(&self.lanes).plan.starved(begun.elapsed());
        match valid_bytes {
            Err(_) => Err(Ending::NoCopy),
            Ok(valid_bytes) if valid_bytes <= *next_bytes => Err(Ending::Complete),
            Ok(valid_bytes) => Ok(Ready { next_bytes, valid_bytes }),
        }
    }

    /// Decides what the lane does whose turn it is. It sends at most `block_bytes`. Receivers of all streams have acknowledged
    /// `acknowledged_bytes`.
    pub(super) fn take_turn(
        &self,
        lane: LaneId,
        mut ready: Ready<'_>,
        delivery: Option<Delivery>,
        block_bytes: u64,
        (now, acknowledged_bytes): (Time, u64),
    ) -> Turn {
        let mut lanes = lock(&self.lanes);
        let next_bytes = &mut *ready.next_bytes;
        lanes.plan.frame(now, lane, delivery, acknowledged_bytes, self.end_bytes - *next_bytes);
        let wanted = lanes.plan.wanted();
        let action = if lanes.plan.is_superfluous(lane) {
            Action::Leave
        } else if wanted > lanes.asked {
            Action::Ask(wanted - lanes.asked)
        } else {
            let range = *next_bytes..ready.valid_bytes.min(*next_bytes + block_bytes);
            *next_bytes = range.end;
            Action::Send(range)
        };
        lanes.asked = wanted.max(lanes.plan.open());
        let delivery = if lanes.asked > 1 { lanes.plan.delivery() } else { delivery };
        Turn { action, lanes: lanes.plan.is_adaptive().then_some(lanes.asked), delivery }
    }

    /// Ends a lane, which broke unless it `is_whole`.
    pub(super) fn end_lane(&self, lane: LaneId, is_whole: bool) {
        let mut lanes = lock(&self.lanes);
        if is_whole {
            lanes.plan.closed(lane);
        } else {
            lanes.plan.lost(lane);
        }
        lanes.asked = lanes.asked.saturating_sub(1);
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one call, so a panic elsewhere leaves the state whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
