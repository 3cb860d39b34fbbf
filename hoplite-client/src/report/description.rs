use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::Plane;
use hoplite_core::node::LifetimeReport;
use hoplite_core::shard::Locations;
use hoplite_core::{ObjectId, Result};
use hoplite_proto::directory::decode_locations;
use hoplite_proto::v1;

/// Description of an object by this store and the directory shard that knows most about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Address of the answering shard.
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
    /// Number of repaired failures.
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
    /// Final target bytes at this member.
    pub final_bytes: u64,
    /// Target bytes that will be final at this member.
    pub size_bytes: u64,
    /// Node name, only in [all positions](ReduceRecord::positions).
    pub node: String,
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
