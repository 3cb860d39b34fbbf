//! Replaces a lost connection. Only a call that has sent nothing reconnects.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::{Connection, TIMEOUT_SLACK, handshake};
use crate::deadline::Deadline;
use crate::error::{ConnectFailure, Error, Result};
use crate::notice::{Notice, StoreAfterLoss};
use crate::options::{AfterLoss, ConnectOptions};

/// First pause between attempts to reconnect: a store restarts within tens of milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause. Pauses double.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// A connection, and the task or the waiting threads (pump) that receive its answers.
pub(crate) trait Line: Clone {
    fn connection(&self) -> &Arc<Connection>;
}

impl Line for Arc<Connection> {
    fn connection(&self) -> &Arc<Connection> {
        self
    }
}

#[derive(Debug)]
pub(crate) struct Link<L> {
    options: ConnectOptions,
    process: u32,
    current: Mutex<L>,
    failure: Mutex<Option<Failure>>,
}

/// Failed attempts to reconnect.
#[derive(Debug)]
struct Failure {
    /// End of the last attempt.
    at: Instant,
    error: Error,
    /// Time that all attempts took. From the options' timeout on, each call tries only once.
    spent: Duration,
}

/// Returns the time until which a call with this timeout may reconnect.
pub(crate) fn reconnect_deadline(timeout: Duration) -> Deadline {
    Deadline::after(timeout.max(TIMEOUT_SLACK))
}

impl<L: Line> Link<L> {
    pub(crate) fn new(mut options: ConnectOptions, line: L) -> Self {
        // The program may change its working directory.
        options.socket = line.connection().path().to_owned();
        Self {
            options,
            process: std::process::id(),
            current: Mutex::new(line),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    pub(crate) fn current(&self) -> L {
        lock(&self.current).clone()
    }

    /// Returns the connection; `None` if the caller must reconnect.
    pub(crate) fn ready(&self) -> Result<Option<L>> {
        // A forked child may find the lock held for ever.
        self.check_process()?;
        let current = self.current();
        let is_ready =
            self.options.after_loss == AfterLoss::Fail || current.connection().is_ready();
        Ok(is_ready.then_some(current))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.check_process().is_ok()
            && lock(&self.failure).is_none()
            && !self.current().connection().is_lost()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        let current = std::process::id();
        if current == self.process {
            Ok(())
        } else {
            Err(Error::ForkedChild { connected: self.process, current })
        }
    }

    /// Tries to connect until `deadline`, or until all failed attempts together took the options'
    /// timeout.
    ///
    /// # Errors
    /// The error of the last attempt. If that timeout passed while the caller waited for another
    /// call's attempts, returns their error at once.
    pub(crate) fn greet(&self, deadline: Deadline) -> Result<handshake::Greeted> {
        let sleep = |pause| {
            thread::sleep(pause);
            Ok::<_, Infallible>(())
        };
        match self.greet_with(deadline, sleep) {
            Ok(greeted) => greeted,
        }
    }

    /// Acts as [`greet`](Self::greet), but calls `sleep` between attempts, and returns the error of
    /// `sleep`.
    pub(crate) fn greet_with<E>(
        &self,
        deadline: Deadline,
        mut sleep: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<Result<handshake::Greeted>, E> {
        let limit = self.options.timeout;
        let spent = match &*lock(&self.failure) {
            Some(failure) if failure.at > deadline.started() && failure.spent >= limit => {
                return Ok(Err(failure.error.clone()));
            }
            Some(failure) => failure.spent,
            None => Duration::ZERO,
        };
        let patience = limit.saturating_sub(spent).min(deadline.left());
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            // The last attempt has some time, too, and so reports its own error.
            let left = deadline.left().max(FIRST_PAUSE);
            let error = match handshake::greet(&self.options, limit.min(left))
                .and_then(|greeted| self.same_cluster(greeted))
            {
                Ok(greeted) => {
                    *lock(&self.failure) = None;
                    return Ok(Ok(greeted));
                }
                Err(error) => error,
            };
            let (waited, may_pass) = (started.elapsed(), may_pass(&error));
            if !may_pass || waited >= patience {
                let spent = if may_pass { spent + waited } else { limit };
                let failure = Failure { at: Instant::now(), error: error.clone(), spent };
                *lock(&self.failure) = Some(failure);
                return Ok(Err(error));
            }
            sleep(pause.min(patience - waited))?;
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    /// Returns the error of a call whose deadline passed while another call reconnected.
    pub(crate) fn turn_timeout(&self, deadline: Deadline) -> Error {
        if let Some(failure) = &*lock(&self.failure) {
            return failure.error.clone();
        }
        let kind = ConnectFailure::TimedOut { waited: deadline.timeout() };
        Error::Connect { path: self.options.socket.clone(), kind }
    }

    /// Checks that the cluster is the same: in another one, ids name other objects.
    fn same_cluster(&self, greeted: handshake::Greeted) -> Result<handshake::Greeted> {
        let current = self.current();
        match current.connection().cluster().check_same(greeted.cluster.as_str()) {
            Ok(()) => Ok(greeted),
            Err(error) => {
                let kind = ConnectFailure::Refused(error.into());
                Err(Error::Connect { path: self.options.socket.clone(), kind })
            }
        }
    }

    pub(crate) fn replace(&self, line: L) {
        let connection = Arc::clone(line.connection());
        let before = std::mem::replace(&mut *lock(&self.current), line);
        let is_same = connection.arena().is_same(before.connection().arena());
        (self.options.listener)(&Notice::Reconnected {
            path: connection.path().to_owned(),
            node: connection.node().clone(),
            store: if is_same { StoreAfterLoss::Same } else { StoreAfterLoss::StartedAnew },
        });
    }
}

/// Returns `true` if a retry may succeed. A stopping store may look like another program.
fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::Connect { kind: ConnectFailure::NotAStore, .. })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
