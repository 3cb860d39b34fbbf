use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::Plane;
use hoplite_core::node::{LifetimeReport, LongWait, SpillStatus};
use hoplite_core::problem::{ProblemKind, nearly_full, slow_links};
use hoplite_core::shard::Locations;
use hoplite_core::text::escape;
use hoplite_core::topology::blocks::Blocks;
use hoplite_core::topology::{Link, Matrix};
use hoplite_core::{ObjectId, Result};
use hoplite_proto::directory::decode_locations;
use hoplite_proto::trouble::{decode_fault, decode_wait};
use hoplite_proto::v1;

/// Description of an object by this store and the directory shard that knows most about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Address of the shard that knows most about the object.
    pub shard: String,
    /// Object and its copies.
    pub locations: Locations,
    /// Latest permissions to pull the object, oldest first.
    pub grants: Vec<Grant>,
    /// Nodes that wait for a location.
    pub waiting_receivers: u32,
    /// Reduce or collective that makes the object, if this store knows it.
    pub reduce: Option<ReduceRecord>,
    /// Remaining lifetime, if this node's store ends the object.
    pub lifetime: Option<LifetimeReport>,
}

/// A shard's decision that one node pulls the object from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Node that pulls.
    pub receiver: String,
    /// Node that serves.
    pub sender: String,
    /// Reason for this sender.
    pub reason: String,
    /// Time of the grant since the shard's start.
    pub at: Duration,
    /// Outcome of the pull; `None` while the pull runs.
    pub outcome: Option<String>,
}

/// Plan and progress of a reduce or collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// Operation, such as `sum`.
    pub op: String,
    /// Sources that the target contains so far.
    pub reduced: u64,
    /// Sources that the call named.
    pub sources: u64,
    /// Nodes, besides the target's node, that combine sources.
    pub hops: u64,
    /// Schedule and the reason for its choice.
    pub plan: String,
    /// Stream bandwidth that the plan assumes; zero if another store made the plan.
    pub bytes_per_second: u64,
    /// Latency that the plan assumes.
    pub latency: Duration,
    /// Time from the call to the target's last byte, or until now.
    pub elapsed: Duration,
    /// Number of failures that were repaired.
    pub mendings: u32,
    /// Restarts of the target.
    pub restarts: u32,
    /// `true` until the reduce or collective ends.
    pub is_running: bool,
    /// This store's progress, if it is a member.
    pub position: Option<MemberPosition>,
    /// Progress of all running members. If a member does not answer, its stage says so.
    pub positions: Vec<MemberPosition>,
}

/// Progress of one member of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPosition {
    /// Number of the member in the schedule, from 0.
    pub member: u32,
    /// Number of members.
    pub members: u32,
    /// Stage of the work, or its outcome.
    pub stage: String,
    /// Target bytes that are final at this member.
    pub final_bytes: u64,
    /// Target bytes that will be final at this member.
    pub size_bytes: u64,
    /// Node name, only in [all positions](ReduceRecord::positions).
    pub node: String,
}

/// Counters of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// Node name.
    pub node: String,
    /// Cluster name.
    pub cluster: String,
    /// Program version.
    pub version: String,
    /// Address for other stores.
    pub data_address: String,
    /// Time since the start.
    pub uptime: Duration,
    /// Size of the arena.
    pub capacity_bytes: u64,
    /// Free bytes of the arena.
    pub free_bytes: u64,
    /// Bytes of pinned copies, which the store must keep.
    pub pinned_bytes: u64,
    /// Bytes of evictable copies, which the store may drop.
    pub evictable_bytes: u64,
    /// Bytes reserved for empty targets of reduces.
    pub reserved_bytes: u64,
    /// Bytes of the arena's touched pages.
    pub prefaulted_bytes: u64,
    /// Complete and partial copies.
    pub copies: u64,
    /// Connected clients.
    pub clients: u64,
    /// Running transfers from other stores.
    pub pulls: u64,
    /// Transfers to other stores so far.
    pub serves: u64,
    /// Reduces and collectives that this store coordinates.
    pub reduces: u64,
    /// Combining steps (hops) of reduces, and memberships in collectives, at this store.
    pub hops: u64,
    /// Hops and memberships at all stores, for work that this store coordinates.
    pub directed_hops: u64,
    /// Running computations that combine several inputs.
    pub combinations: u64,
    /// Object bytes sent to other stores so far.
    pub sent_bytes: u64,
    /// Object bytes received from other stores so far.
    pub received_bytes: u64,
    /// `true` while the store moves its objects away.
    pub is_draining: bool,
    /// Evicted copies so far.
    pub evictions: u64,
    /// Objects put at this store whose time to live has ended.
    pub expired: u64,
    /// Objects put at this store whose owner is gone.
    pub abandoned: u64,
    /// All zero if the store does not spill.
    pub spill: SpillStatus,
    /// Transfers and hops that ended at a damaged or unknown frame.
    pub corrupt_frames: u64,
    /// Puts that lost a conflict with another put of the id.
    pub put_conflicts: u64,
    /// Directory shards, in configured order.
    pub shards: Vec<ShardStatus>,
    /// Links to other stores as measured by transfers, slowest first.
    pub links: Vec<PeerLink>,
    /// Limit of connections (lanes) for one transfer; zero if unknown.
    pub max_lanes: u32,
    /// Open connections of transfers to other stores, beyond each transfer's first.
    pub extra_lanes: u64,
    /// Present problems.
    pub troubles: Troubles,
}

/// Present problems of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Troubles {
    /// Calls and transfers that wait for memory.
    pub waiting_for_room: u64,
    /// Clients' calls that have waited for more than 10 s.
    pub long_waits: u64,
    /// Descriptions of at most 16 of the `long_waits` calls.
    pub waits: Vec<LongWait>,
    /// Directory shards to which the store is not connected.
    pub shards: Vec<PeerFault>,
    /// Other stores that refuse this store, or are unreachable.
    pub stores: Vec<PeerFault>,
    /// Unusable directories for spill files, each with the reason.
    pub spill: Vec<(String, String)>,
    /// The last refused client or store of an incompatible version, if recent. Its name is unknown.
    pub incompatible: Option<PeerFault>,
}

/// A daemon that refuses this store, or is unreachable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFault {
    /// Address of the shard, or name of the store.
    pub name: String,
    /// Failure of the last attempt to connect.
    pub error: hoplite_core::Error,
    /// Time since the first failure.
    pub since: Duration,
}

impl NodeStatus {
    /// Returns the present problems' lines by kind, the most important first.
    pub fn problems(&self) -> Vec<(ProblemKind, Vec<String>)> {
        let mut kinds = self.troubles.by_kind();
        if self.troubles.waiting_for_room == 0 {
            let nearly_full = nearly_full(self.pinned_bytes, self.capacity_bytes);
            kinds.extend(nearly_full.map(|line| (ProblemKind::NearlyFull, vec![line])));
        }
        let slow = self.links.iter().filter(|link| link.is_slow);
        let slow = slow_links(slow.map(|link| link.node.as_str()));
        kinds.extend(slow.map(|line| (ProblemKind::Slow, vec![format!("slow links {line}")])));
        kinds
    }
}

impl Troubles {
    /// Returns one line of text per problem.
    pub fn lines(&self) -> Vec<String> {
        self.by_kind().into_iter().flat_map(|(_, lines)| lines).collect()
    }

    fn by_kind(&self) -> Vec<(ProblemKind, Vec<String>)> {
        let room = self.waiting_for_room;
        let full = (room > 0)
            .then(|| format!("the store is full: {room} calls or transfers wait for room"));
        let fault = |kind: &str, PeerFault { name, error, since }: &PeerFault| {
            format!("{kind}{name}: {error} (for {} s)", since.as_secs())
        };
        let spill = self
            .spill
            .iter()
            .map(|(directory, reason)| format!("spilling to {directory}: {reason}"));
        let shards = self.shards.iter().map(|shard| fault("directory shard ", shard));
        let stores = self.stores.iter().map(|store| fault("store ", store));
        let refused =
            self.incompatible.iter().map(|refused| fault("refused a client or a store", refused));
        let waits = self.waits.iter().map(|LongWait { operation, waited, missing }| {
            let missing =
                missing.as_ref().map_or_else(String::new, |missing| format!(": {missing}"));
            format!("a {operation} has waited for {} s{missing}", waited.as_secs())
        });
        let more = self.long_waits.saturating_sub(self.waits.len() as u64);
        let more = (more > 0).then(|| format!("{more} more calls have waited for a long time"));
        let kinds = [
            (ProblemKind::Full, full.into_iter().collect()),
            (ProblemKind::Disk, spill.collect()),
            (ProblemKind::Shard, shards.collect()),
            (ProblemKind::Peer, stores.collect()),
            (ProblemKind::Incompatible, refused.collect()),
            (ProblemKind::Wait, waits.chain(more).collect::<Vec<_>>()),
        ];
        kinds.into_iter().filter(|(_, lines)| !lines.is_empty()).collect()
    }
}

impl From<v1::Troubles> for Troubles {
    fn from(troubles: v1::Troubles) -> Self {
        let fault = |fault| {
            decode_fault(fault).map(|(name, error, since)| PeerFault { name, error, since })
        };
        let faults = |faults: Vec<v1::PeerFault>| faults.into_iter().filter_map(fault).collect();
        Self {
            waiting_for_room: troubles.full_waiters,
            long_waits: troubles.long_waits,
            waits: troubles.waits.into_iter().filter_map(decode_wait).collect(),
            shards: faults(troubles.shards),
            stores: faults(troubles.peers),
            spill: Vec::new(),
            incompatible: troubles.incompatible.and_then(fault),
        }
    }
}

/// Link to another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// Name of the other node.
    pub node: String,
    /// Estimated bandwidth and latency.
    pub link: Link,
    /// `true` if the link is much worse than most links of this store.
    pub is_slow: bool,
    /// Connections (lanes) that all transfers with the node share, as the last test of more
    /// connections found; `None` before a test.
    pub lanes: Option<u32>,
}

/// Label keys, such as `zone`, and the nodes that use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceKeys {
    /// Label keys, largest groups first; may be empty.
    pub keys: Vec<String>,
    /// Nodes whose labels use exactly these keys.
    pub nodes: u32,
}

/// A shard of the directory, as a store sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStatus {
    /// The shard's address.
    pub address: String,
    /// `true` if connected; otherwise the numbers are zero.
    pub connected: bool,
    /// Protocol version; zero if not connected.
    pub protocol: u32,
    /// Objects in the shard.
    pub objects: u64,
    /// Bytes of inline objects, which the shard keeps.
    pub inline_bytes: u64,
    /// Nodes in the shard.
    pub nodes: u32,
    /// Queries that wait for a location.
    pub waiting_queries: u64,
    /// Objects with too few pinned copies.
    pub under_replicated: u64,
    /// Sets of label keys. Nodes with different keys share no group, even if they are close.
    pub place_keys: Vec<PlaceKeys>,
    /// Version of the measured groups of nodes (places) in use; zero if none.
    pub places_version: u64,
    /// Measured capacity of the node groups' uplinks, in thousandths of a host's link; zero if
    /// unknown.
    pub uplink_permille: u32,
}

/// Result of a probe of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// Links between the nodes that stayed in the probe.
    pub matrix: Matrix,
    /// Nodes that left the probe, with the reasons.
    pub lost: Vec<(String, String)>,
    /// Pairs of nodes, by index, that could not reach each other. Their link gets the worst round
    /// trip that either node measured.
    pub guessed: Vec<(u32, u32)>,
    /// Unmeasured pairs in probes of over 2,000 nodes, which get the link of other pairs of their
    /// groups.
    pub estimated: u64,
    /// Pairs that were measured over TCP.
    pub by_tcp: u32,
    /// Answered round trips.
    pub echoes: u64,
    /// Unanswered round trips.
    pub lost_echoes: u64,
    /// Bytes sent to measure bandwidth.
    pub train_bytes: u64,
    /// Duration of the probe.
    pub elapsed: Duration,
    /// Node groups that daemons now use; `None` if they were not applied.
    pub applied: Option<AppliedPlaces>,
}

/// Measured groups of nodes and their uplinks, as daemons use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedPlaces {
    /// Version of the node groups. Daemons use the highest one.
    pub version: u64,
    /// Number of innermost groups.
    pub groups: u32,
    /// Capacity of the node groups' uplinks, in thousandths of a host's link; `None` without
    /// groups.
    pub uplink_permille: Option<u32>,
    /// Directory shards that use the node groups.
    pub shards: u32,
    /// Number of all shards.
    pub all_shards: u32,
    /// Nodes in measured groups; at zero, daemons ignore the uplinks' capacity.
    pub nodes: u32,
    /// Measured nodes that stay in the groups of their labels.
    pub labelled_nodes: u32,
}

impl ProbeReport {
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
            Matrix::from_links(probed.nodes, |_, _| Ok(links.next().unwrap_or_default()))
        } else {
            let blocks = Blocks::new(&probed.blocks).ok()?;
            Matrix::from_blocks(probed.nodes, blocks, links.collect())
        };
        let is_pair =
            |pair: &v1::probed::Pair| pair.low < pair.high && (pair.high as usize) < count;
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
            lifetime: description.lifetime.map(|lifetime| LifetimeReport {
                is_owner_gone: lifetime.is_owner_gone,
                expires_in: lifetime.expires_in_ms.map(Duration::from_millis),
                deleted_in: lifetime.deleted_in_ms.map(Duration::from_millis),
            }),
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
            expired: status.expired,
            abandoned: status.abandoned,
            spill: status.spill.as_ref().map(decode_spill).unwrap_or_default(),
            is_draining: status.is_draining,
            corrupt_frames: status.corrupt_frames,
            put_conflicts: status.put_conflicts,
            shards: status.shards.into_iter().map(ShardStatus::from).collect(),
            links: status.links.into_iter().map(PeerLink::from).collect(),
            max_lanes: status.max_lanes,
            extra_lanes: status.extra_lanes,
            troubles: Troubles {
                spill: status.spill.map(spill_troubles).unwrap_or_default(),
                ..status.troubles.map(Troubles::from).unwrap_or_default()
            },
        }
    }
}

fn decode_spill(status: &v1::SpillStatus) -> SpillStatus {
    SpillStatus {
        objects: status.objects,
        bytes: status.bytes,
        clean_bytes: status.clean_bytes,
        files: status.files,
        file_bytes: status.file_bytes,
        limit_bytes: status.limit_bytes,
        spilled_objects: status.spilled_objects,
        spilled_bytes: status.spilled_bytes,
        loaded_objects: status.loaded_objects,
        loaded_bytes: status.loaded_bytes,
        failures: status.failures,
        recovered_objects: status.recovered_objects,
        recovered_bytes: status.recovered_bytes,
        unrecovered_objects: status.unrecovered_objects,
    }
}

fn spill_troubles(status: v1::SpillStatus) -> Vec<(String, String)> {
    let shown = |trouble: v1::SpillTrouble| (escape(&trouble.directory), escape(&trouble.reason));
    status.troubles.into_iter().map(shown).collect()
}

impl From<v1::PeerLink> for PeerLink {
    fn from(link: v1::PeerLink) -> Self {
        let v1::PeerLink { node, alpha_ns, ps_per_byte, is_slow, lanes } = link;
        let lanes = Some(lanes).filter(|lanes| *lanes > 0);
        Self { node, link: Link { alpha_ns, ps_per_byte }, is_slow, lanes }
    }
}

impl From<v1::ShardStatus> for ShardStatus {
    fn from(shard: v1::ShardStatus) -> Self {
        Self {
            address: shard.address,
            connected: shard.connected,
            protocol: shard.protocol,
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
        let ended =
            v1::GrantRecord { outcome: "Complete".to_owned(), ..v1::GrantRecord::default() };
        assert_eq!(Grant::from(ended).outcome.as_deref(), Some("Complete"));
    }

    #[test]
    fn a_link_without_a_trial_has_no_lanes() {
        let link = |lanes| PeerLink::from(v1::PeerLink { lanes, ..v1::PeerLink::default() });
        assert_eq!([0, 1, 4].map(|lanes| link(lanes).lanes), [None, Some(1), Some(4)]);
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
        let of =
            |object| v1::response::Description { object, ..v1::response::Description::default() };
        let nothing = Description::decode(&id, of(None)).unwrap();
        assert_eq!((nothing.locations.id.clone(), nothing.locations.object), (id.clone(), None));
        let locations =
            v1::Locations { locations: vec![v1::Location::default()], ..v1::Locations::default() };
        let object = v1::ObjectDescription {
            locations: Some(locations),
            ..v1::ObjectDescription::default()
        };
        assert!(Description::decode(&id, of(Some(object))).is_err());
    }
}
