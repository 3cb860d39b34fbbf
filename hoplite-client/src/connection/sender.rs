//! Sends requests from the calling thread without blocking it.
//!
//! If the socket takes only a part of a request, a short-lived thread writes the rest, because
//! views may be dropped outside of a runtime.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::{Buf, BytesMut};
use hoplite_proto::{framing, v1};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tokio::sync::Notify;

use crate::error::Loss;

/// Number of unsent bytes at which new calls are refused. Release, Abort and Cancel are never
/// refused.
const MAX_UNSENT_BYTES: usize = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    Call,
    GiveBack,
}

#[derive(Debug)]
pub(super) enum SendFailure {
    Lost(Loss),
    Refused(hoplite_core::Error),
}

#[derive(Debug)]
pub(super) struct Sender {
    socket: Arc<OwnedFd>,
    unsent: Mutex<Unsent>,
    progressed: Notify,
}

#[derive(Debug, Default)]
struct Unsent {
    buffer: BytesMut,
    sent_bytes: u64,
    flusher: Flusher,
    broken: Option<Loss>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Flusher {
    #[default]
    Idle,
    Running,
}

impl Sender {
    pub(super) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, unsent: Mutex::default(), progressed: Notify::new() }
    }

    /// Sends requests, and queues the rest if the socket is full. Returns the last byte's position,
    /// for [`Sender::sent`]. Never blocks.
    pub(super) fn send(
        self: &Arc<Self>,
        requests: &[v1::Request],
        priority: Priority,
    ) -> Result<u64, SendFailure> {
        let mut unsent = self.lock();
        if let Some(loss) = &unsent.broken {
            return Err(SendFailure::Lost(loss.clone()));
        }
        if priority == Priority::Call && unsent.buffer.len() > MAX_UNSENT_BYTES {
            let limit =
                hoplite_core::Error::limit_exceeded("unsent bytes", MAX_UNSENT_BYTES as u64);
            return Err(SendFailure::Refused(limit));
        }
        for request in requests {
            framing::encode(request, &mut unsent.buffer).map_err(SendFailure::Refused)?;
        }
        let end = unsent.sent_bytes + unsent.buffer.len() as u64;
        self.flush(&mut unsent).map_err(SendFailure::Lost)?;
        Ok(end)
    }

    /// Waits until the system has taken all bytes up to `position`. The system delivers them even
    /// after this process ends. Cancel safe.
    pub(super) async fn sent(&self, position: u64) -> Result<(), Loss> {
        loop {
            let progressed = self.progressed.notified();
            {
                let unsent = self.lock();
                if unsent.sent_bytes >= position {
                    return Ok(());
                }
                if let Some(loss) = &unsent.broken {
                    return Err(loss.clone());
                }
            }
            progressed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush(self: &Arc<Self>, unsent: &mut Unsent) -> Result<(), Loss> {
        match write_out(&self.socket, unsent) {
            Ok(()) => {}
            Err(loss) => {
                unsent.buffer.clear();
                unsent.broken = Some(loss.clone());
                self.progressed.notify_waiters();
                return Err(loss);
            }
        }
        if unsent.buffer.is_empty() || unsent.flusher == Flusher::Running {
            return Ok(());
        }
        let sender = Arc::clone(self);
        match thread::Builder::new()
            .name("hoplite-flush".to_owned())
            .spawn(move || sender.flush_in_background())
        {
            Ok(_) => unsent.flusher = Flusher::Running,
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread that sends queued requests")
            }
        }
        Ok(())
    }

    fn flush_in_background(self: Arc<Self>) {
        loop {
            let mut fds = [PollFd::new(&*self.socket, PollFlags::OUT)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    self.lock().broken = Some(system(error));
                    self.progressed.notify_waiters();
                    return;
                }
            }
            let mut unsent = self.lock();
            let result = self.flush(&mut unsent);
            self.progressed.notify_waiters();
            if result.is_err() || unsent.buffer.is_empty() {
                unsent.flusher = Flusher::Idle;
                return;
            }
        }
    }
}

fn write_out(socket: &OwnedFd, unsent: &mut Unsent) -> Result<(), Loss> {
    while !unsent.buffer.is_empty() {
        match send(socket.as_fd(), &unsent.buffer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => {
                unsent.buffer.advance(count);
                unsent.sent_bytes += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Loss::Closed),
            Err(error) => return Err(system(error)),
        }
    }
    if unsent.buffer.capacity() > 1 << 16 {
        unsent.buffer = BytesMut::new();
    }
    Ok(())
}

pub(super) fn system(error: Errno) -> Loss {
    Loss::System { kind: io::Error::from(error).kind() }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn release(copy: u64) -> v1::Request {
        v1::Request {
            call: 0,
            body: Some(v1::request::Body::Release(v1::request::Release { copy })),
            ..Default::default()
        }
    }

    fn pair() -> (Arc<Sender>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(std::time::Duration::from_secs(300))).unwrap();
        (Arc::new(Sender::new(Arc::new(ours.into()))), theirs)
    }

    #[test]
    fn what_the_socket_does_not_take_follows_in_order() {
        let (sender, mut theirs) = pair();
        let count = 20_000;
        for copy in 0..count {
            sender.send(&[release(copy)], Priority::GiveBack).unwrap();
        }
        assert!(!sender.lock().buffer.is_empty(), "the socket took everything at once");
        let mut received = BytesMut::new();
        let mut chunk = [0; 4096];
        let mut expected = 0;
        while expected < count {
            let length = theirs.read(&mut chunk).unwrap();
            received.extend_from_slice(&chunk[..length]);
            while let Some(request) = framing::decode::<v1::Request>(&mut received, 64).unwrap() {
                assert_eq!(request, release(expected));
                expected += 1;
            }
        }
    }

    #[tokio::test]
    async fn waiting_for_what_was_sent_ends_when_it_is_or_when_the_peer_is_gone() {
        let (sender, theirs) = pair();
        let position = sender.send(&[release(1)], Priority::GiveBack).unwrap();
        sender.sent(position).await.unwrap();
        let mut last = position;
        for copy in 0..20_000 {
            last = sender.send(&[release(copy)], Priority::GiveBack).unwrap();
        }
        drop(theirs);
        assert!(matches!(sender.sent(last).await, Err(Loss::Closed)));
        assert!(matches!(
            sender.send(&[release(1)], Priority::Call),
            Err(SendFailure::Lost(Loss::Closed))
        ));
    }
}
