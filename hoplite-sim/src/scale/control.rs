//! Messages between stores and shards, and the passing of time for both.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use hoplite_core::Time;
use hoplite_core::id::Incarnation;
use hoplite_core::node;
use hoplite_core::shard::{self, NodeInfo, ToShard};

use super::line::Nanos;
use super::world::{World, duration_nanos};

/// The port of every data plane.
const DATA_PORT: u16 = 7400;

impl World {
    /// Opens all sessions; nobody is charged for that.
    pub(super) fn connect_all(&mut self) {
        for store in 0..self.stores.len() {
            for shard in 0..self.shards.len() {
                let info = self.introduction(store);
                self.shard_event(shard, shard::Event::Connected(info));
                self.store_event(store, node::Event::ShardUp { shard });
            }
        }
    }

    fn introduction(&self, store: usize) -> NodeInfo {
        let address = u32::from(Ipv4Addr::new(10, 0, 0, 0)) + u32::try_from(store).expect("it is small");
        NodeInfo {
            node: self.stores[store].name.clone(),
            incarnation: Incarnation(1),
            data_address: SocketAddr::from((Ipv4Addr::from(address), DATA_PORT)),
            labels: Vec::new(),
        }
    }

    pub(super) fn send_to_shard(&mut self, store: usize, shard: usize, message: ToShard) {
        let node = self.stores[store].name.clone();
        let event = shard::Event::Message { node, message };
        self.after(self.latency(), move |world| world.arrive_at_shard(shard, event));
    }

    /// The shards hear that the sessions of a store are gone.
    pub(super) fn disconnect(&mut self, store: usize) {
        for shard in 0..self.shards.len() {
            let node = self.stores[store].name.clone();
            let event = shard::Event::Disconnected { node, incarnation: Incarnation(1) };
            self.after(self.latency(), move |world| world.arrive_at_shard(shard, event));
        }
    }

    /// Queues an event at its shard, which handles one after the other.
    fn arrive_at_shard(&mut self, shard: usize, event: shard::Event) {
        let service = self.experiment.shard_service;
        let host = &mut self.shards[shard];
        host.queued += 1;
        host.load.longest_queue = host.load.longest_queue.max(host.queued);
        host.busy_until = host.busy_until.max(self.now) + duration_nanos(service);
        let at = host.busy_until;
        self.at(at, move |world| {
            let host = &mut world.shards[shard];
            host.queued -= 1;
            host.load.received += 1;
            host.load.busy += service;
            world.shard_event(shard, event);
        });
    }

    fn shard_event(&mut self, shard: usize, event: shard::Event) {
        let (now, mut effects) = (self.time(), Vec::new());
        let host = &mut self.shards[shard];
        let began = Instant::now();
        host.shard.apply(now, event, &mut effects);
        host.thought += began.elapsed();
        for effect in effects {
            match effect {
                shard::Effect::Send { node, message } => {
                    self.shards[shard].load.sent += 1;
                    let store = self.by_name[&node];
                    self.after(self.latency(), move |world| {
                        world.store_event(store, node::Event::FromShard { shard, message });
                    });
                }
                shard::Effect::Granted { .. } => self.counts.grants += 1,
                shard::Effect::Refuse { error, .. } => panic!("a session is refused: {error}"),
                shard::Effect::Replaced { .. } => panic!("each store connects once"),
            }
        }
        let host = &self.shards[shard];
        let Some(due) = self.next_tick(host.shard.next_deadline(), host.tick_at) else { return };
        self.shards[shard].tick_at = Some(due);
        self.at(due, move |world| {
            if world.shards[shard].tick_at == Some(due) {
                world.shards[shard].tick_at = None;
                world.shard_event(shard, shard::Event::Tick);
            }
        });
    }

    pub(super) fn store_event(&mut self, store: usize, event: node::Event) {
        if !self.stores[store].is_alive {
            return;
        }
        let (now, mut effects) = (self.time(), Vec::new());
        let began = Instant::now();
        self.stores[store].node.apply(now, event, &mut effects);
        if store == 0 {
            self.coordinator_thought += began.elapsed();
        }
        for effect in effects {
            self.perform(store, effect);
        }
        let host = &self.stores[store];
        let Some(due) = self.next_tick(host.node.next_deadline(), host.tick_at) else { return };
        self.stores[store].tick_at = Some(due);
        self.at(due, move |world| {
            if world.stores[store].tick_at == Some(due) {
                world.stores[store].tick_at = None;
                world.store_event(store, node::Event::Tick);
            }
        });
    }

    /// When a machine must be told the time, unless that is on the agenda already.
    fn next_tick(&self, deadline: Option<Time>, planned: Option<Nanos>) -> Option<Nanos> {
        let deadline = deadline.filter(|deadline| *deadline != Time::NEVER)?;
        let due = deadline.as_micros().saturating_mul(1000).max(self.now);
        planned.is_none_or(|planned| planned > due || planned <= self.now).then_some(due)
    }
}
