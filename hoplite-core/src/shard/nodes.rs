//! The nodes that a shard knows: their sessions, what they hold, what they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{NodeId, ObjectId, PutId};
use crate::link::Uplink;
use crate::placement::{fnv1a, mix};
use crate::time::Time;
use crate::topology::keys::KeyCounts;
use crate::topology::live::MIN_REPORTS;
use crate::topology::measured::{MAX_MEASURED_NODES, MeasuredPlaces};
use crate::topology::place::{EVERYWHERE, Path, Place, is_in};
use crate::vocabulary::directory::{GrantId, NodeInfo, Placed, RequestId};

/// Most nodes of one shard, connected or lately lost. More than six times the largest cluster that is simulated.
pub(super) const MAX_NODES: usize = 1 << 16;

/// A run of a node, as entries refer to it. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) u32);

impl NodeIndex {
    /// The smallest one.
    pub(super) const FIRST: Self = Self(0);
}

/// A node that is connected, or was a moment ago.
#[derive(Debug)]
pub(super) struct NodeRecord {
    pub(super) info: NodeInfo,
    /// Its point on the ring: a hash of its name.
    point: u64,
    /// Where it is in the network.
    pub(super) place: Place,
    /// The peers to which its links are slow, as it says.
    pub(super) slow_peers: Vec<NodeId>,
    pub(super) presence: Presence,
    /// Counts the sessions of this run of the node.
    pub(super) session_number: u32,
    /// The time at which it last published again a copy from an earlier session.
    pub(super) refreshed: Time,
    /// The objects that have a location here.
    pub(super) holdings: BTreeSet<ObjectId>,
    /// Its requests that are open: bounded by [`super::Shard::max_open_requests`].
    pub(super) requests: BTreeMap<RequestId, OpenRequest>,
    /// The slots that it uses as a receiver, and of which objects.
    pub(super) receiving: BTreeMap<GrantId, ObjectId>,
}

/// Whether a node can be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Connected {
        /// The time at which copies that were not published again are given up; `None` in a node's first session.
        sweep_at: Option<Time>,
    },
    Away {
        since: Time,
        /// The time at which its copies are given up.
        until: Time,
    },
}

/// A request that waits for something.
#[derive(Debug)]
pub(super) enum OpenRequest {
    Query(WaitingQuery),
    Subscription(ObjectId),
    Delete(ObjectId, PutId),
    /// A delete of an id that is not known yet, while the shard warms up.
    HeldDelete(ObjectId),
}

/// A query that found no location yet.
#[derive(Debug, Clone)]
pub(super) struct WaitingQuery {
    pub(super) id: ObjectId,
    /// Its place in the queue of the object.
    pub(super) arrival: u64,
    pub(super) since: Time,
    pub(super) deadline: Time,
    pub(super) timeout: Duration,
    pub(super) resume: Option<PutId>,
    pub(super) avoid: Vec<NodeIndex>,
    /// Until when it waits rather than that it takes a sender that it avoids, or a slow one.
    pub(super) patient_until: Time,
    /// The innermost group of its node, in which it waits for a copy that is close; that of all nodes if it may not wait.
    pub(super) group: Path,
}

impl NodeRecord {
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.presence, Presence::Connected { .. })
    }
}

/// Returns `true` if a path says more of where a node is than its labels, and the same at the levels of these.
fn refines(path: Path, info: &NodeInfo) -> bool {
    let labelled = Place::of_labels(&info.labels).path;
    is_in(path, labelled) && path != labelled
}

/// All nodes, by index and by name.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    records: BTreeMap<NodeIndex, NodeRecord>,
    by_name: BTreeMap<NodeId, NodeIndex>,
    /// By the hashes of their names.
    ring: BTreeSet<(u64, NodeIndex)>,
    keys: KeyCounts,
    measured: MeasuredPlaces,
    /// `true` if these are not all that was found, but what stores have said of it that had been told.
    is_recalled: bool,
    /// `true` if a node has been where was measured since these places count.
    uses_measured: bool,
    /// Which nodes say that their link to a node is slow.
    slow_reports: BTreeMap<NodeId, BTreeSet<NodeIndex>>,
    next: u32,
}

impl Nodes {
    /// Adds a node that is not known, in its first session; `None` if there are too many.
    pub(super) fn add(&mut self, info: NodeInfo, now: Time) -> Option<NodeIndex> {
        if self.records.len() >= MAX_NODES {
            return None;
        }
        let index = NodeIndex(self.next);
        self.next = self.next.checked_add(1)?;
        let point = mix(fnv1a(info.node.as_str().as_bytes()));
        self.by_name.insert(info.node.clone(), index);
        self.ring.insert((point, index));
        let place = self.place_of(&info);
        self.keys.add(Place::of_labels(&info.labels).path);
        self.records.insert(
            index,
            NodeRecord {
                point,
                place,
                slow_peers: Vec::new(),
                info,
                presence: Presence::Connected { sweep_at: None },
                session_number: 0,
                refreshed: now,
                holdings: BTreeSet::new(),
                requests: BTreeMap::new(),
                receiving: BTreeMap::new(),
            },
        );
        Some(index)
    }

    pub(super) fn remove(&mut self, index: NodeIndex) -> Option<NodeRecord> {
        let record = self.records.remove(&index)?;
        self.by_name.remove(&record.info.node);
        self.ring.remove(&(record.point, index));
        self.keys.remove(Place::of_labels(&record.info.labels).path);
        Some(record)
    }

    /// Notes what a node says of itself in a new session.
    pub(super) fn renew(&mut self, index: NodeIndex, info: NodeInfo) {
        let place = self.place_of(&info);
        let Some(record) = self.records.get_mut(&index) else { return };
        self.keys.remove(Place::of_labels(&record.info.labels).path);
        self.keys.add(Place::of_labels(&info.labels).path);
        (record.place, record.info) = (place, info);
    }

    /// Takes in to which peers a node says that its links are slow; returns whether these are others than before.
    pub(super) fn set_slow_peers(&mut self, index: NodeIndex, peers: Vec<NodeId>) -> bool {
        let Some(record) = self.records.get_mut(&index).filter(|record| record.slow_peers != peers) else {
            return false;
        };
        for peer in std::mem::replace(&mut record.slow_peers, peers.clone()) {
            if let Some(reporters) = self.slow_reports.get_mut(&peer) {
                reporters.remove(&index);
                if reporters.is_empty() {
                    self.slow_reports.remove(&peer);
                }
            }
        }
        for peer in peers {
            self.slow_reports.entry(peer).or_default().insert(index);
        }
        true
    }

    /// Returns `true` if any link is known to be slow.
    pub(super) fn has_slow_links(&self) -> bool {
        !self.slow_reports.is_empty()
    }

    /// Returns `true` if some node says that its link to this one is slow.
    pub(super) fn is_called_slow(&self, node: NodeIndex) -> bool {
        self.has_slow_links()
            && self.get(node).is_some_and(|record| self.slow_reports.contains_key(&record.info.node))
    }

    /// Returns `true` if what goes from one node to another is slow: as the sender says, or since so many say it of one of them. Between groups
    /// it is the uplink that is slow, which the groups stand for already.
    pub(super) fn is_slow_link(&self, from: NodeIndex, to: NodeIndex) -> bool {
        let (Some(sender), Some(receiver)) = (self.records.get(&from), self.records.get(&to)) else {
            return false;
        };
        let is_near = sender.place.path == receiver.place.path;
        (is_near && sender.slow_peers.contains(&receiver.info.node))
            || self.is_slow_node(sender)
            || self.is_slow_node(receiver)
    }

    /// Returns `true` if enough nodes of its group say that their link to a node is slow.
    fn is_slow_node(&self, node: &NodeRecord) -> bool {
        let Some(reporters) = self.slow_reports.get(&node.info.node) else { return false };
        let near = reporters.iter().filter_map(|index| self.records.get(index));
        near.filter(|reporter| reporter.place.path == node.place.path).take(MIN_REPORTS).count()
            == MIN_REPORTS
    }

    /// Where a node is: as its labels say, and within that as was measured.
    fn place_of(&self, info: &NodeInfo) -> Place {
        let labelled = Place::of_labels(&info.labels);
        self.measured_path(info).map_or(labelled, |path| Place { path, ..labelled })
    }

    /// The groups that were measured for a node, if they say more than its labels and do not contradict these.
    fn measured_path(&self, info: &NodeInfo) -> Option<Path> {
        self.measured.paths.get(&info.node).copied().filter(|path| refines(*path, info))
    }

    /// Returns the number of nodes that are where was measured.
    pub(super) fn measured_nodes(&self) -> usize {
        self.records.values().filter(|record| self.measured_path(&record.info).is_some()).count()
    }

    /// Has what uplinks carry count from now on, if this node is where was measured; returns whether it did not before.
    pub(super) fn use_measured(&mut self, index: NodeIndex) -> bool {
        let is_measured = self.get(index).is_some_and(|record| self.measured_path(&record.info).is_some());
        is_measured && !std::mem::replace(&mut self.uses_measured, true)
    }

    /// What uplinks carry, as was measured; of no use as long as all nodes are where their labels say.
    pub(super) fn uplink(&self) -> Uplink {
        if self.uses_measured { self.measured.uplink } else { Uplink::default() }
    }

    /// The measured places that count.
    pub(super) const fn measured(&self) -> &MeasuredPlaces {
        &self.measured
    }

    /// Returns `true` if these places count from now on. All that was found counts more than what stores remember of it.
    pub(super) fn is_news(&self, places: &MeasuredPlaces) -> bool {
        if self.is_recalled { places.version >= self.measured.version } else { *places > self.measured }
    }

    /// Takes measured places; returns the nodes that are elsewhere by them, for [`place`](Self::place).
    pub(super) fn measure(&mut self, places: MeasuredPlaces) -> Vec<NodeIndex> {
        self.is_recalled = false;
        self.measured = places;
        self.uses_measured = self.measured_nodes() > 0;
        let is_moved = |record: &NodeRecord| self.place_of(&record.info) != record.place;
        self.records.iter().filter(|(_, record)| is_moved(record)).map(|(index, _)| *index).collect()
    }

    /// Takes what a store was told of places, unless more is known; returns the nodes that are elsewhere by it, for
    /// [`place`](Self::place).
    pub(super) fn recall(&mut self, index: NodeIndex, placed: Placed) -> Option<Vec<NodeIndex>> {
        let info = self.get(index)?.info.clone();
        let mut moved = Vec::new();
        if placed.version > self.measured.version {
            moved = self.measure(MeasuredPlaces { version: placed.version, ..MeasuredPlaces::default() });
            self.is_recalled = true;
        }
        if placed.version < self.measured.version {
            return None;
        }
        if !self.is_recalled {
            // Another shard has had a node that is where was measured.
            let is_news = placed.uplink != self.uplink() && placed.uplink == self.measured.uplink;
            self.uses_measured |= is_news;
            return is_news.then(Vec::new);
        }
        let path = self.measured.paths.get(&info.node).copied().unwrap_or(EVERYWHERE);
        let known = Placed { version: placed.version, path, uplink: self.measured.uplink };
        let counts = known.or_larger(placed);
        if counts.uplink != known.uplink {
            (self.measured.uplink, self.uses_measured) = (counts.uplink, true);
        }
        let is_news = counts.path != path && refines(counts.path, &info);
        if is_news && self.measured.paths.len() < MAX_MEASURED_NODES {
            self.measured.paths.insert(info.node, counts.path);
            moved.push(index);
        }
        Some(moved)
    }

    /// Has a node be where it is by its labels, or by the measured places.
    pub(super) fn place(&mut self, index: NodeIndex) {
        let Some(place) = self.records.get(&index).map(|record| self.place_of(&record.info)) else { return };
        if let Some(record) = self.records.get_mut(&index) {
            record.place = place;
        }
    }

    /// All nodes.
    pub(super) fn indices(&self) -> impl Iterator<Item = NodeIndex> {
        self.records.keys().copied()
    }

    /// By which keys the nodes say where they are.
    pub(super) const fn keys(&self) -> &KeyCounts {
        &self.keys
    }

    pub(super) fn index(&self, node: &NodeId) -> Option<NodeIndex> {
        self.by_name.get(node).copied()
    }

    /// The index of a node that may be talked to.
    pub(super) fn connected(&self, node: &NodeId) -> Option<NodeIndex> {
        self.index(node).filter(|index| self.is_connected(*index))
    }

    pub(super) fn is_connected(&self, index: NodeIndex) -> bool {
        self.get(index).is_some_and(NodeRecord::is_connected)
    }

    pub(super) fn get(&self, index: NodeIndex) -> Option<&NodeRecord> {
        self.records.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: NodeIndex) -> Option<&mut NodeRecord> {
        self.records.get_mut(&index)
    }

    /// The nodes that may be talked to, once around the ring from `point` on.
    pub(super) fn connected_after(&self, point: u64) -> impl Iterator<Item = NodeIndex> {
        let start = (point, NodeIndex::FIRST);
        let around = self.ring.range(start..).chain(self.ring.range(..start));
        around.map(|(_, index)| *index).filter(|index| self.is_connected(*index))
    }

    /// All nodes, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &NodeRecord> {
        self.by_name.values().filter_map(|index| self.records.get(index))
    }
}
