//! Receives answers: one task per connection, in the runtime in which it was made.

use std::io;
use std::os::unix;
use std::sync::Arc;

use bytes::BytesMut;
use hoplite_proto::{framing, v1};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::{Result, Shared};
use crate::error::{ConnectFailure, Error, Loss};

/// Least room for what is received. Answers are short, apart from listings, for which the buffer grows.
const RESERVED_BYTES: usize = 4 << 10;

/// Starts the task. It ends when the connection does, from either side.
pub(super) fn spawn(shared: Arc<Shared>) -> Result<()> {
    let stream = register(&shared).map_err(|error| Error::Connect {
        path: shared.path.clone(),
        kind: ConnectFailure::System { kind: error.kind() },
    })?;
    let mut registration = Registration { shared, stream: Some(stream) };
    tokio::spawn(async move {
        let loss = registration.receive().await;
        registration.shared.break_off(loss);
    });
    Ok(())
}

/// Registers the socket with the runtime, under a descriptor of its own: the other descriptor still sends after the runtime
/// has ended.
fn register(shared: &Shared) -> io::Result<UnixStream> {
    let stream = unix::net::UnixStream::from(shared.socket.try_clone()?);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// The socket, registered with the runtime.
struct Registration {
    shared: Arc<Shared>,
    /// `Some` until `drop`.
    stream: Option<UnixStream>,
}

impl Registration {
    /// Delivers answers until the connection breaks; answers the reason.
    async fn receive(&mut self) -> Loss {
        let Some(stream) = &mut self.stream else { return Loss::RuntimeEnded };
        let mut received = BytesMut::new();
        loop {
            received.reserve(RESERVED_BYTES);
            match stream.read_buf(&mut received).await {
                Ok(0) => return Loss::Closed,
                Ok(_) => {
                    if let Err(loss) = deliver(&self.shared, &mut received) {
                        return loss;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Loss::Closed,
                Err(error) => return Loss::System { kind: error.kind() },
            }
        }
    }
}

/// Delivers the answers that are complete.
pub(super) fn deliver(shared: &Shared, received: &mut BytesMut) -> Result<(), Loss> {
    while let Some(response) =
        framing::decode::<v1::Response>(received, framing::MAX_RESPONSE_BYTES).map_err(Loss::Protocol)?
    {
        shared.deliver(response)?;
    }
    Ok(())
}

impl Drop for Registration {
    /// Runs when the task has ended, or is dropped together with its runtime. The socket then stays open for the views
    /// that are left.
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.calls.lose(Loss::RuntimeEnded);
        } else {
            // The child shares the epoll instance with its parent: to deregister here would make the parent deaf.
            std::mem::forget(self.stream.take());
        }
    }
}
