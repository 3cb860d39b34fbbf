//! Turns of connections, whose requests run on one thread. While many clients send without a pause,
//! a client that sends little hardly waits.
//!
//! Each turn starts at a time of the virtual clock of start-time fair queueing (Goyal, Vin and
//! Cheng, SIGCOMM 1996, section 2). The turn with the earliest expected end goes first, so that
//! short turns precede long ones. The cost of a turn, its number of object ids, is known only
//! afterwards. The expected end uses the cost of the connection's previous turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Cost by which a connection may be ahead of the clock without waiting.
const LEAD: u64 = 16;
/// Cost by which a connection's start precedes the clock after a pause; also the most expected
/// cost, as the clock must not pass a waiting connection.
const CREDIT: u64 = 64;
/// Number of turns, after two connections waited at once, in which all connections wait.
const CONTENDED_TURNS: u32 = 256;
/// Number of buffered bytes from which a connection waits for its turn, even alone.
const LONG_BYTES: usize = 4 << 10;
/// Most turns granted between two looks at all sockets. A long turn is the last.
const TURNS_AT_ONCE: usize = 8;
/// Number of later arrivals after which a waiter is overtaken, and goes before others.
const MAX_OVERTAKING: u64 = 1024;
/// Number of turns between two searches for an overtaken waiter.
const SEARCH_EVERY: u64 = 16;

#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queue<Waiter>>);

#[derive(Debug)]
struct Waiter {
    grant: oneshot::Sender<()>,
    is_long: bool,
}

/// Times are on a virtual clock, which counts the costs of one connection.
#[derive(Debug)]
struct Queue<T> {
    now: u64,
    latest_end: u64,
    /// Waiters and their starts, by expected end, then arrival.
    waiting: BTreeMap<(u64, u64), (u64, T)>,
    arrivals: u64,
    pops: u64,
    contended_turns: u32,
    is_granting: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            now: CREDIT,
            latest_end: CREDIT,
            waiting: BTreeMap::new(),
            arrivals: 0,
            pops: 0,
            contended_turns: 0,
            is_granting: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastTurn {
    end: u64,
    cost: u64,
}

/// A turn, or the place of a connection that waits for it.
#[derive(Debug)]
pub(super) struct Turn {
    start: u64,
    granted: Option<oneshot::Receiver<()>>,
}

impl Turn {
    pub(super) const fn is_waiting(&self) -> bool {
        self.granted.is_some()
    }

    /// Cancel safe.
    pub(super) async fn granted(&mut self) {
        if let Some(granted) = &mut self.granted {
            let _ = granted.await;
            self.granted = None;
        }
    }
}

impl Turns {
    /// Returns a turn that ends now, for a new connection.
    pub(super) fn first(&self) -> LastTurn {
        LastTurn { end: self.lock().now, cost: 1 }
    }

    /// Begins the turn of a connection, or lets it wait.
    pub(super) fn enter(self: &Arc<Self>, last: LastTurn, buffered_bytes: usize) -> Turn {
        let mut queue = self.lock();
        let (start, is_long) = (queue.start_after(last.end), buffered_bytes >= LONG_BYTES);
        if !is_long && queue.may_start(start) {
            return Turn { start, granted: None };
        }
        let (grant, granted) = oneshot::channel();
        queue.push(start, last.cost, Waiter { grant, is_long });
        if !std::mem::replace(&mut queue.is_granting, true) {
            tokio::spawn(Arc::clone(self).grant());
        }
        Turn { start, granted: Some(granted) }
    }

    pub(super) fn end(&self, turn: &Turn, cost: usize) -> LastTurn {
        let last = LastTurn { end: turn.start + cost as u64, cost: cost as u64 };
        self.lock().ended(last.end);
        last
    }

    async fn grant(self: Arc<Self>) {
        loop {
            // Lets the ready tasks of this thread run, and the runtime look at its sockets.
            yield_now().await;
            let mut queue = self.lock();
            if queue.waiting.is_empty() {
                queue.forget_leads();
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

    fn may_start(&self, start: u64) -> bool {
        self.contended_turns == 0 && self.waiting.is_empty() && start <= self.now + LEAD
    }

    fn push(&mut self, start: u64, cost: u64, waiter: T) {
        self.arrivals += 1;
        self.waiting.insert((start + cost.min(CREDIT), self.arrivals), (start, waiter));
    }

    fn pop(&mut self) -> Option<T> {
        self.pops += 1;
        let overtaken = self.pops.is_multiple_of(SEARCH_EVERY).then(|| self.overtaken()).flatten();
        let waiter = match overtaken {
            Some(oldest) => self.waiting.remove(&oldest)?.1,
            None => {
                let (_, (start, waiter)) = self.waiting.pop_first()?;
                self.now = self.now.max(start);
                waiter
            }
        };
        if !self.waiting.is_empty() {
            self.contended_turns = CONTENDED_TURNS;
        }
        Some(waiter)
    }

    fn overtaken(&self) -> Option<(u64, u64)> {
        let oldest = *self.waiting.keys().min_by_key(|(_, arrival)| *arrival)?;
        (self.arrivals - oldest.1 > MAX_OVERTAKING).then_some(oldest)
    }

    /// Forgets which connections had many requests, once the queue is empty.
    fn forget_leads(&mut self) {
        self.now = self.now.max(self.latest_end);
    }

    fn ended(&mut self, end: u64) {
        self.latest_end = self.latest_end.max(end);
        self.contended_turns = self.contended_turns.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LastTurn {
        pub(in crate::local) const EARLIEST: Self = Self { end: 0, cost: 0 };
    }

    impl Turns {
        /// Number of waiters since the start, and now.
        pub(in crate::local) fn waiters(&self) -> (u64, usize) {
            let queue = self.lock();
            (queue.arrivals, queue.waiting.len())
        }
    }

    #[test]
    fn a_connection_with_few_requests_goes_before_those_with_many() {
        let mut queue = Queue::default();
        assert!(queue.may_start(queue.start_after(0)));
        assert!(!queue.may_start(queue.start_after(130)));
        for (number, end) in [190, 130, 160, 130, 0].into_iter().enumerate() {
            let start = queue.start_after(end);
            queue.ended(start);
            queue.push(start, 1, number);
        }
        let order = [(); 5].map(|()| queue.pop().unwrap());
        assert_eq!(order, [4, 1, 3, 2, 0]);
        assert!(!queue.may_start(queue.start_after(0)), "others waited a short time ago");
        assert_eq!(queue.pop(), None);
        queue.forget_leads();
        for _ in 0..CONTENDED_TURNS {
            queue.ended(200);
        }
        assert!(queue.may_start(queue.start_after(200)), "nobody waits");
    }

    #[test]
    fn a_short_turn_precedes_long_ones_with_the_same_start() {
        let mut queue = Queue::default();
        for _ in 0..64 {
            queue.push(CREDIT, 100, "long");
        }
        queue.push(CREDIT, 1, "short");
        assert_eq!(queue.pop(), Some("short"));
    }

    #[test]
    fn a_connection_pays_for_a_very_long_turn_only_once() {
        let mut queue = Queue::default();
        let end = queue.start_after(0) + 65_536;
        queue.now = 1_000_000;
        queue.push(queue.start_after(1_000_000), 1, "busy");
        queue.push(queue.start_after(end), 65_536, "paused");
        assert_eq!(queue.pop(), Some("paused"));
    }

    #[test]
    fn a_connection_with_short_and_long_turns_gets_its_share() {
        let mut queue = Queue::default();
        let mut served = [0; 3];
        let mut last = [(CREDIT, 1); 3];
        for number in 0..3 {
            queue.push(CREDIT, 1, number);
        }
        for turn in 0..30_000 {
            let number: usize = queue.pop().unwrap();
            let cost = if number == 0 && turn % 2 == 0 { 256 } else { 1 };
            served[number] += cost;
            let end = queue.start_after(last[number].0) + cost;
            last[number] = (end, cost);
            queue.ended(end);
            queue.push(queue.start_after(end), cost, number);
        }
        let (most, least) = (served.iter().max().unwrap(), served.iter().min().unwrap());
        assert!(most - least <= 512, "{served:?}");
    }

    #[test]
    fn requests_are_divided_equally_among_connections_that_always_wait() {
        let mut queue = Queue::default();
        let costs = [100, 1, 10];
        let mut ends = [CREDIT; 3];
        for number in 0..3 {
            queue.push(CREDIT, 1, number);
        }
        for _ in 0..10_000 {
            let number: usize = queue.pop().unwrap();
            ends[number] = queue.start_after(ends[number]) + costs[number];
            queue.ended(ends[number]);
            queue.push(ends[number], costs[number], number);
        }
        let most = *ends.iter().max().unwrap();
        assert!(ends.iter().all(|end| most - *end <= 101), "{ends:?}");
    }

    #[test]
    fn new_connections_do_not_starve_an_older_one() {
        let mut queue = Queue::default();
        queue.push(1000, 1, "old");
        let popped = (0..=MAX_OVERTAKING + SEARCH_EVERY).map(|_| {
            queue.push(queue.start_after(queue.now), 1, "new");
            queue.pop().unwrap()
        });
        assert!(popped.collect::<Vec<_>>().contains(&"old"));
    }

    #[tokio::test]
    async fn a_request_waits_for_few_turns_of_a_crowd() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let begin = |name: &'static str, rounds: usize| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let mut last = turns.first();
                for _ in 0..rounds {
                    let mut turn = turns.enter(last, LONG_BYTES);
                    turn.granted().await;
                    order.lock().unwrap().push(name);
                    last = turns.end(&turn, 64);
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
        assert!(turns.enter(LastTurn::EARLIEST, LONG_BYTES).is_waiting());
        for (end, buffered_bytes) in [(200, LONG_BYTES), (201, 1)] {
            let mut turn = turns.enter(LastTurn { end, cost: 1 }, buffered_bytes);
            turn.granted().await;
            assert_eq!(turns.end(&turn, 1), LastTurn { end: end + 1, cost: 1 });
        }
    }
}
