use hoplite_core::Time;

use super::{Faults, Kind, Simulation};
use crate::cluster::LinkEnd;

impl Simulation {
    pub(super) fn schedule_fault(&mut self) {
        let longest =
            u64::try_from(self.app.scenario.fault_interval.as_micros()).unwrap_or(u64::MAX);
        let delay = self.random.micros(1000..longest);
        self.after(delay, |sim| {
            if !sim.app.is_winding_down {
                sim.fail_something();
                sim.schedule_fault();
            }
        });
    }

    fn fail_something(&mut self) {
        match self.random.number(0..100) {
            0..40 => {
                let numbers = self.all_sessions();
                if !numbers.is_empty() {
                    let number = *self.random.pick(&numbers);
                    self.fail_session(number);
                }
            }
            40..60 => {
                let store = self.random.index(self.app.scenario.stores);
                self.crash_for_a_while(store);
            }
            60..75 => {
                let shard = self.random.index(self.shards.len());
                self.crash_shard(shard);
                let delay = self.random.millis(20..4000);
                self.after(delay, move |sim| sim.restart_shard(shard));
            }
            75..80 => {
                let store = self.random.index(self.app.scenario.stores);
                self.isolate(store);
            }
            _ => {
                let (one, other) = self.any_link();
                self.cut_link(one, other);
                let delay = self.random.millis(20..3000);
                self.after(delay, move |sim| sim.restore_link(one, other));
            }
        }
    }

    pub(super) fn fail_at_step(&mut self, store: usize, other: usize) {
        let is_last = self.now().since(Time::ZERO) > self.app.scenario.duration;
        let faults = if is_last { 30 } else { self.app.scenario.faults_per_1000_steps };
        if self.app.is_winding_down || self.random.number(0..1000) >= faults {
            return;
        }
        let delay = self.random.micros(0..1000);
        if self.app.scenario.faults == Faults::None || self.random.chance(20) {
            let (id, deleter) =
                (self.any_of(Kind::Source), self.random.index(self.app.scenario.stores));
            return self.visit(deleter, delay, move |sim, client| sim.delete(client, id));
        }
        let kind = self.random.number(0..100);
        self.after(delay, move |sim| match kind {
            0..25 => sim.crash_for_a_while(store),
            25..50 => sim.crash_for_a_while(other),
            50..70 if store != other => {
                let (one, other) = (LinkEnd::Store(store), LinkEnd::Store(other));
                sim.cut_link(one, other);
                let delay = sim.random.millis(1..1000);
                sim.after(delay, move |sim| sim.restore_link(one, other));
            }
            50..90 => sim.break_directed_at(store),
            _ => sim.fail_something(),
        });
    }

    fn crash_for_a_while(&mut self, store: usize) {
        if self.stores[store].is_alive {
            self.app.summary.evictions += self.stores[store].node.status().evictions;
            self.crash_store(store);
            self.clients_of_crashed(store);
        }
        let delay = self.random.millis(50..2500);
        self.after(delay, move |sim| sim.restart(store));
    }

    fn isolate(&mut self, store: usize) {
        let others =
            (0..self.app.scenario.stores).filter(|other| *other != store).map(LinkEnd::Store);
        let places: Vec<LinkEnd> =
            others.chain((0..self.shards.len()).map(LinkEnd::Shard)).collect();
        let delay = self.random.millis(20..7000);
        for place in places {
            self.cut_link(LinkEnd::Store(store), place);
            self.after(delay, move |sim| sim.restore_link(LinkEnd::Store(store), place));
        }
    }

    fn restart(&mut self, store: usize) {
        if !self.stores[store].is_alive {
            self.restart_store(store);
            self.spawn_clients(store);
        }
    }

    fn any_link(&mut self) -> (LinkEnd, LinkEnd) {
        let one = self.random.index(self.app.scenario.stores);
        let other = self.random.index(self.app.scenario.stores - 1);
        if self.random.chance(50) {
            (LinkEnd::Store(one), LinkEnd::Shard(self.random.index(self.shards.len())))
        } else {
            (LinkEnd::Store(one), LinkEnd::Store(if other < one { other } else { other + 1 }))
        }
    }

    pub(super) fn heal(&mut self) {
        self.restore_all_links();
        for shard in 0..self.shards.len() {
            self.restart_shard(shard);
        }
        for store in 0..self.app.scenario.stores {
            self.restart(store);
        }
    }
}
