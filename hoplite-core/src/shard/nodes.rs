use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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

/// Most nodes of a shard: six times the largest simulated cluster.
pub(super) const MAX_NODES: usize = 1 << 16;

/// Number of a store's process in the shard's tables, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) u32);

impl NodeIndex {
    pub(super) const FIRST: Self = Self(0);
}

#[derive(Debug)]
pub(super) struct NodeRecord {
    pub(super) info: NodeInfo,
    /// Shared with objects, which may outlive this record.
    pub(super) name: Arc<NodeId>,
    /// Node's position, a hash of its name, on the ring of candidates for copies.
    pub(super) point: u64,
    pub(super) place: Place,
    pub(super) slow_peers: Vec<NodeId>,
    pub(super) presence: Presence,
    is_draining: bool,
    pub(super) session_number: u32,
    /// Time of the node's last reconnection, or last repeated publication of an earlier session.
    pub(super) refreshed: Time,
    pub(super) holdings: BTreeSet<ObjectId>,
    pub(super) requests: BTreeMap<RequestId, OpenRequest>,
    pub(super) receiving: BTreeMap<GrantId, ObjectId>,
    /// Objects that the node made when its last session ended. It may still make them.
    pub(super) making: BTreeSet<ObjectId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Connected {
        /// After a reconnect, the time to remove copies that were not published again.
        sweep_at: Option<Time>,
    },
    Away {
        since: Time,
        until: Time,
    },
}

#[derive(Debug)]
pub(super) enum OpenRequest {
    Query(WaitingQuery),
    /// With `true` if the node makes the object.
    Subscription(ObjectId, bool),
    Delete(ObjectId, PutId),
    HeldDelete(ObjectId),
    AwaitingDelete(ObjectId),
}

#[derive(Debug, Clone)]
pub(super) struct WaitingQuery {
    pub(super) id: ObjectId,
    pub(super) arrival: u64,
    pub(super) since: Time,
    pub(super) deadline: Time,
    pub(super) timeout: Duration,
    pub(super) resume: Option<PutId>,
    pub(super) avoid: Vec<NodeIndex>,
    /// Time from which the query accepts a slow or avoided sender.
    pub(super) waits_until: Time,
    /// Group in which the query waits for a copy, or [`EVERYWHERE`].
    pub(super) group: Path,
}

impl NodeRecord {
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.presence, Presence::Connected { .. })
    }
}

/// Returns `true` if `path` is in the groups of the node's labels and has further levels.
fn refines(path: Path, info: &NodeInfo) -> bool {
    let labelled = Place::of_labels(&info.labels).path;
    is_in(path, labelled) && path != labelled
}

#[derive(Debug, Default)]
pub(super) struct Nodes {
    records: BTreeMap<NodeIndex, NodeRecord>,
    by_name: BTreeMap<NodeId, NodeIndex>,
    ring: BTreeSet<(u64, NodeIndex)>,
    keys: KeyCounts,
    measured: MeasuredPlaces,
    /// `true` if this shard learned `measured` from stores, not from a probe. Then it may be
    /// incomplete.
    is_recalled: bool,
    /// `true` once a node is in a measured group. Until then, `uplink` is unmeasured.
    uses_measured: bool,
    slow_reports: BTreeMap<NodeId, BTreeSet<NodeIndex>>,
    draining: usize,
    next: u32,
}

impl Nodes {
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
                name: Arc::new(info.node.clone()),
                info,
                presence: Presence::Connected { sweep_at: None },
                is_draining: false,
                session_number: 0,
                refreshed: now,
                holdings: BTreeSet::new(),
                requests: BTreeMap::new(),
                receiving: BTreeMap::new(),
                making: BTreeSet::new(),
            },
        );
        Some(index)
    }

    pub(super) fn remove(&mut self, index: NodeIndex) -> Option<NodeRecord> {
        self.set_draining(index, false);
        let record = self.records.remove(&index)?;
        self.by_name.remove(&record.info.node);
        self.ring.remove(&(record.point, index));
        self.keys.remove(Place::of_labels(&record.info.labels).path);
        Some(record)
    }

    pub(super) fn renew(&mut self, index: NodeIndex, info: NodeInfo) {
        let place = self.place_of(&info);
        let Some(record) = self.records.get_mut(&index) else { return };
        self.keys.remove(Place::of_labels(&record.info.labels).path);
        self.keys.add(Place::of_labels(&info.labels).path);
        (record.place, record.info) = (place, info);
    }

    pub(super) fn set_slow_peers(&mut self, index: NodeIndex, peers: Vec<NodeId>) -> bool {
        let Some(record) = self.records.get_mut(&index).filter(|record| record.slow_peers != peers)
        else {
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

    pub(super) fn has_slow_links(&self) -> bool {
        !self.slow_reports.is_empty()
    }

    pub(super) fn is_called_slow(&self, node: NodeIndex) -> bool {
        self.has_slow_links()
            && self
                .get(node)
                .is_some_and(|record| self.slow_reports.contains_key(&record.info.node))
    }

    /// Returns `true` if the sender reports the link as slow, or enough nodes report slow links to
    /// the sender or the receiver.
    ///
    /// The sender's report counts only if both nodes are in the same groups.
    pub(super) fn is_slow_link(&self, from: NodeIndex, to: NodeIndex) -> bool {
        let (Some(sender), Some(receiver)) = (self.records.get(&from), self.records.get(&to))
        else {
            return false;
        };
        let is_near = sender.place.path == receiver.place.path;
        (is_near && sender.slow_peers.contains(&receiver.info.node))
            || self.is_slow_node(sender)
            || self.is_slow_node(receiver)
    }

    fn is_slow_node(&self, node: &NodeRecord) -> bool {
        let Some(reporters) = self.slow_reports.get(&node.info.node) else { return false };
        let near = reporters.iter().filter_map(|index| self.records.get(index));
        near.filter(|reporter| reporter.place.path == node.place.path).take(MIN_REPORTS).count()
            == MIN_REPORTS
    }

    fn place_of(&self, info: &NodeInfo) -> Place {
        let labelled = Place::of_labels(&info.labels);
        self.measured_path(info).map_or(labelled, |path| Place { path, ..labelled })
    }

    fn measured_path(&self, info: &NodeInfo) -> Option<Path> {
        self.measured.paths.get(&info.node).copied().filter(|path| refines(*path, info))
    }

    pub(super) fn measured_nodes(&self) -> usize {
        self.records.values().filter(|record| self.measured_path(&record.info).is_some()).count()
    }

    /// Begins to use the measured uplinks if a probe found groups for this node. Returns `true` if
    /// the shard did not use them before.
    pub(super) fn use_measured(&mut self, index: NodeIndex) -> bool {
        let is_measured =
            self.get(index).is_some_and(|record| self.measured_path(&record.info).is_some());
        is_measured && !std::mem::replace(&mut self.uses_measured, true)
    }

    pub(super) fn uplink(&self) -> Uplink {
        if self.uses_measured { self.measured.uplink } else { Uplink::default() }
    }

    pub(super) const fn measured(&self) -> &MeasuredPlaces {
        &self.measured
    }

    /// Returns `true` if a probe's `places` replace the shard's. An equal version suffices if the
    /// shard learned its places from stores.
    pub(super) fn is_newer(&self, places: &MeasuredPlaces) -> bool {
        if self.is_recalled {
            places.version >= self.measured.version
        } else {
            *places > self.measured
        }
    }

    /// Sets the groups that a probe found. Returns the nodes that change groups, for
    /// [`place`](Self::place).
    pub(super) fn measure(&mut self, places: MeasuredPlaces) -> Vec<NodeIndex> {
        self.is_recalled = false;
        self.measured = places;
        self.uses_measured = self.measured_nodes() > 0;
        let is_moved = |record: &NodeRecord| self.place_of(&record.info) != record.place;
        self.records
            .iter()
            .filter(|(_, record)| is_moved(record))
            .map(|(index, _)| *index)
            .collect()
    }

    /// Adds measured groups that a store repeats, unless the shard knows a newer version. Returns
    /// the nodes that change groups.
    pub(super) fn recall(&mut self, index: NodeIndex, placed: Placed) -> Option<Vec<NodeIndex>> {
        let info = self.get(index)?.info.clone();
        let mut moved = Vec::new();
        if placed.version > self.measured.version {
            moved = self
                .measure(MeasuredPlaces { version: placed.version, ..MeasuredPlaces::default() });
            self.is_recalled = true;
        }
        if placed.version < self.measured.version {
            return None;
        }
        if !self.is_recalled {
            // Another shard has a node with a measured place, and told the store this uplink.
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

    pub(super) fn place(&mut self, index: NodeIndex) {
        let Some(place) = self.records.get(&index).map(|record| self.place_of(&record.info)) else {
            return;
        };
        if let Some(record) = self.records.get_mut(&index) {
            record.place = place;
        }
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = NodeIndex> {
        self.records.keys().copied()
    }

    pub(super) const fn is_unused(&self) -> bool {
        self.next == 0
    }

    pub(super) const fn keys(&self) -> &KeyCounts {
        &self.keys
    }

    pub(super) fn index(&self, node: &NodeId) -> Option<NodeIndex> {
        self.by_name.get(node).copied()
    }

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

    /// Returns the connected nodes in the order of their hashes, starting at `point` and wrapping
    /// around.
    pub(super) fn connected_after(&self, point: u64) -> impl Iterator<Item = NodeIndex> {
        let start = (point, NodeIndex::FIRST);
        let around = self.ring.range(start..).chain(self.ring.range(..start));
        around.map(|(_, index)| *index).filter(|index| self.is_connected(*index))
    }

    /// Returns [`connected_after`](Self::connected_after) without draining nodes, which get no
    /// copies to keep.
    pub(super) fn receivers_after(&self, point: u64) -> impl Iterator<Item = NodeIndex> {
        self.connected_after(point).filter(|index| !self.is_draining(*index))
    }

    /// Counts at most `most` nodes that do not drain, including disconnected ones.
    pub(super) fn count_receivers(&self, most: usize) -> usize {
        self.records.keys().filter(|index| !self.is_draining(**index)).take(most).count()
    }

    pub(super) fn is_draining(&self, index: NodeIndex) -> bool {
        self.draining > 0 && self.get(index).is_some_and(|record| record.is_draining)
    }

    pub(super) const fn has_draining(&self) -> bool {
        self.draining > 0
    }

    pub(super) fn set_draining(&mut self, index: NodeIndex, is_draining: bool) -> bool {
        let record = self.records.get_mut(&index);
        let Some(record) = record.filter(|record| record.is_draining != is_draining) else {
            return false;
        };
        record.is_draining = is_draining;
        if is_draining {
            self.draining += 1;
        } else {
            self.draining -= 1;
        }
        true
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NodeRecord> {
        self.by_name.values().filter_map(|index| self.records.get(index))
    }
}
