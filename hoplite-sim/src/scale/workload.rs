//! Who calls what when, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_core::node::{CallId, ClientId, CopyId, Event, Reduce, ReduceOrder, Request, Response, Until};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Dtype, Error, Metadata, ObjectId};

use super::line::{Line, Nanos};
use super::world::{World, duration_nanos};
use super::{Arrivals, Workload};

/// The one client of each store.
const CLIENT: ClientId = ClientId(1);

/// What a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Seal,
    Get,
    Reduce,
}

/// The calls of all clients.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: BTreeMap<(usize, CallId), Call>,
    /// How many puts are to be done before the start.
    preparing: usize,
    has_begun: bool,
    /// Who is to get something, or to reduce, and has not yet.
    awaited: BTreeSet<usize>,
    /// Who is to die.
    doomed: BTreeSet<usize>,
    arrivals: BTreeMap<usize, Nanos>,
    /// When each of those who were awaited was done.
    done: BTreeMap<usize, Nanos>,
    errors: Vec<(usize, Error)>,
}

impl Calls {
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

    pub(super) fn last_done(&self) -> Option<Nanos> {
        self.done.values().max().copied()
    }

    /// The longest time that anybody took from its arrival.
    pub(super) fn longest(&self) -> Nanos {
        let taken = self.done.iter().filter_map(|(store, done)| Some(done - self.arrivals.get(store)?));
        taken.max().unwrap_or(0)
    }

    pub(super) fn errors(&self) -> &[(usize, Error)] {
        &self.errors
    }
}

/// What is broadcast, or made by the reduce.
fn target() -> ObjectId {
    ObjectId::new("target").expect("the id is short")
}

/// What a node puts to be reduced.
fn source(store: usize) -> ObjectId {
    ObjectId::new(format!("source-{store:05}")).expect("the id is short")
}

impl World {
    /// Puts what is there before the start.
    pub(super) fn put_in_advance(&mut self) {
        match (self.experiment.workload, self.experiment.arrivals) {
            (Workload::Broadcast, _) => self.put_first(0, target()),
            (_, Arrivals::Together) => {
                for store in 0..self.stores.len() {
                    self.put_first(store, source(store));
                }
            }
            (_, Arrivals::Staggered(_)) => {}
        }
    }

    fn put_first(&mut self, store: usize, id: ObjectId) {
        self.calls.preparing += 1;
        self.put(store, id);
    }

    /// Starts the clock: the reduce is called, nodes arrive, nodes die.
    pub(super) fn begin(&mut self) {
        self.started = self.now;
        self.calls.has_begun = true;
        let stores = self.stores.len();
        self.choose_doomed();
        let workload = self.experiment.workload;
        if workload != Workload::Broadcast {
            self.calls.awaited.insert(0);
            self.calls.arrivals.insert(0, self.started);
            self.at(self.started, Self::reduce);
        }
        for store in 0..stores {
            let (is_first, at) = (store == 0, self.started + self.arrival(store));
            if workload != Workload::Reduce && !is_first {
                self.calls.awaited.insert(store);
                self.calls.arrivals.insert(store, at);
            }
            self.at(at, move |world| world.arrive(store));
        }
    }

    /// When a node arrives, after the start.
    fn arrival(&self, store: usize) -> Nanos {
        match self.experiment.arrivals {
            Arrivals::Together => 0,
            Arrivals::Staggered(spread) => {
                let steps = (self.stores.len() - 1).max(1) as u64;
                duration_nanos(spread) / steps * store as u64
            }
        }
    }

    fn choose_doomed(&mut self) {
        let stores = self.stores.len();
        let wanted = (self.experiment.failures_percent / 100.0 * stores as f64).round() as usize;
        let wanted = wanted.min(stores - 1);
        let window = duration_nanos(self.experiment.bound()).max(1);
        while self.calls.doomed.len() < wanted {
            let store = 1 + self.random.index(stores - 1);
            if self.calls.doomed.insert(store) {
                let at = self.started + self.random.number(0..window);
                self.at(at, move |world| world.crash(store));
            }
        }
    }

    /// What a node does when it takes part.
    fn arrive(&mut self, store: usize) {
        let workload = self.experiment.workload;
        if workload != Workload::Broadcast && self.experiment.arrivals != Arrivals::Together {
            self.put(store, source(store));
        }
        if workload != Workload::Reduce && store != 0 {
            let timeout = self.experiment.time_limit;
            self.call(store, Call::Get, Request::Get { id: target(), until: Until::Complete, timeout });
        }
    }

    fn reduce(&mut self) {
        let sources: Vec<ObjectId> = (0..self.stores.len()).map(source).collect();
        let request = Reduce {
            target: target(),
            count: sources.len() - self.calls.doomed.len(),
            sources,
            op: ReduceOp::Sum,
            order: ReduceOrder::Any,
            range: None,
            timeout: self.experiment.time_limit,
        };
        self.call(0, Call::Reduce, Request::Reduce(request));
    }

    fn put(&mut self, store: usize, id: ObjectId) {
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        let (size_bytes, timeout) = (self.experiment.size_bytes, self.experiment.time_limit);
        self.call(store, Call::Create, Request::Create { id, size_bytes, metadata, timeout });
    }

    fn call(&mut self, store: usize, call: Call, request: Request) {
        if !self.stores[store].is_alive {
            return;
        }
        let number = CallId(self.fresh_number());
        self.calls.open.insert((store, number), call);
        self.store_event(store, Event::Request { client: CLIENT, call: number, request });
    }

    pub(super) fn answered(&mut self, store: usize, number: CallId, response: Result<Response, Error>) {
        let Some(call) = self.calls.open.remove(&(store, number)) else { return };
        match (call, response) {
            (Call::Create, Ok(Response::Created(view))) => self.seal(store, view.copy),
            (Call::Seal, Ok(Response::Sealed)) => {
                self.calls.preparing = self.calls.preparing.saturating_sub(1);
            }
            (Call::Get, Ok(Response::Object(_))) | (Call::Reduce, Ok(Response::Reduced { .. })) => {
                self.calls.awaited.remove(&store);
                self.calls.done.insert(store, self.now);
            }
            (_, Ok(response)) => panic!("store {store} answers a {call:?} with {response:?}"),
            (_, Err(error)) => {
                self.calls.awaited.remove(&store);
                self.calls.errors.push((store, error));
            }
        }
    }

    /// The worker has written all bytes, which takes no time here.
    fn seal(&mut self, store: usize, copy: CopyId) {
        let now = self.now;
        if let Some(stock) = self.stores[store].stocks.get_mut(&copy) {
            stock.line = Line::flat(now, stock.size);
        }
        let timeout = self.experiment.time_limit;
        self.after(0, move |world| world.call(store, Call::Seal, Request::Seal { copy, timeout }));
    }

    pub(super) fn calls_of_crashed(&mut self, store: usize) {
        self.calls.awaited.remove(&store);
    }

    /// How the reduce was planned.
    pub(super) fn plan(&self) -> Option<String> {
        self.stores[0].node.reduce_record(&target()).map(|record| record.plan.clone())
    }

    /// How often the reduce was mended, and how often it had to begin anew.
    pub(super) fn repairs(&self) -> (u32, u32) {
        let record = self.stores[0].node.reduce_record(&target());
        record.map_or((0, 0), |record| (record.mendings, record.restarts))
    }
}
