mod errors;
mod quotas;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::collective::{Agreement, AttemptId, Failure, Member, Plan, Report};
use hoplite_core::dtype::Dtype;
use hoplite_core::error::Error;
use hoplite_core::extent::{Extent, HEADER_BYTES};
use hoplite_core::id::{Incarnation, NodeId, ObjectId, PutId};
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::link::Uplink;
use hoplite_core::metadata::{MAX_REPLICAS, Metadata, Replicas};
use hoplite_core::missing::{MAX_NAMED, Named};
use hoplite_core::node::{
    self, ByteRange, CallId, Confirm, CopyId, Hop, HopFailure, HopInput, Inspection, ObjectView,
    Ownerless, OwnerlessPage, Reduce, ReduceOrder, Until,
};
use hoplite_core::placement::{ShardChange, ShardList};
use hoplite_core::plan::collective::{Collective, Schedule};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, DropReason, Equality, Grant, GrantId, GrantReason, Lead, Location,
    LocationState, Locations, NodeInfo, ObjectSummary, Obstacle, Origin, Placed, Publish,
    PullOutcome, Query, Replicate, Replication, RequestId, Retention, ToShard, ToStore,
    UnpublishReason, Verdict, Wants,
};
use hoplite_core::text::escape;
use hoplite_core::topology::live::MAX_SLOW_PEERS;
use hoplite_core::topology::place::Path;
use hoplite_core::topology::probe::survey::{Bandwidth, SurveyOptions, SurveyProgress};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::bounds::MAX_LISTED_OBJECTS;
use crate::data::Pull;
use crate::data::probe::probes;
use crate::local::{Request, Response};

pub(crate) use self::errors::error;
use self::quotas::{quota, quota_limits, quota_subject};

fn id() -> impl Strategy<Value = ObjectId> {
    prop::collection::vec(any::<u8>(), 1..=255).prop_map(|bytes| ObjectId::new(bytes).unwrap())
}

fn node() -> impl Strategy<Value = NodeId> {
    "[A-Za-z0-9._-]{1,63}".prop_map(|name| NodeId::new(&name).unwrap())
}

fn put() -> impl Strategy<Value = PutId> {
    any::<u64>().prop_map(PutId)
}

fn copy() -> impl Strategy<Value = CopyId> {
    any::<u64>().prop_map(CopyId)
}

fn call() -> impl Strategy<Value = CallId> {
    any::<u64>().prop_map(CallId)
}

fn query_id() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), 1..=u16::MAX).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn timeout() -> impl Strategy<Value = Duration> {
    (0_u64..30 * 24 * 3600 * 1000).prop_map(Duration::from_millis)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn state() -> impl Strategy<Value = LocationState> {
    select(vec![LocationState::Producing, LocationState::Partial, LocationState::Complete])
}

fn retention() -> impl Strategy<Value = Retention> {
    select(vec![Retention::Pinned, Retention::Evictable])
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(Dtype::ALL.to_vec())
}

fn replicas() -> impl Strategy<Value = Replicas> {
    let awaited = |wanted: u8| (Just(wanted), 0..=wanted.max(1));
    (0..=MAX_REPLICAS).prop_flat_map(awaited).prop_map(|(wanted, awaited)| Replicas {
        wanted,
        awaited,
        quorum: wanted % 2 == 1,
    })
}

fn owner() -> impl Strategy<Value = Owner> {
    "[^\\p{Cc}]{1,60}"
        .prop_map(|name| Owner::new(name).expect("the name is short and has no control characters"))
}

fn lifetime() -> impl Strategy<Value = Option<Arc<Lifetime>>> {
    let ttl = (1_u64..30 * 24 * 3600 * 1000, select(vec![TtlAction::Delete, TtlAction::Free]));
    let ttl = ttl
        .prop_map(|(ms, action)| Ttl::new(Duration::from_millis(ms), action).expect("a valid ttl"));
    (option::of(owner()), option::of(ttl)).prop_map(|(owner, ttl)| Lifetime::of(owner, ttl))
}

pub(crate) fn metadata() -> impl Strategy<Value = (Metadata, u64)> {
    let shape = option::of(prop::collection::vec(0_u64..6, 0..8));
    let agreement =
        option::of((kind(), reduce()).prop_map(|(kind, reduce)| Agreement::of(kind, &reduce)));
    (dtype(), shape, bytes(), agreement, 0_u64..1000, replicas(), lifetime()).prop_map(
        |(dtype, shape, user, agreement, elements, replicas, lifetime)| {
            let elements = shape.as_ref().map_or(elements, |shape| shape.iter().product());
            let metadata = Metadata { dtype, shape, user, agreement, replicas, lifetime };
            (metadata, elements * dtype.size_bytes())
        },
    )
}

fn text(pattern: &'static str) -> impl Strategy<Value = String> {
    pattern.prop_map(|text| escape(&text))
}

fn named<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Named<T>> {
    (prop::collection::vec(one, 0..=MAX_NAMED), 0..1000_u64)
        .prop_map(|(first, more)| Named { count: first.len() as u64 + more, first })
}

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

fn pull_outcome() -> impl Strategy<Value = PullOutcome> {
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
        (query_id(), id(), any::<bool>()).prop_map(|(request, id, all)| {
            let wants = if all { Wants::Bytes } else { Wants::Locations };
            ToShard::Subscribe { request, id, wants }
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

fn ids() -> impl Strategy<Value = Vec<ObjectId>> {
    prop::collection::vec(id(), 0..10)
}

fn node_request() -> impl Strategy<Value = node::Request> {
    prop_oneof![
        (id(), metadata(), timeout()).prop_map(|(id, (metadata, size_bytes), timeout)| {
            node::Request::Create { id, size_bytes, metadata, timeout }
        }),
        put_request(),
        (copy(), timeout()).prop_map(|(copy, timeout)| node::Request::Seal { copy, timeout }),
        copy().prop_map(|copy| node::Request::SealUnconfirmed { copy }),
        timeout().prop_map(|timeout| node::Request::Drain { timeout }),
        Just(node::Request::DrainProgress),
        Just(node::Request::Inspect(Inspection::Shards)),
        ("[a-z.]{1,20}:[0-9]{1,5}", any::<(bool, bool)>()).prop_map(|(address, (adds, force))| {
            let change =
                if adds { ShardChange::Add(address) } else { ShardChange::Remove(address) };
            node::Request::Inspect(Inspection::ChangeShards { change, force })
        }),
        (id(), id(), 0..=MAX_LISTED_OBJECTS).prop_map(|(prefix, after, limit)| {
            let bytes = |id: ObjectId| Bytes::copy_from_slice(id.as_bytes());
            node::Request::ListOwnerless { prefix: bytes(prefix), after: bytes(after), limit }
        }),
        Just(node::Request::ListQuotas),
        (quota_subject(), option::of(quota_limits()))
            .prop_map(|(subject, limits)| node::Request::SetQuota { subject, limits }),
        copy().prop_map(|copy| node::Request::Abort { copy }),
        (
            id(),
            select(vec![Until::Started, Until::Complete, Until::Contents]),
            timeout(),
            any::<bool>()
        )
            .prop_map(|(id, until, timeout, allow_stale)| {
                node::Request::Get { id, until, timeout, allow_stale }
            }),
        (copy(), any::<u64>(), timeout()).prop_map(|(copy, beyond_bytes, timeout)| {
            node::Request::Follow { copy, beyond_bytes, timeout }
        }),
        copy().prop_map(|copy| node::Request::Release { copy }),
        (ids(), timeout(), delete_wait()).prop_map(|(ids, timeout, wait)| node::Request::Delete {
            ids,
            timeout,
            wait
        }),
        (ids(), any::<prop::sample::Index>(), timeout()).prop_map(|(ids, count, timeout)| {
            let count = count.index(ids.len() + 1);
            node::Request::Wait { ids, count, timeout }
        }),
        (id(), timeout()).prop_map(|(id, timeout)| node::Request::Locate { id, timeout }),
        id().prop_map(|id| node::Request::Subscribe { id }),
        call().prop_map(|call| node::Request::Unsubscribe { call }),
        call().prop_map(|call| node::Request::Cancel { call }),
        reduce().prop_map(node::Request::Reduce),
        prop::collection::vec(batch_item(), 0..5).prop_map(node::Request::Batch),
        (kind(), reduce()).prop_map(|(kind, reduce)| node::Request::Collective(kind, reduce)),
        (kind(), reduce()).prop_map(|(kind, reduce)| node::Request::Join {
            agreement: Agreement::of(kind, &reduce),
            is_again: reduce.count > 1,
            source_bytes: reduce.count as u64,
            target: reduce.target,
            timeout: reduce.timeout,
        }),
    ]
}

fn delete_wait() -> impl Strategy<Value = DeleteWait> {
    select(vec![DeleteWait::Reachable, DeleteWait::All])
}

fn batch_item() -> impl Strategy<Value = node::Request> {
    prop_oneof![
        put_request(),
        (id(), timeout()).prop_map(|(id, timeout)| node::Request::Get {
            id,
            until: Until::Contents,
            timeout,
            allow_stale: false,
        }),
        (id(), timeout(), delete_wait()).prop_map(|(id, timeout, wait)| node::Request::Delete {
            ids: vec![id],
            timeout,
            wait
        }),
    ]
}

fn put_request() -> impl Strategy<Value = node::Request> {
    let confirm = select(vec![Confirm::Yes, Confirm::No]);
    let bytes = prop::collection::vec(any::<u8>(), 0..=100).prop_map(Bytes::from);
    let user = prop::collection::vec(any::<u8>(), 0..=20).prop_map(Bytes::from);
    (id(), user, bytes, confirm, timeout()).prop_map(|(id, user, bytes, confirm, timeout)| {
        let metadata = Metadata { user, ..Metadata::default() };
        node::Request::Put { id, metadata, bytes, confirm, timeout }
    })
}

fn reduce() -> impl Strategy<Value = Reduce> {
    let ids = prop::collection::btree_set(id(), 2..10)
        .prop_map(|ids| ids.into_iter().collect::<Vec<_>>());
    let range = (any::<u32>(), any::<u32>()).prop_map(|(offset, length)| ByteRange {
        offset_bytes: offset.into(),
        length_bytes: length.into(),
    });
    let order = select(vec![ReduceOrder::Any, ReduceOrder::Fixed]);
    let options =
        (select(ReduceOp::ALL.to_vec()), order, option::of(range), 0..=MAX_REPLICAS, timeout());
    (ids.prop_shuffle(), any::<prop::sample::Index>(), options).prop_map(
        |(mut sources, count, (op, order, range, replicas, timeout))| {
            let target = sources.pop().unwrap();
            let count = count.index(sources.len()) + 1;
            Reduce { target, sources, count, op, order, range, replicas, timeout }
        },
    )
}

fn inspection() -> impl Strategy<Value = Inspection> {
    let short = || prop::collection::vec(any::<u8>(), 0..=255).prop_map(Bytes::from);
    prop_oneof![
        (short(), short(), 0_usize..=10_000).prop_map(|(prefix, after, limit)| Inspection::List {
            prefix,
            after,
            limit
        }),
        id().prop_map(|id| Inspection::Describe { id }),
        Just(Inspection::Status),
        Just(Inspection::Cluster),
        (node(), option::of(timeout()))
            .prop_map(|(node, timeout)| Inspection::DrainNode { node: node.to_string(), timeout }),
        Just(Inspection::ProbeProgress),
        (prop::collection::vec(node(), 0..5), 0_u32..=10_000, any::<bool>(), 0..3).prop_map(
            |(nodes, count, all, load)| {
                let (loaded, apply) = (load > 0, load > 1 && nodes.is_empty());
                let probes = probes::decode(count);
                let bandwidth = if all { Bandwidth::Pairs } else { Bandwidth::Nodes };
                Inspection::Probe {
                    nodes,
                    options: SurveyOptions { probes, bandwidth, loaded, apply },
                }
            }
        ),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        6 => node_request().prop_map(Request::Node),
        1 => inspection().prop_map(|inspection| Request::Node(node::Request::Inspect(inspection))),
        1 => copy().prop_map(|copy| Request::Doorbell { copy }),
    ]
}

fn view() -> impl Strategy<Value = ObjectView> {
    (copy(), put(), metadata(), 0_u64..1 << 40, 0_u64..200, any::<bool>()).prop_map(
        |(copy, put, (metadata, size_bytes), block, slack, is_stale)| ObjectView {
            copy,
            extent: Extent {
                offset_bytes: block * HEADER_BYTES,
                length_bytes: size_bytes + HEADER_BYTES + slack,
            },
            put,
            size_bytes,
            metadata,
            is_stale,
        },
    )
}

fn ownerless() -> impl Strategy<Value = OwnerlessPage> {
    let object = (id(), any::<u64>(), option::of(owner()));
    let object = object.prop_map(|(id, size_bytes, owner)| Ownerless { id, size_bytes, owner });
    (prop::collection::vec(object, 0..5), option::of(id()))
        .prop_map(|(objects, next)| OwnerlessPage { objects, next })
}

fn batch_answer() -> impl Strategy<Value = Result<node::Response, Error>> {
    prop_oneof![
        view().prop_map(|view| Ok(node::Response::Object(view))),
        Just(Ok(node::Response::Sealed)),
        error().prop_map(Err),
    ]
}

pub(crate) fn response() -> impl Strategy<Value = Result<Response, Error>> {
    let indices = prop::collection::btree_set(any::<usize>(), 0..10);
    let reduced = prop::collection::btree_set(any::<u32>(), 0..10)
        .prop_map(|indices| {
            indices.into_iter().map(|index| usize::try_from(index).unwrap()).collect::<Vec<_>>()
        })
        .prop_shuffle();
    let node = prop_oneof![
        view().prop_map(node::Response::Created),
        view().prop_map(node::Response::Existing),
        view().prop_map(node::Response::Object),
        (view(), any::<u8>()).prop_map(|(view, byte)| {
            let size_bytes = view.size_bytes.min(100);
            let view = node::ObjectView { size_bytes, metadata: Metadata::default(), ..view };
            node::Response::Contents {
                view,
                bytes: vec![byte; usize::try_from(size_bytes).unwrap()].into(),
            }
        }),
        Just(node::Response::Sealed),
        (any::<usize>(), named(node()))
            .prop_map(|(count, absent)| node::Response::Deleted { count, absent }),
        prop::collection::vec(batch_answer(), 0..5).prop_map(node::Response::Batch),
        indices
            .prop_map(|indices| node::Response::Ready { indices: indices.into_iter().collect() }),
        reduced.prop_map(|indices| node::Response::Reduced { indices }),
        locations().prop_map(node::Response::Locations),
        any::<u64>().prop_map(|valid_bytes| node::Response::Progress { valid_bytes }),
        ownerless().prop_map(node::Response::Ownerless),
        prop::collection::vec(quota(), 0..5).prop_map(node::Response::Quotas),
    ];
    prop_oneof![
        4 => node.prop_map(|response| Ok(Response::Node(response))),
        1 => (prop::collection::vec(locations(), 0..3), any::<bool>())
            .prop_map(|(objects, more)| Ok(Response::Listing { objects, more })),
        1 => any::<[u64; 2]>().prop_map(|[done, steps]| Ok(Response::ProbeProgress(SurveyProgress { done, steps }))),
        2 => error().prop_map(Err),
    ]
}

pub(crate) fn pull() -> impl Strategy<Value = Pull> {
    (id(), put(), any::<[u64; 3]>(), any::<bool>()).prop_map(
        |(id, put, mut positions, awaits_hop)| {
            positions.sort_unstable();
            let [start, end, size_bytes] = positions;
            Pull { id, put, size_bytes, range: start..end, awaits_hop }
        },
    )
}

pub(crate) fn hop() -> impl Strategy<Value = Hop> {
    let kinds = select(ReduceOp::ALL.to_vec()).prop_flat_map(|op| {
        (Just(op), dtype().prop_filter("defined", move |dtype| op.is_defined_for(*dtype)))
    });
    let input = (id(), put(), 0_u64..1 << 40, 0_u64..1 << 40, (node(), address(), any::<bool>()))
        .prop_map(|(id, put, size_bytes, base_bytes, (node, address, is_hop))| HopInput {
            id,
            put,
            size_bytes,
            base_bytes,
            node,
            address,
            is_hop,
        });
    let inputs = prop::collection::vec(input, 1..8);
    (put(), kinds, (0_u64..1 << 40, any::<prop::sample::Index>()), inputs, timeout()).prop_map(
        |(put, (op, dtype), (elements, offset), mut inputs, timeout)| {
            let output = ObjectId::of_hop(put);
            let item = dtype.size_bytes();
            for input in &mut inputs {
                // At this point, `size_bytes` counts only the elements after the range.
                input.size_bytes = (input.base_bytes + elements + input.size_bytes) * item;
                input.base_bytes *= item;
            }
            let offset_bytes = offset.index(usize::try_from(elements).unwrap() + 1) as u64 * item;
            Hop {
                output,
                put,
                op,
                dtype,
                size_bytes: elements * item,
                offset_bytes,
                inputs,
                timeout,
            }
        },
    )
}

pub(crate) fn hop_failure(inputs: usize) -> impl Strategy<Value = HopFailure> {
    prop_oneof![
        (
            0..inputs,
            pull_outcome().prop_filter("a failure", |outcome| *outcome != PullOutcome::Complete)
        )
            .prop_map(|(index, outcome)| HopFailure::Input { index, outcome }),
        error().prop_map(HopFailure::Refused),
    ]
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let members = prop::collection::vec((node(), address(), 1_usize..4), 2..12);
    let what = (select(vec![Dtype::F32, Dtype::U8, Dtype::F64]), 0_u64..100_000, 1_u64..1000);
    let (index, explanation) = (any::<prop::sample::Index>(), text(".{0,40}"));
    (
        kind(),
        reduce(),
        put(),
        members,
        prop::collection::vec((id(), put()), 3),
        what,
        index,
        explanation,
    )
        .prop_map(
            |(
                kind,
                reduce,
                put,
                members,
                sources,
                (dtype, elements, frame),
                index,
                explanation,
            )| {
                let index = index.index(members.len());
                let mut next = 0;
                let mut of_member = |count: &usize| {
                    next += count;
                    (next - count..next).rev().collect::<Vec<usize>>()
                };
                let all: Vec<Vec<usize>> =
                    members.iter().map(|(.., count)| of_member(count)).collect();
                let sources = sources[..members[index].2].to_vec();
                let members =
                    members.into_iter().map(|(node, address, _)| Member { node, address });
                let members: Vec<Member> = members.collect();
                let mut agreement = Agreement::of(kind, &reduce);
                agreement.participants = next.try_into().unwrap();
                let (run, number) = (put.0.rotate_left(32), put.0 >> 40);
                Plan {
                    attempt: AttemptId { run, number },
                    put,
                    agreement,
                    target: reduce.target,
                    size_bytes: elements * next as u64 * dtype.size_bytes(),
                    metadata: Metadata { dtype, ..Metadata::default() },
                    schedule: Schedule::ring(members.len()),
                    frame_bytes: frame * dtype.size_bytes(),
                    index,
                    ranks: if kind.properties().makes_target { Vec::new() } else { all },
                    members,
                    sources,
                    timeout: reduce.timeout,
                    explanation,
                }
            },
        )
}

fn kind() -> impl Strategy<Value = Collective> {
    select(vec![
        Collective::Allreduce,
        Collective::ReduceScatter,
        Collective::Allgather,
        Collective::AllToAll,
    ])
}

pub(crate) fn member_report(members: usize) -> impl Strategy<Value = Report> {
    let failure = hop_failure(members).prop_map(|failure| match failure {
        HopFailure::Unreachable => Failure::Refused(Error::ShuttingDown),
        HopFailure::Input { index, outcome } => Failure::Peer { index, outcome },
        HopFailure::Refused(error) => Failure::Disagrees(error),
    });
    prop_oneof![Just(Report::Done), failure.prop_map(Report::Failed)]
}
