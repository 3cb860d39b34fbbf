//! Sessions delay messages and keep their order. A broken session loses all messages in flight.

use std::time::Duration;

use hoplite_core::batch::{BatchQueue, NextFrame};
use hoplite_core::node::{self, Urgency};
use hoplite_core::session::{CONNECT_TIMEOUT, Next, SHARD_PINGS, STORE_PINGS};
use hoplite_core::shard::{self, NodeInfo, Reception, ShardRun, ToShard, ToStore};
use hoplite_core::{Error, Time};

use super::network::{Break, LinkEnd};
use super::{Application, Cluster};

/// If a session breaks, store and shard notice at separate times.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) store: usize,
    pub(super) shard: usize,
    queue: BatchQueue<ToShard>,
    /// Time of the latest arrival in each direction.
    to_shard: Duration,
    to_store: Duration,
    is_broken: bool,
    refusal: Option<Error>,
}

impl<A: Application> Cluster<A> {
    pub(super) fn connect(&mut self, store: usize, run: u64, shard: usize) {
        let host = &self.stores[store];
        if !host.is_running(run) || host.sessions[shard].is_some() || host.left.contains(&shard) {
            return;
        }
        let unreachable_after = if !self.is_linked(LinkEnd::Store(store), LinkEnd::Shard(shard)) {
            Some(CONNECT_TIMEOUT)
        } else if !self.shards[shard].is_alive {
            Some(self.latency())
        } else {
            None
        };
        if let Some(delay) = unreachable_after {
            let error = Error::unavailable("the directory shard");
            return self
                .after(delay, move |cluster| cluster.session_ended(store, run, shard, &error));
        }
        let (number, now) = (self.fresh_number(), self.elapsed());
        let queue = BatchQueue::default();
        let session = Session {
            store,
            shard,
            queue,
            to_shard: now,
            to_store: now,
            is_broken: false,
            refusal: None,
        };
        self.sessions.insert(number, session);
        self.stores[store].sessions[shard] = Some(number);
        self.note(|_| format!("store {store} opens session {number} with shard {shard}"));
        let delay = self.connect_time();
        self.after(delay, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| cluster.session_arrives(number));
        });
    }

    fn session_ended(&mut self, store: usize, run: u64, shard: usize, error: &Error) {
        if !self.stores[store].is_running(run) {
            return;
        }
        let now = self.now();
        match self.stores[store].attempts[shard].ended(now, Some(error)) {
            Next::Retry { pause, .. } => {
                self.after(pause, move |cluster| cluster.connect(store, run, shard))
            }
            Next::GiveUp => panic!("shard {shard} refuses store {store} for good: {error}"),
        }
    }

    fn open_session(&self, number: u64) -> Option<(usize, usize)> {
        let session = self.sessions.get(&number).filter(|session| !session.is_broken)?;
        Some((session.store, session.shard))
    }

    fn session_arrives(&mut self, number: u64) {
        let Some((store, shard)) = self.open_session(number) else { return };
        if !self.shards[shard].is_alive {
            return self.break_session(number, Break::Reset);
        }
        let previous = self.shards[shard].sessions[store].replace(number);
        let host = &mut self.stores[store];
        host.info.shards = host.node.shards().list();
        let info = host.info.clone();
        // The session begins at the store before messages arrive on it.
        self.deliver_to_store(number, |cluster, store, shard| {
            cluster.stores[store].attempts[shard].opened();
            let run = ShardRun(cluster.shards[shard].run);
            let asked_at = Time::NEVER;
            cluster.store_event(
                store,
                node::Event::ShardUp {
                    shard: cluster.stores[store].index_of(shard),
                    run,
                    asked_at,
                    version: hoplite_core::Version::NEWEST,
                },
            );
        });
        match self.introduce(shard, store, info) {
            Reception::Accepted => {}
            Reception::Replaces => {
                let replaced = previous.expect("a shard replaces a session that it has");
                self.break_session(replaced, Break::Reset);
            }
            Reception::Refused(error) => {
                self.note(|_| {
                    format!("shard {shard} refuses session {number} of store {store}: {error}")
                });
                self.shards[shard].sessions[store] = previous;
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.refusal = Some(error);
                }
                self.break_session(number, Break::Reset);
            }
        }
    }

    fn introduce(&mut self, shard: usize, store: usize, info: NodeInfo) -> Reception {
        let previous = self.shards[shard].known[store].replace(info.incarnation);
        let reception = self.shard_connect(shard, info);
        if matches!(reception, Reception::Refused(_)) {
            self.shards[shard].known[store] = previous;
        }
        reception
    }

    pub(super) fn break_session(&mut self, number: u64, cause: Break) {
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken)
        else {
            return;
        };
        session.is_broken = true;
        let (store, shard) = (session.store, session.shard);
        let error = session.refusal.take().unwrap_or(Error::unavailable("the directory shard"));
        self.note(|_| {
            format!("session {number} of store {store} with shard {shard} breaks: {cause:?}")
        });
        let (at_store, at_shard) =
            (self.notice_time(cause, STORE_PINGS), self.notice_time(cause, SHARD_PINGS));
        // The last answered ping: just now before a reset, earlier before a silence.
        let silent_for = match cause {
            Break::Silence => SHARD_PINGS.silence_limit().saturating_sub(at_shard),
            Break::Reset => Duration::ZERO,
        };
        let pinged_at = self.now().before(silent_for);
        self.after(Duration::ZERO, move |cluster| {
            if cluster.stores[store].sessions[shard] == Some(number) {
                let shard = cluster.stores[store].index_of(shard);
                cluster.store_event(store, node::Event::ShardAnswered { shard, pinged_at });
            }
        });
        self.after(at_store, move |cluster| {
            if cluster.stores[store].sessions[shard] == Some(number) {
                cluster.stores[store].sessions[shard] = None;
                let index = cluster.stores[store].index_of(shard);
                cluster.store_event(store, node::Event::ShardDown { shard: index });
                let run = cluster.stores[store].run;
                cluster.session_ended(store, run, shard, &error);
            }
        });
        self.after(at_shard, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| {
                cluster.session_lost_at_shard(number, store, shard);
            });
        });
        self.after(at_store.max(at_shard), move |cluster| {
            cluster.sessions.remove(&number);
        });
    }

    /// Ends a session, after the messages that leave at once.
    pub(super) fn leave_shard(&mut self, store: usize, shard: usize) {
        self.stores[store].left.insert(shard);
        let Some(number) = self.stores[store].sessions[shard].take() else { return };
        let delay = self.latency() + self.latency();
        self.after(delay, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| cluster.session_left(number));
        });
    }

    fn session_left(&mut self, number: u64) {
        let Some((store, shard)) = self.open_session(number) else { return };
        self.sessions.remove(&number);
        self.session_lost_at_shard(number, store, shard);
    }

    fn session_lost_at_shard(&mut self, number: u64, store: usize, shard: usize) {
        if self.shards[shard].sessions[store] == Some(number) {
            self.shards[shard].sessions[store] = None;
            let incarnation = self.shards[shard].incarnation_of(store);
            let node = self.stores[store].info.node.clone();
            self.shard_event(shard, shard::Event::Disconnected { node, incarnation });
        }
    }

    pub(super) fn break_sessions(&mut self, cause: Break, predicate: impl Fn(&Session) -> bool) {
        let broken: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| predicate(session))
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            self.break_session(number, cause);
        }
    }

    pub(crate) fn fail_session(&mut self, number: u64) {
        let cause = if self.random.chance(80) { Break::Reset } else { Break::Silence };
        self.break_session(number, cause);
    }

    pub(crate) fn all_sessions(&self) -> Vec<u64> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn send_to_shard(
        &mut self,
        store: usize,
        shard: usize,
        message: ToShard,
        urgency: Urgency,
    ) {
        let (now, Some(number)) = (self.now(), self.stores[store].sessions[shard]) else { return };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let change = session
            .queue
            .push(now, message, urgency)
            .expect("the queue is longer than a simulation");
        match change {
            None | Some(NextFrame::Never) => {}
            // Sent after the event, so that all its messages leave together.
            Some(NextFrame::Now) => {
                self.after(Duration::ZERO, move |cluster| cluster.send_batch(number))
            }
            Some(NextFrame::At(time)) => {
                self.at_time(time, move |cluster| cluster.send_batch(number))
            }
        }
    }

    fn send_batch(&mut self, number: u64) {
        let (now, at) = (self.now(), self.elapsed() + self.latency());
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken)
        else {
            return;
        };
        if session.queue.next_frame(now) != NextFrame::Now {
            return;
        }
        session.to_shard = session.to_shard.max(at);
        let (shard, at) = (session.shard, session.to_shard);
        let inline_bytes = |message: &ToShard| match message {
            ToShard::Publish(publish) => {
                publish.inline.as_ref().map_or(0, |bytes| bytes.len() as u64)
            }
            _ => 0,
        };
        let batch = session.queue.take_batch(now, inline_bytes);
        self.at(at, move |cluster| {
            for message in batch {
                cluster
                    .queue_at_shard(shard, move |cluster| cluster.arrive_at_shard(number, message));
            }
        });
        self.send_batch(number);
    }

    fn arrive_at_shard(&mut self, number: u64, message: ToShard) {
        let Some((store, shard)) = self.open_session(number) else { return };
        if self.shards[shard].sessions[store] == Some(number) {
            let node = self.stores[store].info.node.clone();
            self.note(|_| format!("store {store} -> shard {shard}: {message:?}"));
            self.counts.messages += 1;
            self.shard_event(shard, shard::Event::Message { node, message });
        }
    }

    pub(super) fn send_to_store(&mut self, shard: usize, store: usize, message: ToStore) {
        let Some(number) = self.shards[shard].sessions[store] else { return };
        self.shards[shard].load.sent += 1;
        self.deliver_to_store(number, move |cluster, store, shard| {
            cluster.note(|_| format!("shard {shard} -> store {store}: {message:?}"));
            cluster.counts.messages += 1;
            let shard = cluster.stores[store].index_of(shard);
            cluster.store_event(store, node::Event::FromShard { shard, message });
        });
    }

    fn deliver_to_store(
        &mut self,
        number: u64,
        action: impl FnOnce(&mut Self, usize, usize) + 'static,
    ) {
        let at = self.elapsed() + self.latency();
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken)
        else {
            return;
        };
        session.to_store = session.to_store.max(at);
        let (store, shard, to_store) = (session.store, session.shard, session.to_store);
        self.at(to_store, move |cluster| {
            let is_open = cluster.sessions.get(&number).is_some_and(|session| !session.is_broken);
            if is_open && cluster.stores[store].sessions[shard] == Some(number) {
                action(cluster, store, shard);
            }
        });
    }
}
