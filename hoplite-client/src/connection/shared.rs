use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use hoplite_core::error::Plane;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{self, CallId, CopyId};
use hoplite_core::{ClusterId, NodeId, Version};
use hoplite_proto::local::{Request, Response, encode_request};
use hoplite_proto::v1;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::calls::{Answer, Calls, Delivery, NotOpened, Waiter};
use super::handshake;
use super::sender::{Priority, SendFailure, Sender};
use crate::arena::Arena;
use crate::error::{Error, Loss, LostCall, Result};
use crate::trace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Given back with `Release`.
    Reader,
    /// Unsealed; given back with `Abort`.
    Writer,
}

/// Shared with the receiving task, which does not keep the connection open.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) socket: Arc<OwnedFd>,
    process: u32,
    pub(super) path: PathBuf,
    pub(super) node: NodeId,
    pub(super) cluster: ClusterId,
    pub(super) owner: Owner,
    pub(super) version: Version,
    pub(super) max_object_bytes: u64,
    pub(super) on_full: Option<fn()>,
    pub(super) confirmed_from_bytes: u64,
    pub(super) max_ids: usize,
    pub(super) arena: Arena,
    pub(super) calls: Calls,
    pub(super) sender: Arc<Sender>,
    pub(super) received_by: ReceivedBy,
    pub(super) made_at: Instant,
    /// Time of the last check, in microseconds since `made_at`.
    pub(super) checked_us: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceivedBy {
    Task,
    Pump,
}

impl Shared {
    pub(super) fn new(
        process: u32,
        greeted: handshake::Greeted,
        received_by: ReceivedBy,
    ) -> Arc<Self> {
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

    pub(super) fn check_process(&self) -> Result<()> {
        let current = std::process::id();
        if current == self.process {
            Ok(())
        } else {
            Err(Error::ForkedChild { connected: self.process, current })
        }
    }

    pub(super) fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok() && !fds[0].revents().is_empty()
    }

    pub(super) fn open(&self, waiter: Waiter) -> Result<CallId> {
        self.check_process()?;
        self.calls.open(waiter).map_err(|failure| match failure {
            NotOpened::Lost(reason) => self.ended(reason),
            NotOpened::TooMany(error) => error.into(),
        })
    }

    pub(super) fn send_call(&self, call: CallId, request: Request) -> Result<()> {
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

    pub(super) fn tell(&self, requests: &[Request]) -> Result<u64> {
        self.check_process()?;
        self.check_version(requests)?;
        self.sender
            .send(&unanswered(requests), Priority::GiveBack)
            .map_err(|failure| self.send_failed(failure))
    }

    /// Refuses all requests if the store is too old for one of them.
    fn check_version(&self, requests: &[Request]) -> Result<()> {
        let numbers = requests.iter().map(|request| match request {
            Request::Node(request) => request.oldest_version(),
            _ => Version::OLDEST.number(),
        });
        numbers.max().map_or(Ok(()), |number| Ok(self.version.require(number)?))
    }

    /// Gives references back. If the connection breaks, the store frees all of them.
    pub(super) fn give_back(&self, requests: &[Request]) {
        if let Err(SendFailure::Lost(reason)) =
            self.sender.send(&unanswered(requests), Priority::GiveBack)
        {
            self.cannot_send(reason);
        }
    }

    pub(super) fn give_back_reference(&self, copy: CopyId, role: Role) {
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

    /// Fails later calls, and open ones unless a closed socket may still contain their answers.
    pub(super) fn cannot_send(&self, reason: Loss) {
        match reason {
            Loss::Closed => self.calls.refuse(reason),
            _ => self.break_off(reason),
        }
    }

    pub(super) fn discard(&self, answer: Answer) {
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

    pub(super) fn deliver(&self, response: v1::Response) -> Result<(), Loss> {
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
    pub(super) fn break_off(&self, reason: Loss) {
        tracing::debug!(path = %self.path.display(), %reason, "connection lost");
        self.calls.lose(reason);
    }

    pub(super) fn shut_down(&self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    pub(super) fn lost(&self) -> Error {
        self.ended(self.calls.loss().unwrap_or(Loss::Closed))
    }

    fn ended(&self, reason: Loss) -> Error {
        Error::ConnectionLost { path: self.path.clone(), reason, call: LostCall::Ended }
    }
}

fn unanswered(requests: &[Request]) -> Vec<v1::Request> {
    requests.iter().map(|request| encode_request(CallId(0), request.clone())).collect()
}
