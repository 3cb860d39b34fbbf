use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_core::node::{self, CallId};
use hoplite_core::shard::Locations;
use hoplite_proto::local::Response;
use tokio::sync::{oneshot, watch};

use crate::error::Loss;

pub(crate) type Answer = Result<Response, hoplite_core::Error>;

pub(crate) type News = Option<Result<Locations, hoplite_core::Error>>;

#[derive(Debug)]
pub(super) enum Waiter {
    Once(oneshot::Sender<Answer>),
    /// A watch of an object's locations, which needs only the latest answer.
    Latest(watch::Sender<News>),
}

#[derive(Debug)]
pub(super) enum NotOpened {
    Lost(Loss),
    TooMany(hoplite_core::Error),
}

#[derive(Debug)]
pub(super) enum Delivery {
    Delivered,
    /// The caller has given up: a reference in this answer must be given back.
    Unwanted(Box<Answer>),
    Unexpected,
}

#[derive(Debug)]
pub(super) struct Calls {
    limit: usize,
    state: Mutex<State>,
    /// `true` once `State::lost` is set, so that readers need no lock.
    is_lost: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    latest: u64,
    open: HashMap<CallId, Waiter>,
    lost: Option<Loss>,
    has_ended: bool,
}

impl Calls {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), is_lost: AtomicBool::new(false) }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn open(&self, waiter: Waiter) -> Result<CallId, NotOpened> {
        let mut state = self.lock();
        if let Some(loss) = &state.lost {
            return Err(NotOpened::Lost(loss.clone()));
        }
        if state.open.len() >= self.limit {
            let limit =
                hoplite_core::Error::limit_exceeded("open calls of one client", self.limit as u64);
            return Err(NotOpened::TooMany(limit));
        }
        state.latest += 1;
        let call = CallId(state.latest);
        state.open.insert(call, waiter);
        Ok(call)
    }

    pub(super) fn close(&self, call: CallId) -> bool {
        self.lock().open.remove(&call).is_some()
    }

    pub(super) fn deliver(&self, call: CallId, answer: Answer) -> Delivery {
        let mut state = self.lock();
        match state.open.remove(&call) {
            None if call.0 == 0 || call.0 > state.latest => Delivery::Unexpected,
            None => Delivery::Unwanted(Box::new(answer)),
            Some(Waiter::Once(waiter)) => match waiter.send(answer) {
                Ok(()) => Delivery::Delivered,
                Err(answer) => Delivery::Unwanted(Box::new(answer)),
            },
            Some(Waiter::Latest(waiter)) => {
                let news = match answer {
                    Ok(Response::Node(node::Response::Locations(locations))) => Ok(locations),
                    Ok(_) => return Delivery::Unexpected,
                    Err(error) => Err(error),
                };
                let more = news.is_ok();
                waiter.send_replace(Some(news));
                if more {
                    state.open.insert(call, Waiter::Latest(waiter));
                }
                Delivery::Delivered
            }
        }
    }

    /// Fails later calls with the loss. Open calls still receive answers.
    pub(super) fn refuse(&self, loss: Loss) {
        self.lock().lost.get_or_insert(loss);
        self.is_lost.store(true, Ordering::Release);
    }

    /// Fails open and later calls with the first loss.
    pub(super) fn lose(&self, loss: Loss) {
        let abandoned = {
            let mut state = self.lock();
            if !std::mem::replace(&mut state.has_ended, true) {
                state.lost = Some(loss);
            }
            self.is_lost.store(true, Ordering::Release);
            std::mem::take(&mut state.open)
        };
        drop(abandoned);
    }

    /// Returns `true` once no more answers arrive.
    pub(super) fn have_ended(&self) -> bool {
        self.lock().has_ended
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.lock().lost.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> Response {
        Response::Node(node::Response::Sealed)
    }

    #[test]
    fn answers_reach_their_call_once() {
        let calls = Calls::new(1);
        let (sender, mut receiver) = oneshot::channel();
        let call = calls.open(Waiter::Once(sender)).unwrap();
        assert!(matches!(calls.deliver(CallId(call.0 + 1), Ok(sealed())), Delivery::Unexpected));
        assert!(matches!(calls.deliver(call, Ok(sealed())), Delivery::Delivered));
        assert!(matches!(receiver.try_recv(), Ok(Ok(Response::Node(node::Response::Sealed)))));
        assert!(matches!(calls.deliver(call, Ok(sealed())), Delivery::Unwanted(_)));
    }

    #[test]
    fn open_calls_are_limited_and_fail_together() {
        let calls = Calls::new(3);
        let mut waiting = Vec::new();
        loop {
            let (sender, receiver) = oneshot::channel();
            match calls.open(Waiter::Once(sender)) {
                Ok(_) => waiting.push(receiver),
                Err(NotOpened::TooMany(_)) => break,
                Err(NotOpened::Lost(loss)) => panic!("{loss}"),
            }
        }
        assert_eq!(waiting.len(), 3);
        calls.lose(Loss::Closed);
        calls.lose(Loss::RuntimeEnded);
        assert!(waiting.iter_mut().all(|receiver| receiver.try_recv().is_err()));
        let (sender, _receiver) = oneshot::channel();
        assert!(matches!(calls.open(Waiter::Once(sender)), Err(NotOpened::Lost(Loss::Closed))));
    }

    #[test]
    fn a_subscription_is_answered_often_but_only_with_locations() {
        let calls = Calls::new(1);
        let (sender, mut receiver) = watch::channel(None);
        let call = calls.open(Waiter::Latest(sender)).unwrap();
        let id = hoplite_core::ObjectId::new("a").unwrap();
        for _ in 0..3 {
            let locations = Locations { id: id.clone(), object: None, locations: Vec::new() };
            assert!(matches!(
                calls.deliver(call, Ok(Response::Node(node::Response::Locations(locations)))),
                Delivery::Delivered
            ));
        }
        assert!(receiver.has_changed().unwrap());
        assert!(matches!(*receiver.borrow_and_update(), Some(Ok(_))));
        assert!(calls.close(call));
    }
}
