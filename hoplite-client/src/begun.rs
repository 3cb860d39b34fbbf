//! A call of a client that has begun: the connection that it goes over, what is reported of it while it waits, and in which
//! state it is left if the connection breaks.

use std::future::Future;
use std::pin::{Pin, pin};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use hoplite_core::node::{self, Inspection};
use hoplite_core::{ObjectId, Operation};
use hoplite_proto::local::{Request, Response};
use tokio::sync;
use tokio::task::spawn_blocking;

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Loss, LostCall, Result};
use crate::link::Link;
use crate::many;
use crate::notice::{Listener, LongWait, Notice};
use crate::options::{AfterLoss, ConnectOptions};

/// The time that the calls wait that ask for what a daemon knows now: `Client::list`, `Client::describe` and
/// `Client::status`. They wait for no object, so this only bounds a daemon that is stopped.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most ids in one request for what is missing. The store bounds the ids in one request, and the ids in all open calls of a
/// client together.
const MAX_ASKED_IDS: usize = 1024;

/// The way in which a client gets the connection for a call.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// The connection in use, or a new one if that is lost.
    Lasting(Arc<Lasting>),
    /// One connection, which the blocking client replaces itself.
    Single(Single),
    /// The connection of a call that consists of other calls. Nothing is reported of these.
    Inner(Arc<Connection>),
}

/// The link of an asynchronous client.
#[derive(Debug)]
pub(crate) struct Lasting {
    link: Link<Arc<Connection>>,
    /// Held by the task that connects again.
    turn: sync::Mutex<()>,
}

/// One connection of a blocking client.
#[derive(Debug, Clone)]
pub(crate) struct Single {
    pub(crate) connection: Arc<Connection>,
    pub(crate) user: User,
}

/// The parts of the options that concern each call.
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
            Self::Single(Single { connection, .. }) | Self::Inner(connection) => Arc::clone(connection),
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
        Self { link: Link::new(options, connection), turn: sync::Mutex::new(()) }
    }

    /// The connection for a call.
    async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>> {
        if let Some(connection) = self.link.ready()? {
            return Ok(connection);
        }
        let asked_at = Instant::now();
        let _turn = self.turn.lock().await;
        // Another task may have connected meanwhile.
        if let Some(connection) = self.link.ready()? {
            return Ok(connection);
        }
        let this = Arc::clone(self);
        let greeted = spawn_blocking(move || this.link.greet(asked_at)).await;
        let greeted = greeted.map_err(|_| Error::ConnectionLost {
            path: self.link.options().socket.clone(),
            reason: Loss::RuntimeEnded,
            call: LostCall::Repeatable,
        })??;
        let connection = Connection::start(greeted)?;
        self.link.replace(Arc::clone(&connection));
        Ok(connection)
    }
}

/// The objects that a call waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) operation: &'static str,
    pub(crate) id: Option<&'a ObjectId>,
    /// The objects without which the call does not end. Empty if it waits for other things.
    pub(crate) needs: &'a [ObjectId],
}

impl<'a> Wait<'a> {
    /// A call about an object that waits for other things.
    pub(crate) const fn of(operation: &'static str, id: &'a ObjectId) -> Self {
        Self { operation, id: Some(id), needs: &[] }
    }

    /// A call that waits for the object that it is about.
    pub(crate) const fn for_object(operation: &'static str, id: &'a ObjectId) -> Self {
        Self { operation, id: Some(id), needs: slice::from_ref(id) }
    }

    /// A call that waits for several objects.
    pub(crate) const fn for_objects(operation: &'static str, ids: &'a [ObjectId]) -> Self {
        Self { operation, id: ids.first(), needs: ids }
    }
}

/// The conditions under which a call that a lost connection has ended may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Always: the call only reads, or a second time changes nothing more.
    Harmless,
    /// If its one request was not sent.
    IfUnsent,
    /// Never: the call consists of several requests, of which some may have been performed.
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

/// A call that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) connection: Arc<Connection>,
    timeout: Duration,
    /// `None` for a call that is a part of another one.
    user: Option<User>,
}

impl Begun {
    pub(crate) async fn new(access: &Access, timeout: Duration) -> Result<Self> {
        let (connection, user) = match access {
            Access::Lasting(lasting) => {
                (lasting.connected().await?, Some(User::from(lasting.link.options())))
            }
            Access::Single(Single { connection, user }) => (Arc::clone(connection), Some(*user)),
            Access::Inner(connection) => (Arc::clone(connection), None),
        };
        Ok(Self { connection, timeout, user })
    }

    /// Asks for what a daemon knows now.
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

    /// Performs `work`, and tells the user once if that takes long. It is pinned by the caller: each future that holds another
    /// one by value takes twice its size.
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
            match self.connection.within(user.long_wait, work.as_mut()).await {
                Some(done) => done,
                None => self.run_on(wait, user, work).await,
            }
        };
        done.map_err(|error| match user.after_loss {
            AfterLoss::Reconnect => repeat.state_of(error),
            AfterLoss::Fail => error.leaving(LostCall::Ended),
        })
    }

    /// Goes on with `work` that has taken long. Tells the user what it waits for.
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

    /// Returns the objects of `needs` that are complete nowhere; `None` if there are no needs, or the store cannot tell.
    async fn missing(&self, needs: &[ObjectId]) -> Option<Vec<ObjectId>> {
        if needs.is_empty() {
            return None;
        }
        let parts: Vec<&[ObjectId]> =
            needs.chunks(self.connection.max_ids().clamp(1, MAX_ASKED_IDS)).collect();
        let ready = many::look(&self.connection, &parts, Deadline::after(Duration::ZERO)).await.ok()?;
        let is_missing = |index: &usize| ready.binary_search(index).is_err();
        Some((0..needs.len()).filter(is_missing).map(|index| needs[index].clone()).collect())
    }
}
