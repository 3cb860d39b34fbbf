//! Repeated probes with random results.

use std::collections::BTreeMap;

use hoplite_core::link::Uplink;
use hoplite_core::node;
use hoplite_core::shard::Event;
use hoplite_core::topology::live::MAX_SLOW_PEERS;
use hoplite_core::topology::measured::MeasuredPlaces;

use super::Simulation;
use crate::cluster::node_id;

const MAX_RACKS: u32 = 3;

impl Simulation {
    pub(super) fn schedule_probe(&mut self) {
        let delay = self.random.millis(50..1500);
        self.after(delay, |sim| {
            if !sim.app.is_winding_down {
                sim.probe();
                sim.find_slow_links();
                sim.schedule_probe();
            }
        });
    }

    fn probe(&mut self) {
        let mut paths = BTreeMap::new();
        for store in 0..self.app.scenario.stores {
            let rack = *self.random.pick(&[0, 1, 2, MAX_RACKS]);
            if rack > 0 {
                paths.insert(node_id(store), [0, 0, rack, 0]);
            }
        }
        let uplink = Uplink::measured(*self.random.pick(&[0, 100, 1000]));
        let version = self.now().as_micros();
        self.note(|_| format!("a probe of version {version} finds {paths:?}"));
        for shard in self.listed_shards() {
            let (delay, places) = (self.random.millis(0..200), paths.clone());
            if self.random.chance(70) {
                let places = MeasuredPlaces { version, uplink, paths: places };
                self.after(delay, move |sim| {
                    sim.app.summary.probes_received += u64::from(sim.shards[shard].is_alive);
                    sim.send_event_to_shard(shard, Event::Places(places));
                });
            }
        }
    }

    fn find_slow_links(&mut self) {
        let stores = self.app.scenario.stores;
        let store = self.random.index(stores);
        let peers: Vec<_> = (0..stores)
            .filter(|_| self.random.chance(20))
            .take(MAX_SLOW_PEERS)
            .map(node_id)
            .collect();
        self.note(|_| format!("store {store} finds slow links to {peers:?}"));
        self.store_event(store, node::Event::SlowLinks { peers });
    }

    pub(super) fn check_places_agree(&self) {
        let listed = self.live_shards();
        let listed = || listed.iter().map(|shard| &self.shards[*shard]);
        let shards: Vec<u64> = listed().map(|host| host.shard.measured_places().version).collect();
        for (number, store) in self.stores.iter().enumerate() {
            let place = store.node.status().place;
            let of_shards: Vec<_> =
                listed().map(|host| host.shard.place_of(&node_id(number))).collect();
            let expected = (place.version > 0).then_some(place);
            assert!(
                shards.iter().all(|version| *version == place.version)
                    && of_shards.iter().all(|of_shard| *of_shard == expected),
                "the shards know the probes {shards:?}; store {number} has {place:?}, and {of_shards:?} by the shards"
            );
        }
    }
}
