//! One connection to a store: calls, answers, and references that must be given back.
//!
//! The socket stays open until the last client, view or writer is dropped: closing it gives back
//! all references. Callers write requests ([`sender`]). One task ([`receiver`]), or one waiting
//! thread of a blocking client ([`pump`]), reads answers.

mod calls;
pub(crate) mod handshake;
mod pump;
mod receiver;
mod recent_puts;
mod sender;
mod shared;

use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hoplite_core::error::Plane;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{self, CallId, CopyId};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::{ClusterId, NodeId, Operation, Version};
use hoplite_proto::local::{Request, Response};
use tokio::sync::{oneshot, watch};

use crate::arena::{Arena, NotWritable};
use crate::error::{ConnectFailure, Error, Loss, Result};

use calls::{Answer, Waiter};
use shared::{ReceivedBy, Shared};

pub(crate) use calls::News;
pub(crate) use pump::Pump;
pub(crate) use recent_puts::{Description, RecentPuts};
pub(crate) use shared::Role;

/// Time that the store gets, beyond a call's timeout, to report the timeout.
pub(crate) const TIMEOUT_SLACK: Duration = Duration::from_millis(750);

/// Returns the longest wait for an answer. With a timeout of zero, the store answers puts, gets,
/// deletes and reduces at once, and otherwise queries the directory for up to [`ANSWER_TIMEOUT`].
const fn answer_limit(operation: Operation, timeout: Duration) -> Duration {
    let is_at_once = matches!(
        operation,
        Operation::Put | Operation::Get | Operation::Delete | Operation::Reduce
    );
    let at_store = if timeout.is_zero() && !is_at_once { ANSWER_TIMEOUT } else { timeout };
    at_store.saturating_add(TIMEOUT_SLACK)
}

/// Shortest time in microseconds between two checks for a closed socket.
const CHECK_INTERVAL_US: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    recent_puts: RecentPuts,
}

impl Connection {
    /// Needs a tokio runtime.
    pub(crate) fn start(greeted: handshake::Greeted) -> Result<Arc<Self>> {
        Self::start_in(std::process::id(), greeted)
    }

    pub(crate) fn start_in(process: u32, greeted: handshake::Greeted) -> Result<Arc<Self>> {
        let shared = Shared::new(process, greeted, ReceivedBy::Task);
        receiver::spawn(Arc::clone(&shared))?;
        Ok(Arc::new(Self { shared, recent_puts: RecentPuts::default() }))
    }

    pub(crate) fn pumped(greeted: handshake::Greeted) -> Result<(Arc<Self>, Pump)> {
        let shared = Shared::new(std::process::id(), greeted, ReceivedBy::Pump);
        let pump = Pump::new(Arc::clone(&shared)).map_err(|error| Error::Connect {
            path: shared.path.clone(),
            kind: ConnectFailure::System { kind: std::io::Error::from(error).kind() },
        })?;
        Ok((Arc::new(Self { shared, recent_puts: RecentPuts::default() }), pump))
    }

    pub(crate) fn node(&self) -> &NodeId {
        &self.shared.node
    }

    pub(crate) fn cluster(&self) -> &ClusterId {
        &self.shared.cluster
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.shared.owner
    }

    pub(crate) fn version(&self) -> Version {
        self.shared.version
    }

    pub(crate) fn max_object_bytes(&self) -> u64 {
        self.shared.max_object_bytes
    }

    pub(crate) fn path(&self) -> &Path {
        &self.shared.path
    }

    pub(crate) fn confirmed_from_bytes(&self) -> u64 {
        self.shared.confirmed_from_bytes
    }

    pub(crate) fn has_on_full(&self) -> bool {
        self.shared.on_full.is_some()
    }

    pub(crate) async fn give_back_unneeded(&self) {
        let Some(give_back) = self.shared.on_full else { return };
        match self.shared.received_by {
            ReceivedBy::Task => {
                let _ = tokio::task::spawn_blocking(give_back).await;
            }
            ReceivedBy::Pump => give_back(),
        }
    }

    pub(crate) const fn recent_puts(&self) -> &RecentPuts {
        &self.recent_puts
    }

    pub(crate) fn max_ids(&self) -> usize {
        self.shared.max_ids
    }

    pub(crate) fn max_calls(&self) -> usize {
        self.shared.calls.limit()
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.shared.arena
    }

    /// Maps the arena for writing. `PermissionDenied` for a client that may only read.
    pub(crate) fn map_writable(&self) -> Result<()> {
        if self.shared.arena.is_writable() {
            return Ok(());
        }
        self.shared.arena.map_writable().map_err(|failure| match failure {
            NotWritable::NoRight => {
                hoplite_core::Error::permission_denied("the store lets this user only read").into()
            }
            NotWritable::Unmapped(error) => {
                let kind = ConnectFailure::Arena { reason: Arc::new(error) };
                Error::Connect { path: self.shared.path.clone(), kind }
            }
        })
    }

    /// Sends a request and awaits its answer for at most [`answer_limit`].
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call, and gives back a reference in a late answer.
    pub(crate) async fn call(
        &self,
        request: impl Into<Request>,
        operation: Operation,
        timeout: Duration,
    ) -> Result<Response> {
        let mut call = self.begin(request.into())?;
        let limit = answer_limit(operation, timeout);
        match self.within(limit, &mut call.answer).await {
            Some(Ok(answer)) => Ok(answer?),
            Some(Err(_)) => Err(self.shared.lost()),
            None => Err(Error::timeout(operation, limit)),
        }
    }

    pub(crate) async fn call_node(
        &self,
        request: node::Request,
        operation: Operation,
        timeout: Duration,
    ) -> Result<node::Response> {
        match self.call(Request::Node(request), operation, timeout).await? {
            Response::Node(response) => Ok(response),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) fn subscribe(
        &self,
        request: node::Request,
    ) -> Result<(CallId, watch::Receiver<News>)> {
        let (sender, receiver) = watch::channel(None);
        let call = self.shared.open(Waiter::Latest(sender))?;
        self.shared.send_call(call, Request::Node(request))?;
        Ok((call, receiver))
    }

    pub(crate) fn unsubscribe(&self, call: CallId) {
        if self.shared.check_process().is_ok() && self.shared.calls.close(call) {
            self.shared.give_back(&[Request::Node(node::Request::Unsubscribe { call })]);
        }
    }

    pub(crate) async fn tell(
        &self,
        requests: &[Request],
        operation: Operation,
        timeout: Duration,
    ) -> Result<()> {
        let position = self.shared.tell(requests)?;
        let limit = answer_limit(operation, timeout);
        let sent = pin!(self.shared.sender.sent(position));
        match self.within(limit, sent).await {
            None => return Err(Error::timeout(operation, limit)),
            Some(Err(loss)) => self.shared.cannot_send(loss),
            Some(Ok(())) => {}
        }
        match self.shared.calls.loss() {
            None => Ok(()),
            Some(_) => Err(self.shared.lost()),
        }
    }

    pub(crate) async fn within<F: Future + Unpin>(
        &self,
        limit: Duration,
        future: F,
    ) -> Option<F::Output> {
        match self.shared.received_by {
            ReceivedBy::Task => tokio::time::timeout(limit, future).await.ok(),
            ReceivedBy::Pump => pump::within(limit, future).await,
        }
    }

    /// Performs `work`, which makes several calls, for at most [`answer_limit`].
    ///
    /// Without a runtime, the limit ends only futures of the calling thread.
    pub(crate) async fn bounded<T>(
        &self,
        operation: Operation,
        timeout: Duration,
        work: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let limit = answer_limit(operation, timeout);
        let done = self.within(limit, work).await;
        let mut done = done.unwrap_or_else(|| Err(Error::timeout(operation, limit)));
        // A timeout names the whole operation, instead of a call within `work`.
        if let Err(Error::Object(hoplite_core::Error::Timeout { operation: inner, waited, .. })) =
            &mut done
            && *inner != Operation::Connect
        {
            (*inner, *waited) = (operation, timeout);
        }
        done
    }

    /// Tells the store (doorbell) that a copy has the bytes for which the store waits. Never
    /// blocks.
    pub(crate) fn ring(&self, copy: CopyId) -> Result<()> {
        self.shared.tell(&[Request::Doorbell { copy }]).map(|_| ())
    }

    /// Gives a reference back without blocking. Does nothing in a forked child: the parent holds
    /// the reference.
    pub(crate) fn give_back(&self, copy: CopyId, role: Role) {
        if self.shared.check_process().is_ok() {
            self.shared.give_back_reference(copy, role);
        }
    }

    /// Ends the connection: after an answer of the wrong kind, later answers cannot be trusted.
    pub(crate) fn unexpected(&self) -> Error {
        self.malformed("an answer that does not fit its call")
    }

    pub(crate) fn misplaced(&self, error: &hoplite_shm::Error) -> Error {
        tracing::debug!(%error, "the store named memory that cannot be used");
        self.malformed("memory without the named object")
    }

    pub(crate) fn malformed(&self, reason: &'static str) -> Error {
        self.shared.break_off(Loss::Protocol(hoplite_core::Error::malformed(Plane::Local, reason)));
        self.shared.lost()
    }

    pub(crate) fn lost(&self) -> Error {
        self.shared.lost()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.shared.calls.is_lost()
    }

    /// Returns `false` if the connection is lost or the store has closed the socket. Earlier
    /// answers still arrive.
    pub(crate) fn is_ready(&self) -> bool {
        if self.is_lost() {
            return false;
        }
        let now_us = u64::try_from(self.shared.made_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let checked_us = self.shared.checked_us.load(Ordering::Relaxed);
        if !cfg!(test) && now_us.saturating_sub(checked_us) < CHECK_INTERVAL_US {
            return true;
        }
        if self.shared.has_hung_up() {
            return false;
        }
        self.shared.checked_us.store(now_us, Ordering::Relaxed);
        true
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        self.shared.check_process()?;
        if self.shared.calls.loss().is_some() { Err(self.shared.lost()) } else { Ok(()) }
    }

    fn begin(&self, request: Request) -> Result<OpenCall<'_>> {
        let (sender, answer) = oneshot::channel();
        let call = self.shared.open(Waiter::Once(sender))?;
        let open = OpenCall { shared: &self.shared, call, answer };
        self.shared.send_call(call, request)?;
        Ok(open)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child must not shut down its parent's connection.
        if self.shared.check_process().is_ok() {
            self.shared.calls.lose(Loss::Closed);
            self.shared.shut_down();
        }
    }
}

/// Cancels the call if dropped before its answer.
struct OpenCall<'a> {
    shared: &'a Arc<Shared>,
    call: CallId,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if self.shared.check_process().is_err() {
            return;
        }
        if self.shared.calls.close(self.call) {
            self.shared.give_back(&[Request::Node(node::Request::Cancel { call: self.call })]);
        }
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv() {
            self.shared.discard(answer);
        }
    }
}
