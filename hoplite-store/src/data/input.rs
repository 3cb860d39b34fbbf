use std::sync::Arc;

use hoplite_core::node::HopInput;
use hoplite_core::shard::PullOutcome;
use hoplite_core::stall::Sign;
use hoplite_core::trace::TraceContext;
use hoplite_proto::v1;
use hoplite_shm::Buffer;

use super::puller::Puller;
use super::stream::{Arrived, HeldBytes, InputStream, RemoteCopy, Sink};
use crate::copies::LiveCopy;

/// An input of a combination. Positions count in the output.
#[derive(Debug)]
pub(super) struct Input<'a> {
    base_bytes: u64,
    size_bytes: u64,
    available_bytes: u64,
    origin: Origin<'a>,
}

#[derive(Debug)]
enum Origin<'a> {
    Local(Arc<LiveCopy>),
    Remote(Box<Remote<'a>>),
}

#[derive(Debug)]
struct Remote<'a> {
    stream: InputStream<'a>,
    held: HeldBytes,
    /// Output, if the only input's bytes go there directly.
    destination: Option<&'a Buffer>,
}

impl<'a> Input<'a> {
    /// The first `done_bytes` are combined already.
    pub(super) fn local(
        live: Arc<LiveCopy>,
        base_bytes: u64,
        size_bytes: u64,
        done_bytes: u64,
    ) -> Self {
        Self { base_bytes, size_bytes, available_bytes: done_bytes, origin: Origin::Local(live) }
    }

    /// Bytes go to `destination` if there is one.
    pub(super) fn remote(
        puller: &'a Puller,
        input: &'a HopInput,
        size_bytes: u64,
        done_bytes: u64,
        destination: Option<&'a Buffer>,
        trace: Option<TraceContext>,
    ) -> Self {
        let copy = RemoteCopy {
            id: &input.id,
            put: input.put,
            size_bytes: input.size_bytes,
            node: &input.node,
            address: input.address,
            awaits_hop: input.is_hop,
            silence_limit: None,
            trace,
        };
        let stream = InputStream::new(puller, copy, input.base_bytes + size_bytes, Sign::default());
        let remote = Remote { stream, held: HeldBytes::default(), destination };
        Self {
            base_bytes: input.base_bytes,
            size_bytes,
            available_bytes: done_bytes,
            origin: Origin::Remote(Box::new(remote)),
        }
    }

    pub(super) const fn is_local(&self) -> bool {
        matches!(self.origin, Origin::Local(_))
    }

    pub(super) const fn available_bytes(&self) -> u64 {
        self.available_bytes
    }

    /// Waits until the input's bytes before `needed_bytes` are available. Cancel safe, unless a
    /// remote input's bytes go directly to the output.
    pub(super) async fn wait_for_bytes(&mut self, needed_bytes: u64) -> Result<(), PullOutcome> {
        match &mut self.origin {
            Origin::Local(live) => {
                let last_bytes = self.base_bytes + needed_bytes - 1;
                match live.beyond_within(last_bytes, self.base_bytes + self.size_bytes).await {
                    Ok(valid_bytes) if valid_bytes > last_bytes => {
                        self.available_bytes = valid_bytes - self.base_bytes;
                    }
                    _ => return Err(PullOutcome::SenderHasNoCopy),
                }
            }
            Origin::Remote(remote) => {
                while self.available_bytes < needed_bytes {
                    let next_bytes = self.base_bytes + self.available_bytes;
                    match remote.next(next_bytes, self.base_bytes).await? {
                        Arrived::Block { length_bytes } => self.available_bytes += length_bytes,
                        Arrived::Sign(_) => {}
                        Arrived::End(end) => return Err(remote.stream.ended(&end, false)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns available bytes from `start_bytes` on, as many as fit into `scratch`: in the input's
    /// buffer, or a copy in `scratch`.
    pub(super) fn bytes<'b>(&'b mut self, start_bytes: u64, scratch: &'b mut [u8]) -> &'b mut [u8] {
        match &mut self.origin {
            Origin::Local(live) => {
                live.buffer().read(self.base_bytes + start_bytes, scratch);
                scratch
            }
            Origin::Remote(remote) => {
                remote.held.last(self.available_bytes - start_bytes, scratch.len())
            }
        }
    }

    pub(super) fn release(&mut self, done_bytes: u64) {
        if let Origin::Remote(remote) = &mut self.origin {
            if remote.destination.is_none() {
                remote.held.keep_last(self.available_bytes - done_bytes);
            }
            remote.stream.resume();
        }
    }

    /// Closes the connection until more bytes are needed. Available bytes stay.
    pub(super) fn disconnect(&mut self) {
        if let Origin::Remote(remote) = &mut self.origin {
            remote.stream.close();
        }
    }

    /// Waits for the stream's last frame, so that other transfers can use the connection.
    pub(super) async fn finish(self) {
        let Origin::Remote(mut remote) = self.origin else { return };
        while remote.stream.is_open() {
            match remote.next(self.base_bytes + self.size_bytes, self.base_bytes).await {
                Ok(Arrived::Sign(_)) => {}
                Ok(Arrived::End(end)) if end.outcome() == v1::end::Outcome::Complete => {
                    remote.stream.ended(&end, true);
                }
                _ => remote.stream.close(),
            }
        }
    }
}

impl Remote<'_> {
    async fn next(&mut self, next_bytes: u64, base_bytes: u64) -> Result<Arrived, PullOutcome> {
        let sink = match self.destination {
            Some(buffer) => Sink::Arena { buffer, base_bytes },
            None => Sink::Memory(&mut self.held),
        };
        self.stream.next(next_bytes, sink).await
    }
}
