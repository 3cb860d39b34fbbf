//! A cluster's problems, the most important first, each with its cause and its cure.
//!
//! A pure function of load reports, recent events and losses. Problems of one kind are one entry,
//! so the list is short for any number of nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::load::{Load, TroubleKind};
use hoplite_proto::dashboard::query::to_hex;
use serde::{Serialize, Serializer};

use crate::events::{EventKind, PastEvent};

/// The others are counted.
pub(crate) const MAX_PLACES: usize = 8;
/// A loss, a refusal or a departure counts as a problem this long.
pub(crate) const RECENT: Duration = Duration::from_secs(600);
/// Share of an arena in pinned copies, in percent, from which puts may soon find no room.
const NEARLY_FULL_PERCENT: u64 = 90;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Calls fail or wait now.
    Critical,
    /// Calls are slower than they could be, or may fail soon.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    pub(crate) title: String,
    pub(crate) cause: &'static str,
    pub(crate) cure: &'static str,
    pub(crate) count: usize,
    pub(crate) places: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Place {
    pub(crate) node: Option<String>,
    #[serde(serialize_with = "as_key")]
    pub(crate) object: Option<ObjectId>,
    pub(crate) text: String,
}

fn as_key<S: Serializer>(object: &Option<ObjectId>, serializer: S) -> Result<S::Ok, S::Error> {
    object.as_ref().map(|id| to_hex(id.as_bytes())).serialize(serializer)
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known<'a> {
    pub(crate) now: Duration,
    pub(crate) loads: &'a [(NodeId, Arc<Load>)],
    pub(crate) events: &'a [PastEvent],
    pub(crate) losses: &'a [(Duration, ObjectId)],
    pub(crate) failing: &'a [(NodeId, f32)],
}

/// `{}` in the title is the number of places.
struct Words {
    severity: Severity,
    one: &'static str,
    many: &'static str,
    cause: &'static str,
    cure: &'static str,
}

const FULL: Words = Words {
    severity: Severity::Critical,
    one: "a store is full",
    many: "stores are full",
    cause: "Puts, gets or transfers wait for room: pinned objects and references of programs fill the memory.",
    cure: "Delete objects that no program needs (hoplite ls lists them), end programs that hold references (the page \
           of the node names them), or start the store with a larger --memory.",
};
const SHARD: Words = Words {
    severity: Severity::Critical,
    one: "a store has no session with a shard of the directory",
    many: "stores have no session with a shard of the directory",
    cause: "The shard is down, unreachable from the store, or refuses it; the text below has the error.",
    cure: "Run hoplite doctor on the node: it tests each step of the connection.",
};
const PEER: Words = Words {
    severity: Severity::Critical,
    one: "a store cannot use a peer",
    many: "stores cannot use a peer",
    cause: "The peer refuses the store or cannot be reached; the text below has the error.",
    cure: "Compare token, certificates and version of the two stores, and open the data port between them. hoplite \
           doctor on the node tests the connection.",
};
const LOST: Words = Words {
    severity: Severity::Critical,
    one: "an object was lost",
    many: "objects were lost",
    cause: "All stores with a complete copy have left, so gets of the object fail with ObjectLost.",
    cure: "Put the object again. Objects with a second copy survive the loss of a store.",
};
const WAIT: Words = Words {
    severity: Severity::Warning,
    one: "a store has calls that wait for more than 10 s",
    many: "stores have calls that wait for more than 10 s",
    cause: "The call needs something that is not there; the text below names it.",
    cure: "If no store offers the object, look for the program that should put it. If a participant is missing, look \
           at the log of its process. hoplite stat ID shows an object's copies.",
};
const DISK: Words = Words {
    severity: Severity::Critical,
    one: "a store cannot spill",
    many: "stores cannot spill",
    cause: "A disk for spill files is full or fails, or the spill files have reached their limit. Objects stay in \
            memory, and puts wait for room.",
    cure: "Free room on the disk or exchange it, delete objects that no program needs, raise --spill-limit, or start \
           the store with another --spill-dir.",
};
const FAILING: Words = Words {
    severity: Severity::Warning,
    one: "a node has calls that fail",
    many: "nodes have calls that fail",
    cause: "Programs got errors in the last ten seconds: timeouts, lost objects or refused requests.",
    cure: "Read the errors of the programs on the node. The page of the node has its clients and its log.",
};
const NEARLY_FULL: Words = Words {
    severity: Severity::Warning,
    one: "a store is nearly full of pinned objects",
    many: "stores are nearly full of pinned objects",
    cause: "Pinned objects take 90% of the memory, and stay until a program deletes them. Puts will wait soon.",
    cure: "Delete objects that no program needs, or start the store with a larger --memory.",
};
const SLOW: Words = Words {
    severity: Severity::Warning,
    one: "a node has slow links",
    many: "nodes have slow links",
    cause: "These links carry much less than most links of the same store, or take much longer.",
    cure: "Check cable, port and MTU of the nodes that the Links view shows. hoplite topology probe measures all \
           links. Hoplite sends over other links meanwhile.",
};
const INCOMPATIBLE: Words = Words {
    severity: Severity::Critical,
    one: "a program of an incompatible version was refused in the last ten minutes",
    many: "programs of incompatible versions were refused in the last ten minutes",
    cause: "The program and this shard have no version of the protocol in common; the text below has both versions.",
    cure: "Install versions of Hoplite that are at most one protocol version apart, and see the page on upgrades.",
};
const REFUSED: Words = Words {
    severity: Severity::Warning,
    one: "a store was refused in the last ten minutes",
    many: "stores were refused in the last ten minutes",
    cause: "This shard has refused the session of the store; the text below has the reason.",
    cure: "Correct the setting that the text names, on the node of the store, and start the store again.",
};
const LEFT: Words = Words {
    severity: Severity::Warning,
    one: "a store has left in the last ten minutes",
    many: "stores have left in the last ten minutes",
    cause: "The session of the store has ended, and the store has not come back.",
    cure: "If it was not stopped on purpose, read its log on the node: an exit, a crash, or a network that is down.",
};

pub(crate) fn problems(known: &Known<'_>) -> Vec<Problem> {
    let of_kind = |kind: TroubleKind| {
        let troubles = known.loads.iter().filter_map(move |(node, load)| {
            let mut texts = load.troubles.iter().filter(|trouble| trouble.kind == kind);
            // The text of a waiting call says more than the number of calls.
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
    let failing =
        known.failing.iter().map(|(node, rate)| place(node, format!("{rate:.1} failed calls per second")));
    let nearly_full = known.loads.iter().filter(|(_, load)| {
        let is_full = load.troubles.iter().any(|trouble| trouble.kind == TroubleKind::Full);
        let share = u128::from(load.pinned_bytes) * 100 / u128::from(load.capacity_bytes.max(1));
        !is_full && share >= u128::from(NEARLY_FULL_PERCENT)
    });
    let slow = known.loads.iter().filter_map(|(node, load)| {
        let mut slow = load.links.iter().filter(|link| link.is_slow);
        let first = slow.next()?;
        let rest = match slow.count() {
            0 => String::new(),
            more => format!(", and to {more} more"),
        };
        Some(place(node, format!("to {}{rest}", first.peer)))
    });
    let events = || known.events.iter().filter(|event| is_recent(event.at));
    [
        (FULL, of_kind(TroubleKind::Full)),
        (DISK, of_kind(TroubleKind::Disk)),
        (SHARD, of_kind(TroubleKind::Shard)),
        (PEER, of_kind(TroubleKind::Peer)),
        (INCOMPATIBLE, refused(EventKind::Incompatible, events())),
        (LOST, lost.collect()),
        (WAIT, of_kind(TroubleKind::Wait)),
        (FAILING, failing.collect()),
        (NEARLY_FULL, nearly_full.map(|(node, load)| place(node, pinned_of(load))).collect()),
        (SLOW, slow.collect()),
        (REFUSED, refused(EventKind::Refused, events())),
        (LEFT, left(events())),
    ]
    .into_iter()
    .filter_map(|(words, places)| problem(&words, places))
    .collect()
}

fn place(node: &NodeId, text: String) -> Place {
    Place { node: Some(node.to_string()), object: None, text }
}

fn pinned_of(load: &Load) -> String {
    format!("{} of {} bytes are pinned", load.pinned_bytes, load.capacity_bytes)
}

fn problem(words: &Words, mut places: Vec<Place>) -> Option<Problem> {
    let count = places.len();
    let title = match count {
        0 => return None,
        1 => words.one.to_owned(),
        _ => format!("{count} {}", words.many),
    };
    places.truncate(MAX_PLACES);
    Some(Problem { severity: words.severity, title, cause: words.cause, cure: words.cure, count, places })
}

/// The last refusal of each store, or of all programs without a name.
fn refused<'a>(kind: EventKind, events: impl Iterator<Item = &'a PastEvent>) -> Vec<Place> {
    let mut seen = BTreeSet::new();
    let refused = events.filter(|event| event.kind == kind);
    let new = refused.filter(|event| seen.insert(event.node.clone()));
    new.map(|event| Place {
        node: event.node.as_ref().map(NodeId::to_string),
        object: None,
        text: event.text.clone(),
    })
    .collect()
}

/// Stores whose newest event is the end of a session. The events are newest first.
fn left<'a>(events: impl Iterator<Item = &'a PastEvent>) -> Vec<Place> {
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

    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::new(&format!("node-{number}")).unwrap()
    }

    fn told(number: usize, kind: TroubleKind, texts: &[&str]) -> (NodeId, Arc<Load>) {
        let trouble = |text: &&str| Trouble { kind, text: (*text).to_owned() };
        let troubles = texts.iter().map(trouble).collect();
        (node(number), Arc::new(Load { troubles, capacity_bytes: 100, free_bytes: 100, ..Load::default() }))
    }

    fn event(number: u64, at: u64, kind: EventKind, name: usize) -> PastEvent {
        PastEvent {
            number,
            at: Duration::from_secs(at),
            kind,
            node: Some(node(name)),
            text: "why".to_owned(),
        }
    }

    fn titles(known: &Known<'_>) -> Vec<String> {
        problems(known).into_iter().map(|problem| problem.title).collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_problem() {
        let loads = [told(1, TroubleKind::Other, &[])];
        let events = [event(1, 0, EventKind::Connected, 1), event(2, 0, EventKind::TransferFailed, 1)];
        assert_eq!(problems(&Known { loads: &loads, events: &events, ..Known::default() }), []);
    }

    #[test]
    fn each_kind_of_problem_is_one_entry_and_those_that_stop_calls_come_first() {
        let mut nearly = Load { capacity_bytes: 100, pinned_bytes: 90, ..Load::default() };
        let link = |to, is_slow| LinkLoad { peer: node(to), bytes_per_second: 1, round_trip_ns: 1, is_slow };
        nearly.links = vec![link(7, true), link(8, false), link(9, true)];
        let mut loads: Vec<_> = (0..100).map(|number| told(number, TroubleKind::Full, &["full"])).collect();
        loads.push(told(200, TroubleKind::Wait, &["2 calls wait", "a get has waited for 12 s: no store"]));
        loads.push(told(201, TroubleKind::Peer, &["store x: refused", "store y: refused"]));
        loads.push(told(202, TroubleKind::Shard, &["directory shard: down"]));
        loads.push((node(203), Arc::new(nearly)));
        let losses = [(Duration::from_secs(100), ObjectId::new("w").unwrap())];
        let failing = [(node(204), 2.5)];
        let now = Duration::from_secs(200);
        let known = Known { now, loads: &loads, losses: &losses, failing: &failing, ..Known::default() };
        let found = problems(&known);
        let titles: Vec<_> = found.iter().map(|problem| &problem.title[..]).collect();
        assert_eq!(
            titles,
            [
                "100 stores are full",
                "a store has no session with a shard of the directory",
                "a store cannot use a peer",
                "an object was lost",
                "a store has calls that wait for more than 10 s",
                "a node has calls that fail",
                "a store is nearly full of pinned objects",
                "a node has slow links",
            ]
        );
        assert!(found.is_sorted_by_key(|problem| problem.severity));
        assert_eq!((found[0].count, found[0].places.len()), (100, MAX_PLACES));
        assert_eq!(found[4].places[0].text, "a get has waited for 12 s: no store");
        assert_eq!(found[3].places[0].object, ObjectId::new("w").ok());
        assert_eq!(found[7].places[0].text, "to node-7, and to 1 more");
        assert!(found.iter().all(|problem| problem.cause.ends_with('.') && problem.cure.ends_with('.')));
    }

    #[test]
    fn what_happened_counts_for_ten_minutes() {
        let events = [
            event(5, 700, EventKind::Connected, 2),
            event(4, 690, EventKind::Disconnected, 1),
            event(3, 680, EventKind::Disconnected, 2),
            PastEvent { node: None, ..event(6, 675, EventKind::Incompatible, 4) },
            PastEvent { node: None, ..event(6, 675, EventKind::Incompatible, 5) },
            event(2, 670, EventKind::Refused, 3),
            event(1, 660, EventKind::Refused, 3),
        ];
        let losses = [(Duration::from_secs(660), ObjectId::new("w").unwrap())];
        let known = |now| Known { now, events: &events, losses: &losses, ..Known::default() };
        assert_eq!(
            titles(&known(Duration::from_secs(701))),
            [
                "a program of an incompatible version was refused in the last ten minutes",
                "an object was lost",
                "a store was refused in the last ten minutes",
                "a store has left in the last ten minutes",
            ]
        );
        assert_eq!(problems(&known(Duration::from_secs(701)))[3].places[0].node, Some("node-1".to_owned()));
        assert_eq!(titles(&known(Duration::from_secs(1300))), [] as [String; 0]);
    }
}
