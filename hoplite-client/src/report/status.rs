use std::time::Duration;

use hoplite_core::node::{LongWait, SpillStatus};
use hoplite_core::problem::{ProblemKind, failed_routes, nearly_full, slow_links};
use hoplite_core::text::escape;
use hoplite_core::topology::Link;
use hoplite_proto::trouble::{decode_fault, decode_wait};
use hoplite_proto::v1;
use serde::Serialize;

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
    /// Network cards; empty if the store has a single one.
    pub rails: Vec<RailStatus>,
    /// Routes (pairs of network cards) that do not work, while others reach the same store.
    pub failed_routes: u32,
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
    /// Last refused client or store of an incompatible version, if recent. Its name is unknown.
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

/// Use of a network card (rail).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RailStatus {
    /// IP address.
    pub address: String,
    /// Connections in use from this card to other stores.
    pub connections: u32,
    /// Object bytes sent over this card so far.
    pub sent_bytes: u64,
    /// Object bytes received over this card so far.
    pub received_bytes: u64,
    /// Failed routes from this card.
    pub failed_routes: u32,
}

/// Link to another store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeerLink {
    /// Name of the other node.
    pub node: String,
    /// Estimated bandwidth and latency.
    #[serde(flatten, with = "LinkFields")]
    pub link: Link,
    /// `true` if the link is much worse than most links of this store.
    pub is_slow: bool,
    /// Connections (lanes) that all transfers with the node share, as the last test of more
    /// connections found; `None` before a test.
    pub lanes: Option<u32>,
}

#[derive(Serialize)]
#[serde(remote = "Link")]
struct LinkFields {
    alpha_ns: u32,
    ps_per_byte: u32,
}

/// Label keys, such as `zone`, and the nodes that use them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaceKeys {
    /// Label keys, largest groups first; may be empty.
    pub keys: Vec<String>,
    /// Nodes whose labels use exactly these keys.
    pub nodes: u32,
}

/// A shard of the directory, as a store sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ShardStatus {
    /// Shard's address.
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
    /// Sets of label keys. Nodes with different keys share no group, even if close.
    pub place_keys: Vec<PlaceKeys>,
    /// Version of the measured groups of nodes (places) in use; zero if none.
    pub places_version: u64,
    /// Measured capacity of the node groups' uplinks, in thousandths of a host's link; zero if
    /// unknown.
    pub uplink_permille: u32,
}

impl NodeStatus {
    /// Present problems' lines by kind, the most important first.
    pub fn problems(&self) -> Vec<(ProblemKind, Vec<String>)> {
        let mut kinds = self.troubles.by_kind();
        if self.troubles.waiting_for_room == 0 {
            let nearly_full = nearly_full(self.pinned_bytes, self.capacity_bytes);
            kinds.extend(nearly_full.map(|line| (ProblemKind::NearlyFull, vec![line])));
        }
        let slow = self.links.iter().filter(|link| link.is_slow);
        let slow = slow_links(slow.map(|link| link.node.as_str()));
        let slow = slow.map(|line| format!("slow links {line}"));
        kinds.extend(slow.map(|line| (ProblemKind::Slow, vec![line])));
        let cards = self.rails.iter().map(|rail| (rail.address.clone(), rail.failed_routes));
        let failed = failed_routes(self.failed_routes, cards);
        kinds.extend(failed.map(|line| (ProblemKind::Routes, vec![line])));
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
            rails: status.rails.into_iter().map(RailStatus::from).collect(),
            failed_routes: status.failed_routes,
            troubles: Troubles {
                spill: status.spill.map(spill_troubles).unwrap_or_default(),
                ..status.troubles.map(Troubles::from).unwrap_or_default()
            },
        }
    }
}

impl From<v1::RailStatus> for RailStatus {
    fn from(rail: v1::RailStatus) -> Self {
        Self {
            address: escape(&rail.address),
            connections: rail.connections,
            sent_bytes: rail.sent_bytes,
            received_bytes: rail.received_bytes,
            failed_routes: rail.failed_routes,
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
    fn a_link_without_a_trial_has_no_lanes() {
        let link = |lanes| PeerLink::from(v1::PeerLink { lanes, ..v1::PeerLink::default() });
        assert_eq!([0, 1, 4].map(|lanes| link(lanes).lanes), [None, Some(1), Some(4)]);
    }
}
