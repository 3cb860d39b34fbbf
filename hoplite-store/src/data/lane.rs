//! One input of a combination: where its bytes come from, and those that are at hand.

use std::sync::Arc;

use hoplite_core::checksum::crc32c;
use hoplite_core::node::HopInput;
use hoplite_core::shard::PullOutcome;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::{Pull, encode_pull};
use hoplite_proto::v1;
use hoplite_shm::Buffer;
use prost::Message;

use super::connection::{Connection, ConnectionError};
use super::count;
use super::pool::Peer;
use super::pull::{PullError, Puller, check_block, end_outcome};
use crate::copies::LiveCopy;

/// One input. All positions are those of the output, unless they are said to be of the object.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    /// Where the range begins in the object.
    base_bytes: u64,
    /// How long the range is.
    size_bytes: u64,
    /// Up to where bytes are at hand.
    at_hand_bytes: u64,
    origin: Origin<'a>,
}

#[derive(Debug)]
enum Origin<'a> {
    Local(Arc<LiveCopy>),
    Remote(Box<Remote<'a>>),
}

impl<'a> Lane<'a> {
    /// A range of `size_bytes` of a local copy, from `base_bytes` of it on, of which the first `done_bytes` are not needed.
    pub(super) fn local(live: Arc<LiveCopy>, base_bytes: u64, size_bytes: u64, done_bytes: u64) -> Self {
        Self { base_bytes, size_bytes, at_hand_bytes: done_bytes, origin: Origin::Local(live) }
    }

    /// A range of `size_bytes` of an object that another node has, without its first `done_bytes`. Its bytes go straight
    /// to `destination`, if there is one.
    pub(super) fn remote(
        puller: &'a Puller,
        input: &'a HopInput,
        size_bytes: u64,
        done_bytes: u64,
        destination: Option<&'a Buffer>,
    ) -> Self {
        let remote = Remote {
            puller,
            input,
            end_bytes: input.base_bytes + size_bytes,
            destination,
            connection: None,
            is_proven: true,
            frame: None,
            bytes: Vec::new(),
            used: 0,
            held: 0,
        };
        Self {
            base_bytes: input.base_bytes,
            size_bytes,
            at_hand_bytes: done_bytes,
            origin: Origin::Remote(Box::new(remote)),
        }
    }

    /// Whether this needs no network.
    pub(super) const fn is_local(&self) -> bool {
        matches!(self.origin, Origin::Local(_))
    }

    /// Up to where bytes are at hand.
    pub(super) const fn at_hand_bytes(&self) -> u64 {
        self.at_hand_bytes
    }

    /// Waits until the bytes before `needed_bytes` are at hand, which the range has; there may be more of them then.
    ///
    /// # Errors
    /// Why they cannot be had.
    ///
    /// # Cancel safety
    /// Cancel safe, unless the bytes go straight to a destination.
    pub(super) async fn reach(&mut self, needed_bytes: u64) -> Result<(), PullOutcome> {
        match &mut self.origin {
            Origin::Local(live) => {
                // Also if there are enough: what has failed is of no use any more.
                let last_bytes = self.base_bytes + needed_bytes - 1;
                match live.beyond_within(last_bytes, self.base_bytes + self.size_bytes).await {
                    Ok(valid_bytes) if valid_bytes > last_bytes => {
                        self.at_hand_bytes = valid_bytes - self.base_bytes;
                    }
                    _ => return Err(PullOutcome::SenderHasNoCopy),
                }
            }
            Origin::Remote(remote) => {
                while self.at_hand_bytes < needed_bytes {
                    self.at_hand_bytes += remote.receive(self.base_bytes + self.at_hand_bytes).await?;
                }
            }
        }
        Ok(())
    }

    /// The bytes from `start_bytes` on that fill `scratch`, which are at hand: those that the lane keeps itself, or else
    /// a copy in `scratch`.
    pub(super) fn bytes<'b>(&'b mut self, start_bytes: u64, scratch: &'b mut [u8]) -> &'b mut [u8] {
        match &mut self.origin {
            Origin::Local(live) => {
                live.buffer().read(self.base_bytes + start_bytes, scratch);
                scratch
            }
            Origin::Remote(remote) => {
                remote.at_hand(to_length(self.at_hand_bytes - start_bytes), scratch.len())
            }
        }
    }

    /// The bytes before `done_bytes` are needed no longer.
    pub(super) fn release(&mut self, done_bytes: u64) {
        if let Origin::Remote(remote) = &mut self.origin {
            remote.release(to_length(self.at_hand_bytes - done_bytes));
        }
    }

    /// Closes the connection, to be opened again when more bytes are needed. Those at hand stay.
    pub(super) fn park(&mut self) {
        if let Origin::Remote(remote) = &mut self.origin {
            remote.park();
        }
    }

    /// Waits for the last word on bytes that are all there, so that the connection can serve others.
    pub(super) async fn finish(self) {
        if let Origin::Remote(remote) = self.origin {
            remote.finish().await;
        }
    }
}

/// A range of an object that another node has. Not more than one frame of it is kept here, and less than one element of
/// the frame before: beyond that, the bytes wait in the socket, and the sender with them. Positions are those of the
/// object.
#[derive(Debug)]
struct Remote<'a> {
    puller: &'a Puller,
    input: &'a HopInput,
    end_bytes: u64,
    /// Where bytes go instead of into `bytes`, if they need not be combined with others.
    destination: Option<&'a Buffer>,
    /// On which the range was asked for.
    connection: Option<Connection>,
    /// Whether anything must have come back over it; one from the pool may be dead.
    is_proven: bool,
    /// The frame that is arriving, and how much of its payload is there.
    frame: Option<(Header, usize)>,
    /// Up to `used` those that are needed no longer, then up to `held` those at hand, then the payload that is arriving.
    bytes: Vec<u8>,
    used: usize,
    held: usize,
}

/// A frame that has arrived.
enum Arrived {
    Block { length_bytes: u64 },
    End(v1::End),
}

impl Remote<'_> {
    fn peer(&self) -> Peer {
        (self.input.node.clone(), self.input.address)
    }

    /// Receives one more block, which begins at `next_bytes`; answers its length.
    async fn receive(&mut self, next_bytes: u64) -> Result<u64, PullOutcome> {
        let ended = match self.try_receive(next_bytes).await {
            Ok(Arrived::Block { length_bytes }) => return Ok(length_bytes),
            Ok(Arrived::End(end)) => end_outcome(&end, false).map_err(PullError::Exchange),
            Err(error) => Err(error),
        };
        match ended {
            Ok(outcome) => {
                self.give_back();
                Err(outcome)
            }
            Err(error) => Err(self.puller.outcome(&self.input.id, &self.input.node, &error)),
        }
    }

    /// As [`Puller::exchange`] does, a connection from the pool that turns out dead is replaced by a new one.
    async fn try_receive(&mut self, next_bytes: u64) -> Result<Arrived, PullError> {
        if self.connection.is_none() {
            let pooled = self.puller.pool.take(&self.peer());
            self.ask(next_bytes, pooled).await?;
        }
        match self.next_frame(next_bytes).await {
            Err(ConnectionError::Closed | ConnectionError::Io(_)) if !self.is_proven => {
                self.park();
                self.ask(next_bytes, None).await?;
                self.next_frame(next_bytes).await.map_err(PullError::Exchange)
            }
            arrived => arrived.map_err(PullError::Exchange),
        }
    }

    /// Asks for the bytes from `next_bytes` on, over a connection from the pool or a new one.
    async fn ask(&mut self, next_bytes: u64, pooled: Option<Connection>) -> Result<(), PullError> {
        self.is_proven = pooled.is_none();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.puller.connect(&self.peer()).await.map_err(PullError::Connect)?,
        };
        connection.pulse().beat();
        let pull = Pull {
            id: self.input.id.clone(),
            put: self.input.put,
            size_bytes: self.input.size_bytes,
            range: next_bytes..self.end_bytes,
            awaits_hop: self.input.is_hop,
        };
        match connection.write_control(Kind::Pull, &encode_pull(&pull)).await {
            // What is wrong with one from the pool shows again when it is read from.
            Err(error) if self.is_proven => return Err(PullError::Exchange(error)),
            _ => {}
        }
        count(&self.puller.metrics.pulls, 1);
        self.connection = Some(connection);
        Ok(())
    }

    /// Reads the next frame that is no keepalive, unless nothing at all moves for too long.
    async fn next_frame(&mut self, next_bytes: u64) -> Result<Arrived, ConnectionError> {
        let Some(connection) = &self.connection else { return Err(ConnectionError::Closed) };
        let pulse = connection.pulse();
        let limit = self.puller.config.silence_timeout;
        tokio::select! {
            biased;
            arrived = self.read_frame(next_bytes) => arrived,
            () = pulse.silent_for(limit) => Err(ConnectionError::Stalled(limit)),
        }
    }

    async fn read_frame(&mut self, next_bytes: u64) -> Result<Arrived, ConnectionError> {
        let Some(connection) = &mut self.connection else { return Err(ConnectionError::Closed) };
        loop {
            let (header, mut received) = match self.frame {
                Some(begun) => begun,
                None => {
                    let header = connection.read_header().await?;
                    self.is_proven = true;
                    match header.kind() {
                        Kind::Block => {
                            let length_bytes = check_block(&header, next_bytes, self.end_bytes)?;
                            if let Some(destination) = self.destination {
                                let start_bytes = next_bytes - self.input.base_bytes;
                                connection.read_block(&header, destination, start_bytes).await?;
                                count(&self.puller.metrics.received_bytes, length_bytes);
                                return Ok(Arrived::Block { length_bytes });
                            }
                        }
                        Kind::Keepalive | Kind::End => {}
                        kind => return Err(ConnectionError::Unexpected(kind)),
                    }
                    (header, 0)
                }
            };
            if received == 0 {
                self.bytes.copy_within(self.used..self.held, 0);
                (self.used, self.held) = (0, self.held - self.used);
            }
            // Bounded by the frame's limit, which was checked with the header.
            let end = self.held + header.length_bytes() as usize;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            while self.held + received < end {
                self.frame = Some((header, received));
                received += connection.read_part(&mut self.bytes[self.held + received..end]).await?;
            }
            self.frame = None;
            let payload = &self.bytes[self.held..end];
            header.check_payload(crc32c(payload))?;
            match header.kind() {
                Kind::Keepalive => {}
                Kind::End => return Ok(Arrived::End(v1::End::decode(payload)?)),
                _ => {
                    let length_bytes = u64::from(header.length_bytes());
                    count(&self.puller.metrics.received_bytes, length_bytes);
                    self.held = end;
                    return Ok(Arrived::Block { length_bytes });
                }
            }
        }
    }

    /// Bytes at hand: `length` of them, from the one on that is `ahead` of their end.
    fn at_hand(&mut self, ahead: usize, length: usize) -> &mut [u8] {
        let start = self.held - ahead;
        &mut self.bytes[start..start + length]
    }

    /// Of the bytes at hand only the last `left` are still needed.
    fn release(&mut self, left: usize) {
        if self.destination.is_none() {
            self.used = self.held - left;
        }
        if let Some(connection) = &self.connection {
            // The sender may have had to wait for us until now.
            connection.pulse().beat();
        }
    }

    fn park(&mut self) {
        (self.connection, self.frame) = (None, None);
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.puller.pool.put(self.peer(), connection);
        }
    }

    async fn finish(mut self) {
        if self.connection.is_some()
            && let Ok(Arrived::End(end)) = self.next_frame(self.end_bytes).await
            && end.outcome() == v1::end::Outcome::Complete
        {
            self.give_back();
        }
    }
}

/// The length of bytes in memory.
fn to_length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than a frame, or an element, is kept")
}
