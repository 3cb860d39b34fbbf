//! Shards that join and leave the directory, one at a time.

use super::Simulation;
use crate::cluster::shard_name;

const MAX_LISTED: usize = 4;
const MAX_SHARDS: usize = 8;

impl Simulation {
    pub(super) fn schedule_shard_change(&mut self) {
        let delay = self.random.millis(50..1500);
        self.after(delay, |sim| {
            sim.end_unused_shards();
            if !sim.app.is_winding_down {
                // Operators wait until a change is settled, except sometimes.
                let is_first = sim.list.version() == 0;
                if is_first || sim.is_list_settled() || sim.random.chance(20) {
                    sim.change_shards();
                }
                sim.schedule_shard_change();
            }
        });
    }

    fn change_shards(&mut self) {
        let store = self.random.index(self.app.scenario.stores);
        if !self.stores[store].is_alive {
            return;
        }
        let listed = self.listed_shards();
        let leaving = *self.random.pick(&listed);
        let may_add = listed.len() < MAX_LISTED && self.shards.len() < MAX_SHARDS;
        // Restarted stores know only the initial list.
        let initial = self.initial_list();
        let stays =
            listed.iter().any(|shard| *shard != leaving && initial.contains(&shard_name(*shard)));
        if may_add && (!stays || self.random.chance(50)) {
            self.add_shard(store);
        } else if stays {
            self.remove_shard(store, leaving);
        }
    }
}
