use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::node::{
    CallId, ClientId, CopyId, Event, Reduce, ReduceOrder, Request, Response, Until,
};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::DeleteWait;
use hoplite_core::{Dtype, Error, Metadata, ObjectId};

use super::experiment::{Arrivals, Experiment, Workload};
use crate::cluster::{Answer, Application, Cluster};

const PAUSE: Duration = Duration::from_secs(1);

const CLIENT: ClientId = ClientId(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Seal,
    Get,
    Reduce,
    Delete,
}

pub(super) type World = Cluster<Calls>;

#[derive(Debug)]
pub(crate) struct Calls {
    pub(super) experiment: Experiment,
    pub(super) started: Duration,
    open: BTreeMap<(usize, CallId), Call>,
    preparing: usize,
    has_begun: bool,
    awaited: BTreeSet<usize>,
    failing: BTreeSet<usize>,
    arrivals: BTreeMap<usize, Duration>,
    done: BTreeMap<usize, Duration>,
    errors: Vec<(usize, Error)>,
}

impl Application for Calls {
    fn answered(cluster: &mut World, store: usize, _: ClientId, call: CallId, answer: Answer) {
        cluster.call_answered(store, call, answer);
    }
}

impl Calls {
    pub(super) const fn new(experiment: Experiment) -> Self {
        Self {
            experiment,
            started: Duration::ZERO,
            open: BTreeMap::new(),
            preparing: 0,
            has_begun: false,
            awaited: BTreeSet::new(),
            failing: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            done: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    pub(super) const fn is_prepared(&self) -> bool {
        self.preparing == 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.has_begun && self.awaited.is_empty()
    }

    pub(super) fn done(&self) -> usize {
        self.done.len()
    }

    pub(super) fn awaited(&self) -> usize {
        self.awaited.len()
    }

    pub(super) fn last_done(&self) -> Option<Duration> {
        self.done.values().max().copied()
    }

    pub(super) fn longest(&self) -> Duration {
        let taken =
            self.done.iter().filter_map(|(store, done)| Some(*done - *self.arrivals.get(store)?));
        taken.max().unwrap_or_default()
    }

    pub(super) fn errors(&self) -> &[(usize, Error)] {
        &self.errors
    }
}

fn target() -> ObjectId {
    ObjectId::new("target").expect("the id is short")
}

fn source(store: usize) -> ObjectId {
    ObjectId::new(format!("source-{store:05}")).expect("the id is short")
}

impl World {
    pub(super) fn put_in_advance(&mut self) {
        match (self.app.experiment.workload, self.app.experiment.arrivals) {
            (Workload::Broadcast, _) => self.put_first(0, target()),
            (_, Arrivals::Together) => {
                for store in 0..self.stores.len() {
                    self.put_first(store, source(store));
                }
            }
            (_, Arrivals::Staggered(_)) => {}
        }
    }

    pub(super) fn prepare(&mut self) {
        self.advance(|world| world.app.is_prepared());
        self.settle();
    }

    /// Deletes the target of a finished run. A broadcast puts it again.
    pub(super) fn start_over(&mut self) {
        self.app = Calls { preparing: 1, ..Calls::new(self.app.experiment.clone()) };
        let (timeout, wait) = (self.app.experiment.time_limit, DeleteWait::Reachable);
        self.call(0, Call::Delete, Request::Delete { ids: vec![target()], timeout, wait });
    }

    fn put_first(&mut self, store: usize, id: ObjectId) {
        self.app.preparing += 1;
        self.put(store, id);
    }

    pub(super) fn begin(&mut self) {
        self.app.started = self.elapsed();
        self.app.has_begun = true;
        let stores = self.stores.len();
        self.choose_failing();
        let workload = self.app.experiment.workload;
        if workload != Workload::Broadcast {
            self.app.awaited.insert(0);
            self.app.arrivals.insert(0, self.app.started);
            self.at(self.app.started, Self::reduce);
        }
        for store in 0..stores {
            let (is_first, at) = (store == 0, self.app.started + self.arrival(store));
            if workload != Workload::Reduce && !is_first {
                self.app.awaited.insert(store);
                self.app.arrivals.insert(store, at);
            }
            self.at(at, move |world| world.arrive(store));
        }
    }

    fn arrival(&self, store: usize) -> Duration {
        match self.app.experiment.arrivals {
            Arrivals::Together => Duration::ZERO,
            Arrivals::Staggered(spread) => {
                let number = |count: usize| u32::try_from(count).expect("there are few enough");
                spread / number((self.stores.len() - 1).max(1)) * number(store)
            }
        }
    }

    fn choose_failing(&mut self) {
        let stores = self.stores.len();
        let wanted =
            (self.app.experiment.failures_percent / 100.0 * stores as f64).round() as usize;
        let wanted = wanted.min(stores - 1);
        let window =
            u64::try_from(self.app.experiment.bound().as_nanos()).unwrap_or(u64::MAX).max(1);
        while self.app.failing.len() < wanted {
            let store = 1 + self.random.index(stores - 1);
            if self.app.failing.insert(store) {
                let at = self.app.started + Duration::from_nanos(self.random.number(0..window));
                self.at(at, move |world| {
                    world.crash_store(store);
                    world.app.awaited.remove(&store);
                });
            }
        }
    }

    fn arrive(&mut self, store: usize) {
        let workload = self.app.experiment.workload;
        if workload != Workload::Broadcast && self.app.experiment.arrivals != Arrivals::Together {
            self.put(store, source(store));
        }
        if workload != Workload::Reduce && store != 0 {
            let timeout = self.app.experiment.time_limit;
            self.call(
                store,
                Call::Get,
                Request::Get { id: target(), until: Until::Complete, timeout, allow_stale: false },
            );
        }
    }

    fn reduce(&mut self) {
        let sources: Vec<ObjectId> = (0..self.stores.len()).map(source).collect();
        let request = Reduce {
            target: target(),
            count: sources.len() - self.app.failing.len(),
            sources,
            op: ReduceOp::Sum,
            order: ReduceOrder::Any,
            range: None,
            replicas: 0,
            timeout: self.app.experiment.time_limit,
        };
        self.call(0, Call::Reduce, Request::Reduce(request));
    }

    fn put(&mut self, store: usize, id: ObjectId) {
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        let (size_bytes, timeout) =
            (self.app.experiment.size_bytes, self.app.experiment.time_limit);
        self.call(store, Call::Create, Request::Create { id, size_bytes, metadata, timeout });
    }

    fn call(&mut self, store: usize, call: Call, request: Request) {
        if !self.stores[store].is_alive {
            return;
        }
        let number = CallId(self.fresh_number());
        self.app.open.insert((store, number), call);
        self.store_event(store, Event::Request { client: CLIENT, call: number, request });
    }

    fn call_answered(&mut self, store: usize, number: CallId, response: Answer) {
        let Some(call) = self.app.open.remove(&(store, number)) else { return };
        match (call, response) {
            (Call::Create, Ok(Response::Created(view))) => self.seal(store, view.copy),
            (Call::Seal, Ok(Response::Sealed)) => {
                self.app.preparing = self.app.preparing.saturating_sub(1);
            }
            (Call::Delete, Ok(Response::Deleted { .. })) => {
                self.app.preparing = self.app.preparing.saturating_sub(1);
                if self.app.experiment.workload == Workload::Broadcast {
                    self.put_first(0, target());
                }
            }
            (Call::Get, Ok(Response::Object(_))) | (Call::Reduce, Ok(Response::Reduced { .. })) => {
                self.app.awaited.remove(&store);
                self.app.done.insert(store, self.elapsed());
            }
            (_, Ok(response)) => panic!("store {store} answers a {call:?} with {response:?}"),
            (_, Err(error)) => {
                self.app.awaited.remove(&store);
                self.app.errors.push((store, error));
            }
        }
    }

    fn seal(&mut self, store: usize, copy: CopyId) {
        self.fill(store, copy, self.app.experiment.size_bytes);
        let timeout = self.app.experiment.time_limit;
        self.after(Duration::ZERO, move |world| {
            world.call(store, Call::Seal, Request::Seal { copy, timeout })
        });
    }

    pub(super) fn advance(&mut self, is_over: impl Fn(&Self) -> bool) {
        let end = self.elapsed() + self.app.experiment.time_limit;
        while !is_over(self) && self.step(end) {}
    }

    pub(super) fn settle(&mut self) {
        let quiet = self.elapsed() + PAUSE;
        self.at(quiet, |_| {});
        self.advance(|world| {
            world.elapsed() >= quiet && world.shards.iter().all(|host| host.queued == 0)
        });
    }

    pub(super) fn plan(&self) -> Option<String> {
        self.stores[0].node.reduce_record(&target()).map(|record| record.plan.clone())
    }

    pub(super) fn repairs(&self) -> (u32, u32) {
        let record = self.stores[0].node.reduce_record(&target());
        record.map_or((0, 0), |record| (record.mendings, record.restarts))
    }
}
