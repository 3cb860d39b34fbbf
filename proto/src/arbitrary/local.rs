use bytes::Bytes;
use hoplite_core::collective::Agreement;
use hoplite_core::error::Error;
use hoplite_core::extent::{Extent, HEADER_BYTES};
use hoplite_core::id::ObjectId;
use hoplite_core::metadata::Metadata;
use hoplite_core::node::{self, Confirm, Inspection, ObjectView, Ownerless, OwnerlessPage, Until};
use hoplite_core::placement::ShardChange;
use hoplite_core::topology::probe::survey::{Bandwidth, SurveyOptions, SurveyProgress};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::directory::locations;
use super::errors::error;
use super::quotas::{quota, quota_limits, quota_subject};
use super::{
    call, copy, delete_wait, id, kind, metadata, named, node, owner, put, reduce, timeout,
};
use crate::bounds::MAX_LISTED_OBJECTS;
use crate::data::probe::probes;
use crate::local::{Request, Response};

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
