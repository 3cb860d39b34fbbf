//! Being asked to end: Ctrl-C, `kill`, or the end of the terminal.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Does `work`, unless a signal asks this process to end first; `work` is dropped then.
///
/// # Errors
/// Those of `work`, and [`Interrupted`].
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        result = work => result,
        () = signals.received() => Err(Interrupted.into()),
    }
}

/// A signal asked this process to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The signals that ask this process to end. While this exists, they do nothing else.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen to signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// Cancelling it loses no signal.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
