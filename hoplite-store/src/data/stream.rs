//! The receiver's end of a transfer: asks a sender for a range of an object, and takes in what comes.

use std::net::SocketAddr;

use hoplite_core::checksum::crc32c;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::shard::PullOutcome;
use hoplite_core::stall::{Heard, Sign, StallDetector};
use hoplite_core::trace::TraceContext;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::{Pull, encode_pull};
use hoplite_proto::{trace, v1};
use hoplite_shm::Buffer;
use prost::Message;

use super::call::{Call, CallError};
use super::connection::ConnectionError;
use super::metrics::count;
use super::puller::Puller;

/// A copy at another node.
#[derive(Debug, Clone)]
pub(super) struct RemoteCopy<'a> {
    /// The object that the copy is of.
    pub(super) id: &'a ObjectId,
    /// Which put of it.
    pub(super) put: PutId,
    /// The size of the whole object.
    pub(super) size_bytes: u64,
    /// The store that has it.
    pub(super) node: &'a NodeId,
    /// Where that node listens.
    pub(super) address: SocketAddr,
    /// `true` if it is the output of a hop, which may not have begun yet.
    pub(super) awaits_hop: bool,
    /// The span that has caused this.
    pub(super) trace: Option<TraceContext>,
}

/// Where the bytes of a stream go.
#[derive(Debug)]
pub(super) enum Sink<'a> {
    /// Straight into an object in the arena, which begins at `base_bytes` of the remote one.
    Arena {
        /// The memory of the object.
        buffer: &'a Buffer,
        /// Which byte of the remote object is its first.
        base_bytes: u64,
    },
    /// Into memory, to be combined with others.
    Memory(&'a mut HeldBytes),
}

/// What has arrived.
#[derive(Debug)]
pub(super) enum Arrived {
    /// The next block, which is where it belongs.
    Block {
        /// Its length.
        length_bytes: u64,
    },
    /// A new sign of the producer, and no bytes.
    Sign(Sign),
    /// The end, as the sender sees it.
    End(v1::End),
}

/// The bytes of a range of an object at another node, as they come. All positions are those of the object.
///
/// Between two calls, bytes wait in the socket, and the sender with them.
#[derive(Debug)]
pub(super) struct InputStream<'a> {
    puller: &'a Puller,
    from: RemoteCopy<'a>,
    end_bytes: u64,
    /// The latest sign that was heard in an earlier transfer of the object.
    known: Sign,
    /// The request, and what is known of the producer since it was made.
    call: Option<(Call<'a>, StallDetector)>,
    /// The frame that is arriving, and how much of its payload is there.
    frame: Option<(Header, usize)>,
    /// The payload of a frame that is no block.
    control: Vec<u8>,
}

impl<'a> InputStream<'a> {
    /// The bytes before `end_bytes`, of which nothing is asked for yet.
    pub(super) const fn new(puller: &'a Puller, from: RemoteCopy<'a>, end_bytes: u64, known: Sign) -> Self {
        Self { puller, from, end_bytes, known, call: None, frame: None, control: Vec::new() }
    }

    /// Waits for what comes next: a block that begins at `next_bytes`, a sign, or the end. Asks for it if need be.
    ///
    /// # Errors
    /// Why nothing more can come from this sender.
    ///
    /// # Cancel safety
    /// Cancel safe if the bytes go into memory. Otherwise the stream is of no more use; nothing touches the arena after
    /// the future is dropped.
    pub(super) async fn next(&mut self, next_bytes: u64, sink: Sink<'_>) -> Result<Arrived, PullOutcome> {
        match self.try_next(next_bytes, sink).await {
            Ok(arrived) => Ok(arrived),
            Err(error) => Err(self.puller.outcome(self.from.id, self.from.node, &error)),
        }
    }

    async fn try_next(&mut self, next_bytes: u64, mut sink: Sink<'_>) -> Result<Arrived, CallError> {
        if self.call.is_none() {
            self.ask(next_bytes).await?;
        }
        let Some((call, stall)) = &mut self.call else { return Err(ConnectionError::Closed.into()) };
        loop {
            let (header, mut received) = match self.frame {
                Some(begun) => begun,
                None => {
                    let header = call.read_header().await?;
                    match (header.kind(), &mut sink) {
                        (Kind::Block, sink) => {
                            let length_bytes = check_block(&header, next_bytes, self.end_bytes)?;
                            match sink {
                                Sink::Arena { buffer, base_bytes } => {
                                    let start_bytes = next_bytes - *base_bytes;
                                    call.connection().read_block(&header, buffer, start_bytes).await?;
                                    stall.arrived(self.puller.now());
                                    count(&self.puller.metrics.received_bytes, length_bytes);
                                    return Ok(Arrived::Block { length_bytes });
                                }
                                Sink::Memory(held) => held.make_room(to_length(length_bytes)),
                            }
                        }
                        (Kind::Keepalive | Kind::End, _) => {
                            self.control.resize(to_length(header.length_bytes().into()), 0)
                        }
                        (kind, _) => return Err(ConnectionError::Unexpected(kind).into()),
                    }
                    (header, 0)
                }
            };
            // Bounded by the frame's limit, which was checked with the header.
            let length = to_length(header.length_bytes().into());
            let payload = match (header.kind(), &mut sink) {
                (Kind::Block, Sink::Memory(held)) => held.arriving(length),
                _ => self.control.as_mut_slice(),
            };
            while received < length {
                self.frame = Some((header, received));
                received += call.connection().read_part(&mut payload[received..]).await?;
            }
            self.frame = None;
            match header.kind() {
                Kind::Block => call.connection().check_block(&header, || crc32c(payload))?,
                _ => header.check_payload(crc32c(payload)).map_err(ConnectionError::from)?,
            }
            let now = self.puller.now();
            match (header.kind(), &mut sink) {
                (Kind::Block, Sink::Memory(held)) => {
                    held.arrived(length);
                    stall.arrived(now);
                    count(&self.puller.metrics.received_bytes, length as u64);
                    return Ok(Arrived::Block { length_bytes: length as u64 });
                }
                (Kind::Keepalive, _) => {
                    let message = v1::Keepalive::decode(&*self.control).map_err(ConnectionError::from)?;
                    match stall.heard(now, Sign(message.sign)) {
                        Heard::News => return Ok(Arrived::Sign(Sign(message.sign))),
                        Heard::Nothing => {}
                        Heard::Stalled => {
                            return Err(ConnectionError::Stalled(self.puller.config.stall_timeout).into());
                        }
                    }
                }
                _ => {
                    let end = v1::End::decode(&*self.control).map_err(ConnectionError::from)?;
                    return Ok(Arrived::End(end));
                }
            }
        }
    }

    /// Asks for the bytes from `next_bytes` on.
    async fn ask(&mut self, next_bytes: u64) -> Result<(), CallError> {
        count(&self.puller.metrics.pulls, 1);
        let pull = encode_pull(&Pull {
            id: self.from.id.clone(),
            put: self.from.put,
            size_bytes: self.from.size_bytes,
            range: next_bytes..self.end_bytes,
            awaits_hop: self.from.awaits_hop,
        });
        let pull = v1::Pull { trace: trace::encode(self.from.trace), ..pull };
        let peer = (self.from.node.clone(), self.from.address);
        let call = Call::begin(self.puller, peer, Kind::Pull, &pull).await?;
        let stall = StallDetector::new(self.puller.now(), self.known, self.puller.config.stall_timeout);
        self.call = Some((call, stall));
        Ok(())
    }

    /// How the transfer ended, by the sender's word `end` and our count. The connection is kept if that makes sense.
    pub(super) fn ended(&mut self, end: &v1::End, all_arrived: bool) -> PullOutcome {
        match end_outcome(end, all_arrived) {
            Ok(outcome) => {
                if let Some((call, _)) = self.call.take() {
                    call.finish();
                }
                outcome
            }
            Err(error) => self.puller.outcome(self.from.id, self.from.node, &error.into()),
        }
    }

    /// Returns `true` if a request is open.
    pub(super) const fn is_open(&self) -> bool {
        self.call.is_some()
    }

    /// The receiver had no room until now, so the sender may have had to wait for it.
    pub(super) fn resume(&mut self) {
        if let Some((call, stall)) = &mut self.call {
            call.connection().expect_within(Some(self.puller.config.silence_timeout));
            stall.arrived(self.puller.now());
        }
    }

    /// Closes the connection. More bytes are asked for again.
    pub(super) fn close(&mut self) {
        (self.call, self.frame) = (None, None);
    }
}

/// Bytes that have arrived and are not combined yet: not more than one frame, and less than one element of the frame
/// before.
#[derive(Debug, Default)]
pub(super) struct HeldBytes {
    /// Up to `used` those that are needed no longer, then up to `held` those at hand, then the payload that is arriving.
    bytes: Vec<u8>,
    used: usize,
    held: usize,
}

impl HeldBytes {
    /// The last `ahead` bytes that have arrived, but no more than `length` of them.
    pub(super) fn last(&mut self, ahead: u64, length: usize) -> &mut [u8] {
        let start = self.held - to_length(ahead);
        &mut self.bytes[start..start + length]
    }

    /// Forgets all but the last `left` bytes.
    pub(super) fn forget_all_but(&mut self, left: u64) {
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

/// The length of bytes in memory.
fn to_length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than a frame, or an element, is kept")
}

/// Checks that a block is the next one and ends before `end_bytes`; answers its length.
fn check_block(header: &Header, offset_bytes: u64, end_bytes: u64) -> Result<u64, ConnectionError> {
    let length_bytes = u64::from(header.length_bytes());
    if header.offset_bytes() != offset_bytes {
        return Err(ConnectionError::Nonsense("a block that is not the next one"));
    }
    if length_bytes == 0 || length_bytes > end_bytes - offset_bytes {
        return Err(ConnectionError::Nonsense("a block that is empty, or goes past the end"));
    }
    Ok(length_bytes)
}

/// How a transfer ended, by the sender's word and our count.
fn end_outcome(end: &v1::End, all_arrived: bool) -> Result<PullOutcome, ConnectionError> {
    match end.outcome() {
        v1::end::Outcome::Complete if all_arrived => Ok(PullOutcome::Complete),
        v1::end::Outcome::Complete => Err(ConnectionError::Nonsense("the end before the last byte")),
        v1::end::Outcome::NoCopy | v1::end::Outcome::Refused => Ok(PullOutcome::SenderHasNoCopy),
        v1::end::Outcome::InputFailed
        | v1::end::Outcome::Released
        | v1::end::Outcome::Disagrees
        | v1::end::Outcome::Unspecified => {
            Err(ConnectionError::Nonsense("an end that says nothing of the transfer"))
        }
    }
}
