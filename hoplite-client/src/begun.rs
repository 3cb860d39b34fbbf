//! A running call: its connection, the notice of a long wait, and its outcome after a loss.

use std::future::Future;
use std::pin::{Pin, pin};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hoplite_core::node::{self, Inspection};
use hoplite_core::{ObjectId, Operation};
use hoplite_proto::local::{Request, Response};
use tokio::sync;
use tokio::task::spawn_blocking;

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Loss, LostCall, Result};
use crate::link::{Link, reconnect_deadline};
use crate::many;
use crate::notice::{Listener, LongWait, Notice};
use crate::options::{AfterLoss, ConnectOptions};

/// Timeout of calls that wait for no object. Expires only if a daemon is suspended or away.
pub const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Store's limit of ids in a query.
const MAX_ASKED_IDS: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) enum Access {
    Lasting(Arc<Lasting>),
    /// A blocking client's connection.
    Single(Single),
    /// An outer call's connection for its inner calls, which send no notices.
    Inner(Arc<Connection>),
}

#[derive(Debug)]
pub(crate) struct Lasting {
    link: Link<Arc<Connection>>,
    turn: Arc<sync::Mutex<()>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Single {
    pub(crate) connection: Arc<Connection>,
    pub(crate) user: User,
    /// Time that the caller has waited for the connection.
    pub(crate) waited: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    listener: Listener,
    long_wait: Duration,
    after_loss: AfterLoss,
}

impl From<&ConnectOptions> for User {
    fn from(options: &ConnectOptions) -> Self {
        let &ConnectOptions { listener, long_wait, after_loss, .. } = options;
        Self { listener, long_wait, after_loss }
    }
}

impl Access {
    pub(crate) fn connection(&self) -> Arc<Connection> {
        match self {
            Self::Lasting(lasting) => lasting.link.current(),
            Self::Single(Single { connection, .. }) | Self::Inner(connection) => {
                Arc::clone(connection)
            }
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Lasting(lasting) => lasting.link.is_connected(),
            Self::Single(Single { connection, .. }) | Self::Inner(connection) => {
                connection.check_usable().is_ok()
            }
        }
    }
}

impl Lasting {
    pub(crate) fn new(options: ConnectOptions, connection: Arc<Connection>) -> Self {
        Self { link: Link::new(options, connection), turn: Arc::default() }
    }

    /// Returns the connection, and the wait for it, which `timeout` limits.
    async fn connected(self: &Arc<Self>, timeout: Duration) -> Result<(Arc<Connection>, Duration)> {
        if let Some(connection) = self.link.ready()? {
            return Ok((connection, Duration::ZERO));
        }
        let deadline = reconnect_deadline(timeout);
        let turn = Arc::clone(&self.turn).lock_owned();
        let turn = tokio::time::timeout(deadline.left(), turn).await;
        let turn = turn.map_err(|_| self.link.turn_timeout(deadline))?;
        if let Some(connection) = self.link.ready()? {
            return Ok((connection, deadline.started().elapsed()));
        }
        let this = Arc::clone(self);
        // If the call is cancelled, its attempts keep the turn.
        let greeted = spawn_blocking(move || (this.link.greet(deadline), turn)).await;
        let (greeted, _turn) = greeted.map_err(|_| Error::ConnectionLost {
            path: self.link.options().socket.clone(),
            reason: Loss::RuntimeEnded,
            call: LostCall::Repeatable,
        })?;
        let connection = Connection::start(greeted?)?;
        self.link.replace(Arc::clone(&connection));
        Ok((connection, deadline.started().elapsed()))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) operation: &'static str,
    pub(crate) id: Option<&'a ObjectId>,
    pub(crate) needs: &'a [ObjectId],
}

impl<'a> Wait<'a> {
    pub(crate) const fn of(operation: &'static str, id: &'a ObjectId) -> Self {
        Self { operation, id: Some(id), needs: &[] }
    }

    pub(crate) const fn for_object(operation: &'static str, id: &'a ObjectId) -> Self {
        Self { operation, id: Some(id), needs: slice::from_ref(id) }
    }

    pub(crate) const fn for_objects(operation: &'static str, ids: &'a [ObjectId]) -> Self {
        Self { operation, id: ids.first(), needs: ids }
    }
}

/// Condition for repeating a call whose connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Harmless,
    IfUnsent,
    /// The store may have performed some of the requests.
    Never,
}

impl Repeat {
    fn state_of(self, error: Error) -> Error {
        match (self, &error) {
            (Self::Harmless, _) => error.leaving(LostCall::Repeatable),
            (Self::IfUnsent, Error::ConnectionLost { call: LostCall::Repeatable, .. }) => error,
            (Self::IfUnsent | Self::Never, _) => error.leaving(LostCall::MayHaveHappened),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) connection: Arc<Connection>,
    timeout: Duration,
    /// Time for the connection, as part of the timeout.
    waited: Duration,
    user: Option<User>,
}

impl Begun {
    pub(crate) async fn new(access: &Access, timeout: &mut Duration) -> Result<Self> {
        let (connection, waited, user) = match access {
            Access::Lasting(lasting) => {
                let (connection, waited) = lasting.connected(*timeout).await?;
                (connection, waited, Some(User::from(lasting.link.options())))
            }
            Access::Single(Single { connection, user, waited }) => {
                (Arc::clone(connection), *waited, Some(*user))
            }
            Access::Inner(connection) => (Arc::clone(connection), Duration::ZERO, None),
        };
        let given = *timeout;
        // Zero would have another meaning.
        *timeout = given.saturating_sub(waited).max(given.min(Duration::from_millis(1)));
        Ok(Self { connection, timeout: given, waited, user })
    }

    pub(crate) async fn report(
        &self,
        operation: &'static str,
        id: Option<&ObjectId>,
        inspection: Inspection,
    ) -> Result<Response> {
        let request = Request::Node(node::Request::Inspect(inspection));
        let call = pin!(self.connection.call(request, Operation::Connect, REPORT_TIMEOUT));
        self.run(Wait { operation, id, needs: &[] }, Repeat::Harmless, call).await
    }

    /// Awaits `work`, and sends one notice if `work` takes long. The caller pins `work` to keep the
    /// future small.
    pub(crate) async fn run<T>(
        &self,
        wait: Wait<'_>,
        repeat: Repeat,
        mut work: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let Some(user) = self.user else { return work.await };
        let done = if self.timeout <= user.long_wait {
            work.await
        } else {
            let quiet = user.long_wait.saturating_sub(self.waited);
            match self.connection.within(quiet, work.as_mut()).await {
                Some(done) => done,
                None => self.run_on(wait, user, work).await,
            }
        };
        done.map_err(|error| match user.after_loss {
            AfterLoss::Reconnect => repeat.state_of(error.having_waited(self.waited)),
            AfterLoss::Fail => error.leaving(LostCall::Ended),
        })
    }

    async fn run_on<T>(
        &self,
        wait: Wait<'_>,
        user: User,
        work: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let (missing, work) = match select(work, pin!(self.missing(wait.needs))).await {
            Either::Left((done, _)) => return done,
            Either::Right(found) => found,
        };
        let (operation, id) = (wait.operation, wait.id.cloned());
        let waited = user.long_wait;
        (user.listener)(&Notice::LongWait(LongWait { operation, id, waited, missing }));
        work.await
    }

    /// Returns the objects of `needs` that do not exist; `None` if the store cannot tell.
    async fn missing(&self, needs: &[ObjectId]) -> Option<Vec<ObjectId>> {
        if needs.is_empty() {
            return None;
        }
        let parts: Vec<&[ObjectId]> =
            needs.chunks(self.connection.max_ids().clamp(1, MAX_ASKED_IDS)).collect();
        let ready =
            many::look(&self.connection, &parts, Deadline::after(Duration::ZERO)).await.ok()?;
        let is_missing = |index: &usize| ready.binary_search(index).is_err();
        Some((0..needs.len()).filter(is_missing).map(|index| needs[index].clone()).collect())
    }
}
