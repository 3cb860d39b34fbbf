//! The final invariants: all objects are readable everywhere, and nothing leaks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use hoplite_core::node::{Request, Response, Until};
use hoplite_core::shard::{DeleteWait, Locations};
use hoplite_core::{Error, ObjectId};

use super::{Kind, Simulation};

const LAST_CALLS: Duration = Duration::from_secs(12);
/// Time in which the cluster recovers. Shards wait less for absent stores, and receivers for a
/// stalled sender.
const RECOVERY: Duration = Duration::from_secs(12);
const FINAL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Read(u64),
    Full,
    Absent(Error),
}

impl Simulation {
    pub(super) fn wind_down(&mut self) {
        self.start_last_reduces();
        let storm = self.random.micros(0..60_000) * self.app.scenario.slowness.min(20);
        self.advance(storm);
        self.note(|_| "everything heals".to_owned());
        self.app.is_winding_down = true;
        self.heal();
        self.app.healed_at = Some(self.now());
        self.advance(LAST_CALLS);
        assert_eq!(self.open_calls(), 0, "all calls are answered");
        for client in self.all_clients() {
            self.kill_client(client);
        }
        self.advance(RECOVERY);
        self.conclude_changes();
        let readers: Vec<u64> =
            (0..self.app.scenario.stores).map(|store| self.spawn_client(store)).collect();
        for id in self.all_objects() {
            self.read_everywhere(&id, &readers);
        }
        self.delete_everything(readers[0]);
        for reader in readers {
            self.kill_client(reader);
        }
        self.advance(Duration::from_secs(8));
        self.check_nothing_is_left();
        self.check_places_agree();
    }

    fn all_objects(&self) -> Vec<ObjectId> {
        let kinds = [Kind::Plain, Kind::Source, Kind::Target];
        let of_kind = |kind: Kind| {
            (0..self.app.scenario.count_of(kind)).map(move |number| kind.object(number))
        };
        kinds
            .into_iter()
            .flat_map(of_kind)
            .chain(self.app.results.iter().chain(self.app.exchanges.keys()).cloned())
            .collect()
    }

    fn read_everywhere(&mut self, id: &ObjectId, readers: &[u64]) {
        let outcomes = Rc::new(RefCell::new(Vec::new()));
        for (store, reader) in readers.iter().copied().enumerate() {
            let (id, outcomes, started) = (id.clone(), outcomes.clone(), self.now());
            let request = Request::Get {
                id: id.clone(),
                until: Until::Complete,
                timeout: FINAL_TIMEOUT,
                allow_stale: false,
            };
            let then = move |sim: &mut Self, answer: Result<Response, Error>| {
                let outcome = match answer {
                    Ok(Response::Object(view)) => {
                        let tag = sim.check_view(reader, &id, &view, started);
                        sim.release(reader, view.copy);
                        Outcome::Read(tag)
                    }
                    Ok(other) => panic!("a get is answered with {other:?}"),
                    // Pinned copies stay, so free memory may be in pieces.
                    Err(Error::StoreFull { .. })
                        if sim.stores[store].node.status().pinned_bytes > 0 =>
                    {
                        Outcome::Full
                    }
                    Err(error) => Outcome::Absent(error),
                };
                outcomes.borrow_mut().push((store, outcome));
            };
            self.call(reader, request, Some(FINAL_TIMEOUT), Some(Box::new(then)));
        }
        self.advance(FINAL_TIMEOUT + Duration::from_secs(1));
        let outcomes = outcomes.borrow();
        assert_eq!(outcomes.len(), readers.len(), "every final get is answered");
        let tags: BTreeSet<u64> = outcomes
            .iter()
            .filter_map(
                |(_, outcome)| if let Outcome::Read(tag) = outcome { Some(*tag) } else { None },
            )
            .collect();
        // A shard that missed a delete still answers with the bytes of a small object.
        let is_remainder = tags.iter().all(|tag| self.app.history.is_deleted(id, *tag, self.now()));
        let is_absent = !is_remainder
            && outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Absent(_)));
        assert!(
            tags.len() <= 1 && (tags.is_empty() || !is_absent),
            "after everything has healed, all stores read the same of {id}: {outcomes:?}"
        );
    }

    fn delete_everything(&mut self, reader: u64) {
        let ids = self.all_objects();
        let is_done = Rc::new(RefCell::new(false));
        let done = is_done.clone();
        let then = move |_: &mut Self, answer: Result<Response, Error>| {
            assert!(matches!(answer, Ok(Response::Deleted { .. })), "the final delete: {answer:?}");
            *done.borrow_mut() = true;
        };
        let request = Request::Delete { ids, timeout: FINAL_TIMEOUT, wait: DeleteWait::Reachable };
        self.call(reader, request, Some(FINAL_TIMEOUT), Some(Box::new(then)));
        self.advance(FINAL_TIMEOUT + Duration::from_secs(1));
        assert!(*is_done.borrow(), "the final delete is answered");
    }

    fn check_nothing_is_left(&self) {
        for (store, host) in self.stores.iter().enumerate() {
            let status = host.node.status();
            assert_eq!(
                (status.free_bytes, status.copies, status.pulls),
                (status.capacity_bytes, 0, 0),
                "the arena of store {store} is free: {:?}",
                host.copies
            );
            assert_eq!(
                (status.reductions, status.directed_hops, status.hops, status.combinations),
                (0, 0, 0, 0),
                "store {store} has no reduce, and no part of one"
            );
            assert!(host.is_idle(), "nothing is open at store {store}");
            assert_eq!(host.node.next_deadline(), None, "store {store} waits for nothing");
        }
        assert!(self.is_idle(), "no hop is directed, nothing is transferred");
        for number in self.live_shards() {
            let host = &self.shards[number];
            let status = host.shard.status();
            assert_eq!(
                (status.grants, status.waiting_queries, status.subscriptions),
                (0, 0, 0),
                "shard {number} has no slot in use and no waiting query"
            );
            let (objects, _) = host.shard.list(b"", b"", 1000);
            let may_remain = |object: &&Locations| {
                let is_lost = object.object.as_ref().is_some_and(|summary| summary.lost);
                let is_inline = object.object.as_ref().is_some_and(|summary| summary.inline);
                object.locations.is_empty() && (is_lost || is_inline)
            };
            let left: Vec<&Locations> =
                objects.iter().filter(|object| !may_remain(object)).collect();
            assert!(left.is_empty(), "shard {number} still knows of {left:?}");
        }
    }
}
