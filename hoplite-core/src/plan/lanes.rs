//! Chooses the number of connections (lanes) of the streams that a store sends.
//!
//! Clouds cap the rate of one connection, and on a long path its window limits the rate. No counter
//! of the kernel tells a capped connection from a full link, so a trial decides. A stream starts
//! with one lane for each route. While the network limits a stream, the store doubles the number of
//! lanes, and keeps the new lanes if the stream's rate rose by an eighth, or else closes them.
//!
//! A busy machine can feign a gain. So a new second lane then rests (sends nothing), and stays only
//! if the rate falls without it.
//!
//! A gain must also show in the total rate of the store, which tests one stream at a time.
//! Otherwise, the new lanes took their bytes from the store's other streams.
//!
//! Concurrent streams between two stores divide the lanes.

use std::collections::BTreeMap;

use crate::id::NodeId;
use crate::link::Delivery;
use crate::merge::LaneId;
use crate::time::Time;

mod memory;
mod rates;
mod silence;
mod trial;

use memory::LaneMemory;
pub use silence::{GiveUp, Silence, WaitingLane};
use trial::{Host, LanePlan, Verdict};
pub use trial::{LANE_BYTES, MAX_LANES, Progress, REST_LIMIT, Start, Supply, lane_limit};

/// Default limit: one connection for each stream.
pub const DEFAULT_MAX_LANES: usize = 1;

/// A stream that this store sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

/// Next action of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAction {
    /// Send a frame.
    Send,
    /// Request this number of further connections from the receiver.
    Ask(usize),
    /// Leave the stream, which no longer needs the connection.
    Leave,
    /// Send nothing until another lane's turn has [`Turn::is_resting`] `false`, or for
    /// [`REST_LIMIT`].
    Rest,
}

/// Decision for a lane about to send a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Next action.
    pub action: LaneAction,
    /// Number of connections that send, or are being opened.
    pub lanes: usize,
    /// `true` while some connections rest.
    pub is_resting: bool,
    /// Sum of the active lanes' measurements.
    pub delivery: Option<Delivery>,
    /// Number of connections for the peer's next stream, if a test ends now.
    pub result: Option<Start>,
}

impl Turn {
    const fn of_one_lane(progress: &Progress) -> Self {
        let (action, delivery) = (LaneAction::Send, progress.delivery);
        Self { action, lanes: 1, is_resting: false, delivery, result: None }
    }
}

/// Decides on the lanes of each stream that a store sends.
#[derive(Debug)]
pub struct HostLanes {
    memory: LaneMemory,
    streams: BTreeMap<StreamId, Stream>,
    next_stream: u64,
    limited: usize,
    tester: Option<StreamId>,
    changes: u64,
    /// Number of finished tests plus `changes`. A stream that saw a smaller number adapts to newer
    /// results.
    news: u64,
}

#[derive(Debug)]
struct Stream {
    peer: NodeId,
    plan: LanePlan,
    next_lane: usize,
    /// Connections, open or requested.
    asked: usize,
    news: u64,
}

impl HostLanes {
    /// Makes a state without streams. Streams start with `first` until a test finds another number.
    pub fn new(first: Start) -> Self {
        let (memory, streams) = (LaneMemory::new(first), BTreeMap::new());
        Self { memory, streams, next_stream: 0, limited: 0, tester: None, changes: 0, news: 0 }
    }

    /// Begins a stream with at most `max_lanes` lanes. It starts with one for each of the `routes`
    /// to the peer, or more.
    pub fn begin(
        &mut self,
        now: Time,
        peer: &NodeId,
        (routes, max_lanes): (usize, usize),
        supply: Supply,
    ) -> StreamId {
        let is_tester = supply == Supply::Whole && self.tester.is_none();
        let busy = self.limited + 1;
        let start = self.memory.start(now, peer, busy, is_tester);
        let start = Start { lanes: start.lanes.max(routes), ..start };
        self.changed();
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        let plan = LanePlan::new(max_lanes, start, supply);
        self.limited += usize::from(plan.is_limited());
        let news = self.news;
        self.streams
            .insert(stream, Stream { peer: peer.clone(), plan, next_lane: 0, asked: 1, news });
        stream
    }

    /// Ends a stream.
    pub fn end(&mut self, stream: StreamId) {
        let ended = self.streams.remove(&stream);
        self.limited -= usize::from(ended.is_some_and(|ended| ended.plan.is_limited()));
        self.tester.take_if(|tester| *tester == stream);
        self.changed();
    }

    fn changed(&mut self) {
        (self.changes, self.news) = (self.changes + 1, self.news + 1);
    }

    /// Adds a connection to a stream. `delivery` includes the bytes of the connection's earlier
    /// streams, which are subtracted. The receiver has `others` further streams. Returns `None` if
    /// the stream has enough connections.
    pub fn join(
        &mut self,
        stream: StreamId,
        delivery: Option<Delivery>,
        others: usize,
    ) -> Option<LaneId> {
        let stream = self.streams.get_mut(&stream).filter(|stream| !stream.plan.is_full())?;
        let lane = LaneId(stream.next_lane);
        stream.next_lane += 1;
        stream.plan.opened(lane, delivery, others > 0);
        Some(lane)
    }

    /// Removes a connection from its stream. If the connection broke (`is_whole` is `false`), the
    /// stream opens no other.
    pub fn leave(&mut self, stream: StreamId, lane: LaneId, is_whole: bool) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        if is_whole {
            stream.plan.closed(lane);
        } else {
            stream.plan.lost(lane);
        }
        stream.asked = stream.asked.saturating_sub(1);
    }

    /// Last tested number of connections of all streams to a peer.
    pub fn last_result(&self, peer: &NodeId) -> Option<usize> {
        self.memory.last(peer)
    }

    /// Next action of a lane ready to send.
    pub fn turn(&mut self, now: Time, id: StreamId, lane: LaneId, progress: &Progress) -> Turn {
        let host = Host {
            acknowledged_bytes: progress.acknowledged_bytes,
            changes: self.changes,
            may_test: self.tester.is_none_or(|tester| tester == id),
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Turn::of_one_lane(progress) };
        self.limited -= usize::from(stream.plan.is_limited());
        let verdict = stream.plan.frame(now, lane, progress, host);
        // Counts this stream as limited in any case.
        let busy = self.limited + 1;
        self.limited += usize::from(stream.plan.is_limited());
        let is_testing = stream.plan.is_testing();
        let has_news = std::mem::replace(&mut stream.news, self.news) != self.news;
        if is_testing {
            self.tester = Some(id);
        } else {
            self.tester.take_if(|tester| *tester == id);
        }
        if verdict.is_some() || has_news {
            let peer = stream.peer.clone();
            if let Some(verdict) = verdict {
                self.memory.learnt(now, &peer, busy, verdict);
                self.news += 1;
            } else if !is_testing {
                self.follow(now, id, &peer, busy);
            }
        }
        let result = verdict.map(|Verdict { lanes, is_settled }| Start { lanes, is_settled });
        Turn { result, ..self.act(id, lane, progress) }
    }

    fn follow(&mut self, now: Time, id: StreamId, peer: &NodeId, busy: usize) {
        let known = self.memory.known(now, peer, busy);
        if let (Some(known), Some(stream)) = (known, self.streams.get_mut(&id)) {
            stream.plan.follow(now, known);
        }
    }

    fn act(&mut self, id: StreamId, lane: LaneId, progress: &Progress) -> Turn {
        let Some(stream) = self.streams.get_mut(&id) else { return Turn::of_one_lane(progress) };
        let wanted = stream.plan.wanted();
        let action = if stream.plan.is_superfluous(lane) {
            LaneAction::Leave
        } else if stream.plan.is_resting(lane) {
            LaneAction::Rest
        } else if wanted > stream.asked {
            LaneAction::Ask(wanted - stream.asked)
        } else {
            LaneAction::Send
        };
        stream.asked = wanted.max(stream.plan.open());
        let delivery = if stream.asked > 1 { stream.plan.delivery() } else { progress.delivery };
        let (lanes, is_resting) = (stream.plan.active(), stream.plan.has_resting());
        Turn { action, lanes, is_resting, delivery, result: None }
    }
}

#[cfg(test)]
mod tests;
