//! What the dashboard sees of a shard. Each inspection is bounded, however many nodes and objects there are, since the shard
//! serves no store meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;

use super::Shard;
use super::entry::Entry;
use super::history::GrantRecord;
use super::losses::LostObject;
use super::nodes::NodeIndex;
use crate::dtype::Dtype;
use crate::id::{NodeId, ObjectId};
use crate::metadata::Metadata;
use crate::placement::ShardList;
use crate::time::Time;
use crate::vocabulary::directory::{GrantReason, LocationState, Retention};

/// Most objects that one search looks at: about two milliseconds.
pub const MAX_LOOKED_AT: usize = 20_000;
/// Most copies of one object that are shown.
pub const MAX_SHOWN_COPIES: usize = 2048;
/// Most slots that are counted to find the objects that are on their way: all of those of a thousand busy nodes.
const MAX_COUNTED_SLOTS: usize = 1 << 15;

/// A node, as a shard sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOverview {
    /// Its name.
    pub node: NodeId,
    /// The address of its data plane.
    pub data_address: SocketAddr,
    /// Labels of the operator's.
    pub labels: Vec<(String, String)>,
    /// `true` if its session is open; if not, it was a moment ago.
    pub connected: bool,
    /// Copies that it has published to this shard.
    pub copies: usize,
    /// Transfers to it that this shard has arranged.
    pub receiving: usize,
    /// Requests that it has open at this shard.
    pub requests: usize,
}

/// An object, without its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOverview {
    /// Its id.
    pub id: ObjectId,
    /// Its size.
    pub size_bytes: u64,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The extents of the array, if it is one.
    pub shape: Option<Vec<u64>>,
    /// Copies, complete and partial.
    pub copies: usize,
    /// Copies that are complete.
    pub complete: usize,
    /// `true` if some copy stays until the object is deleted.
    pub pinned: bool,
    /// `true` if the shard holds the bytes too.
    pub inline: bool,
    /// `true` if all copies were lost.
    pub lost: bool,
    /// Transfers that the shard has arranged now.
    pub transfers: usize,
    /// Queries that wait for a location.
    pub waiting: usize,
}

/// What to search for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectSearch {
    /// With what ids begin.
    pub prefix: Vec<u8>,
    /// Ids are greater than this.
    pub after: Vec<u8>,
    /// Objects are at least so large.
    pub min_size_bytes: u64,
    /// Objects have at least so many copies.
    pub min_copies: usize,
    /// Most objects to answer with.
    pub limit: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The objects, in the order of their ids.
    pub objects: Vec<ObjectOverview>,
    /// Where to go on, behind the last object that was looked at; `None` if there are no more.
    pub next: Option<ObjectId>,
}

/// One copy of an object, and where its bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOverview {
    /// The node that has it.
    pub node: NodeId,
    /// How much of the object it has.
    pub state: LocationState,
    /// Its lifetime.
    pub retention: Retention,
    /// `true` if the session of its node is gone.
    pub away: bool,
    /// The node that sends to it now: as the shard has arranged, or else as its store has said.
    pub sender: Option<NodeId>,
    /// Why that sender was chosen, and when, if this shard has chosen it and remembers.
    pub grant: Option<(GrantReason, Time)>,
}

/// An object, and the transfers of it, which form trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectTree {
    /// The object; `None` if it is not known.
    pub object: Option<ObjectOverview>,
    /// Its copies, at most [`MAX_SHOWN_COPIES`].
    pub copies: Vec<CopyOverview>,
    /// The latest grants, at most 64, oldest first.
    pub grants: Vec<GrantRecord>,
}

impl Shard {
    /// The nodes whose names are greater than `after`, at most `limit`, and whether there are more.
    pub fn node_overviews(&self, after: &str, limit: usize) -> (Vec<NodeOverview>, bool) {
        let mut later = self.nodes.iter().filter(|record| record.info.node.as_str() > after);
        let nodes = later
            .by_ref()
            .take(limit)
            .map(|record| NodeOverview {
                node: record.info.node.clone(),
                data_address: record.info.data_address,
                labels: record.info.labels.clone(),
                connected: record.is_connected(),
                copies: record.holdings.len(),
                receiving: record.receiving.len(),
                requests: record.requests.len(),
            })
            .collect();
        (nodes, later.next().is_some())
    }

    /// Returns the number of nodes that are connected, and how many are away.
    pub fn node_counts(&self) -> (usize, usize) {
        let connected = self.nodes.iter().filter(|record| record.is_connected()).count();
        (connected, self.nodes.iter().count() - connected)
    }

    /// The shards of the cluster, as the stores name them, if one is connected.
    pub fn shard_list(&self) -> Option<&ShardList> {
        self.nodes.iter().find(|record| record.is_connected()).map(|record| &record.info.shards)
    }

    /// Searches for objects. At most [`MAX_LOOKED_AT`] are looked at, so that a page may have few objects, or none, and yet be
    /// followed by others.
    pub fn search(&self, search: &ObjectSearch) -> Found {
        let ObjectSearch { prefix, after, min_size_bytes, min_copies, limit } = search;
        let start = if after >= prefix { Bound::Excluded(&after[..]) } else { Bound::Included(&prefix[..]) };
        // An empty `after` excludes nothing, since no id is empty.
        let mut range = self
            .entries
            .range::<[u8], _>((start, Bound::Unbounded))
            .take_while(|(id, _)| id.as_bytes().starts_with(prefix));
        let mut objects = Vec::new();
        let mut last = None;
        for (id, entry) in range.by_ref().take(MAX_LOOKED_AT) {
            if entry.size_bytes >= *min_size_bytes && entry.copies.len() >= *min_copies {
                objects.push(self.overview(id, entry));
            }
            last = Some(id);
            if objects.len() >= *limit {
                break;
            }
        }
        let next = range.next().and(last).cloned();
        Found { objects, next }
    }

    /// The objects that are on their way to the most nodes, at most `limit`.
    pub fn busiest_objects(&self, limit: usize) -> Vec<ObjectOverview> {
        let mut counts: BTreeMap<&ObjectId, usize> = BTreeMap::new();
        // The latest slots: old ones may be those of receivers that hang.
        for id in self.grants.values().rev().take(MAX_COUNTED_SLOTS) {
            *counts.entry(id).or_default() += 1;
        }
        let mut busy: Vec<(&ObjectId, usize)> = counts.into_iter().collect();
        busy.sort_by(|(one, count), (other, most)| most.cmp(count).then_with(|| one.cmp(other)));
        let known = busy.into_iter().filter_map(|(id, _)| Some(self.overview(id, self.entries.get(id)?)));
        known.take(limit).collect()
    }

    /// One object and its transfers.
    pub fn object_tree(&self, id: &ObjectId) -> ObjectTree {
        let grants = self.history.of(id);
        let Some(entry) = self.entries.get(id) else {
            return ObjectTree { object: None, copies: Vec::new(), grants };
        };
        let running: BTreeMap<&NodeId, &GrantRecord> = grants
            .iter()
            .filter(|grant| grant.outcome.is_none())
            .map(|grant| (&grant.receiver, grant))
            .collect();
        let senders: BTreeMap<NodeIndex, NodeIndex> =
            entry.transfers.iter().map(|(receiver, _, transfer)| (receiver, transfer.sender)).collect();
        let copy = |copy: &super::copies::LocationRecord| {
            let node = &self.nodes.get(copy.node)?.info.node;
            let arranged = senders.get(&copy.node).and_then(|sender| self.nodes.get(*sender));
            let sender =
                arranged.map(|record| record.info.node.clone()).or_else(|| copy.pulling_from.clone());
            let grant = running.get(node).filter(|grant| Some(&grant.sender) == sender.as_ref());
            Some(CopyOverview {
                node: node.clone(),
                state: copy.state,
                retention: copy.retention,
                away: copy.is_away,
                grant: grant.map(|grant| (grant.reason, grant.at)),
                sender,
            })
        };
        let copies = entry.copies.iter().take(MAX_SHOWN_COPIES).filter_map(copy).collect();
        ObjectTree { object: Some(self.overview(id, entry)), copies, grants }
    }

    /// The latest objects that were lost, oldest first; at most 256.
    pub fn losses(&self) -> Vec<LostObject> {
        self.losses.iter().cloned().collect()
    }

    fn overview(&self, id: &ObjectId, entry: &Entry) -> ObjectOverview {
        let Metadata { dtype, ref shape, .. } = entry.metadata;
        ObjectOverview {
            id: id.clone(),
            size_bytes: entry.size_bytes,
            dtype,
            shape: shape.clone(),
            copies: entry.copies.len(),
            complete: entry.copies.complete(),
            pinned: entry.copies.is_pinned(),
            inline: entry.inline.is_some(),
            lost: entry.is_lost(),
            transfers: entry.transfers.len(),
            waiting: self.waiting.get(id).map_or(0, BTreeMap::len),
        }
    }
}
