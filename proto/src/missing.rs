//! Causes of timeouts, and the troubles of a store, on the wire.

use std::time::Duration;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::missing::{Absent, MAX_NAMED, Missing, Named};
use hoplite_core::node::LongWait;
use hoplite_core::placement::MAX_SHARD_NAME_BYTES;

use crate::bounds::{check_count, encode_id};
use crate::v1::MissingKind;
use crate::{error, v1};

/// The wire form of `missing`.
pub(crate) fn encode(missing: &Missing) -> v1::Missing {
    match missing {
        Missing::Object { id } => of_ids(MissingKind::Object, [id]),
        Missing::Sources { sources } => {
            v1::Missing { count: sources.count, ..of_ids(MissingKind::Sources, &sources.first) }
        }
        Missing::Participants { participants } => {
            let ids = participants.first.iter().map(|absent| &absent.source);
            let ranks = participants.first.iter().map(|absent| absent.rank).collect();
            v1::Missing { ranks, count: participants.count, ..of_ids(MissingKind::Participants, ids) }
        }
        Missing::Coordinator { target } => of_ids(MissingKind::Coordinator, [target]),
        Missing::Stores { nodes } => {
            v1::Missing { count: nodes.count, ..of_nodes(MissingKind::Stores, &nodes.first) }
        }
        Missing::Room { needed_bytes, free_bytes, capacity_bytes } => v1::Missing {
            kind: MissingKind::Room.into(),
            needed_bytes: *needed_bytes,
            free_bytes: *free_bytes,
            capacity_bytes: *capacity_bytes,
            ..Default::default()
        },
        Missing::Seal { id } => of_ids(MissingKind::Seal, [id]),
        Missing::Bytes { id, from } => {
            v1::Missing { ids: vec![encode_id(id)], ..of_nodes(MissingKind::Bytes, [from]) }
        }
        Missing::Peer { node, reason } => {
            v1::Missing { reason: encode_reason(reason), ..of_nodes(MissingKind::Peer, [node]) }
        }
        Missing::Shard { address, reason } => v1::Missing {
            kind: MissingKind::Shard.into(),
            address: address.clone(),
            reason: encode_reason(reason),
            ..Default::default()
        },
        Missing::Answer { address } => {
            v1::Missing { kind: MissingKind::Answer.into(), address: address.clone(), ..Default::default() }
        }
        // A kind that has no form here is not told.
        _ => v1::Missing::default(),
    }
}

fn of_ids<'a>(kind: MissingKind, ids: impl IntoIterator<Item = &'a ObjectId>) -> v1::Missing {
    let ids = ids.into_iter().map(encode_id).collect();
    v1::Missing { kind: kind.into(), ids, ..Default::default() }
}

fn of_nodes<'a>(kind: MissingKind, nodes: impl IntoIterator<Item = &'a NodeId>) -> v1::Missing {
    let nodes = nodes.into_iter().map(|node| node.as_str().to_owned()).collect();
    v1::Missing { kind: kind.into(), nodes, ..Default::default() }
}

/// The wire form of a reason: without a cause of its own, so that no message nests for ever.
fn encode_reason(reason: &Error) -> Option<Box<v1::Error>> {
    Some(Box::new(v1::Error { missing: None, ..error::encode(reason) }))
}

/// The cause that a peer has sent. `None` for a kind that this version does not know, and for one that breaks a limit: the timeout
/// itself counts all the same.
pub(crate) fn decode(missing: v1::Missing, plane: Plane) -> Option<Missing> {
    let kind = MissingKind::try_from(missing.kind).ok()?;
    check_count("named objects of a cause", missing.ids.len(), MAX_NAMED).ok()?;
    check_count("named stores of a cause", missing.nodes.len(), MAX_NAMED).ok()?;
    check_count("named ranks of a cause", missing.ranks.len(), MAX_NAMED).ok()?;
    let ids = missing.ids.iter().map(ObjectId::new);
    let ids: Vec<ObjectId> = ids.collect::<Result<_>>().ok()?;
    let nodes = missing.nodes.iter().map(|node| NodeId::new(node));
    let nodes: Vec<NodeId> = nodes.collect::<Result<_>>().ok()?;
    let count = missing.count;
    let id = || ids.first().cloned();
    let node = || nodes.first().cloned();
    let address = || (missing.address.len() <= MAX_SHARD_NAME_BYTES).then(|| missing.address.clone());
    let reason = |reason: Option<Box<v1::Error>>| {
        let reason = v1::Error { missing: None, ..*reason? };
        Some(Box::new(error::decode(reason, plane)))
    };
    Some(match kind {
        MissingKind::Unspecified => return None,
        MissingKind::Object => Missing::Object { id: id()? },
        MissingKind::Sources => Missing::Sources { sources: named(ids, count) },
        MissingKind::Participants => {
            let participants = missing.ranks.iter().zip(ids);
            let participants = participants.map(|(rank, source)| Absent { rank: *rank, source });
            Missing::Participants { participants: named(participants.collect(), count) }
        }
        MissingKind::Coordinator => Missing::Coordinator { target: id()? },
        MissingKind::Stores => Missing::Stores { nodes: named(nodes, count) },
        MissingKind::Room => Missing::Room {
            needed_bytes: missing.needed_bytes,
            free_bytes: missing.free_bytes,
            capacity_bytes: missing.capacity_bytes,
        },
        MissingKind::Seal => Missing::Seal { id: id()? },
        MissingKind::Bytes => Missing::Bytes { id: id()?, from: node()? },
        MissingKind::Peer => Missing::Peer { node: node()?, reason: reason(missing.reason)? },
        MissingKind::Shard => Missing::Shard { address: address()?, reason: reason(missing.reason)? },
        MissingKind::Answer => Missing::Answer { address: address()? },
    })
}

fn named<T>(first: Vec<T>, count: u64) -> Named<T> {
    Named { count: count.max(first.len() as u64), first }
}

/// The wire form of a long wait.
pub fn encode_wait(wait: &LongWait) -> v1::LongWait {
    v1::LongWait {
        operation: u32::try_from(error::encode_operation(wait.operation)).unwrap_or_default(),
        waited_us: u64::try_from(wait.waited.as_micros()).unwrap_or(u64::MAX),
        missing: wait.missing.as_ref().map(encode),
    }
}

/// A long wait of which a store tells; `None` for an operation that this version does not know.
pub fn decode_wait(wait: v1::LongWait) -> Option<LongWait> {
    Some(LongWait {
        operation: error::decode_operation(wait.operation.into())?,
        waited: Duration::from_micros(wait.waited_us),
        missing: wait.missing.and_then(|missing| decode(missing, Plane::Local)),
    })
}

/// The wire form of a failure that began so long ago, of the peer `name`.
pub fn encode_fault(name: &str, error: &Error, since: Duration) -> v1::PeerFault {
    v1::PeerFault {
        name: name.to_owned(),
        error: Some(error::encode(error)),
        since_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
    }
}

/// The name of a peer, its failure, and how long ago that began; `None` if that is not complete.
pub fn decode_fault(fault: v1::PeerFault) -> Option<(String, Error, Duration)> {
    let name = error::shown(&fault.name);
    Some((name, error::decode(fault.error?, Plane::Local), Duration::from_micros(fault.since_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_breaks_a_limit_or_is_not_known_is_left_out() {
        let id = bytes::Bytes::from_static(b"x");
        let many = v1::Missing {
            kind: MissingKind::Sources.into(),
            ids: vec![id.clone(); MAX_NAMED + 1],
            ..Default::default()
        };
        let unknown = v1::Missing { kind: 99, ids: vec![id], ..Default::default() };
        let empty = v1::Missing { kind: MissingKind::Object.into(), ..Default::default() };
        let long = v1::Missing {
            kind: MissingKind::Answer.into(),
            address: "a".repeat(MAX_SHARD_NAME_BYTES + 1),
            ..Default::default()
        };
        for missing in [many, unknown, empty, long] {
            assert_eq!(decode(missing.clone(), Plane::Local), None, "{missing:?}");
        }
    }

    #[test]
    fn causes_do_not_nest() {
        let node = NodeId::new("n").unwrap();
        let mut missing = Missing::Object { id: ObjectId::new("x").unwrap() };
        for _ in 0..50 {
            let (operation, waited) = (hoplite_core::Operation::Get, Duration::ZERO);
            let reason = Error::Timeout { operation, waited, missing: Some(Box::new(missing)) };
            missing = Missing::Peer { node: node.clone(), reason: Box::new(reason) };
        }
        let reason = Box::new(Error::timeout(hoplite_core::Operation::Get, Duration::ZERO));
        assert_eq!(decode(encode(&missing), Plane::Local), Some(Missing::Peer { node, reason }));
    }
}
