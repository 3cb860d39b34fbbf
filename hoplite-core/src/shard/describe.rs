//! Describes a shard, its objects and its nodes for tools.

use std::net::SocketAddr;
use std::ops::Bound;

use super::Shard;
use super::copies::LocationRecord;
use super::entry::Entry;
use super::history::GrantRecord;
use crate::id::{NodeId, ObjectId};
use crate::link::Uplink;
use crate::time::Time;
use crate::version::Version;
use crate::vocabulary::directory::{Location, Locations, ObjectSummary, Origin};

/// Most locations in a page of objects (about 4 MiB on the wire). The last object may exceed it.
const MAX_LISTED_LOCATIONS: usize = 1 << 16;

/// A shard's knowledge of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Description {
    pub locations: Locations,
    /// Latest grants, at most 64, oldest first.
    pub grants: Vec<GrantRecord>,
    pub waiting_receivers: usize,
}

/// Counters of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShardStatus {
    /// Includes lost objects that the shard remembers.
    pub objects: usize,
    pub inline_bytes: u64,
    pub waiting_queries: usize,
    pub subscriptions: usize,
    pub grants: usize,
    /// Number of objects with fewer pinned copies than their puts want. Copies at draining stores
    /// do not count. Only an object's leading shard counts it.
    pub under_replicated: usize,
    pub tombstones: usize,
    pub received_messages: u64,
    pub sent_messages: u64,
    /// Version of the measured groups, and the capacity of their uplinks; unmeasured until a
    /// node is in a measured group.
    pub measured: (u64, Uplink),
    pub nodes: Vec<KnownNode>,
}

/// One node, as a shard sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct KnownNode {
    pub node: NodeId,
    pub data_address: SocketAddr,
    pub labels: Vec<(String, String)>,
    /// `false` while the shard waits for a disconnected node to return.
    pub connected: bool,
    pub version: Version,
}

impl Shard {
    /// Returns the shard's knowledge of `id`.
    pub fn describe(&self, id: &ObjectId) -> Description {
        Description {
            locations: self.locations(id),
            grants: self.history.of(id),
            waiting_receivers: self.waiting.get(id).map_or(0, |queue| queue.len()),
        }
    }

    /// Returns the objects whose ids start with `prefix` and follow `after`, by id, and `true` if
    /// more follow.
    ///
    /// Returns at most `limit` objects, or fewer if they have many locations. Lists only objects
    /// with a complete copy, a copy in production or inline bytes.
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> (Vec<Locations>, bool) {
        let start = if after >= prefix { Bound::Excluded(after) } else { Bound::Included(prefix) };
        let range = self.entries.range::<[u8], _>((start, Bound::Unbounded));
        let mut matching = range
            .map(|(id, entry)| (id, entry.as_ref()))
            .take_while(|(id, _)| id.as_bytes().starts_with(prefix))
            .filter(|(_, entry)| entry.has_root());
        let mut locations = 0;
        let fits = |(_, entry): &(&ObjectId, &Entry)| {
            let is_within_limit = locations < MAX_LISTED_LOCATIONS;
            locations += entry.copies.len();
            is_within_limit
        };
        let page: Vec<Locations> = matching
            .clone()
            .take(limit)
            .take_while(fits)
            .map(|(id, entry)| self.describe_entry(id, entry))
            .collect();
        let has_more = matching.nth(page.len()).is_some();
        (page, has_more)
    }

    /// Adds the creator, age and last use of objects.
    pub fn add_origins(&self, now: Time, objects: &mut [Locations]) {
        for Locations { id, object, .. } in objects {
            if let (Some(object), Some(entry)) = (object, self.entries.get(id)) {
                let (creator, age) = (NodeId::clone(&entry.creator), now.since(entry.created));
                object.origin =
                    Some(Origin { creator, age, unused: entry.used().map(|at| now.since(at)) });
            }
        }
    }

    /// Counters and nodes.
    pub fn status(&self) -> ShardStatus {
        let nodes = self.nodes.iter();
        let nodes = nodes
            .map(|record| KnownNode {
                node: record.info.node.clone(),
                data_address: record.info.data_address,
                labels: record.info.labels.clone(),
                connected: record.is_connected(),
                version: record.info.version,
            })
            .collect();
        ShardStatus { nodes, ..self.counters() }
    }

    /// Counters without nodes.
    pub fn counters(&self) -> ShardStatus {
        ShardStatus {
            objects: self.entries.len(),
            inline_bytes: self.inline_bytes,
            waiting_queries: self.due.queries.len(),
            subscriptions: self.subscriptions,
            grants: self.grants.len(),
            under_replicated: self.replicas.len(),
            tombstones: self.tombstones.len(),
            received_messages: self.received_messages,
            sent_messages: self.sent_messages,
            measured: (self.measured_places().version, self.nodes.uplink()),
            nodes: Vec::new(),
        }
    }

    pub(super) fn locations(&self, id: &ObjectId) -> Locations {
        match self.entries.get(id) {
            Some(entry) => self.describe_entry(id, entry),
            None => Locations { id: id.clone(), object: None, locations: Vec::new() },
        }
    }

    fn describe_entry(&self, id: &ObjectId, entry: &Entry) -> Locations {
        let summary = ObjectSummary {
            put: entry.put,
            size_bytes: entry.size_bytes,
            metadata: entry.metadata.to_metadata(),
            inline: entry.is_inline(),
            lost: entry.is_lost(),
            origin: None,
        };
        let mut locations: Vec<Location> =
            entry.copies.iter().filter_map(|location| self.describe_location(location)).collect();
        locations.sort_by(|one, other| one.node.cmp(&other.node));
        Locations { id: id.clone(), object: Some(summary), locations }
    }

    fn describe_location(&self, location: &LocationRecord) -> Option<Location> {
        let record = self.nodes.get(location.node)?;
        let info = &record.info;
        Some(Location {
            node: info.node.clone(),
            data_address: info.data_address,
            state: location.state,
            retention: location.retention,
            pulling_from: location.pulling_from.as_deref().cloned(),
            path: record.place.path,
            slow_peers: record.slow_peers.clone(),
        })
    }
}
