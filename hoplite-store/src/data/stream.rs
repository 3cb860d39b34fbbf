use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use hoplite_core::checksum::crc32c;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::merge::LaneId;
use hoplite_core::plan::lanes::lane_limit;
use hoplite_core::plan::rails::RAIL_TIMEOUT;
use hoplite_core::shard::PullOutcome;
use hoplite_core::stall::{Heard, SHORT_CONNECT, Sign, StallDetector};
use hoplite_core::trace::TraceContext;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::encode_max_lanes;
use hoplite_proto::data::{Pull, encode_pull};
use hoplite_proto::{trace, v1};
use hoplite_shm::Buffer;
use tokio::time::timeout;

use super::call::{Call, CallError};
use super::connection::{ConnectionError, PeerConnection};
use super::lanes::{Event, Incoming};
use super::metrics::count;
use super::puller::Puller;

#[derive(Debug, Clone)]
pub(super) struct RemoteCopy<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) put: PutId,
    pub(super) size_bytes: u64,
    pub(super) node: &'a NodeId,
    pub(super) address: SocketAddr,
    /// `true` for the output of a hop, which the sender may begin later.
    pub(super) awaits_hop: bool,
    /// Longest permitted silence of the sender, if another sender is known.
    pub(super) silence_limit: Option<Duration>,
    pub(super) trace: Option<TraceContext>,
}

#[derive(Debug)]
pub(super) enum Sink<'a> {
    Arena {
        buffer: &'a Buffer,
        /// Position of the buffer's first byte in the remote object.
        base_bytes: u64,
    },
    /// Private memory, for bytes to combine.
    Memory(&'a mut HeldBytes),
}

#[derive(Debug)]
pub(super) enum Arrived {
    Block { length_bytes: u64 },
    Sign(Sign),
    End(Box<v1::End>),
}

/// The receiver's end of a transfer of a range. Positions count from the object's start.
///
/// Between two calls, bytes wait in the socket, and the sender waits.
#[derive(Debug)]
pub(super) struct InputStream<'a> {
    puller: &'a Puller,
    from: RemoteCopy<'a>,
    end_bytes: u64,
    /// Latest sign of the producer, from earlier transfers.
    known: Sign,
    /// `None` before the request.
    lanes: Option<(Incoming<'a>, StallDetector)>,
    /// Lane of a partly received block for [`Sink::Memory`], and the received bytes.
    arriving: Option<(LaneId, usize)>,
}

impl<'a> InputStream<'a> {
    /// Makes a stream, but sends no request yet.
    pub(super) const fn new(
        puller: &'a Puller,
        from: RemoteCopy<'a>,
        end_bytes: u64,
        known: Sign,
    ) -> Self {
        Self { puller, from, end_bytes, known, lanes: None, arriving: None }
    }

    /// Waits for a block at `next_bytes`, a sign of the producer, or the end of the stream.
    /// Requests the bytes first, if necessary.
    ///
    /// Cancel safe for [`Sink::Memory`]. Otherwise the stream becomes useless; nothing touches the
    /// arena after the future is dropped.
    pub(super) async fn next(
        &mut self,
        next_bytes: u64,
        sink: Sink<'_>,
    ) -> Result<Arrived, PullOutcome> {
        match self.try_next(next_bytes, sink).await {
            Ok(arrived) => Ok(arrived),
            Err(error) => Err(self.puller.outcome(self.from.id, self.from.node, &error)),
        }
    }

    async fn try_next(
        &mut self,
        next_bytes: u64,
        mut sink: Sink<'_>,
    ) -> Result<Arrived, CallError> {
        if self.lanes.is_none() {
            let max_lanes = lane_limit(self.puller.config.max_lanes, self.end_bytes - next_bytes);
            let call = self.request(next_bytes..self.end_bytes, max_lanes).await?;
            let peer = (self.from.node.clone(), self.from.address);
            let lanes = Incoming::new(self.puller, peer, call, max_lanes);
            let stall =
                StallDetector::new(self.puller.now(), self.known, self.puller.config.stall_timeout);
            self.lanes = Some((lanes, stall));
        }
        loop {
            let Some((lanes, stall)) = &mut self.lanes else {
                return Err(ConnectionError::Closed.into());
            };
            let limit = self.from.silence_limit.map(|limit| {
                if lanes.has_other_route() { limit.max(2 * RAIL_TIMEOUT) } else { limit }
            });
            let next = lanes.next(next_bytes, self.end_bytes);
            let (lane, header) = match within(limit, next).await? {
                Event::Block(lane, header) => (lane, header),
                Event::End(end) => return Ok(Arrived::End(Box::new(end))),
                Event::Sign(sign) => match stall.heard(self.puller.now(), sign) {
                    Heard::News => return Ok(Arrived::Sign(sign)),
                    Heard::Nothing => continue,
                    Heard::Stalled => {
                        return Err(
                            ConnectionError::Stalled(self.puller.config.stall_timeout).into()
                        );
                    }
                },
                Event::Lost(range) => {
                    let call = self.request_again(range).await?;
                    if let Some((lanes, _)) = &mut self.lanes {
                        lanes.add_request(call);
                    }
                    continue;
                }
            };
            let has_other = lanes.has_other_route();
            let connection = lanes.connection(lane)?;
            if limit.is_some() && !has_other {
                connection.expect_within(limit);
            }
            let read = match &mut sink {
                Sink::Arena { buffer, base_bytes } => {
                    connection.read_block(&header, buffer, next_bytes - *base_bytes).await
                }
                Sink::Memory(held) => {
                    read_into_memory(connection, &header, held, (&mut self.arriving, lane)).await
                }
            };
            let length_bytes = u64::from(header.length_bytes());
            match read {
                Ok(()) => {
                    if limit.is_some() {
                        connection.expect_within(Some(self.puller.config.silence_timeout));
                    }
                    lanes.consumed(lane);
                    stall.arrived(self.puller.now());
                    count(&self.puller.metrics.received_bytes, length_bytes);
                    return Ok(Arrived::Block { length_bytes });
                }
                Err(error) => {
                    self.arriving = None;
                    lanes.lost(lane, error.into())?;
                }
            }
        }
    }

    /// Requests lost bytes: up to the stream's end over several lanes, others over one.
    async fn request_again(&self, range: Range<u64>) -> Result<Call<'a>, CallError> {
        let max_lanes = if range.end == self.end_bytes { self.puller.config.max_lanes } else { 1 };
        let max_lanes = lane_limit(max_lanes, range.end - range.start);
        self.request(range, max_lanes).await
    }

    async fn request(&self, range: Range<u64>, max_lanes: usize) -> Result<Call<'a>, CallError> {
        count(&self.puller.metrics.pulls, 1);
        let pull = encode_pull(&Pull {
            id: self.from.id.clone(),
            put: self.from.put,
            size_bytes: self.from.size_bytes,
            range,
            awaits_hop: self.from.awaits_hop,
        });
        let pull = v1::Pull {
            trace: trace::encode(self.from.trace),
            max_lanes: encode_max_lanes(max_lanes),
            ..pull
        };
        let peer = (self.from.node.clone(), self.from.address);
        let limit = self.from.silence_limit.map(|_| SHORT_CONNECT);
        within(limit, Call::begin(self.puller, peer, Kind::Pull, &pull)).await
    }

    /// Transfer's outcome. Keeps reusable connections.
    pub(super) fn ended(&mut self, end: &v1::End, all_arrived: bool) -> PullOutcome {
        match end_outcome(end, all_arrived) {
            Ok(outcome) => {
                if let Some((lanes, _)) = self.lanes.take() {
                    lanes.finish();
                }
                outcome
            }
            Err(error) => self.puller.outcome(self.from.id, self.from.node, &error.into()),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.lanes.is_some()
    }

    pub(super) fn resume(&mut self) {
        if let Some((lanes, stall)) = &mut self.lanes {
            lanes.resume();
            stall.arrived(self.puller.now());
        }
    }

    pub(super) fn close(&mut self) {
        (self.lanes, self.arriving) = (None, None);
    }
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    match limit {
        Some(limit) => timeout(limit, work).await.map_err(|_| ConnectionError::Idle(limit))?,
        None => work.await,
    }
}

/// Arrived bytes to combine: at most one frame, and a part of one element from the frame before.
#[derive(Debug, Default)]
pub(super) struct HeldBytes {
    /// Combined bytes up to `used`, available bytes up to `held`, then the arriving payload.
    bytes: Vec<u8>,
    used: usize,
    held: usize,
}

impl HeldBytes {
    /// Returns `length` bytes, which begin `ahead` bytes before the end of the available bytes.
    pub(super) fn last(&mut self, ahead: u64, length: usize) -> &mut [u8] {
        let start = self.held - to_length(ahead);
        &mut self.bytes[start..start + length]
    }

    pub(super) fn keep_last(&mut self, left: u64) {
        self.used = self.held - to_length(left);
    }

    fn make_room(&mut self, length: usize) {
        self.bytes.copy_within(self.used..self.held, 0);
        (self.used, self.held) = (0, self.held - self.used);
        if self.bytes.len() < self.held + length {
            self.bytes.resize(self.held + length, 0);
        }
    }

    fn arriving(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.held..self.held + length]
    }

    fn arrived(&mut self, length: usize) {
        self.held += length;
    }
}

fn to_length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than a frame, or an element, is kept")
}

/// Reads the payload of a block, whose first part may have arrived. Cancel safe: the next call with
/// the same arguments continues.
async fn read_into_memory(
    connection: &mut PeerConnection,
    header: &Header,
    held: &mut HeldBytes,
    (arriving, lane): (&mut Option<(LaneId, usize)>, LaneId),
) -> Result<(), ConnectionError> {
    let length = to_length(header.length_bytes().into());
    let mut received = match *arriving {
        Some((begun, received)) if begun == lane => received,
        _ => {
            held.make_room(length);
            0
        }
    };
    let payload = held.arriving(length);
    while received < length {
        *arriving = Some((lane, received));
        received += connection.read_part(&mut payload[received..]).await?;
    }
    *arriving = None;
    connection.check_block(header, || crc32c(payload))?;
    held.arrived(length);
    Ok(())
}

fn end_outcome(end: &v1::End, all_arrived: bool) -> Result<PullOutcome, ConnectionError> {
    match end.outcome() {
        v1::end::Outcome::Complete if all_arrived => Ok(PullOutcome::Complete),
        v1::end::Outcome::Complete => {
            Err(ConnectionError::Nonsense("the end before the last byte"))
        }
        v1::end::Outcome::NoCopy | v1::end::Outcome::Refused => Ok(PullOutcome::SenderHasNoCopy),
        v1::end::Outcome::InputFailed
        | v1::end::Outcome::Released
        | v1::end::Outcome::Disagrees
        | v1::end::Outcome::Unspecified => {
            Err(ConnectionError::Nonsense("an end that says nothing of the transfer"))
        }
    }
}
