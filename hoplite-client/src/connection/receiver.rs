use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::BytesMut;
use hoplite_proto::{framing, v1};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;

use super::shared::Shared;
use crate::error::{ConnectFailure, Error, Loss, Result};

const RESERVED_BYTES: usize = 4 << 10;

pub(super) fn spawn(shared: Arc<Shared>) -> Result<()> {
    let socket = register(&shared).map_err(|error| Error::Connect {
        path: shared.path.clone(),
        kind: ConnectFailure::System { kind: error.kind() },
    })?;
    let mut registration = Registration { shared, socket: Some(socket) };
    tokio::spawn(async move {
        let loss = registration.receive().await;
        registration.shared.break_off(loss);
    });
    Ok(())
}

/// Registers a duplicate of the socket, because the original must send after the runtime's end.
fn register(shared: &Shared) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that may close the descriptor; an OwnedFd does not"
    )]
    AsyncFd::with_interest(shared.socket.try_clone()?, Interest::READABLE)
}

struct Registration {
    shared: Arc<Shared>,
    socket: Option<AsyncFd<OwnedFd>>,
}

impl Registration {
    async fn receive(&mut self) -> Loss {
        let Some(socket) = &self.socket else { return Loss::RuntimeEnded };
        let mut received = BytesMut::new();
        loop {
            received.reserve(RESERVED_BYTES);
            consume_budget().await;
            let read = match socket.readable().await {
                Ok(mut ready) => {
                    let read =
                        ready.try_io(|socket| hoplite_shm::receive(socket.as_fd(), &mut received));
                    if received.len() < received.capacity() {
                        ready.clear_ready();
                    }
                    read.map_err(drop)
                }
                Err(error) => Ok(Err(error)),
            };
            match read {
                Ok(Ok(0)) => return Loss::Closed,
                Ok(Ok(_)) => {
                    if let Err(loss) = deliver(&self.shared, &mut received) {
                        return loss;
                    }
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Loss::Closed;
                }
                Ok(Err(error)) => return Loss::System { kind: error.kind() },
                Err(()) => {}
            }
        }
    }
}

pub(super) fn deliver(shared: &Shared, received: &mut BytesMut) -> Result<(), Loss> {
    while let Some(response) =
        framing::decode::<v1::Response>(received, framing::MAX_RESPONSE_BYTES)
            .map_err(Loss::Protocol)?
    {
        shared.deliver(response)?;
    }
    Ok(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.calls.lose(Loss::RuntimeEnded);
        } else {
            // Leaks the socket: closing it would change the epoll instance that the child shares
            // with its parent.
            std::mem::forget(self.socket.take());
        }
    }
}
