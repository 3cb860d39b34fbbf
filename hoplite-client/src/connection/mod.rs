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

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hoplite_core::error::Plane;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{self, CallId, CopyId};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::{ClusterId, NodeId, Operation, Version};
use hoplite_proto::local::{Request, Response, encode_request};
use hoplite_proto::v1;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{oneshot, watch};

use crate::arena::{Arena, NotWritable};
use crate::error::{ConnectFailure, Error, Loss, LostCall, Result};
use crate::trace;

use calls::{Answer, Calls, Delivery, NotOpened, Waiter};
use sender::{Priority, SendFailure, Sender};

pub(crate) use calls::News;
pub(crate) use pump::Pump;
pub(crate) use recent_puts::{Description, RecentPuts};

/// Time that the store gets, beyond a call's timeout, to report the timeout.
pub(crate) const TIMEOUT_SLACK: Duration = Duration::from_millis(750);

/// Returns the longest wait for an answer. With a timeout of zero, the store queries the directory
/// for up to [`ANSWER_TIMEOUT`], but answers puts, gets, deletes and reduces at once.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Given back with `Release`.
    Reader,
    /// Unsealed; given back with `Abort`.
    Writer,
}

#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    recent_puts: RecentPuts,
}

/// Shared with the receiving task, which does not keep the connection open.
#[derive(Debug)]
pub(crate) struct Shared {
    socket: Arc<OwnedFd>,
    process: u32,
    path: PathBuf,
    node: NodeId,
    cluster: ClusterId,
    owner: Owner,
    version: Version,
    max_object_bytes: u64,
    on_full: Option<fn()>,
    confirmed_from_bytes: u64,
    max_ids: usize,
    arena: Arena,
    calls: Calls,
    sender: Arc<Sender>,
    received_by: ReceivedBy,
    made_at: Instant,
    /// Time of the last check, in microseconds since `made_at`.
    checked_us: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceivedBy {
    Task,
    Pump,
}

impl Connection {
    /// Must be called in a tokio runtime.
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

    /// Maps the arena for writing, if it is not yet. `PermissionDenied` for a client that may only
    /// read.
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
        if self.within(limit, sent).await.is_none() {
            return Err(Error::timeout(operation, limit));
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
    /// Without a runtime, the limit ends only futures that the calling thread polls.
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

impl Shared {
    fn new(process: u32, greeted: handshake::Greeted, received_by: ReceivedBy) -> Arc<Self> {
        let socket = Arc::new(greeted.socket);
        Arc::new(Self {
            process,
            path: greeted.path,
            node: greeted.node,
            cluster: greeted.cluster,
            owner: greeted.owner,
            version: greeted.version,
            max_object_bytes: greeted.max_object_bytes,
            on_full: greeted.on_full,
            confirmed_from_bytes: greeted.confirmed_from_bytes,
            max_ids: greeted.max_ids,
            arena: greeted.arena,
            calls: Calls::new(greeted.max_calls),
            sender: Arc::new(Sender::new(Arc::clone(&socket))),
            socket,
            received_by,
            made_at: Instant::now(),
            checked_us: AtomicU64::new(0),
        })
    }

    fn check_process(&self) -> Result<()> {
        let current = std::process::id();
        if current == self.process {
            Ok(())
        } else {
            Err(Error::ForkedChild { connected: self.process, current })
        }
    }

    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok() && !fds[0].revents().is_empty()
    }

    fn open(&self, waiter: Waiter) -> Result<CallId> {
        self.check_process()?;
        self.calls.open(waiter).map_err(|failure| match failure {
            NotOpened::Lost(reason) => self.ended(reason),
            NotOpened::TooMany(error) => error.into(),
        })
    }

    fn send_call(&self, call: CallId, request: Request) -> Result<()> {
        if let Err(error) = self.check_version(std::slice::from_ref(&request)) {
            self.calls.close(call);
            return Err(error);
        }
        let trace = hoplite_proto::trace::encode(trace::current());
        let request = v1::Request { trace, ..encode_request(call, request) };
        let sent = self.sender.send(&[request], Priority::Call);
        sent.map(|_| ()).map_err(|failure| {
            self.calls.close(call);
            // The store has not performed an incomplete request.
            self.send_failed(failure).leaving(LostCall::Repeatable)
        })
    }

    fn tell(&self, requests: &[Request]) -> Result<u64> {
        self.check_process()?;
        self.check_version(requests)?;
        self.sender
            .send(&unanswered(requests), Priority::GiveBack)
            .map_err(|failure| self.send_failed(failure))
    }

    /// Refuses all requests if the store is too old for one of them: the store would perform only
    /// the others.
    fn check_version(&self, requests: &[Request]) -> Result<()> {
        let numbers = requests.iter().map(|request| match request {
            Request::Node(request) => request.oldest_version(),
            _ => Version::OLDEST.number(),
        });
        numbers.max().map_or(Ok(()), |number| Ok(self.version.require(number)?))
    }

    /// Gives references back. If the connection breaks, the store frees all of them.
    fn give_back(&self, requests: &[Request]) {
        if let Err(SendFailure::Lost(reason)) =
            self.sender.send(&unanswered(requests), Priority::GiveBack)
        {
            self.cannot_send(reason);
        }
    }

    fn give_back_reference(&self, copy: CopyId, role: Role) {
        self.give_back(&[Request::Node(match role {
            Role::Reader => node::Request::Release { copy },
            Role::Writer => node::Request::Abort { copy },
        })]);
    }

    fn send_failed(&self, failure: SendFailure) -> Error {
        match failure {
            SendFailure::Refused(error) => error.into(),
            SendFailure::Lost(reason) => {
                self.cannot_send(reason);
                self.lost()
            }
        }
    }

    /// Fails later calls. A closed socket may still contain answers: the receiver fails open calls.
    fn cannot_send(&self, reason: Loss) {
        match reason {
            Loss::Closed => self.calls.refuse(reason),
            _ => self.break_off(reason),
        }
    }

    fn discard(&self, answer: Answer) {
        match answer {
            Ok(Response::Node(node::Response::Created(view))) => {
                self.give_back_reference(view.copy, Role::Writer)
            }
            Ok(Response::Node(node::Response::Existing(view) | node::Response::Object(view))) => {
                self.give_back_reference(view.copy, Role::Reader);
            }
            Ok(Response::Node(node::Response::Batch(answers))) => {
                answers.into_iter().for_each(|answer| self.discard(answer.map(Response::Node)));
            }
            _ => {}
        }
    }

    fn deliver(&self, response: v1::Response) -> Result<(), Loss> {
        let (call, answer) = hoplite_proto::local::decode_response(response);
        match answer {
            // Call 0 carries the store's reason for closing.
            Err(error) if call == CallId(0) => return Err(Loss::Protocol(error)),
            // The unreadable answer may contain a reference.
            Err(error @ hoplite_core::Error::Malformed { plane: Plane::Local, .. }) => {
                return Err(Loss::Protocol(error));
            }
            answer => match self.calls.deliver(call, answer) {
                Delivery::Delivered => {}
                Delivery::Unwanted(answer) => self.discard(*answer),
                Delivery::Unexpected => {
                    let reason = "an answer without a call";
                    return Err(Loss::Protocol(hoplite_core::Error::malformed(
                        Plane::Local,
                        reason,
                    )));
                }
            },
        }
        Ok(())
    }

    /// Fails all calls. The socket stays open for views: closing it frees their memory.
    fn break_off(&self, reason: Loss) {
        tracing::debug!(path = %self.path.display(), %reason, "connection lost");
        self.calls.lose(reason);
    }

    fn shut_down(&self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    fn lost(&self) -> Error {
        self.ended(self.calls.loss().unwrap_or(Loss::Closed))
    }

    fn ended(&self, reason: Loss) -> Error {
        Error::ConnectionLost { path: self.path.clone(), reason, call: LostCall::Ended }
    }
}

fn unanswered(requests: &[Request]) -> Vec<v1::Request> {
    requests.iter().map(|request| encode_request(CallId(0), request.clone())).collect()
}
