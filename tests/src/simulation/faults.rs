//! When what fails.

use super::Simulation;
use super::network::Place;

impl Simulation {
    /// Plans the next fault.
    pub(super) fn schedule_fault(&mut self) {
        let longest = u64::try_from(self.scenario.fault_interval.as_micros()).unwrap_or(u64::MAX);
        let delay = self.random.micros(1000..longest);
        self.after(delay, |sim| {
            if !sim.is_winding_down {
                sim.fail_something();
                sim.schedule_fault();
            }
        });
    }

    fn fail_something(&mut self) {
        match self.random.number(0..100) {
            0..40 => {
                let numbers: Vec<u64> = self.sessions.keys().copied().collect();
                if !numbers.is_empty() {
                    let number = *self.random.pick(&numbers);
                    self.break_session(number);
                }
            }
            40..60 => {
                let store = self.random.index(self.scenario.stores);
                self.crash_store(store);
                let delay = self.random.millis(50..2500);
                self.after(delay, move |sim| sim.restart_store(store));
            }
            60..75 => {
                let shard = self.random.index(self.scenario.shards);
                self.crash_shard(shard);
                let delay = self.random.millis(20..4000);
                self.after(delay, move |sim| sim.restart_shard(shard));
            }
            _ => {
                let (one, other) = self.any_link();
                self.cut_link(one, other);
                let delay = self.random.millis(20..3000);
                self.after(delay, move |sim| sim.mend_link(one, other));
            }
        }
    }

    fn any_link(&mut self) -> (Place, Place) {
        let one = self.random.index(self.scenario.stores);
        let other = self.random.index(self.scenario.stores - 1);
        if self.random.chance(50) {
            (Place::Store(one), Place::Shard(self.random.index(self.scenario.shards)))
        } else {
            (Place::Store(one), Place::Store(if other < one { other } else { other + 1 }))
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.cut.clear();
        for shard in 0..self.scenario.shards {
            self.restart_shard(shard);
        }
        for store in 0..self.scenario.stores {
            self.restart_store(store);
        }
    }
}
