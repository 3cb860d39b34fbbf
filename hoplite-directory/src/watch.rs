//! Load reports, which stores send while a user watches the dashboard or `hoplite top`.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, Stream};
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::load::{Load, REPORT_DURATION, ReportRequest, ReportRequests, Trouble};
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_core::time::Time;
use hoplite_proto::directory::decode_load;
use hoplite_proto::status::{from_status, to_status};
use hoplite_proto::v1::{LoadReport, WatchOrder};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

use crate::events::{EventKind, Events};
use crate::history::{History, STEP, Slice};
use crate::past::{BEFORE_START, Past, PastReduce};

/// Most load reports: as many as a shard has stores.
const MAX_LOADS: usize = 1 << 16;
/// Most nodes that send detailed reports, because a user looks at their page.
const MAX_DETAILED: usize = 16;

pub(crate) type Orders = Pin<Box<dyn Stream<Item = Result<WatchOrder, Status>> + Send>>;

#[derive(Debug, Clone)]
pub(crate) struct Loads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    started: Instant,
    orders: watch::Sender<Option<Order>>,
    events: Events,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    loads: BTreeMap<NodeId, (u64, Option<LatestReport>)>,
    report_requests: ReportRequests,
    requested: Option<ReportRequest>,
    detailed: BTreeMap<NodeId, Time>,
    history: History,
    past: Past,
}

#[derive(Debug, Clone)]
struct LatestReport {
    at: Time,
    load: Arc<Load>,
}

#[derive(Debug, Clone)]
struct Order {
    request: ReportRequest,
    detailed: Arc<BTreeSet<NodeId>>,
}

impl Loads {
    pub(crate) fn new(events: Events) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            started: Instant::now(),
            orders: watch::Sender::new(None),
            events,
        }))
    }

    pub(crate) fn request_reports(&self) {
        let mut state = self.lock();
        let stores = state.loads.len();
        if let Some(request) = state.report_requests.note_watcher(self.now(), stores) {
            self.request(&mut state, request);
        }
    }

    pub(crate) fn request_detailed_reports(&self, node: &NodeId) {
        self.request_reports();
        let now = self.now();
        let mut state = self.lock();
        state.detailed.retain(|_, until| *until > now);
        let is_known = state.detailed.contains_key(node);
        if state.loads.contains_key(node) && (is_known || state.detailed.len() < MAX_DETAILED) {
            state.detailed.insert(node.clone(), now + REPORT_DURATION);
        }
        if !is_known && let Some(request) = state.requested {
            self.request(&mut state, ReportRequest { forget: false, ..request });
        }
    }

    fn request(&self, state: &mut State, request: ReportRequest) {
        if request.forget {
            state.loads.values_mut().for_each(|(_, latest)| *latest = None);
        }
        let now = self.now();
        state.detailed.retain(|_, until| *until > now);
        state.requested = Some(request);
        let detailed = Arc::new(state.detailed.keys().cloned().collect());
        self.0.orders.send_replace(Some(Order { request, detailed }));
    }

    pub(crate) async fn keep_history(self, stop: CancellationToken) {
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(steps.tick()).await.is_some() {
            let mut state = self.lock();
            let stores = state.loads.len();
            if let Some(request) = state.report_requests.request_history(self.now(), stores) {
                self.request(&mut state, request);
            }
            let State { loads, history, .. } = &mut *state;
            let latest =
                loads.iter().filter_map(|(node, (_, latest))| Some((node, latest.as_ref()?)));
            history.sample(latest.map(|(node, latest)| (node, latest.at, &*latest.load)));
        }
    }

    pub(crate) fn history(&self, node: Option<&NodeId>, after: u64) -> Option<Slice> {
        self.lock().history.since(node, after)
    }

    pub(crate) fn past(&self, target: Option<&ObjectId>, limit: usize) -> (Time, Vec<PastReduce>) {
        (self.now() + BEFORE_START, self.lock().past.latest(target, limit))
    }

    pub(crate) fn failing(&self) -> Vec<(NodeId, f32)> {
        self.lock().history.failing().map(|(node, failures)| (node.clone(), failures)).collect()
    }

    pub(crate) fn of<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a NodeId>,
    ) -> Vec<Option<Arc<Load>>> {
        let state = self.lock();
        nodes
            .into_iter()
            .map(|node| Some(state.loads.get(node)?.1.as_ref()?.load.clone()))
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<(NodeId, Arc<Load>)> {
        let state = self.lock();
        let latest = |(node, (_, latest)): (&NodeId, &(u64, Option<LatestReport>))| {
            Some((node.clone(), latest.as_ref()?.load.clone()))
        };
        state.loads.iter().filter_map(latest).collect()
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
        let node = NodeId::new(&first.node)?;
        let teller = self.register(node.clone())?;
        // The latest request for reports applies to a new store, too, because a user may be
        // watching.
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
        let next = move |(mut orders, end, reading, node): (
            watch::Receiver<Option<Order>>,
            CancellationToken,
            _,
            NodeId,
        )| async move {
            let changed = end.run_until_cancelled(orders.changed()).await;
            changed?.ok()?;
            let order = orders.borrow_and_update().as_ref().map(|order| order.of(&node));
            Some((
                order.ok_or_else(|| to_status(&Error::ShuttingDown)),
                (orders, end, reading, node),
            ))
        };
        Ok(Box::pin(stream::unfold((orders, end_of_orders, reading, node), next)))
    }

    fn register(&self, node: NodeId) -> Result<ReportingStore> {
        let mut state = self.lock();
        if state.loads.len() >= MAX_LOADS && !state.loads.contains_key(&node) {
            return Err(Error::limit_exceeded("nodes", MAX_LOADS as u64));
        }
        state.next_number += 1;
        let number = state.next_number;
        state.loads.insert(node.clone(), (number, None));
        Ok(ReportingStore { loads: self.clone(), node, number })
    }

    fn now(&self) -> Time {
        Time::ZERO + self.0.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn of(&self, node: &NodeId) -> WatchOrder {
        let ReportRequest { interval, duration, .. } = self.request;
        WatchOrder {
            interval_ms: millis(interval),
            duration_ms: millis(duration),
            detailed: self.detailed.contains(node),
        }
    }
}

/// Dropping it forgets the store's last report.
struct ReportingStore {
    loads: Loads,
    node: NodeId,
    number: u64,
}

impl ReportingStore {
    async fn read(&self, mut reports: Streaming<LoadReport>) -> Result<()> {
        while let Some(report) = reports.message().await.map_err(|status| from_status(&status))? {
            let mut load = decode_load(report)?;
            let combinations = std::mem::take(&mut load.combinations);
            let load = Arc::new(load);
            let now = self.loads.now();
            let latest_report = LatestReport { at: now, load: Arc::clone(&load) };
            let before = {
                let mut state = self.loads.lock();
                let State { loads, past, .. } = &mut *state;
                match loads.get_mut(&self.node) {
                    Some((number, latest)) if *number == self.number => {
                        past.push(now + BEFORE_START, &self.node, combinations);
                        latest.replace(latest_report)
                    }
                    _ => continue,
                }
            };
            for trouble in new_troubles(before.as_ref().map(|latest| &*latest.load), &load) {
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

/// A known trouble with other numbers is not new.
fn new_troubles<'a>(before: Option<&Load>, now: &'a Load) -> impl Iterator<Item = &'a str> {
    let without_numbers = |trouble: &str| {
        trouble.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>()
    };
    let known: BTreeSet<String> = before
        .into_iter()
        .flat_map(|load| &load.troubles)
        .map(|trouble| without_numbers(&trouble.text))
        .collect();
    let troubles = now.troubles.iter().map(|Trouble { text, .. }| text.as_str());
    troubles.filter(move |trouble| !known.contains(&without_numbers(trouble)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
