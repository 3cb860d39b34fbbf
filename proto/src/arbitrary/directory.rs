use std::time::Duration;

use bytes::Bytes;
use hoplite_core::id::Incarnation;
use hoplite_core::link::Uplink;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    DeleteTerms, DropReason, Equality, Grant, GrantId, GrantReason, Lead, Location, LocationState,
    Locations, NodeInfo, ObjectSummary, Obstacle, Origin, Placed, Publish, PullOutcome, Query,
    Replicate, Replication, ToShard, ToStore, UnpublishReason, Verdict, Wants,
};
use hoplite_core::topology::live::MAX_SLOW_PEERS;
use hoplite_core::topology::place::Path;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::errors::error;
use super::{
    address, delete_wait, id, metadata, named, node, put, query_id, retention, state, timeout,
};

pub(crate) fn node_info() -> impl Strategy<Value = NodeInfo> {
    let labels = prop::collection::btree_map("[a-z]{1,63}", ".{0,60}", 0..8);
    (node(), any::<u64>(), address(), labels, shard_list()).prop_map(
        |(node, incarnation, data_address, labels, shards)| NodeInfo {
            node,
            incarnation: Incarnation(incarnation),
            data_address,
            labels: labels.into_iter().collect(),
            shards,
            version: hoplite_core::Version::NEWEST,
        },
    )
}

pub(crate) fn locations() -> impl Strategy<Value = Locations> {
    let time = || any::<u64>().prop_map(Duration::from_millis);
    let origin = (node(), time(), option::of(time())).prop_map(|(creator, age, unused)| Origin {
        creator,
        age,
        unused,
    });
    let object = (put(), metadata(), any::<bool>(), any::<bool>(), option::of(origin)).prop_map(
        |(put, (metadata, size_bytes), inline, lost, origin)| ObjectSummary {
            put,
            size_bytes,
            metadata,
            inline,
            lost,
            origin,
        },
    );
    let slow_peers = prop::collection::vec(node(), 0..=MAX_SLOW_PEERS);
    let location =
        (node(), address(), state(), retention(), option::of(node()), any::<Path>(), slow_peers)
            .prop_map(|(node, data_address, state, retention, pulling_from, path, slow_peers)| {
                Location { node, data_address, state, retention, pulling_from, path, slow_peers }
            });
    (id(), option::of(object), prop::collection::vec(location, 0..4))
        .prop_map(|(id, object, locations)| Locations { id, object, locations })
}

fn publish() -> impl Strategy<Value = Publish> {
    let copy = (state(), retention(), option::of(node()), any::<bool>());
    let session = (option::of(any::<u64>()), any::<bool>(), option::of(any::<u32>()));
    (id(), put(), metadata(), copy, session).prop_map(
        |(id, put, (metadata, size_bytes), (state, retention, pulling_from, inline), session)| {
            let (slot, wants_answer, returning_after_ms) = session;
            Publish {
                id,
                put,
                size_bytes,
                metadata,
                state,
                retention,
                pulling_from,
                inline: (inline && state == LocationState::Complete)
                    .then(|| Bytes::from(vec![7; usize::try_from(size_bytes % (1 << 16)).unwrap()]))
                    .filter(|bytes| bytes.len() as u64 == size_bytes)
                    .map(Into::into),
                slot: slot.filter(|_| state == LocationState::Complete).map(GrantId),
                wants_answer,
                returning: returning_after_ms.map(|after| Duration::from_millis(after.into())),
            }
        },
    )
}

pub(super) fn pull_outcome() -> impl Strategy<Value = PullOutcome> {
    select(vec![
        PullOutcome::Complete,
        PullOutcome::SenderUnreachable,
        PullOutcome::SenderStalled,
        PullOutcome::SenderHasNoCopy,
        PullOutcome::Corrupt,
        PullOutcome::Cancelled,
        PullOutcome::GaveWay,
    ])
}

fn obstacle() -> impl Strategy<Value = Obstacle> {
    select(vec![Obstacle::Failed, Obstacle::NoRoom, Obstacle::NoNode])
}

pub(crate) fn to_shard() -> impl Strategy<Value = ToShard> {
    let unpublish_reason = select(vec![
        UnpublishReason::Evicted,
        UnpublishReason::PullEnded,
        UnpublishReason::Aborted,
        UnpublishReason::Superseded,
        UnpublishReason::Conceded,
        UnpublishReason::Deleted,
    ]);
    let query =
        (query_id(), id(), timeout(), option::of(put()), prop::collection::vec(node(), 0..4))
            .prop_map(|(request, id, timeout, resume, avoid)| Query {
                request,
                id,
                timeout,
                resume,
                avoid,
            });
    prop_oneof![
        publish().prop_map(ToShard::Publish),
        (id(), put(), unpublish_reason).prop_map(|(id, put, reason)| ToShard::Unpublish {
            id,
            put,
            reason
        }),
        query.prop_map(ToShard::Query),
        query_id().prop_map(|request| ToShard::Cancel { request }),
        (any::<u64>(), pull_outcome())
            .prop_map(|(grant, outcome)| ToShard::ReturnSlot { grant: GrantId(grant), outcome }),
        (query_id(), id(), option::of(put()), delete_wait()).prop_map(
            |(request, id, only, wait)| {
                ToShard::Delete { request, id, terms: DeleteTerms { only, wait } }
            }
        ),
        (id(), put()).prop_map(|(id, put)| ToShard::Forget { id, put }),
        (query_id(), id(), any::<bool>(), any::<bool>()).prop_map(|(request, id, all, makes)| {
            let wants = if all { Wants::Bytes } else { Wants::Locations };
            ToShard::Subscribe { request, id, wants, makes }
        }),
        query_id().prop_map(|request| ToShard::Unsubscribe { request }),
        placed().prop_map(ToShard::Placed),
        prop::collection::vec(node(), 0..=MAX_SLOW_PEERS)
            .prop_map(|peers| ToShard::SlowLinks { peers }),
        (id(), put(), any::<(bool, bool)>())
            .prop_map(|(id, put, (leads, is_new))| ToShard::Lead(Lead { id, put, leads, is_new })),
        (id(), put(), obstacle()).prop_map(|(id, put, reason)| ToShard::NotReplicated {
            id,
            put,
            reason
        }),
        any::<bool>().prop_map(|is_draining| ToShard::Drain { is_draining }),
        shard_list().prop_map(ToShard::Shards),
    ]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let equality = prop_oneof![
        Just(Equality::Equal),
        Just(Equality::Different),
        option::of((node(), address())).prop_map(|holder| Equality::Unknown { holder }),
    ];
    prop_oneof![
        Just(Verdict::Accepted),
        node().prop_map(|sender| Verdict::Cyclic { sender }),
        (put(), equality).prop_map(|(winner, equality)| Verdict::Conflict { winner, equality }),
        Just(Verdict::Deleted),
        Just(Verdict::ShardFull),
    ]
}

fn grant() -> impl Strategy<Value = Grant> {
    let reason = select(vec![
        GrantReason::OnlyCandidate,
        GrantReason::CompleteBeforePartial,
        GrantReason::Closest,
        GrantReason::LeastRecentlyUsed,
        GrantReason::AvoidedButOnly,
        GrantReason::EarliestBytes,
        GrantReason::ChainHasBytes,
        GrantReason::FirstOfGroup,
        GrantReason::CloserAreBusy,
        GrantReason::FasterLink,
        GrantReason::SlowButOnly,
    ]);
    (query_id(), any::<u64>(), id(), put(), metadata(), (node(), address(), state(), reason))
        .prop_map(
            |(
                request,
                grant,
                id,
                put,
                (metadata, size_bytes),
                (sender, sender_address, sender_state, reason),
            )| {
                Grant {
                    request,
                    grant: GrantId(grant),
                    id,
                    put,
                    size_bytes,
                    metadata,
                    sender,
                    sender_address,
                    sender_state,
                    reason,
                    complete_copies: u32::try_from(size_bytes).unwrap_or(7),
                }
            },
        )
}

pub(crate) fn to_store() -> impl Strategy<Value = ToStore> {
    let inline = (query_id(), id(), put(), metadata()).prop_map(
        |(request, id, put, (metadata, size_bytes))| {
            let bytes = Bytes::from(vec![7; usize::try_from(size_bytes).unwrap()]);
            ToStore::Inline { request, id, put, metadata, bytes: bytes.into() }
        },
    );
    let take_over = (id(), put(), metadata()).prop_map(|(id, put, (metadata, size_bytes))| {
        let bytes = Bytes::from(vec![7; usize::try_from(size_bytes).unwrap()]);
        ToStore::TakeOver { id, put, metadata, bytes: bytes.into() }
    });
    let drop_reason = select(vec![DropReason::Deleted, DropReason::Lost, DropReason::Superseded]);
    prop_oneof![
        (id(), put(), verdict()).prop_map(|(id, put, verdict)| ToStore::Published {
            id,
            put,
            verdict
        }),
        grant().prop_map(ToStore::Granted),
        // The tests of the limit cover larger objects.
        inline.prop_filter("small", |message| match message {
            ToStore::Inline { bytes, .. } => bytes.len() <= 1 << 20,
            _ => true,
        }),
        take_over.prop_filter("small", |message| match message {
            ToStore::TakeOver { bytes, .. } => bytes.len() <= 1 << 20,
            _ => true,
        }),
        (query_id(), error()).prop_map(|(request, error)| ToStore::Failed { request, error }),
        (id(), put(), drop_reason).prop_map(|(id, put, reason)| ToStore::Drop { id, put, reason }),
        (id(), put()).prop_map(|(id, put)| ToStore::Promote { id, put }),
        any::<u64>().prop_map(|grant| ToStore::GiveWay { grant: GrantId(grant) }),
        placed().prop_map(ToStore::Placed),
        (query_id(), option::of(put()), named(node()))
            .prop_map(|(request, put, absent)| ToStore::DeleteDone { request, put, absent }),
        (query_id(), locations())
            .prop_map(|(request, locations)| ToStore::Locations { request, locations }),
        (id(), put(), metadata()).prop_map(|(id, put, (metadata, size_bytes))| {
            ToStore::Replicate(Replicate { id, put, size_bytes, metadata })
        }),
        (id(), put(), any::<(u32, u32, bool)>(), option::of(obstacle())).prop_map(
            |(id, put, (copies, nodes, is_draining), obstacle)| {
                ToStore::Replication(Replication { id, put, copies, nodes, is_draining, obstacle })
            }
        ),
        shard_list().prop_map(ToStore::Shards),
    ]
}

fn shard_list() -> impl Strategy<Value = ShardList> {
    let names = prop::collection::vec("[a-z.]{1,20}:[0-9]{1,5}", 1..8);
    (names, 0_u64..1 << 32).prop_map(|(names, version)| ShardList::new(names).with_version(version))
}

fn placed() -> impl Strategy<Value = Placed> {
    let version = 1..=i64::MAX as u64;
    let uplink = any::<[u32; 4]>().prop_map(Uplink::of_levels);
    (version, any::<Path>(), uplink).prop_map(|(version, path, uplink)| Placed {
        version,
        path,
        uplink,
    })
}
