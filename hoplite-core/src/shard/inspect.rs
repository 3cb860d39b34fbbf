//! Inspections of a shard for the dashboard. Each inspection is bounded for any number of nodes and
//! objects, because the shard serves no store while it runs.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;

use super::Shard;
use super::entry::Entry;
use super::history::GrantRecord;
use super::losses::LostObject;
use super::nodes::{NodeIndex, NodeRecord};
use crate::dtype::Dtype;
use crate::id::{NodeId, ObjectId};
use crate::metadata::Metadata;
use crate::placement::ShardList;
use crate::time::Time;
use crate::vocabulary::directory::{GrantId, GrantReason, LocationState, PullOutcome, Retention};

/// Most objects that one search examines, in about two milliseconds.
pub const MAX_LOOKED_AT: usize = 20_000;
/// Most copies of one object that an inspection returns.
pub const MAX_SHOWN_COPIES: usize = 2048;
/// Most slots that an inspection counts to find the busiest objects: all slots of a thousand busy
/// nodes.
const MAX_COUNTED_SLOTS: usize = 1 << 15;

/// A node, as a shard sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOverview {
    /// The node's name.
    pub node: NodeId,
    /// The address of the node's data plane.
    pub data_address: SocketAddr,
    /// The operator's labels.
    pub labels: Vec<(String, String)>,
    /// `true` if the node's session is open; `false` if the session ended a moment ago.
    pub connected: bool,
    /// The number of copies that the node has published to this shard.
    pub copies: usize,
    /// The number of transfers to the node that this shard has granted.
    pub receiving: usize,
    /// The number of requests that the node has open at this shard.
    pub requests: usize,
}

/// An object, without its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOverview {
    /// The object's id.
    pub id: ObjectId,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape of the array, if the object is one.
    pub shape: Option<Vec<u64>>,
    /// The node that published the object first, as far as this shard knows.
    pub creator: NodeId,
    /// The time of that publication.
    pub created: Time,
    /// The number of copies, complete and partial.
    pub copies: usize,
    /// The number of complete copies.
    pub complete: usize,
    /// `true` if some copy stays until the object is deleted.
    pub pinned: bool,
    /// `true` if the shard holds the bytes, too.
    pub inline: bool,
    /// `true` if all copies were lost.
    pub lost: bool,
    /// The number of transfers that the shard has granted and that still run.
    pub transfers: usize,
    /// The number of queries that wait for a location.
    pub waiting: usize,
}

/// The criteria of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectSearch {
    /// The prefix of the ids.
    pub prefix: Vec<u8>,
    /// The id after which the search starts.
    pub after: Vec<u8>,
    /// The smallest size of an object.
    pub min_size_bytes: u64,
    /// The smallest number of copies of an object.
    pub min_copies: usize,
    /// Most objects to return.
    pub limit: usize,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The objects, in the order of their ids.
    pub objects: Vec<ObjectOverview>,
    /// The last id that was examined, from which the next search continues; `None` if no objects
    /// follow.
    pub next: Option<ObjectId>,
}

/// One copy of an object, and its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOverview {
    /// The node that has it.
    pub node: NodeId,
    /// The state of the copy.
    pub state: LocationState,
    /// The retention of the copy.
    pub retention: Retention,
    /// `true` if the session of the copy's node is gone.
    pub away: bool,
    /// The node that sends to this copy now: by the shard's grant, or else by the store's report.
    pub sender: Option<NodeId>,
    /// The reason for and the time of the grant, if this shard chose the sender and remembers the
    /// grant.
    pub grant: Option<(GrantReason, Time)>,
}

/// A grant of an object, as the page of a node shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTransfer {
    /// The object.
    pub id: ObjectId,
    /// The grant.
    pub grant: GrantRecord,
    /// `true` while the transfer runs.
    pub is_running: bool,
}

/// The grants of an object that was sent lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentObject {
    /// The object.
    pub id: ObjectId,
    /// The size in bytes, if the shard still knows the object.
    pub size_bytes: Option<u64>,
    /// The number of remembered grants, at most 64.
    pub grants: usize,
    /// The number of its transfers that run.
    pub running: usize,
    /// The number of its transfers that failed.
    pub failed: usize,
    /// The time of the first remembered grant.
    pub began: Time,
    /// The time of the latest grant or outcome.
    pub latest: Time,
}

/// An object and its transfers, which form trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectTree {
    /// The object; `None` if the shard does not know it.
    pub object: Option<ObjectOverview>,
    /// The copies, at most [`MAX_SHOWN_COPIES`].
    pub copies: Vec<CopyOverview>,
    /// The latest grants, at most 64, oldest first.
    pub grants: Vec<GrantRecord>,
}

fn node_overview(record: &NodeRecord) -> NodeOverview {
    NodeOverview {
        node: record.info.node.clone(),
        data_address: record.info.data_address,
        labels: record.info.labels.clone(),
        connected: record.is_connected(),
        copies: record.holdings.len(),
        receiving: record.receiving.len(),
        requests: record.requests.len(),
    }
}

impl Shard {
    /// Returns at most `limit` nodes whose names are greater than `after`, and `true` if more nodes
    /// follow.
    pub fn node_overviews(&self, after: &str, limit: usize) -> (Vec<NodeOverview>, bool) {
        let mut later = self.nodes.iter().filter(|record| record.info.node.as_str() > after);
        let nodes = later.by_ref().take(limit).map(node_overview).collect();
        (nodes, later.next().is_some())
    }

    /// Returns the number of connected nodes, and the number of nodes that are away.
    pub fn node_counts(&self) -> (usize, usize) {
        let connected = self.nodes.iter().filter(|record| record.is_connected()).count();
        (connected, self.nodes.iter().count() - connected)
    }

    /// Returns the list of the cluster's shards, as the stores name them, if a store is connected.
    pub fn shard_list(&self) -> Option<&ShardList> {
        self.nodes.iter().find(|record| record.is_connected()).map(|record| &record.info.shards)
    }

    /// Searches for objects. Examines at most [`MAX_LOOKED_AT`] objects, so a page with few or no
    /// objects may still have a next page.
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

    /// Returns the objects with the most running transfers, at most `limit`.
    pub fn busiest_objects(&self, limit: usize) -> Vec<ObjectOverview> {
        let mut counts: BTreeMap<&ObjectId, usize> = BTreeMap::new();
        // Count the latest slots, because old slots may belong to receivers that hang.
        for id in self.grants.values().rev().take(MAX_COUNTED_SLOTS) {
            *counts.entry(id).or_default() += 1;
        }
        let mut busy: Vec<(&ObjectId, usize)> = counts.into_iter().collect();
        busy.sort_by(|(one, count), (other, most)| most.cmp(count).then_with(|| one.cmp(other)));
        let known = busy.into_iter().filter_map(|(id, _)| Some(self.overview(id, self.entries.get(id)?)));
        known.take(limit).collect()
    }

    /// Returns one object and its transfers.
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

    /// Returns the objects with the latest grants, latest first.
    pub fn recent_objects(&self, limit: usize) -> Vec<RecentObject> {
        let describe = |(id, records): (&ObjectId, &VecDeque<(GrantId, GrantRecord)>)| {
            let failed = |outcome: PullOutcome| {
                !matches!(outcome, PullOutcome::Complete | PullOutcome::Cancelled | PullOutcome::GaveWay)
            };
            let times = records.iter().map(|(_, record)| record.ended.unwrap_or(record.at));
            Some(RecentObject {
                id: id.clone(),
                size_bytes: self.entries.get(id).map(|entry| entry.size_bytes),
                grants: records.len(),
                running: records.iter().filter(|(grant, _)| self.grants.contains_key(grant)).count(),
                failed: records.iter().filter(|(_, record)| record.outcome.is_some_and(failed)).count(),
                began: records.front()?.1.at,
                latest: times.max()?,
            })
        };
        self.history.latest(limit).into_iter().filter_map(describe).collect()
    }

    /// Returns the latest transfers to and from `node`, latest first.
    pub fn transfers_of(&self, node: &NodeId, limit: usize) -> Vec<NodeTransfer> {
        let transfer =
            |(number, id, grant)| NodeTransfer { id, grant, is_running: self.grants.contains_key(&number) };
        self.history.of_node(node, limit, MAX_LOOKED_AT).into_iter().map(transfer).collect()
    }

    /// Returns the node with this name.
    pub fn node_overview(&self, node: &NodeId) -> Option<NodeOverview> {
        self.nodes.get(self.nodes.index(node)?).map(node_overview)
    }

    /// Returns the latest lost objects, oldest first; at most 256.
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
            creator: entry.creator.clone(),
            created: entry.created,
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
