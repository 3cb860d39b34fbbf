//! Sessions between stores and shards: ordered, delayed, and lost as a whole when they break.

use std::time::Duration;

use hoplite_core::node;
use hoplite_core::shard::{self, NodeInfo, ToShard, ToStore};

use super::network::Place;
use super::{Application, Cluster};

/// One session. Each end forgets it when it notices that it is broken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) store: usize,
    pub(super) shard: usize,
    /// When the latest message of each direction arrives: messages do not overtake each other.
    to_shard: Duration,
    to_store: Duration,
    is_broken: bool,
}

impl<A: Application> Cluster<A> {
    /// A store tries to open a session, and tries again later if that fails.
    pub(super) fn connect(&mut self, store: usize, run: u64, shard: usize) {
        if !self.stores[store].is_running(run) || self.stores[store].sessions[shard].is_some() {
            return;
        }
        let is_reachable =
            self.shards[shard].is_alive && self.is_linked(Place::Store(store), Place::Shard(shard));
        if !is_reachable {
            return self.connect_later(store, shard);
        }
        let (number, now) = (self.fresh_number(), self.elapsed());
        let session = Session { store, shard, to_shard: now, to_store: now, is_broken: false };
        self.sessions.insert(number, session);
        self.stores[store].sessions[shard] = Some(number);
        self.note(|_| format!("store {store} opens session {number} with shard {shard}"));
        let delay = self.connect_time();
        self.after(delay, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| cluster.session_arrives(number));
        });
    }

    fn connect_later(&mut self, store: usize, shard: usize) {
        let run = self.stores[store].run;
        let delay = self.random.millis(20..300);
        self.after(delay, move |cluster| cluster.connect(store, run, shard));
    }

    /// The shard hears of a new session.
    fn session_arrives(&mut self, number: u64) {
        let Some(Session { store, shard, is_broken: false, .. }) = self.sessions.get(&number).copied() else {
            return;
        };
        if !self.shards[shard].is_alive {
            return self.break_session(number);
        }
        let previous = self.shards[shard].sessions[store].replace(number);
        let info = self.stores[store].info.clone();
        // Effects of the connection belong to the new session, so the store learns of it first.
        self.deliver_to_store(number, |cluster, store, shard| {
            cluster.store_event(store, node::Event::ShardUp { shard });
        });
        let is_refused = self.introduce(shard, store, info);
        if is_refused {
            self.note(|_| format!("shard {shard} refuses session {number} of store {store}"));
            self.shards[shard].sessions[store] = previous;
            self.break_session(number);
        } else if let Some(previous) = previous {
            self.break_session(previous);
        }
    }

    /// Introduces a store to a shard; returns whether its session is refused.
    fn introduce(&mut self, shard: usize, store: usize, info: NodeInfo) -> bool {
        let previous = self.shards[shard].known[store].replace(info.incarnation);
        let is_refused = self.shard_event(shard, shard::Event::Connected(info));
        if is_refused {
            self.shards[shard].known[store] = previous;
        }
        is_refused
    }

    /// Breaks a session; both ends notice on their own.
    pub(crate) fn break_session(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.is_broken = true;
        let Session { store, shard, .. } = *session;
        self.note(|_| format!("session {number} of store {store} with shard {shard} breaks"));
        let (at_store, at_shard) = (self.notice_time(), self.notice_time());
        self.after(at_store, move |cluster| {
            if cluster.stores[store].sessions[shard] == Some(number) {
                cluster.stores[store].sessions[shard] = None;
                cluster.store_event(store, node::Event::ShardDown { shard });
                cluster.connect_later(store, shard);
            }
        });
        self.after(at_shard, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| {
                if cluster.shards[shard].sessions[store] == Some(number) {
                    cluster.shards[shard].sessions[store] = None;
                    let incarnation = cluster.shards[shard].incarnation_of(store);
                    let node = cluster.stores[store].info.node.clone();
                    cluster.shard_event(shard, shard::Event::Disconnected { node, incarnation });
                }
            });
        });
        self.after(at_store.max(at_shard), move |cluster| {
            cluster.sessions.remove(&number);
        });
    }

    /// Breaks the sessions for which this holds.
    pub(super) fn break_sessions(&mut self, is_meant: impl Fn(&Session) -> bool) {
        let broken: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_meant(session))
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            self.break_session(number);
        }
    }

    /// All sessions, broken ones included that somebody takes for open.
    pub(crate) fn all_sessions(&self) -> Vec<u64> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn send_to_shard(&mut self, store: usize, shard: usize, message: ToShard) {
        let Some(number) = self.stores[store].sessions[shard] else { return };
        let at = self.elapsed() + self.latency();
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.to_shard = session.to_shard.max(at);
        let at = session.to_shard;
        self.at(at, move |cluster| {
            cluster.queue_at_shard(shard, move |cluster| cluster.arrive_at_shard(number, message));
        });
    }

    fn arrive_at_shard(&mut self, number: u64, message: ToShard) {
        let Some(Session { store, shard, is_broken: false, .. }) = self.sessions.get(&number).copied() else {
            return;
        };
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
            cluster.store_event(store, node::Event::FromShard { shard, message });
        });
    }

    fn deliver_to_store(&mut self, number: u64, action: impl FnOnce(&mut Self, usize, usize) + 'static) {
        let at = self.elapsed() + self.latency();
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.to_store = session.to_store.max(at);
        let Session { store, shard, to_store, .. } = *session;
        self.at(to_store, move |cluster| {
            let is_open = cluster.sessions.get(&number).is_some_and(|session| !session.is_broken);
            if is_open && cluster.stores[store].sessions[shard] == Some(number) {
                action(cluster, store, shard);
            }
        });
    }
}
