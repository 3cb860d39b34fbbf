//! Turns of connections, whose requests run on one thread: start-time fair queueing (Goyal, Vin and
//! Cheng, SIGCOMM 1996, section 2). The cost of a turn is its number of requests.
//!
//! The connection with the fewest requests goes first. Clients that send without a pause delay the
//! request of another client by a few turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Number of requests by which a connection may be ahead of others while none waits.
const LEAD: u64 = 16;
/// Number of requests by which a connection that had few stays behind the others.
const CREDIT: u64 = 64;
/// Number of turns for which every connection waits for its turn after two waited at once.
const WARY_TURNS: u32 = 256;
/// Length from which requests are long. A connection always waits for its turn with them.
const LONG_BYTES: usize = 4 << 10;
/// Most turns, only the last of them with long requests, between two looks at all sockets.
const TURNS_AT_ONCE: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queue<Waiter>>);

#[derive(Debug)]
struct Waiter {
    grant: oneshot::Sender<()>,
    is_long: bool,
}

/// Times are on a virtual clock, which advances with the turns of waiting connections.
#[derive(Debug)]
struct Queue<T> {
    now: u64,
    latest_end: u64,
    /// By start and arrival.
    waiting: BTreeMap<(u64, u64), T>,
    arrivals: u64,
    wary_turns: u32,
    is_granting: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            now: CREDIT,
            latest_end: CREDIT,
            waiting: BTreeMap::new(),
            arrivals: 0,
            wary_turns: 0,
            is_granting: false,
        }
    }
}

impl Turns {
    /// Waits for the turn of a connection whose previous turn ended at `last_end`, and which has
    /// received requests of `length_bytes`. Returns the start of the turn. Cancel safe.
    pub(super) async fn take(self: &Arc<Self>, last_end: u64, length_bytes: usize) -> u64 {
        let (start, granted) = self.enter(last_end, length_bytes);
        if let Some(granted) = granted {
            let _ = granted.await;
        }
        start
    }

    pub(super) fn ended(&self, end: u64) {
        self.lock().ended(end);
    }

    fn enter(
        self: &Arc<Self>,
        last_end: u64,
        length_bytes: usize,
    ) -> (u64, Option<oneshot::Receiver<()>>) {
        let mut queue = self.lock();
        let (start, is_long) = (queue.start_after(last_end), length_bytes >= LONG_BYTES);
        if !is_long && queue.may_start(start) {
            return (start, None);
        }
        let (grant, granted) = oneshot::channel();
        queue.push(start, Waiter { grant, is_long });
        if !std::mem::replace(&mut queue.is_granting, true) {
            tokio::spawn(Arc::clone(self).grant());
        }
        (start, Some(granted))
    }

    async fn grant(self: Arc<Self>) {
        loop {
            // Runs after all other ready tasks, and after the runtime has looked at all sockets.
            yield_now().await;
            let mut queue = self.lock();
            if queue.waiting.is_empty() {
                queue.all_are_equal();
                queue.is_granting = false;
                return;
            }
            for _ in 0..TURNS_AT_ONCE {
                let Some(Waiter { grant, is_long }) = queue.pop() else { break };
                let _ = grant.send(());
                if is_long {
                    break;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Queue<T> {
    fn start_after(&self, last_end: u64) -> u64 {
        last_end.max(self.now - CREDIT)
    }

    const fn may_start(&self, start: u64) -> bool {
        self.wary_turns == 0 && start <= self.now + LEAD
    }

    fn push(&mut self, start: u64, waiter: T) {
        self.arrivals += 1;
        self.waiting.insert((start, self.arrivals), waiter);
    }

    /// Returns the waiter with the earliest start.
    fn pop(&mut self) -> Option<T> {
        let ((start, _), waiter) = self.waiting.pop_first()?;
        self.now = self.now.max(start);
        if !self.waiting.is_empty() {
            self.wary_turns = WARY_TURNS;
        }
        Some(waiter)
    }

    /// Forgets, while nobody waits, which connections had many requests.
    fn all_are_equal(&mut self) {
        self.now = self.now.max(self.latest_end);
    }

    fn ended(&mut self, end: u64) {
        self.latest_end = self.latest_end.max(end);
        self.wary_turns = self.wary_turns.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_connection_with_few_requests_goes_before_those_with_many() {
        let mut queue = Queue::default();
        for (number, end) in [190, 130, 160, 130, 0].into_iter().enumerate() {
            let start = queue.start_after(end);
            assert_eq!(queue.may_start(start), number == 4);
            queue.ended(start);
            queue.push(start, number);
        }
        let order = [(); 5].map(|()| queue.pop().unwrap());
        assert_eq!(order, [4, 1, 3, 2, 0]);
        assert!(!queue.may_start(queue.start_after(0)), "others waited a short time ago");
        assert_eq!(queue.pop(), None);
        queue.all_are_equal();
        for _ in 0..WARY_TURNS {
            queue.ended(200);
        }
        assert!(queue.may_start(queue.start_after(200)), "nobody waits");
    }

    #[test]
    fn requests_are_divided_equally_among_connections_that_always_wait() {
        let mut queue = Queue::default();
        let costs = [100, 1, 10];
        let mut ends = [CREDIT; 3];
        for number in 0..3 {
            queue.push(CREDIT, number);
        }
        for _ in 0..10_000 {
            let number: usize = queue.pop().unwrap();
            ends[number] = queue.start_after(ends[number]) + costs[number];
            queue.ended(ends[number]);
            queue.push(ends[number], number);
        }
        let most = *ends.iter().max().unwrap();
        assert!(ends.iter().all(|end| most - *end <= 101), "{ends:?}");
    }

    #[tokio::test]
    async fn a_request_waits_for_one_turn_of_a_crowd() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let begin = |name: &'static str, rounds: usize| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let mut end = 0;
                for _ in 0..rounds {
                    end = turns.take(end, LONG_BYTES).await + CREDIT;
                    order.lock().unwrap().push(name);
                    turns.ended(end);
                }
            })
        };
        let crowd: Vec<_> = (0..20).map(|_| begin("crowd", 5)).collect();
        while order.lock().unwrap().len() < 40 {
            yield_now().await;
        }
        let came_at = order.lock().unwrap().len();
        begin("another", 1).await.unwrap();
        let went_at = order.lock().unwrap().iter().position(|name| *name == "another").unwrap();
        assert!(went_at <= came_at + 2, "{came_at} {went_at}");
        for client in crowd {
            client.await.unwrap();
        }
        assert_eq!(order.lock().unwrap().len(), 101);
    }

    #[tokio::test]
    async fn a_connection_that_ends_while_it_waits_holds_nobody_up() {
        let turns = Arc::new(Turns::default());
        assert!(turns.take(0, LONG_BYTES).now_or_never().is_none());
        assert_eq!(turns.take(200, LONG_BYTES).await, 200);
        assert_eq!(turns.take(201, 1).await, 201);
    }
}
