//! Reports of daemons about objects and about themselves, for people and tools.

use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::Plane;
use hoplite_core::node::LongWait;
use hoplite_core::shard::Locations;
use hoplite_core::topology::blocks::Blocks;
use hoplite_core::topology::{Link, Matrix};
use hoplite_core::{ObjectId, Result};
use hoplite_proto::directory::decode_locations;
use hoplite_proto::trouble::{decode_fault, decode_wait};
use hoplite_proto::v1;

/// One object, as described by the best informed of its shards and by the store of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The address of the shard.
    pub shard: String,
    /// The object, and where its copies are.
    pub locations: Locations,
    /// The latest grants, oldest first.
    pub grants: Vec<Grant>,
    /// The number of nodes that wait for a location.
    pub waiting_receivers: u32,
    /// The reduce or collective that creates the object, or created it. `None` if this store
    /// neither coordinates it nor is a member, or has forgotten it.
    pub reduce: Option<ReduceRecord>,
}

/// A shard's decision that one node should pull an object from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The name of the node that pulls.
    pub receiver: String,
    /// The name of the node that serves.
    pub sender: String,
    /// The reason for which the shard chose this sender.
    pub reason: String,
    /// The time of the grant, counted from the start of the shard.
    pub at: Duration,
    /// The outcome of the pull; `None` while it runs.
    pub outcome: Option<String>,
}

/// The plan of a reduce or a collective, and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// The operation, such as `sum`.
    pub op: String,
    /// The number of sources that were reduced.
    pub reduced: u64,
    /// The number of sources that the call named.
    pub sources: u64,
    /// The number of nodes that combined something, beside the receiver.
    pub hops: u64,
    /// The schedule, and the reason for it.
    pub plan: String,
    /// The bandwidth of one stream between two nodes, as assumed by the plan; zero if another store
    /// made the plan.
    pub bytes_per_second: u64,
    /// The latency between two nodes, as assumed by the plan.
    pub latency: Duration,
    /// The time from the call to the last byte, or until now.
    pub elapsed: Duration,
    /// The number of failures that were repaired.
    pub mendings: u32,
    /// The number of times that the target was restarted.
    pub restarts: u32,
    /// `true` while it runs.
    pub is_running: bool,
    /// The progress of this store, if it is a member.
    pub position: Option<MemberPosition>,
    /// The progress of all members while they run, in the order of the schedule. A member that does
    /// not answer has no bytes, and its stage names the problem.
    pub positions: Vec<MemberPosition>,
}

/// The progress of one member of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPosition {
    /// The number of the member, in the order of the schedule, from 0.
    pub member: u32,
    /// The number of members.
    pub members: u32,
    /// The stage of its work, or its outcome.
    pub stage: String,
    /// The number of final bytes that it has.
    pub final_bytes: u64,
    /// The number of bytes that it will have.
    pub size_bytes: u64,
    /// The node, if it is one of [all](ReduceRecord::positions).
    pub node: String,
}

/// The counters of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// The name of the node.
    pub node: String,
    /// The name of its cluster.
    pub cluster: String,
    /// The version of the store's program.
    pub version: String,
    /// The address for other stores.
    pub data_address: String,
    /// The time since the store started.
    pub uptime: Duration,
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// Free bytes of the arena.
    pub free_bytes: u64,
    /// Bytes of copies that stay until they are deleted.
    pub pinned_bytes: u64,
    /// Bytes of copies that are evicted when the store needs room.
    pub evictable_bytes: u64,
    /// Bytes that are reserved for targets of reduces that have not begun to grow.
    pub reserved_bytes: u64,
    /// Bytes of the arena whose pages are touched, so that first puts are fast.
    pub prefaulted_bytes: u64,
    /// Copies of objects, complete and partial.
    pub copies: u64,
    /// Connected clients.
    pub clients: u64,
    /// Running transfers from other stores.
    pub pulls: u64,
    /// Running transfers to other stores.
    pub serves: u64,
    /// Running reduces that this store coordinates.
    pub reduces: u64,
    /// Running hops of reduces that this store performs, for itself or for other stores.
    pub hops: u64,
    /// Running hops, here or elsewhere, of the reduces that this store coordinates.
    pub directed_hops: u64,
    /// Running combinations of several inputs.
    pub combinations: u64,
    /// Bytes of objects that were sent to other stores since the start.
    pub sent_bytes: u64,
    /// Bytes of objects that were received from other stores since the start.
    pub received_bytes: u64,
    /// `true` while the store moves its objects to other stores.
    pub is_draining: bool,
    /// Copies that were evicted since the start.
    pub evictions: u64,
    /// Damaged frames that were sent again, since the start.
    pub corrupt_frames: u64,
    /// Puts that returned before a conflicting put of the same id won, since the start.
    pub put_conflicts: u64,
    /// The shards of the directory, in the order of the configuration.
    pub shards: Vec<ShardStatus>,
    /// The links to other stores, estimated from transfers, the slowest first.
    pub links: Vec<PeerLink>,
    /// The present problems of the store.
    pub troubles: Troubles,
}

/// The problems of a store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Troubles {
    /// The number of calls and transfers that wait for room.
    pub waiting_for_room: u64,
    /// The number of calls of clients that have waited for more than 10 s.
    pub long_waits: u64,
    /// Some of these calls, at most 16.
    pub waits: Vec<LongWait>,
    /// The directory shards with which the store has no session.
    pub shards: Vec<PeerFault>,
    /// The stores that refuse this one, or cannot be reached.
    pub stores: Vec<PeerFault>,
}

/// A daemon that refuses a store, or cannot be reached by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFault {
    /// The address of the shard, or the name of the store.
    pub name: String,
    /// The last failure.
    pub error: hoplite_core::Error,
    /// The time since the attempts began to fail.
    pub since: Duration,
}

impl Troubles {
    /// Returns one line for each problem, for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.waiting_for_room > 0 {
            lines.push(format!(
                "the store is full: {} calls or transfers wait for room",
                self.waiting_for_room
            ));
        }
        let fault = |kind: &str, PeerFault { name, error, since }: &PeerFault| {
            format!("{kind} {name}: {error} (for {} s)", since.as_secs())
        };
        lines.extend(self.shards.iter().map(|shard| fault("directory shard", shard)));
        lines.extend(self.stores.iter().map(|store| fault("store", store)));
        lines.extend(self.waits.iter().map(|LongWait { operation, waited, missing }| {
            let missing = missing.as_ref().map_or_else(String::new, |missing| format!(": {missing}"));
            format!("a {operation} has waited for {} s{missing}", waited.as_secs())
        }));
        match self.long_waits.saturating_sub(self.waits.len() as u64) {
            0 => {}
            more => lines.push(format!("{more} more calls have waited for a long time")),
        }
        lines
    }
}

impl From<v1::Troubles> for Troubles {
    fn from(troubles: v1::Troubles) -> Self {
        let faults = |faults: Vec<v1::PeerFault>| {
            let faults = faults.into_iter().filter_map(decode_fault);
            faults.map(|(name, error, since)| PeerFault { name, error, since }).collect()
        };
        Self {
            waiting_for_room: troubles.full_waiters,
            long_waits: troubles.long_waits,
            waits: troubles.waits.into_iter().filter_map(decode_wait).collect(),
            shards: faults(troubles.shards),
            stores: faults(troubles.peers),
        }
    }
}

/// The link from a store to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// The name of the other node.
    pub node: String,
    /// The estimated latency and rate of the link.
    pub link: Link,
    /// `true` if its bandwidth is much lower, or its latency much higher, than on most links of
    /// this store.
    pub is_slow: bool,
}

/// The nodes that name their places with the same label keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceKeys {
    /// The keys, outermost first; empty for nodes without such labels.
    pub keys: Vec<String>,
    /// The number of these nodes.
    pub nodes: u32,
}

/// A shard of the directory, as a store sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStatus {
    /// The address at which it listens.
    pub address: String,
    /// `true` if the store has a session with it. The numbers below are zero if the shard does not
    /// answer.
    pub connected: bool,
    /// The number of objects in the shard.
    pub objects: u64,
    /// Bytes of inline objects that it keeps.
    pub inline_bytes: u64,
    /// The number of nodes in the shard.
    pub nodes: u32,
    /// Queries that wait for a location.
    pub waiting_queries: u64,
    /// The number of objects with fewer pinned copies than their puts want.
    pub under_replicated: u64,
    /// The label keys with which connected nodes name their places. If nodes use different keys,
    /// neighbours may be in different groups.
    pub place_keys: Vec<PlaceKeys>,
    /// The version of the measured places in use; zero if there are none.
    pub places_version: u64,
    /// The measured bandwidth of an uplink, in thousandths of a host's link; zero if it was not
    /// measured, or applies to no node.
    pub uplink_permille: u32,
}

/// The result of a probe: the links between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The links between the nodes that took part until the end of the probe.
    pub matrix: Matrix,
    /// The nodes that are not in the matrix, each with the reason.
    pub lost: Vec<(String, String)>,
    /// Pairs of nodes that could not reach each other, by their indices. Each gets the worst
    /// round-trip time of its two nodes.
    pub guessed: Vec<(u32, u32)>,
    /// The number of unmeasured pairs, which exist above 2,000 nodes. They get the link of other
    /// pairs of the same two groups.
    pub estimated: u64,
    /// The number of pairs that were measured over TCP, because no datagram came back.
    pub by_tcp: u32,
    /// Round trips of all pairs together.
    pub echoes: u64,
    /// The number of round trips without a reply in time, not counted in `echoes`.
    pub lost_echoes: u64,
    /// Bytes that were sent to measure bandwidth.
    pub train_bytes: u64,
    /// The time that the probe took.
    pub elapsed: Duration,
    /// The part that the directory and the stores use; `None` if the probe was not applied.
    pub applied: Option<AppliedPlaces>,
}

/// The places that the directory took from a probe: groups of nodes, and the bandwidth of their
/// uplinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedPlaces {
    /// The version; the highest one is in use.
    pub version: u64,
    /// The number of innermost groups.
    pub groups: u32,
    /// The bandwidth of an uplink, in thousandths of a host's link; `None` without groups.
    pub uplink_permille: Option<u32>,
    /// The number of directory shards that use these places.
    pub shards: u32,
    /// The number of all shards.
    pub all_shards: u32,
    /// The number of nodes in measured groups. If it is zero, the uplink bandwidths are not used.
    pub nodes: u32,
    /// The number of measured nodes that stay in the groups of their labels.
    pub labelled_nodes: u32,
}

impl ProbeReport {
    /// Decodes and checks a store's answer; `None` if it is not a matrix.
    pub(crate) fn decode(probed: v1::Probed) -> Option<Self> {
        let count = probed.nodes.len();
        if probed.alpha_ns.len() != probed.ps_per_byte.len() {
            return None;
        }
        let entries = probed.alpha_ns.iter().zip(&probed.ps_per_byte);
        let mut links = entries.map(|(&alpha_ns, &ps_per_byte)| Link { alpha_ns, ps_per_byte });
        let matrix = if probed.blocks.is_empty() {
            let pairs = count.checked_mul(count.checked_sub(1)?)? / 2;
            if links.len() != pairs {
                return None;
            }
            // The function is called for one link after another.
            Matrix::from_links(probed.nodes, |_, _| Ok(links.next().unwrap_or_default()))
        } else {
            let blocks = Blocks::new(&probed.blocks).ok()?;
            Matrix::from_blocks(probed.nodes, blocks, links.collect())
        };
        let is_pair = |pair: &v1::probed::Pair| pair.low < pair.high && (pair.high as usize) < count;
        if !probed.guessed.iter().all(is_pair) {
            return None;
        }
        Some(Self {
            matrix: matrix.ok()?,
            lost: probed.lost.into_iter().map(|lost| (lost.node, lost.reason)).collect(),
            guessed: probed.guessed.into_iter().map(|pair| (pair.low, pair.high)).collect(),
            estimated: probed.estimated,
            by_tcp: probed.by_tcp,
            echoes: probed.echoes,
            lost_echoes: probed.lost_echoes,
            train_bytes: probed.train_bytes,
            elapsed: Duration::from_micros(probed.elapsed_us),
            applied: probed.applied.map(|applied| AppliedPlaces {
                version: applied.version,
                groups: applied.groups,
                uplink_permille: Some(applied.uplink_permille).filter(|permille| *permille > 0),
                shards: applied.shards,
                all_shards: applied.all_shards,
                nodes: applied.nodes,
                labelled_nodes: applied.labelled_nodes,
            }),
        })
    }
}

impl Description {
    /// Decodes and checks a store's answer about `id`.
    pub(crate) fn decode(id: &ObjectId, description: v1::response::Description) -> Result<Self> {
        let object = description.object.unwrap_or_default();
        let locations = v1::Locations {
            id: Bytes::copy_from_slice(id.as_bytes()),
            ..object.locations.unwrap_or_default()
        };
        Ok(Self {
            shard: description.shard,
            locations: decode_locations(locations, Plane::Local)?,
            grants: object.grants.into_iter().map(Grant::from).collect(),
            waiting_receivers: object.waiting_receivers,
            reduce: description.reduce.map(ReduceRecord::from),
        })
    }
}

impl From<v1::GrantRecord> for Grant {
    fn from(grant: v1::GrantRecord) -> Self {
        Self {
            receiver: grant.receiver,
            sender: grant.sender,
            reason: grant.reason,
            at: Duration::from_micros(grant.at_us),
            outcome: Some(grant.outcome).filter(|outcome| !outcome.is_empty()),
        }
    }
}

impl From<v1::ReduceRecord> for ReduceRecord {
    fn from(record: v1::ReduceRecord) -> Self {
        Self {
            op: record.op,
            reduced: record.reduced,
            sources: record.sources,
            hops: record.hops,
            plan: record.plan,
            bytes_per_second: record.bytes_per_second,
            latency: Duration::from_micros(record.latency_us),
            elapsed: Duration::from_micros(record.elapsed_us),
            mendings: record.mendings,
            restarts: record.restarts,
            is_running: record.is_running,
            position: record.position.map(MemberPosition::from),
            positions: record.positions.into_iter().map(MemberPosition::from).collect(),
        }
    }
}

impl From<v1::MemberPosition> for MemberPosition {
    fn from(position: v1::MemberPosition) -> Self {
        let v1::MemberPosition { member, members, stage, final_bytes, size_bytes, node } = position;
        Self { member, members, stage, final_bytes, size_bytes, node }
    }
}

impl From<v1::NodeStatus> for NodeStatus {
    fn from(status: v1::NodeStatus) -> Self {
        Self {
            node: status.node,
            cluster: status.cluster,
            version: status.version,
            data_address: status.data_address,
            uptime: Duration::from_millis(status.uptime_ms),
            capacity_bytes: status.capacity_bytes,
            free_bytes: status.free_bytes,
            pinned_bytes: status.pinned_bytes,
            evictable_bytes: status.evictable_bytes,
            reserved_bytes: status.reserved_bytes,
            prefaulted_bytes: status.prefaulted_bytes,
            copies: status.copies,
            clients: status.clients,
            pulls: status.pulls,
            serves: status.serves,
            reduces: status.reduces,
            hops: status.hops,
            directed_hops: status.directed_hops,
            combinations: status.combinations,
            sent_bytes: status.sent_bytes,
            received_bytes: status.received_bytes,
            evictions: status.evictions,
            is_draining: status.is_draining,
            corrupt_frames: status.corrupt_frames,
            put_conflicts: status.put_conflicts,
            shards: status.shards.into_iter().map(ShardStatus::from).collect(),
            links: status.links.into_iter().map(PeerLink::from).collect(),
            troubles: status.troubles.map(Troubles::from).unwrap_or_default(),
        }
    }
}

impl From<v1::PeerLink> for PeerLink {
    fn from(link: v1::PeerLink) -> Self {
        let v1::PeerLink { node, alpha_ns, ps_per_byte, is_slow } = link;
        Self { node, link: Link { alpha_ns, ps_per_byte }, is_slow }
    }
}

impl From<v1::ShardStatus> for ShardStatus {
    fn from(shard: v1::ShardStatus) -> Self {
        Self {
            address: shard.address,
            connected: shard.connected,
            objects: shard.objects,
            inline_bytes: shard.inline_bytes,
            nodes: shard.nodes,
            waiting_queries: shard.waiting_queries,
            under_replicated: shard.under_replicated,
            places_version: shard.places_version,
            uplink_permille: shard.uplink_permille,
            place_keys: shard
                .place_keys
                .into_iter()
                .map(|v1::PlaceKeys { keys, nodes }| PlaceKeys { keys, nodes })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_that_runs_has_no_outcome() {
        let running = v1::GrantRecord { at_us: 1500, ..v1::GrantRecord::default() };
        assert_eq!(Grant::from(running.clone()).outcome, None);
        assert_eq!(Grant::from(running).at, Duration::from_micros(1500));
        let ended = v1::GrantRecord { outcome: "Complete".to_owned(), ..v1::GrantRecord::default() };
        assert_eq!(Grant::from(ended).outcome.as_deref(), Some("Complete"));
    }

    #[test]
    fn what_a_probe_found_is_checked() {
        let probed = || v1::Probed {
            nodes: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
            alpha_ns: vec![1, 2, 3],
            ps_per_byte: vec![4, 5, 6],
            guessed: vec![v1::probed::Pair { low: 0, high: 2 }],
            ..v1::Probed::default()
        };
        let report = ProbeReport::decode(probed()).unwrap();
        assert_eq!(report.matrix.link(2, 1), Link { alpha_ns: 3, ps_per_byte: 6 });
        assert_eq!(report.guessed, [(0, 2)]);
        let refused = |change: fn(&mut v1::Probed)| {
            let mut probed = probed();
            change(&mut probed);
            ProbeReport::decode(probed).is_none()
        };
        assert!(refused(|probed| probed.nodes.clear()));
        assert!(refused(|probed| probed.nodes[0] = "b".to_owned()));
        assert!(refused(|probed| probed.alpha_ns.truncate(2)));
        assert!(refused(|probed| probed.ps_per_byte.push(7)));
        assert!(refused(|probed| probed.guessed[0].high = 3));
        assert!(refused(|probed| probed.guessed[0].low = 2));
        // Of two blocks, one has a pair, and all nodes of the other have one link to it.
        assert!(refused(|probed| probed.blocks = vec![0, 1, 0]));
        let in_blocks = v1::Probed {
            blocks: vec![0, 1, 0],
            alpha_ns: vec![1, 2],
            ps_per_byte: vec![3, 4],
            estimated: 1,
            ..probed()
        };
        let report = ProbeReport::decode(in_blocks.clone()).unwrap();
        assert_eq!(report.matrix.link(2, 0), Link { alpha_ns: 1, ps_per_byte: 3 });
        assert_eq!(report.matrix.link(2, 1), Link { alpha_ns: 2, ps_per_byte: 4 });
        assert_eq!((report.matrix.link(0, 1), report.estimated), (report.matrix.link(1, 2), 1));
        for blocks in [vec![0, 2, 0], vec![0, 1], vec![0, 1, 0, 0], vec![0, u32::MAX, 0]] {
            assert!(ProbeReport::decode(v1::Probed { blocks, ..in_blocks.clone() }).is_none());
        }
    }

    #[test]
    fn locations_of_a_description_are_checked() {
        let id = ObjectId::new("x").unwrap();
        let of = |object| v1::response::Description { object, ..v1::response::Description::default() };
        let nothing = Description::decode(&id, of(None)).unwrap();
        assert_eq!((nothing.locations.id.clone(), nothing.locations.object), (id.clone(), None));
        let locations =
            v1::Locations { locations: vec![v1::Location::default()], ..v1::Locations::default() };
        let object = v1::ObjectDescription { locations: Some(locations), ..v1::ObjectDescription::default() };
        assert!(Description::decode(&id, of(Some(object))).is_err());
    }
}
