//! Problems of a cluster, with the texts that all tools show.

use crate::vocabulary::id::{NodeId, ObjectId};
use crate::vocabulary::text::sizes;

/// Most places (nodes or objects) that a problem names.
pub const MAX_PLACES: usize = 8;

/// A store is nearly full if pinned copies take this percentage of its memory.
const NEARLY_FULL_PERCENT: u64 = 90;

/// Describes a [nearly full](ProblemKind::NearlyFull) store; `None` for other stores.
pub fn nearly_full(pinned_bytes: u64, capacity_bytes: u64) -> Option<String> {
    let share = u128::from(pinned_bytes) * 100 / u128::from(capacity_bytes.max(1));
    let is_so = share >= u128::from(NEARLY_FULL_PERCENT);
    let [pinned, capacity] = sizes([pinned_bytes, capacity_bytes]);
    is_so.then(|| format!("{pinned} of {capacity} are pinned"))
}

/// Describes [slow links](ProblemKind::Slow) to `peers`; `None` without peers.
pub fn slow_links<'a>(peers: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut peers = peers.into_iter();
    let first = peers.next()?;
    Some(match peers.count() {
        0 => format!("to {first}"),
        more => format!("to {first}, and to {more} more"),
    })
}

/// Describes [failed routes](ProblemKind::Routes), also by card; `None` without.
pub fn failed_routes(count: u32, cards: impl IntoIterator<Item = (String, u32)>) -> Option<String> {
    let failed = cards.into_iter().filter(|(_, failed)| *failed > 0);
    let cards: Vec<String> = failed.map(|(card, failed)| format!("{failed} of {card}")).collect();
    let cards = if cards.is_empty() { String::new() } else { format!(" ({})", cards.join(", ")) };
    (count > 0).then(|| format!("failed routes between network cards: {count}{cards}"))
}

/// Kinds of problems, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// Calls or transfers wait for memory.
    Full,
    /// A store cannot write spill files.
    Disk,
    /// A store has no session with a directory shard.
    Shard,
    /// A store refuses another one, or cannot be reached.
    Peer,
    /// Daemons refused programs of an incompatible protocol version.
    Incompatible,
    /// All complete copies of an object are gone.
    Lost,
    /// Puts want more copies than stores can keep.
    Copies,
    /// Calls have waited for long.
    Wait,
    /// Calls fail.
    Failing,
    /// Pinned objects take nearly all memory.
    NearlyFull,
    /// Links are much slower than others.
    Slow,
    /// Routes between network cards do not work.
    Routes,
    /// A shard has refused a store.
    Refused,
    /// The session of a store has ended, and the store has not come back.
    Left,
}

/// Urgency of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Calls fail or wait now.
    Critical,
    /// Calls are slow, or may fail soon.
    Warning,
}

/// A problem of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Problem {
    pub kind: ProblemKind,
    /// Number of nodes or objects with the problem.
    pub count: usize,
    /// First [`MAX_PLACES`] nodes or objects.
    pub places: Vec<Place>,
}

/// A node or an object with a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Place {
    pub node: Option<NodeId>,
    pub object: Option<ObjectId>,
    /// Details for people.
    pub text: String,
}

impl Problem {
    /// Makes a problem; `None` without places.
    pub fn new(kind: ProblemKind, mut places: Vec<Place>) -> Option<Self> {
        let count = places.len();
        places.truncate(MAX_PLACES);
        (count > 0).then_some(Self { kind, count, places })
    }

    /// Title, with the number of places unless it is one.
    pub fn title(&self) -> String {
        let ProblemText { one, many, .. } = self.kind.text();
        match self.count {
            1 => (*one).to_owned(),
            count => format!("{count} {many}"),
        }
    }
}

struct ProblemText {
    severity: Severity,
    one: &'static str,
    many: &'static str,
    cause: &'static str,
    cure: &'static str,
}

impl ProblemKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Full,
        Self::Disk,
        Self::Shard,
        Self::Peer,
        Self::Incompatible,
        Self::Lost,
        Self::Copies,
        Self::Wait,
        Self::Failing,
        Self::NearlyFull,
        Self::Slow,
        Self::Routes,
        Self::Refused,
        Self::Left,
    ];

    /// Kind's urgency.
    pub fn severity(self) -> Severity {
        self.text().severity
    }

    /// Text about the problem's cause.
    pub fn cause(self) -> &'static str {
        self.text().cause
    }

    /// Text about the problem's cure.
    pub fn cure(self) -> &'static str {
        self.text().cure
    }

    fn text(self) -> &'static ProblemText {
        match self {
            Self::Full => &FULL,
            Self::Disk => &DISK,
            Self::Shard => &SHARD,
            Self::Peer => &PEER,
            Self::Incompatible => &INCOMPATIBLE,
            Self::Lost => &LOST,
            Self::Copies => &COPIES,
            Self::Wait => &WAIT,
            Self::Failing => &FAILING,
            Self::NearlyFull => &NEARLY_FULL,
            Self::Slow => &SLOW,
            Self::Routes => &ROUTES,
            Self::Refused => &REFUSED,
            Self::Left => &LEFT,
        }
    }
}

const FULL: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "a store is full",
    many: "stores are full",
    cause: "Puts, gets or transfers wait for room: pinned objects and references of programs fill the memory.",
    cure: "Delete objects that no program needs (hoplite ls lists them), end programs that hold references (the page \
           of the node names them), or start the store with a larger --memory.",
};
const DISK: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "a store cannot spill",
    many: "stores cannot spill",
    cause: "A disk for spill files is full or fails, or the next spill file does not fit below the limit. Objects \
            stay in memory, and puts wait for room.",
    cure: "Free room on the disk or exchange it, delete objects that no program needs, raise --spill-limit, or start \
           the store with another --spill-dir.",
};
const SHARD: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "a store has no session with a shard of the directory",
    many: "stores have no session with a shard of the directory",
    cause: "The shard is down, unreachable from the store, or refuses it; the text below has the error.",
    cure: "Run hoplite doctor on the node: it tests each step of the connection.",
};
const PEER: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "a store cannot use a peer",
    many: "stores cannot use a peer",
    cause: "The peer refuses the store or cannot be reached; the text below has the error.",
    cure: "Compare token, certificates and version of the two stores, and open the data port between them. hoplite \
           doctor on the node tests the connection.",
};
const INCOMPATIBLE: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "a program of an incompatible version was refused in the last ten minutes",
    many: "programs of incompatible versions were refused in the last ten minutes",
    cause: "The program and the daemon have no version of the protocol in common; the text below has both versions.",
    cure: "Install versions of Hoplite that are at most one protocol version apart, and see the page on upgrades.",
};
const LOST: ProblemText = ProblemText {
    severity: Severity::Critical,
    one: "an object was lost",
    many: "objects were lost",
    cause: "All stores with a complete copy have left, so gets of the object fail with ObjectLost.",
    cure: "Put the object again. Objects with a second copy survive the loss of a store.",
};
const COPIES: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "an object has too few copies",
    many: "objects have too few copies",
    cause: "The puts want more copies than stores can keep; the text below has the obstacle. The loss of a store may \
            lose the object.",
    cure: "Start further stores, or give stores a larger --memory. The missing copies follow within seconds.",
};
const WAIT: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a store has calls that wait for more than 10 s",
    many: "stores have calls that wait for more than 10 s",
    cause: "The call needs something that is not there; the text below names it.",
    cure: "If no store offers the object, look for the program that should put it. If a participant is missing, look \
           at the log of its process. hoplite stat ID shows an object's copies.",
};
const FAILING: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a node has calls that fail",
    many: "nodes have calls that fail",
    cause: "Programs got errors in the last ten seconds: timeouts, lost objects or refused requests.",
    cure: "Read the errors of the programs on the node. The page of the node has its clients and its log.",
};
const NEARLY_FULL: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a store is nearly full of pinned objects",
    many: "stores are nearly full of pinned objects",
    cause: "Pinned objects take 90% of the memory, and stay until a program deletes them. Puts will wait soon.",
    cure: "Delete objects that no program needs, or start the store with a larger --memory.",
};
const SLOW: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a node has slow links",
    many: "nodes have slow links",
    cause: "These links carry much less than most links of the same store, or take much longer.",
    cure: "Check cable, port and MTU of the nodes that the Links view shows. hoplite topology probe measures all \
           links. Hoplite sends over other links meanwhile.",
};
const ROUTES: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a node has network cards that do not reach other nodes",
    many: "nodes have network cards that do not reach other nodes",
    cause: "A card cannot connect to the card of another node, or its connections fall silent. Transfers use the \
            other cards.",
    cure: "Check cable, port and addresses of the cards. Name them in the same order at every store: each card \
           must reach the data port of its counterpart.",
};
const REFUSED: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a store was refused in the last ten minutes",
    many: "stores were refused in the last ten minutes",
    cause: "This shard has refused the session of the store; the text below has the reason.",
    cure: "Correct the setting that the text names, on the node of the store, and start the store again.",
};
const LEFT: ProblemText = ProblemText {
    severity: Severity::Warning,
    one: "a store has left in the last ten minutes",
    many: "stores have left in the last ten minutes",
    cause: "The session of the store has ended, and the store has not come back.",
    cure: "If it was not stopped on purpose, read its log on the node: an exit, a crash, or a network that is down.",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_their_urgency_and_have_sentences() {
        assert!(ProblemKind::ALL.is_sorted_by_key(|kind| (kind.severity(), *kind)));
        for kind in ProblemKind::ALL {
            assert!(kind.cause().ends_with('.') && kind.cure().ends_with('.'), "{kind:?}");
        }
    }

    #[test]
    fn failed_routes_name_the_cards_that_have_some() {
        let cards = || [("10.0.0.1", 0), ("10.0.0.2", 2)].map(|(card, at)| (card.to_owned(), at));
        assert_eq!(failed_routes(0, cards()), None);
        let text = "failed routes between network cards: 2";
        assert_eq!(failed_routes(2, []).unwrap(), text);
        assert_eq!(failed_routes(2, cards()).unwrap(), format!("{text} (2 of 10.0.0.2)"));
    }

    #[test]
    fn a_title_counts_the_places() {
        let place = || Place { node: NodeId::new("a").ok(), object: None, text: String::new() };
        let problem = |count| Problem::new(ProblemKind::Full, vec![place(); count]);
        assert_eq!(problem(0), None);
        assert_eq!(problem(1).unwrap().title(), "a store is full");
        let many = problem(100).unwrap();
        assert_eq!(
            (many.title(), many.places.len()),
            ("100 stores are full".to_owned(), MAX_PLACES)
        );
    }
}
