//! Sessions between stores and shards: ordered, delayed, and lost as a whole when they break.

use std::time::Duration;

use hoplite_core::Time;
use hoplite_core::node;
use hoplite_core::shard::{self, ToShard, ToStore};

use super::Simulation;

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Store(usize),
    Shard(usize),
}

/// One session. Each end forgets it when it notices that it is broken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) store: usize,
    pub(super) shard: usize,
    /// When the latest message of each direction arrives: messages do not overtake each other.
    to_shard: Time,
    to_store: Time,
    is_broken: bool,
}

impl Simulation {
    /// Whether messages pass between two places.
    pub(super) fn is_linked(&self, one: Place, other: Place) -> bool {
        !self.cut.contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn cut_link(&mut self, one: Place, other: Place) {
        self.note(|_| format!("the link {one:?} {other:?} is cut"));
        self.cut.insert((one.min(other), one.max(other)));
        let broken: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                let ends = (Place::Store(session.store), Place::Shard(session.shard));
                ends == (one, other) || ends == (other, one)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            self.break_session(number);
        }
        self.break_directions(|direction| {
            let ends = (Place::Store(direction.coordinator.store), Place::Store(direction.host.store));
            ends == (one, other) || ends == (other, one)
        });
    }

    pub(super) fn mend_link(&mut self, one: Place, other: Place) {
        self.note(|_| format!("the link {one:?} {other:?} is mended"));
        self.cut.remove(&(one.min(other), one.max(other)));
    }

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
        let number = self.fresh_number();
        let session = Session { store, shard, to_shard: self.now, to_store: self.now, is_broken: false };
        self.sessions.insert(number, session);
        self.stores[store].sessions[shard] = Some(number);
        self.note(|_| format!("store {store} opens session {number} with shard {shard}"));
        let delay = self.latency();
        self.after(delay, move |sim| sim.session_arrives(number));
    }

    pub(super) fn connect_later(&mut self, store: usize, shard: usize) {
        let run = self.stores[store].run;
        let delay = self.random.millis(20..300);
        self.after(delay, move |sim| sim.connect(store, run, shard));
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
        self.deliver_to_store(number, |sim, store, shard| {
            sim.store_event(store, node::Event::ShardUp { shard });
        });
        let is_refused = self.shard_connected(shard, info);
        if is_refused {
            self.note(|_| format!("shard {shard} refuses session {number} of store {store}"));
            self.shards[shard].sessions[store] = previous;
            self.break_session(number);
        } else if let Some(previous) = previous {
            self.break_session(previous);
        }
    }

    /// Breaks a session; both ends notice on their own.
    pub(super) fn break_session(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.is_broken = true;
        let Session { store, shard, .. } = *session;
        self.note(|_| format!("session {number} of store {store} with shard {shard} breaks"));
        let (at_store, at_shard) = (self.random.millis(0..200), self.random.millis(0..200));
        self.after(at_store, move |sim| {
            if sim.stores[store].sessions[shard] == Some(number) {
                sim.stores[store].sessions[shard] = None;
                sim.store_event(store, node::Event::ShardDown { shard });
                sim.connect_later(store, shard);
            }
        });
        self.after(at_shard, move |sim| {
            if sim.shards[shard].sessions[store] == Some(number) {
                sim.shards[shard].sessions[store] = None;
                let (node, incarnation) = sim.shards[shard].known_as(store);
                sim.shard_event(shard, shard::Event::Disconnected { node, incarnation });
            }
        });
        self.after(Duration::from_millis(201), move |sim| {
            sim.sessions.remove(&number);
        });
    }

    /// Breaks all sessions of a machine that crashed.
    pub(super) fn break_sessions_of(&mut self, place: Place) {
        let broken: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                place == Place::Store(session.store) || place == Place::Shard(session.shard)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in broken {
            self.break_session(number);
        }
    }

    /// The time that a message takes.
    pub(super) fn latency(&mut self) -> Duration {
        if self.random.chance(2) { self.random.millis(1..30) } else { self.random.micros(50..400) }
    }

    pub(super) fn send_to_shard(&mut self, store: usize, shard: usize, message: ToShard) {
        let Some(number) = self.stores[store].sessions[shard] else { return };
        let delay = self.latency();
        let earliest = self.now + delay;
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.to_shard = session.to_shard.max(earliest);
        let at = session.to_shard;
        self.at(at, move |sim| {
            let is_open = sim.sessions.get(&number).is_some_and(|session| !session.is_broken);
            if is_open && sim.shards[shard].sessions[store] == Some(number) {
                let node = sim.shards[shard].known_as(store).0;
                sim.note(|_| format!("store {store} -> shard {shard}: {message:?}"));
                sim.shard_event(shard, shard::Event::Message { node, message });
            }
        });
    }

    pub(super) fn send_to_store(&mut self, shard: usize, store: usize, message: ToStore) {
        let Some(number) = self.shards[shard].sessions[store] else { return };
        self.deliver_to_store(number, move |sim, store, shard| {
            sim.note(|_| format!("shard {shard} -> store {store}: {message:?}"));
            sim.store_event(store, node::Event::FromShard { shard, message });
        });
    }

    fn deliver_to_store(&mut self, number: u64, action: impl FnOnce(&mut Self, usize, usize) + 'static) {
        let delay = self.latency();
        let earliest = self.now + delay;
        let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.is_broken) else {
            return;
        };
        session.to_store = session.to_store.max(earliest);
        let Session { store, shard, to_store, .. } = *session;
        self.at(to_store, move |sim| {
            let is_open = sim.sessions.get(&number).is_some_and(|session| !session.is_broken);
            if is_open && sim.stores[store].sessions[shard] == Some(number) {
                action(sim, store, shard);
            }
        });
    }
}
