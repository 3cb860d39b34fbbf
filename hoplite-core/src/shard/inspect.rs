//! Answers the dashboard's queries, in bounded time because the shard serves no store while it
//! answers.

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
use crate::time::Time;
use crate::vocabulary::directory::{
    GrantId, GrantReason, LocationState, Obstacle, PullOutcome, Retention,
};

/// Most objects that a search examines, in about two milliseconds.
pub const MAX_EXAMINED: usize = 20_000;
const MAX_SHORT: usize = 1024;
/// Most shown copies of an object.
pub const MAX_SHOWN_COPIES: usize = 2048;
/// Most transfers counted to find the busiest objects: all transfers of a thousand busy nodes.
const MAX_COUNTED_SLOTS: usize = 1 << 15;

/// A node, as a shard sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeOverview {
    pub node: NodeId,
    pub data_address: SocketAddr,
    pub labels: Vec<(String, String)>,
    pub connected: bool,
    pub copies: usize,
    pub receiving: usize,
    pub requests: usize,
}

/// An object without its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObjectOverview {
    pub id: ObjectId,
    pub size_bytes: u64,
    pub dtype: Dtype,
    pub shape: Option<Vec<u64>>,
    pub creator: NodeId,
    pub created: Time,
    pub copies: usize,
    pub complete: usize,
    /// `true` if some copy stays until the object ends.
    pub pinned: bool,
    pub inline: bool,
    pub lost: bool,
    pub transfers: usize,
    pub waiting: usize,
}

/// Criteria of a search for objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObjectSearch {
    pub prefix: Vec<u8>,
    pub after: Vec<u8>,
    pub min_size_bytes: u64,
    pub min_copies: usize,
    pub limit: usize,
}

/// A page of a search's result.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Found {
    pub objects: Vec<ObjectOverview>,
    /// Last examined id, for the next search; `None` at the end.
    pub next: Option<ObjectId>,
}

/// One copy, and its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CopyOverview {
    pub node: NodeId,
    pub state: LocationState,
    pub retention: Retention,
    pub away: bool,
    /// Sender that the shard chose, or else that the store reports.
    pub sender: Option<NodeId>,
    /// Reason and time of the choice of `sender`, if remembered.
    pub grant: Option<(GrantReason, Time)>,
}

/// A transfer with a given node as sender or receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeTransfer {
    pub id: ObjectId,
    pub grant: GrantRecord,
    pub is_running: bool,
}

/// Latest transfers of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct RecentObject {
    pub id: ObjectId,
    pub size_bytes: Option<u64>,
    pub grants: usize,
    pub running: usize,
    pub failed: usize,
    pub began: Time,
    pub latest: Time,
}

/// An object, and its transfers as trees.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ObjectTree {
    pub object: Option<ObjectOverview>,
    /// At most [`MAX_SHOWN_COPIES`] copies.
    pub copies: Vec<CopyOverview>,
    /// Latest grants, at most 64, oldest first.
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
    /// Returns at most `limit` nodes whose names are greater than `after`, and `true` if more
    /// follow.
    pub fn node_overviews(&self, after: &str, limit: usize) -> (Vec<NodeOverview>, bool) {
        let mut later = self.nodes.iter().filter(|record| record.info.node.as_str() > after);
        let nodes = later.by_ref().take(limit).map(node_overview).collect();
        (nodes, later.next().is_some())
    }

    /// Numbers of connected and of disconnected nodes.
    pub fn node_counts(&self) -> (usize, usize) {
        let connected = self.nodes.iter().filter(|record| record.is_connected()).count();
        (connected, self.nodes.iter().count() - connected)
    }

    /// Searches at most [`MAX_EXAMINED`] objects, so an empty page may have a next one.
    pub fn search(&self, search: &ObjectSearch) -> Found {
        let ObjectSearch { prefix, after, min_size_bytes, min_copies, limit } = search;
        let start = if after >= prefix {
            Bound::Excluded(&after[..])
        } else {
            Bound::Included(&prefix[..])
        };
        let mut range = self
            .entries
            .range::<[u8], _>((start, Bound::Unbounded))
            .take_while(|(id, _)| id.as_bytes().starts_with(prefix));
        let mut objects = Vec::new();
        let mut last = None;
        for (id, entry) in range.by_ref().take(MAX_EXAMINED) {
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

    /// Returns the objects with the most running transfers.
    pub fn busiest_objects(&self, limit: usize) -> Vec<ObjectOverview> {
        let mut counts: BTreeMap<&ObjectId, usize> = BTreeMap::new();
        // Counts only the latest transfers, because older ones may hang.
        for id in self.grants.values().rev().take(MAX_COUNTED_SLOTS) {
            *counts.entry(id).or_default() += 1;
        }
        let mut busy: Vec<(&ObjectId, usize)> = counts.into_iter().collect();
        busy.sort_by(|(one, count), (other, most)| most.cmp(count).then_with(|| one.cmp(other)));
        let known =
            busy.into_iter().filter_map(|(id, _)| Some(self.overview(id, self.entries.get(id)?)));
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
        let senders: BTreeMap<NodeIndex, NodeIndex> = entry
            .transfers
            .iter()
            .map(|(receiver, _, transfer)| (receiver, transfer.sender))
            .collect();
        let copy = |copy: &super::copies::LocationRecord| {
            let node = &self.nodes.get(copy.node)?.info.node;
            let arranged = senders.get(&copy.node).and_then(|sender| self.nodes.get(*sender));
            let sender = arranged
                .map(|record| record.info.node.clone())
                .or_else(|| copy.pulling_from.as_deref().cloned());
            let grant = running.get(node).filter(|grant| Some(&grant.sender) == sender.as_ref());
            Some(CopyOverview {
                node: node.clone(),
                state: copy.state,
                retention: copy.retention,
                away: copy.is_disconnected,
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
                !matches!(
                    outcome,
                    PullOutcome::Complete | PullOutcome::Cancelled | PullOutcome::GaveWay
                )
            };
            let times = records.iter().map(|(_, record)| record.ended.unwrap_or(record.at));
            Some(RecentObject {
                id: id.clone(),
                size_bytes: self.entries.get(id).map(|entry| entry.size_bytes),
                grants: records.len(),
                running: records
                    .iter()
                    .filter(|(grant, _)| self.grants.contains_key(grant))
                    .count(),
                failed: records
                    .iter()
                    .filter(|(_, record)| record.outcome.is_some_and(failed))
                    .count(),
                began: records.front()?.1.at,
                latest: times.max()?,
            })
        };
        self.history.latest(limit).into_iter().filter_map(describe).collect()
    }

    /// Returns a node's transfers, latest first.
    pub fn transfers_of(&self, node: &NodeId, limit: usize) -> Vec<NodeTransfer> {
        let transfer = |(number, id, grant)| NodeTransfer {
            id,
            grant,
            is_running: self.grants.contains_key(&number),
        };
        self.history.of_node(node, limit, MAX_EXAMINED).into_iter().map(transfer).collect()
    }

    /// Returns the node with this name.
    pub fn node_overview(&self, node: &NodeId) -> Option<NodeOverview> {
        self.nodes.get(self.nodes.index(node)?).map(node_overview)
    }

    /// Latest lost objects, oldest first; at most 256.
    pub fn losses(&self) -> Vec<LostObject> {
        self.losses.iter().cloned().collect()
    }

    /// Returns objects whose missing copies no store can take now, and the reasons. Searches the
    /// first 1,024 objects that need copies.
    pub fn blocked_copies(&self) -> Vec<(ObjectId, Obstacle)> {
        let short = self.replicas.objects.iter().take(MAX_SHORT);
        let blocked = short.filter(|(_, shortage)| shortage.targets.is_empty());
        blocked.filter_map(|(id, shortage)| Some((id.clone(), shortage.obstacle?))).collect()
    }

    fn overview(&self, id: &ObjectId, entry: &Entry) -> ObjectOverview {
        let Metadata { dtype, ref shape, .. } = *entry.metadata;
        ObjectOverview {
            id: id.clone(),
            size_bytes: entry.size_bytes,
            dtype,
            shape: shape.clone(),
            creator: NodeId::clone(&entry.creator),
            created: entry.created,
            copies: entry.copies.len(),
            complete: entry.copies.complete(),
            pinned: entry.copies.is_pinned(),
            inline: entry.is_inline(),
            lost: entry.is_lost(),
            transfers: entry.transfers.len(),
            waiting: self.waiting.get(id).map_or(0, BTreeMap::len),
        }
    }
}
