//! Finds the problems of a cluster, the most important first.
//!
//! A pure function of load reports, recent events and lost objects. All problems of one kind are
//! one entry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::load::{Load, TroubleKind};
use hoplite_core::problem::{Place, Problem, ProblemKind, failed_routes, nearly_full, slow_links};
use hoplite_core::shard::{LostObject, Obstacle, Shard};
use hoplite_core::time::Time;

use crate::events::{EventKind, Events, RecordedEvent};
use crate::owner::ShardHandle;
use crate::watch::Loads;

/// Time for which a lost object, a refusal or a session's end counts as a problem.
const RECENT: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, Default)]
struct ClusterState<'a> {
    now: Duration,
    loads: &'a [(NodeId, Arc<Load>)],
    events: &'a [RecordedEvent],
    losses: &'a [(Duration, ObjectId)],
    failing: &'a [(NodeId, f32)],
    blocked: &'a [(ObjectId, Obstacle)],
}

pub(crate) struct Problematic {
    losses: Vec<LostObject>,
    blocked: Vec<(ObjectId, Obstacle)>,
}

impl Problematic {
    pub(crate) fn of(shard: &Shard) -> Self {
        Self { losses: shard.losses(), blocked: shard.blocked_copies() }
    }
}

pub(crate) fn problems_now(
    shard: &ShardHandle,
    loads: &Loads,
    events: &Events,
    objects: &Problematic,
) -> Vec<Problem> {
    let losses: Vec<_> =
        objects.losses.iter().map(|loss| (loss.at.since(Time::ZERO), loss.id.clone())).collect();
    problems(&ClusterState {
        now: shard.uptime(),
        loads: &loads.all(),
        events: &events.latest(),
        losses: &losses,
        failing: &loads.failing(),
        blocked: &objects.blocked,
    })
}

fn problems(known: &ClusterState<'_>) -> Vec<Problem> {
    let of_kind = |kind: TroubleKind| {
        let troubles = known.loads.iter().filter_map(move |(node, load)| {
            let mut texts = load.troubles.iter().filter(|trouble| trouble.kind == kind);
            // The last text, a waiting call, says more than the number of calls.
            let text = if kind == TroubleKind::Wait { texts.next_back() } else { texts.next() }?;
            Some(place(node, text.text.clone()))
        });
        troubles.collect::<Vec<_>>()
    };
    let is_recent = |at: Duration| known.now.saturating_sub(at) < RECENT;
    let lost = known.losses.iter().rev().filter(|(at, _)| is_recent(*at)).map(|(_, id)| Place {
        node: None,
        object: Some(id.clone()),
        text: id.readable(),
    });
    let blocked = known.blocked.iter().map(|(id, obstacle)| Place {
        node: None,
        object: Some(id.clone()),
        text: format!("{}: {obstacle}", id.readable()),
    });
    let failing = known
        .failing
        .iter()
        .map(|(node, rate)| place(node, format!("{rate:.1} failed calls per second")));
    let nearly_full = known.loads.iter().filter_map(|(node, load)| {
        let is_full = load.troubles.iter().any(|trouble| trouble.kind == TroubleKind::Full);
        let text = nearly_full(load.pinned_bytes, load.capacity_bytes).filter(|_| !is_full)?;
        Some(place(node, text))
    });
    let slow = known.loads.iter().filter_map(|(node, load)| {
        let slow = load.links.iter().filter(|link| link.is_slow);
        Some(place(node, slow_links(slow.map(|link| link.peer.as_str()))?))
    });
    let routes = known.loads.iter().filter_map(|(node, load)| {
        let cards = load.rails.iter().map(|rail| (rail.address.to_string(), rail.failed_routes));
        Some(place(node, failed_routes(load.failed_routes, cards)?))
    });
    let events = || known.events.iter().filter(|event| is_recent(event.at));
    [
        (ProblemKind::Full, of_kind(TroubleKind::Full)),
        (ProblemKind::Disk, of_kind(TroubleKind::Disk)),
        (ProblemKind::Shard, of_kind(TroubleKind::Shard)),
        (ProblemKind::Peer, of_kind(TroubleKind::Peer)),
        (ProblemKind::Incompatible, refused(EventKind::Incompatible, events())),
        (ProblemKind::Lost, lost.collect()),
        (ProblemKind::Copies, blocked.collect()),
        (ProblemKind::Wait, of_kind(TroubleKind::Wait)),
        (ProblemKind::Failing, failing.collect()),
        (ProblemKind::NearlyFull, nearly_full.collect()),
        (ProblemKind::Slow, slow.collect()),
        (ProblemKind::Routes, routes.collect()),
        (ProblemKind::Refused, refused(EventKind::Refused, events())),
        (ProblemKind::Left, left(events())),
    ]
    .into_iter()
    .filter_map(|(kind, places)| Problem::new(kind, places))
    .collect()
}

fn place(node: &NodeId, text: String) -> Place {
    Place { node: Some(node.clone()), object: None, text }
}

/// Last refusal of each store, and of a program without a name.
fn refused<'a>(kind: EventKind, events: impl Iterator<Item = &'a RecordedEvent>) -> Vec<Place> {
    let mut seen = BTreeSet::new();
    let refused = events.filter(|event| event.kind == kind);
    let new = refused.filter(|event| seen.insert(event.node.clone()));
    new.map(|event| Place { node: event.node.clone(), object: None, text: event.text.clone() })
        .collect()
}

/// Stores whose newest event is the end of a session. `events` begins with the newest.
fn left<'a>(events: impl Iterator<Item = &'a RecordedEvent>) -> Vec<Place> {
    let mut seen = BTreeSet::new();
    let of_sessions =
        events.filter(|event| matches!(event.kind, EventKind::Connected | EventKind::Disconnected));
    let last = of_sessions.filter(|event| seen.insert(event.node.clone()));
    let gone = last.filter(|event| event.kind == EventKind::Disconnected);
    gone.filter_map(|event| Some(place(event.node.as_ref()?, event.text.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use hoplite_core::load::{LinkLoad, Trouble};
    use hoplite_core::problem::MAX_PLACES;

    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::new(&format!("node-{number}")).unwrap()
    }

    fn load_of(number: usize, kind: TroubleKind, texts: &[&str]) -> (NodeId, Arc<Load>) {
        let trouble = |text: &&str| Trouble { kind, text: (*text).to_owned() };
        let troubles = texts.iter().map(trouble).collect();
        (
            node(number),
            Arc::new(Load { troubles, capacity_bytes: 100, free_bytes: 100, ..Load::default() }),
        )
    }

    fn event(number: u64, at: u64, kind: EventKind, name: usize) -> RecordedEvent {
        RecordedEvent {
            number,
            at: Duration::from_secs(at),
            kind,
            node: Some(node(name)),
            text: "why".to_owned(),
        }
    }

    fn titles(known: &ClusterState<'_>) -> Vec<String> {
        problems(known).iter().map(Problem::title).collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_problem() {
        let loads = [load_of(1, TroubleKind::Other, &[])];
        let events =
            [event(1, 0, EventKind::Connected, 1), event(2, 0, EventKind::TransferFailed, 1)];
        assert_eq!(
            problems(&ClusterState { loads: &loads, events: &events, ..ClusterState::default() }),
            []
        );
    }

    #[test]
    fn each_kind_of_problem_is_one_entry_and_those_that_stop_calls_come_first() {
        let mut nearly = Load { capacity_bytes: 100, pinned_bytes: 90, ..Load::default() };
        let link = |to, is_slow| LinkLoad {
            peer: node(to),
            bytes_per_second: 1,
            round_trip_ns: 1,
            is_slow,
            lanes: 0,
        };
        nearly.links = vec![link(7, true), link(8, false), link(9, true)];
        nearly.failed_routes = 3;
        let mut loads: Vec<_> =
            (0..100).map(|number| load_of(number, TroubleKind::Full, &["full"])).collect();
        loads.push(load_of(
            200,
            TroubleKind::Wait,
            &["2 calls wait", "a get has waited for 12 s: no store"],
        ));
        loads.push(load_of(201, TroubleKind::Peer, &["store x: refused", "store y: refused"]));
        loads.push(load_of(202, TroubleKind::Shard, &["directory shard: down"]));
        loads.push((node(203), Arc::new(nearly)));
        let losses = [(Duration::from_secs(100), ObjectId::new("w").unwrap())];
        let failing = [(node(204), 2.5)];
        let blocked = [(ObjectId::new("b").unwrap(), Obstacle::NoRoom)];
        let now = Duration::from_secs(200);
        let known = ClusterState {
            now,
            loads: &loads,
            losses: &losses,
            failing: &failing,
            blocked: &blocked,
            ..ClusterState::default()
        };
        let found = problems(&known);
        let titles: Vec<_> = found.iter().map(Problem::title).collect();
        assert_eq!(
            titles,
            [
                "100 stores are full",
                "a store has no session with a shard of the directory",
                "a store cannot use a peer",
                "an object was lost",
                "an object has too few copies",
                "a store has calls that wait for more than 10 s",
                "a node has calls that fail",
                "a store is nearly full of pinned objects",
                "a node has slow links",
                "a node has network cards that do not reach other nodes",
            ]
        );
        assert!(found.is_sorted_by_key(|problem| problem.kind));
        assert_eq!((found[0].count, found[0].places.len()), (100, MAX_PLACES));
        assert_eq!(found[4].places[0].text, "b: no other store has room");
        assert_eq!(found[5].places[0].text, "a get has waited for 12 s: no store");
        assert_eq!(found[3].places[0].object, ObjectId::new("w").ok());
        assert_eq!(found[8].places[0].text, "to node-7, and to 1 more");
        assert_eq!(found[9].places[0].text, "failed routes between network cards: 3");
    }

    #[test]
    fn an_event_is_a_problem_for_ten_minutes() {
        let events = [
            event(5, 700, EventKind::Connected, 2),
            event(4, 690, EventKind::Disconnected, 1),
            event(3, 680, EventKind::Disconnected, 2),
            RecordedEvent { node: None, ..event(6, 675, EventKind::Incompatible, 4) },
            RecordedEvent { node: None, ..event(6, 675, EventKind::Incompatible, 5) },
            event(2, 670, EventKind::Refused, 3),
            event(1, 660, EventKind::Refused, 3),
        ];
        let losses = [(Duration::from_secs(660), ObjectId::new("w").unwrap())];
        let known =
            |now| ClusterState { now, events: &events, losses: &losses, ..ClusterState::default() };
        assert_eq!(
            titles(&known(Duration::from_secs(701))),
            [
                "a program of an incompatible version was refused in the last ten minutes",
                "an object was lost",
                "a store was refused in the last ten minutes",
                "a store has left in the last ten minutes",
            ]
        );
        assert_eq!(problems(&known(Duration::from_secs(701)))[3].places[0].node, Some(node(1)));
        assert_eq!(titles(&known(Duration::from_secs(1300))), [] as [String; 0]);
    }
}
