use std::time::Duration;

use hoplite_core::error::{Error, MetadataError, Missing, Operation, Plane};
use hoplite_core::missing::Absent;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::quotas::excess;
use super::{dtype, id, named, node, text};

fn metadata_error() -> impl Strategy<Value = MetadataError> {
    prop_oneof![
        ".{0,32}".prop_map(|name| MetadataError::UnknownDtype { name }),
        any::<usize>().prop_map(|dimensions| MetadataError::TooManyDimensions { dimensions }),
        (dtype(), any::<u64>())
            .prop_map(|(dtype, size_bytes)| MetadataError::ShapeDisagrees { dtype, size_bytes }),
        text(".{1,60}").prop_map(|text| MetadataError::Reported { reason: text.into() }),
        any::<usize>().prop_map(|length_bytes| MetadataError::UserTooLong { length_bytes }),
    ]
}

fn missing() -> impl Strategy<Value = Missing> {
    let reason = || {
        prop_oneof![
            text(".{0,60}").prop_map(|text| Error::PermissionDenied { reason: text.into() }),
            text(".{0,60}").prop_map(|text| Error::Unavailable { what: text.into() }),
        ]
        .prop_map(Box::new)
    };
    let absent = (any::<u32>(), id()).prop_map(|(rank, source)| Absent { rank, source });
    let shard = || "[a-z.]{1,20}:[0-9]{1,5}";
    let of_objects = prop_oneof![
        id().prop_map(|id| Missing::Object { id }),
        named(id()).prop_map(|sources| Missing::Sources { sources }),
        named(absent).prop_map(|participants| Missing::Participants { participants }),
        id().prop_map(|target| Missing::Coordinator { target }),
        id().prop_map(|id| Missing::Seal { id }),
        excess().prop_map(|excess| Missing::Quota { excess: Box::new(excess) }),
    ];
    let of_stores = prop_oneof![
        named(node()).prop_map(|nodes| Missing::Stores { nodes }),
        any::<(u64, u64, u64)>().prop_map(|(needed_bytes, free_bytes, capacity_bytes)| {
            Missing::Room { needed_bytes, free_bytes, capacity_bytes }
        }),
        (id(), node()).prop_map(|(id, from)| Missing::Bytes { id, from }),
        (node(), reason()).prop_map(|(node, reason)| Missing::Peer { node, reason }),
        (shard(), reason()).prop_map(|(address, reason)| Missing::Shard { address, reason }),
        shard().prop_map(|address| Missing::Answer { address }),
        (id(), any::<(u64, u64)>()).prop_map(|(id, (wanted, present))| Missing::Replicas {
            id,
            wanted,
            present
        }),
    ];
    prop_oneof![of_objects, of_stores]
}

/// Leaves out version mismatches, because decoding swaps their two versions.
pub(crate) fn error() -> impl Strategy<Value = Error> {
    let operation = select(vec![
        Operation::Put,
        Operation::Get,
        Operation::Delete,
        Operation::Wait,
        Operation::Locate,
        Operation::Connect,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::ReduceScatter,
        Operation::Allgather,
        Operation::AllToAll,
        Operation::Gather,
        Operation::Barrier,
    ]);
    let plane = select(vec![Plane::Local, Plane::Control, Plane::Data]);
    let of_requests = prop_oneof![
        any::<usize>().prop_map(|length_bytes| Error::InvalidId { length_bytes }),
        ".{0,60}".prop_map(|name| Error::InvalidName { name }),
        metadata_error().prop_map(Error::InvalidMetadata),
        text(".{0,60}").prop_map(|text| Error::InvalidRequest { reason: text.into() }),
        (text(".{0,60}"), any::<u64>())
            .prop_map(|(text, maximum)| Error::LimitExceeded { what: text.into(), maximum }),
        any::<u64>().prop_map(|reference| Error::UnknownReference { reference }),
        (operation, any::<u64>(), option::of(missing())).prop_map(
            |(operation, micros, missing)| {
                let missing = missing.map(Box::new);
                Error::Timeout { operation, waited: Duration::from_micros(micros), missing }
            }
        ),
    ];
    let of_objects = prop_oneof![
        id().prop_map(|id| Error::AlreadyExists { id }),
        id().prop_map(|id| Error::PutConflict { id }),
        (id(), any::<u64>(), any::<u64>()).prop_map(|(id, size_bytes, limit_bytes)| {
            Error::ObjectTooLarge { id, size_bytes, limit_bytes }
        }),
        (any::<(u64, u64, u64)>(), text(".{0,60}")).prop_map(
            |((needed_bytes, free_bytes, capacity_bytes), holders)| Error::StoreFull {
                needed_bytes,
                free_bytes,
                capacity_bytes,
                holders,
            }
        ),
        excess().prop_map(|excess| Error::QuotaExceeded(Box::new(excess))),
        id().prop_map(|id| Error::ObjectLost { id }),
        id().prop_map(|id| Error::Deleted { id }),
        (id(), text(".{0,60}"))
            .prop_map(|(id, text)| Error::TypeMismatch { id, reason: text.into() }),
        (id(), text(".{0,60}"))
            .prop_map(|(id, text)| Error::SpillFailed { id, reason: text.into() }),
        id().prop_map(|id| Error::DuplicateId { id }),
        id().prop_map(|id| Error::Superseded { id }),
    ];
    let of_daemons = prop_oneof![
        node().prop_map(|node| Error::NodeIdInUse { node }),
        text(".{0,60}").prop_map(|text| Error::PermissionDenied { reason: text.into() }),
        (text(".{0,60}"), text(".{0,60}"))
            .prop_map(|(refused, in_use)| Error::ShardListMismatch { refused, in_use }),
        (plane, text(".{0,60}"))
            .prop_map(|(plane, text)| Error::Malformed { plane, reason: text.into() }),
        text(".{0,60}").prop_map(|text| Error::Unavailable { what: text.into() }),
        Just(Error::ShuttingDown),
        Just(Error::Draining),
        any::<(u64, u64)>().prop_map(|(wanted, present)| Error::NotEnoughNodes { wanted, present }),
    ];
    prop_oneof![of_requests, of_objects, of_daemons]
}
