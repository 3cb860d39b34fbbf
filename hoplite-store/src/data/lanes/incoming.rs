use std::future::pending;

use futures::future::select_all;
use hoplite_core::merge::{LaneId, Merge, Step};
use hoplite_core::peer::FINAL_FRAMES_TIMEOUT;
use hoplite_core::plan::lanes::{GiveUp, Silence, WaitingLane};
use hoplite_core::plan::rails::RAIL_TIMEOUT;
use hoplite_core::stall::Sign;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::decode_lanes;
use hoplite_proto::v1;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::call::{Call, CallError};
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::pool::Peer;
use super::super::puller::{LanedStream, Puller};
use super::super::route::RouteUse;
use super::lane::{Lane, LaneFrame, Opened, Origin, open_lane};

/// Most requests for lost bytes without a new byte.
const MAX_REPEATS: usize = 4;

#[derive(Debug)]
pub(in super::super) enum Event {
    /// A block, whose payload must be read from this lane.
    Block(LaneId, Header),
    Sign(Sign),
    /// Bytes to request again, because a lane broke.
    Lost(std::ops::Range<u64>),
    End(v1::End),
}

/// A stream from one sender, over several lanes (connections).
#[derive(Debug)]
pub(in super::super) struct Incoming<'a> {
    puller: &'a Puller,
    peer: Peer,
    max_lanes: usize,
    merge: Merge,
    lanes: Vec<Lane<'a>>,
    next_lane: usize,
    opening: JoinSet<Opened>,
    /// Routes of the connections in `opening`.
    opening_routes: Vec<usize>,
    has_requested_lanes: bool,
    /// Time at which a lane began to wait for earlier bytes of another lane.
    blocked_since: Option<Instant>,
    silence: Silence,
    /// Counts this stream for the senders' plans; `None` before its first bytes.
    receiving: Option<LanedStream>,
    end: Option<v1::End>,
    /// `true` if a lane has ended because the sender had sent all bytes.
    is_all_sent: bool,
    /// Bytes to request again, until the request is made.
    lost: Option<std::ops::Range<u64>>,
    /// Repeated requests since the last byte.
    repeats: usize,
    has_received: bool,
    ended: Vec<Call<'a>>,
}

enum LaneEvent {
    Frame(LaneId, Result<LaneFrame, CallError>),
    Opened(Opened),
    /// A task that opened a lane has panicked.
    NotOpened,
    /// No block for [`RAIL_TIMEOUT`], while another route works.
    Silent,
    /// All bytes have arrived, but some lanes stay silent.
    GaveUp,
}

impl<'a> Incoming<'a> {
    /// Begins a stream with the connection of `call`, its request.
    pub(in super::super) fn new(
        puller: &'a Puller,
        peer: Peer,
        call: Call<'a>,
        max_lanes: usize,
    ) -> Self {
        let (merge, opening) = (Merge::default(), JoinSet::new());
        let (lanes, ended, end) = (Vec::new(), Vec::new(), None);
        let (next_lane, has_requested_lanes) = (0, false);
        let mut incoming = Self {
            puller,
            peer,
            max_lanes,
            merge,
            lanes,
            next_lane,
            opening,
            opening_routes: Vec::new(),
            has_requested_lanes,
            blocked_since: None,
            silence: Silence::default(),
            receiving: None,
            end,
            is_all_sent: false,
            lost: None,
            repeats: 0,
            has_received: false,
            ended,
        };
        incoming.add(call, Origin::Request);
        incoming
    }

    /// Adds a request for lost bytes.
    pub(in super::super) fn add_request(&mut self, call: Call<'a>) {
        self.lost = None;
        self.add(call, Origin::Repeat);
    }

    fn add(&mut self, call: Call<'a>, origin: Origin) {
        let id = LaneId(self.next_lane);
        self.next_lane += 1;
        self.merge.open(id);
        self.lanes.push(Lane::new(id, call, origin));
    }

    /// Waits for the next event of a stream that ends at `end_bytes`. The bytes before `next_bytes`
    /// have arrived. Cancel safe.
    pub(in super::super) async fn next(
        &mut self,
        next_bytes: u64,
        end_bytes: u64,
    ) -> Result<Event, CallError> {
        if let Some(range) = &self.lost {
            return Ok(Event::Lost(range.clone()));
        }
        loop {
            let has_arrived = next_bytes == end_bytes;
            if self.lanes.is_empty()
                && let Some(end) = self.whole_end(has_arrived)
            {
                return Ok(Event::End(end));
            }
            match self
                .merge
                .step(next_bytes, end_bytes, !self.opening.is_empty())
                .map_err(|bad| ConnectionError::Nonsense(bad.reason()))?
            {
                Step::Read(id) => {
                    let block = self.lane(id).and_then(|lane| lane.block);
                    let header = block.ok_or(ConnectionError::Closed)?;
                    return Ok(Event::Block(id, header));
                }
                Step::Lost(range) => {
                    self.repeats += 1;
                    if self.repeats > MAX_REPEATS {
                        return Err(ConnectionError::Closed.into());
                    }
                    self.lost = Some(range.clone());
                    return Ok(Event::Lost(range));
                }
                Step::Wait => {}
            }
            match self.wait(has_arrived).await {
                LaneEvent::Frame(id, received) => {
                    if let Some(event) = self.frame_received(id, received, next_bytes..end_bytes)? {
                        return Ok(event);
                    }
                }
                LaneEvent::Opened((rail, Ok(connection))) => {
                    self.have_opened(&rail);
                    let connection = (*connection, rail);
                    let call = Call::sent(self.puller, self.peer.clone(), Kind::Lane, connection);
                    self.add(call, Origin::Joined);
                }
                LaneEvent::Opened((rail, Err(error))) => {
                    self.have_opened(&rail);
                    tracing::debug!(peer = %self.peer.0, %error, "a lane could not be opened");
                    self.merge.lose(LaneId(self.next_lane));
                    if self.has_failed() {
                        return Err(error.into());
                    }
                }
                LaneEvent::NotOpened => {
                    self.merge.lose(LaneId(self.next_lane));
                    if self.has_failed() {
                        return Err(ConnectionError::Closed.into());
                    }
                }
                LaneEvent::Silent => self.lose_silent_lanes()?,
                LaneEvent::GaveUp => self.lanes.clear(),
            }
        }
    }

    /// End of a stream without lanes; `None` if missing bytes (`has_arrived` is `false`) may still
    /// arrive.
    fn whole_end(&mut self, has_arrived: bool) -> Option<v1::End> {
        let complete =
            || v1::End { outcome: v1::end::Outcome::Complete.into(), ..v1::End::default() };
        let Some(end) = &self.end else {
            return (has_arrived && self.has_data()).then(complete);
        };
        let is_complete = end.outcome() == v1::end::Outcome::Complete;
        let may_come = self.merge.has_lost() || !self.opening.is_empty();
        if is_complete && !has_arrived && may_come { None } else { self.end.take() }
    }

    /// Waits until a lane has received a frame, or a new lane is open. Cancel safe.
    async fn wait(&mut self, has_arrived: bool) -> LaneEvent {
        if let [lane] = self.lanes.as_mut_slice()
            && lane.origin != Origin::Joined
            && self.opening.is_empty()
            && !self.is_all_sent
            && !(has_arrived && self.has_received && lane.call.rail().has_other())
        {
            return LaneEvent::Frame(lane.id, lane.listen().await);
        }
        // Waits for a missing `End`, because the connections can be used again after it.
        let only_end_is_missing =
            has_arrived && self.lanes.iter().all(|lane| lane.origin == Origin::Joined);
        let is_finished = has_arrived && self.has_data();
        let may_wait = is_finished
            || self.is_all_sent
            || self.merge.has_lost()
            || self.lanes.iter().any(|lane| lane.block.is_some());
        let opened = async {
            match self.opening.join_next().await {
                Some(Ok(opened)) => LaneEvent::Opened(opened),
                Some(Err(_)) => LaneEvent::NotOpened,
                None => pending().await,
            }
        };
        let has_other = may_wait && self.lanes.iter_mut().any(|lane| lane.call.rail().has_other());
        let blocked_since = (has_other && !has_arrived)
            .then(|| *self.blocked_since.get_or_insert_with(Instant::now));
        let waiting = self.lanes.iter_mut().filter(|lane| lane.block.is_none());
        let listening: Vec<_> = waiting
            .map(|lane| {
                Box::pin(async {
                    let id = lane.id;
                    LaneEvent::Frame(id, lane.listen().await)
                })
            })
            .collect();
        if listening.is_empty() {
            return opened.await;
        }
        let any = async {
            tokio::select! {
                (received, ..) = select_all(listening) => received,
                opened = opened => opened,
            }
        };
        if only_end_is_missing {
            timeout(FINAL_FRAMES_TIMEOUT, any).await.unwrap_or(LaneEvent::GaveUp)
        } else if is_finished && has_other {
            timeout(RAIL_TIMEOUT, any).await.unwrap_or(LaneEvent::GaveUp)
        } else if let Some(since) = blocked_since {
            timeout_at(since + RAIL_TIMEOUT, any).await.unwrap_or(LaneEvent::Silent)
        } else {
            any.await
        }
    }

    /// Gives up the lanes of silent routes.
    fn lose_silent_lanes(&mut self) -> Result<(), CallError> {
        let now = Instant::now();
        self.blocked_since = Some(now);
        let waiting = self.lanes.iter_mut().map(|lane| WaitingLane {
            lane: lane.id,
            route: lane.call.route(),
            silent_for: now.saturating_duration_since(lane.call.connection().received_at()),
            has_block: lane.block.is_some(),
        });
        let waiting: Vec<_> = waiting.collect();
        let awaits_request = self.merge.has_lost() && self.repeats == 0;
        match self.silence.next(&waiting, awaits_request) {
            GiveUp::All => {
                self.lanes.clear();
                Ok(())
            }
            GiveUp::Silent(silent, limit) => {
                let mut silent = silent.into_iter();
                silent.try_for_each(|lane| self.lost(lane, ConnectionError::Idle(limit).into()))
            }
        }
    }

    fn frame_received(
        &mut self,
        id: LaneId,
        received: Result<LaneFrame, CallError>,
        wanted: std::ops::Range<u64>,
    ) -> Result<Option<Event>, CallError> {
        match received {
            Ok(LaneFrame::Block(header)) => {
                let start_bytes = header.offset_bytes();
                let frame = start_bytes..start_bytes.saturating_add(header.length_bytes().into());
                let arrived = self.merge.arrived(id, frame, wanted);
                arrived.map_err(|bad| ConnectionError::Nonsense(bad.reason()))?;
                if let Some(lane) = self.lane(id) {
                    lane.block = Some(header);
                }
                Ok(None)
            }
            Ok(LaneFrame::Control(Kind::Keepalive)) => {
                let Some(lane) = self.lane(id) else { return Ok(None) };
                Ok(Some(Event::Sign(Sign(lane.decode::<v1::Keepalive>()?.sign))))
            }
            Ok(LaneFrame::Control(Kind::Lanes)) => {
                let Some(lane) = self.lane(id) else { return Ok(None) };
                let lanes = lane.decode::<v1::Lanes>()?;
                self.open(&lanes)?;
                Ok(None)
            }
            Ok(LaneFrame::Control(_)) => {
                let Some(index) = self.lanes.iter().position(|lane| lane.id == id) else {
                    return Ok(None);
                };
                let end = self.lanes[index].decode::<v1::End>()?;
                let lane = self.lanes.swap_remove(index);
                self.merge.end(id);
                let is_complete = end.outcome() == v1::end::Outcome::Complete;
                self.is_all_sent |= is_complete && lane.origin != Origin::Repeat;
                if end.outcome() != v1::end::Outcome::Released {
                    self.ended.push(lane.call);
                }
                if lane.origin != Origin::Joined && (!is_complete || self.end.is_none()) {
                    self.end = Some(end);
                }
                Ok(None)
            }
            Err(error) => self.lost(id, error).map(|()| None),
        }
    }

    fn open(&mut self, lanes: &v1::Lanes) -> Result<(), ConnectionError> {
        let (key, count) = decode_lanes(lanes)?;
        self.has_requested_lanes = true;
        let free_lanes =
            self.max_lanes.saturating_sub(self.lanes.len() + self.opening.len() + self.ended.len());
        for _ in 0..count.min(free_lanes) {
            let lanes = self.lanes.iter().map(|lane| lane.call.route());
            let routes: Vec<_> = lanes.chain(self.opening_routes.iter().copied()).collect();
            let rail = RouteUse::begin(&self.puller.config.rails, &self.peer, &routes);
            self.opening_routes.push(rail.route());
            let pooled = self.puller.pool.take(&self.peer, rail.route());
            let others =
                self.receiving.get_or_insert_with(|| self.puller.begin_receiving()).others();
            let (config, peer) = (self.puller.config.clone(), self.peer.0.clone());
            self.opening.spawn(async move {
                let opened = open_lane(&config, &peer, &rail, pooled, (key, others)).await;
                (rail, opened.map(Box::new))
            });
        }
        Ok(())
    }

    fn have_opened(&mut self, rail: &RouteUse) {
        if let Some(index) = self.opening_routes.iter().position(|route| *route == rail.route()) {
            self.opening_routes.swap_remove(index);
        }
    }

    /// Continues without a broken lane. Fails without another lane or route, or if the sender
    /// violated the protocol.
    pub(in super::super) fn lost(&mut self, id: LaneId, error: CallError) -> Result<(), CallError> {
        let is_malformed = matches!(&error, CallError::Connection(error) if error.is_malformed());
        let may_repeat = match (&error, self.lane(id)) {
            (CallError::Connection(error), Some(lane)) => lane.call.rail().broke(error),
            _ => false,
        };
        self.lanes.retain(|lane| lane.id != id);
        self.merge.lose(id);
        if is_malformed || (self.has_failed() && !may_repeat) {
            return Err(error);
        }
        tracing::debug!(peer = %self.peer.0, %error, lanes = self.lanes.len(), "a stream goes on without a lane that broke");
        Ok(())
    }

    /// Returns `true` if no lane is left, and the sender has not ended the stream.
    fn has_failed(&self) -> bool {
        let is_without_lanes = self.lanes.is_empty() && self.opening.is_empty();
        is_without_lanes && self.end.is_none() && !self.is_all_sent
    }

    const fn has_data(&self) -> bool {
        self.has_received || self.is_all_sent
    }

    /// Returns `true` if a further route to the sender works.
    pub(in super::super) fn has_other_route(&mut self) -> bool {
        self.lanes.iter_mut().any(|lane| lane.call.rail().has_other())
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane<'a>> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    /// Connection of lane `id`, for its block, or [`ConnectionError::Closed`] if the lane is gone.
    /// Limits the silence within the block if another route works.
    pub(in super::super) fn connection(
        &mut self,
        id: LaneId,
    ) -> Result<&mut PeerConnection, ConnectionError> {
        let lane = self.lane(id).ok_or(ConnectionError::Closed)?;
        let limit = lane.call.rail().has_other().then_some(RAIL_TIMEOUT);
        let connection = lane.call.connection();
        if limit.is_some() {
            connection.expect_within(limit);
        }
        Ok(connection)
    }

    pub(in super::super) fn consumed(&mut self, id: LaneId) {
        self.merge.consumed(id);
        if self.max_lanes > 1 {
            self.receiving.get_or_insert_with(|| self.puller.begin_receiving());
        }
        (self.blocked_since, self.repeats) = (None, 0);
        self.silence.end();
        self.has_received = true;
        let config = &self.puller.config;
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) {
            let bytes = lane.block.take().map_or(0, |header| header.length_bytes().into());
            lane.call.rail().delivered();
            let has_other = lane.call.rail().has_other();
            let connection = lane.call.connection();
            config.rails.received(connection.rail, bytes);
            if has_other {
                connection.expect_within(Some(config.silence_timeout));
            }
        }
    }

    pub(in super::super) fn resume(&mut self) {
        let limit = Some(self.puller.config.silence_timeout);
        self.lanes.iter_mut().for_each(|lane| lane.call.connection().expect_within(limit));
    }

    /// After the last byte, returns the connections of a collective's stream to the pool.
    pub(in super::super) async fn finish_silent(mut self, end_bytes: u64) {
        if self.has_requested_lanes {
            let final_frames = async {
                while !matches!(self.next(end_bytes, end_bytes).await, Ok(Event::End(_)) | Err(_)) {
                }
            };
            let _ = timeout(FINAL_FRAMES_TIMEOUT, final_frames).await;
        } else {
            self.ended.extend(self.lanes.drain(..).map(|lane| lane.call));
        }
        self.finish();
    }

    pub(in super::super) fn finish(self) {
        self.ended.into_iter().for_each(Call::finish);
    }
}
