mod data;
mod directory;
mod errors;
mod local;
mod quotas;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::collective::Agreement;
use hoplite_core::dtype::Dtype;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::metadata::{MAX_REPLICAS, Metadata, Replicas};
use hoplite_core::missing::{MAX_NAMED, Named};
use hoplite_core::node::{ByteRange, CallId, CopyId, Reduce, ReduceOrder};
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{DeleteWait, LocationState, RequestId, Retention};
use hoplite_core::text::escape;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub(crate) use self::data::{hop, hop_failure, member_report, plan, pull};
pub(crate) use self::directory::{locations, node_info, to_shard, to_store};
pub(crate) use self::errors::error;
pub(crate) use self::local::{request, response};

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

fn delete_wait() -> impl Strategy<Value = DeleteWait> {
    select(vec![DeleteWait::Reachable, DeleteWait::All])
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

fn kind() -> impl Strategy<Value = Collective> {
    select(vec![
        Collective::Allreduce,
        Collective::ReduceScatter,
        Collective::Allgather,
        Collective::AllToAll,
    ])
}
