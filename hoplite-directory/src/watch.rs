//! Load reports that stores send while a user watches the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, Stream};
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::NodeId;
use hoplite_core::load::{ASKED_FOR, Load, ReportRequest, ReportRequests};
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_core::time::Time;
use hoplite_proto::directory::decode_load;
use hoplite_proto::status::{from_status, to_status};
use hoplite_proto::v1::{LoadReport, WatchOrder};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

use crate::events::{EventKind, Events};

/// Most stores with a remembered report: the most stores of a shard.
const MAX_LOADS: usize = 1 << 16;

/// The commands to one store, as a stream.
pub(crate) type Orders = Pin<Box<dyn Stream<Item = Result<WatchOrder, Status>> + Send>>;

/// The latest load reports of all stores. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Loads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    started: Instant,
    orders: watch::Sender<Option<WatchOrder>>,
    events: Events,
}

#[derive(Debug, Default)]
struct State {
    next_teller: u64,
    loads: BTreeMap<NodeId, (u64, Option<Arc<Load>>)>,
    report_requests: ReportRequests,
}

impl Loads {
    /// Creates an empty collection. Each new trouble of a store becomes one of the `events`.
    pub(crate) fn new(events: Events) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            started: Instant::now(),
            orders: watch::Sender::new(None),
            events,
        }))
    }

    /// Requests load reports from all stores, now and for a while.
    pub(crate) fn look(&self) {
        let ReportRequest { interval, .. } = {
            let mut state = self.lock();
            let stores = state.loads.len();
            let Some(ask) = state.report_requests.look(self.now(), stores) else { return };
            if ask.forget {
                state.loads.values_mut().for_each(|(_, told)| *told = None);
            }
            ask
        };
        let order = WatchOrder { interval_ms: millis(interval), duration_ms: millis(ASKED_FOR) };
        self.0.orders.send_replace(Some(order));
    }

    pub(crate) fn of<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeId>) -> Vec<Option<Arc<Load>>> {
        let state = self.lock();
        nodes.into_iter().map(|node| state.loads.get(node)?.1.clone()).collect()
    }

    pub(crate) fn all(&self) -> Vec<(NodeId, Arc<Load>)> {
        let state = self.lock();
        state.loads.iter().filter_map(|(node, (_, load))| Some((node.clone(), load.clone()?))).collect()
    }

    pub(crate) async fn serve(
        &self,
        mut reports: Streaming<LoadReport>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Orders> {
        let first = timeout(HELLO_TIMEOUT, reports.message()).await;
        let Ok(Ok(Some(first))) = first else {
            return Err(Error::malformed(Plane::Control, "a store says first who it is"));
        };
        let teller = self.enter(NodeId::new(&first.node)?)?;
        // A recent first command counts too, because a store may connect while a user watches.
        let mut orders = self.0.orders.subscribe();
        let now = self.now();
        if self.lock().report_requests.holds(now) {
            orders.mark_changed();
        }
        let (ended, end) = (CancellationToken::new(), CancellationToken::new());
        let end_of_orders = end.clone();
        let reading = ended.clone().drop_guard();
        tasks.spawn(async move {
            let _end = end.drop_guard();
            tokio::select! {
                outcome = teller.read(reports) => if let Err(error) = outcome {
                    tracing::debug!(%error, "a store stopped telling how it is");
                },
                () = stop.cancelled() => {}
                () = ended.cancelled() => {}
            }
        });
        let next = move |(mut orders, end, reading): (watch::Receiver<_>, CancellationToken, _)| async move {
            let changed = end.run_until_cancelled(orders.changed()).await;
            changed?.ok()?;
            let order: Option<WatchOrder> = *orders.borrow_and_update();
            Some((order.ok_or_else(|| to_status(&Error::ShuttingDown)), (orders, end, reading)))
        };
        Ok(Box::pin(stream::unfold((orders, end_of_orders, reading), next)))
    }

    fn enter(&self, node: NodeId) -> Result<ReportingStore> {
        let mut state = self.lock();
        if state.loads.len() >= MAX_LOADS && !state.loads.contains_key(&node) {
            return Err(Error::limit_exceeded("nodes", MAX_LOADS as u64));
        }
        state.next_teller += 1;
        let number = state.next_teller;
        state.loads.insert(node.clone(), (number, None));
        Ok(ReportingStore { loads: self.clone(), node, number })
    }

    fn now(&self) -> Time {
        Time::ZERO + self.0.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete, so a panic elsewhere is harmless.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reporting store. Dropping this forgets its report.
struct ReportingStore {
    loads: Loads,
    node: NodeId,
    number: u64,
}

impl ReportingStore {
    async fn read(&self, mut reports: Streaming<LoadReport>) -> Result<()> {
        while let Some(report) = reports.message().await.map_err(|status| from_status(&status))? {
            let load = Arc::new(decode_load(report)?);
            let before = match self.loads.lock().loads.get_mut(&self.node) {
                Some((number, told)) if *number == self.number => told.replace(Arc::clone(&load)),
                _ => continue,
            };
            for trouble in new_troubles(before.as_deref(), &load) {
                self.loads.0.events.push(EventKind::Trouble, &self.node, trouble);
            }
        }
        Ok(())
    }
}

impl Drop for ReportingStore {
    fn drop(&mut self) {
        let mut state = self.loads.lock();
        if state.loads.get(&self.node).is_some_and(|(number, _)| *number == self.number) {
            state.loads.remove(&self.node);
        }
    }
}

/// Returns the troubles that are new in the store's report. A trouble with changed numbers is not
/// new.
fn new_troubles<'a>(before: Option<&Load>, now: &'a Load) -> impl Iterator<Item = &'a str> {
    let without_numbers =
        |trouble: &str| trouble.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>();
    let known: BTreeSet<String> =
        before.into_iter().flat_map(|load| &load.troubles).map(|trouble| without_numbers(trouble)).collect();
    now.troubles.iter().map(String::as_str).filter(move |trouble| !known.contains(&without_numbers(trouble)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
