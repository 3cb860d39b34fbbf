use bytes::Bytes;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{MAX_OBJECT_ID_BYTES, NodeId, ObjectId};
use hoplite_core::node::{
    self, ByteRange, CallId, Confirm, CopyId, Inspection, MAX_BATCH_ITEMS, Reduce, ReduceOrder,
    Until,
};
use hoplite_core::placement::{MAX_SHARD_NAME_BYTES, ShardChange};
use hoplite_core::shard::DeleteWait;
use hoplite_core::topology::probe::survey::{Bandwidth, MAX_NODES, SurveyOptions};
use prost::Message;

use super::quota::{decode_set, encode_set};
use crate::bounds::{
    MAX_BATCH_PUT_BYTES, MAX_LISTED_OBJECTS, MAX_PUT_BYTES, check_count, decode_delete_wait,
    decode_timeout, encode_id, encode_timeout,
};
use crate::data::probe::probes;
use crate::enumeration::enumeration;
use crate::metadata::decode_replicas;
use crate::reduce::{
    decode_agreement, decode_kind, decode_op, encode_agreement, encode_kind, encode_op,
};
use crate::v1::request as wire;
use crate::{metadata, v1};

enumeration!(encode_order, decode_order: ReduceOrder, wire::ReduceOrder, "order of a reduce" { Any, Fixed });

/// Request of a client to its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Request to the node's state machine.
    Node(node::Request),
    /// A client has written the bytes for which the store waits. Not answered.
    Doorbell {
        /// The copy that grows.
        copy: CopyId,
    },
}

/// Encodes `request`.
pub fn encode_request(call: CallId, request: Request) -> v1::Request {
    let body = match request {
        Request::Node(request) => encode_node_request(request),
        Request::Doorbell { copy } => wire::Body::Doorbell(wire::Doorbell { copy: copy.0 }),
    };
    v1::Request { call: call.0, body: Some(body), ..Default::default() }
}

/// Decodes and checks a request with at most `max_ids` ids.
///
/// Returns the call even with an error, so that the answer reaches it.
pub fn decode_request(request: v1::Request, max_ids: usize) -> (CallId, Result<Request>) {
    let body = request.body.ok_or(Error::malformed(Plane::Local, "a request without a body"));
    (CallId(request.call), body.and_then(|body| decode_body(body, max_ids)))
}

fn encode_batch(requests: Vec<node::Request>) -> wire::Batch {
    let encode = |request| {
        let item = v1::Request { body: Some(encode_node_request(request)), ..Default::default() };
        item.encode_to_vec().into()
    };
    wire::Batch { items: requests.into_iter().map(encode).collect() }
}

fn decode_batch(batch: wire::Batch, max_ids: usize) -> Result<node::Request> {
    check_count("requests in a batch", batch.items.len(), MAX_BATCH_ITEMS)?;
    let mut requests = Vec::with_capacity(batch.items.len());
    let mut put_bytes = 0;
    for item in batch.items {
        let item = v1::Request::decode(item).map_err(|_| {
            Error::malformed(Plane::Local, "an item of a batch that is not a request")
        })?;
        let body =
            item.body.ok_or(Error::malformed(Plane::Local, "an item of a batch without a body"))?;
        match decode_body(body, max_ids)? {
            Request::Node(request) if request.is_for_batches() => {
                if let node::Request::Put { bytes, .. } = &request {
                    put_bytes += bytes.len();
                    check_count("bytes of the puts in a batch", put_bytes, MAX_BATCH_PUT_BYTES)?;
                }
                requests.push(request);
            }
            _ => {
                return Err(Error::invalid_request(
                    "a batch has only puts, gets and deletes of one object each",
                ));
            }
        }
    }
    Ok(node::Request::Batch(requests))
}

#[expect(clippy::too_many_lines, reason = "one arm for each kind of request")]
fn encode_node_request(request: node::Request) -> wire::Body {
    match request {
        node::Request::Create { id, size_bytes, metadata, timeout } => {
            wire::Body::Create(wire::Create {
                id: encode_id(&id),
                size_bytes,
                metadata: Some(metadata::encode(&metadata)),
                timeout_ms: encode_timeout(timeout),
            })
        }
        node::Request::Put { id, metadata, bytes, confirm, timeout } => {
            wire::Body::Put(wire::Put {
                id: encode_id(&id),
                metadata: Some(metadata::encode(&metadata)),
                contents: bytes,
                confirm: confirm == Confirm::Yes,
                timeout_ms: encode_timeout(timeout),
            })
        }
        node::Request::Seal { copy, timeout } => {
            wire::Body::Seal(wire::Seal { copy: copy.0, timeout_ms: encode_timeout(timeout) })
        }
        node::Request::SealUnconfirmed { copy } => {
            wire::Body::SealUnconfirmed(wire::SealUnconfirmed { copy: copy.0 })
        }
        node::Request::Abort { copy } => wire::Body::Abort(wire::Abort { copy: copy.0 }),
        node::Request::Get { id, until, timeout, allow_stale } => wire::Body::Get(wire::Get {
            id: encode_id(&id),
            until: encode_until(until).into(),
            timeout_ms: encode_timeout(timeout),
            allow_stale,
        }),
        node::Request::Follow { copy, beyond_bytes, timeout } => wire::Body::Follow(wire::Follow {
            copy: copy.0,
            beyond_bytes,
            timeout_ms: encode_timeout(timeout),
        }),
        node::Request::Release { copy } => wire::Body::Release(wire::Release { copy: copy.0 }),
        node::Request::Delete { ids, timeout, wait } => wire::Body::Delete(wire::Delete {
            ids: encode_ids(&ids),
            timeout_ms: encode_timeout(timeout),
            wait_all: wait == DeleteWait::All,
        }),
        node::Request::Wait { ids, count, timeout } => wire::Body::Wait(wire::Wait {
            ids: encode_ids(&ids),
            count: u64::try_from(count).unwrap_or(u64::MAX),
            timeout_ms: encode_timeout(timeout),
        }),
        node::Request::Locate { id, timeout } => wire::Body::Locate(wire::Locate {
            id: encode_id(&id),
            timeout_ms: encode_timeout(timeout),
        }),
        node::Request::Subscribe { id } => {
            wire::Body::Subscribe(wire::Subscribe { id: encode_id(&id) })
        }
        node::Request::Unsubscribe { call } => {
            wire::Body::Unsubscribe(wire::Unsubscribe { call: call.0 })
        }
        node::Request::Cancel { call } => wire::Body::Cancel(wire::Cancel { call: call.0 }),
        node::Request::Drain { timeout } => {
            wire::Body::Drain(wire::Drain { timeout_ms: encode_timeout(timeout) })
        }
        node::Request::DrainProgress => wire::Body::DrainProgress(wire::DrainProgress {}),
        node::Request::ListOwnerless { prefix, after, limit } => {
            wire::Body::ListOwnerless(wire::ListOwnerless {
                prefix,
                after,
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
            })
        }
        node::Request::ListQuotas => wire::Body::ListQuotas(wire::ListQuotas {}),
        node::Request::SetQuota { subject, limits } => {
            wire::Body::SetQuota(encode_set(&subject, limits))
        }
        node::Request::Reduce(reduce) => wire::Body::Reduce(encode_reduce(&reduce)),
        node::Request::Inspect(inspection) => encode_inspection(inspection),
        node::Request::Collective(kind, reduce) => wire::Body::Coordinate(wire::Coordinate {
            collective: encode_kind(kind),
            reduce: Some(encode_reduce(&reduce)),
        }),
        node::Request::Batch(requests) => wire::Body::Batch(encode_batch(requests)),
        node::Request::Join { target, agreement, is_again, source_bytes, timeout } => {
            wire::Body::Join(wire::Join {
                is_again,
                source_bytes,
                target: encode_id(&target),
                agreement: Some(encode_agreement(&agreement)),
                timeout_ms: encode_timeout(timeout),
            })
        }
    }
}

fn encode_inspection(inspection: Inspection) -> wire::Body {
    match inspection {
        Inspection::List { prefix, after, limit } => wire::Body::List(wire::List {
            prefix,
            after,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        }),
        Inspection::Describe { id } => wire::Body::Describe(wire::Describe { id: encode_id(&id) }),
        Inspection::DrainNode { node, timeout } => {
            wire::Body::DrainNode(wire::DrainNode { node, timeout_ms: timeout.map(encode_timeout) })
        }
        Inspection::Status => wire::Body::Status(wire::Status {}),
        Inspection::Cluster => wire::Body::Cluster(wire::Cluster {}),
        Inspection::Probe { nodes, options } => wire::Body::Probe(wire::Probe {
            nodes: nodes.iter().map(|node| node.as_str().to_owned()).collect(),
            echoes: probes::encode(options.probes),
            all_trains: options.bandwidth == Bandwidth::Pairs,
            loaded: options.loaded,
            apply: options.apply,
        }),
        Inspection::ProbeProgress => wire::Body::ProbeProgress(wire::ProbeProgress {}),
        Inspection::Shards => wire::Body::Shards(wire::Shards {}),
        Inspection::ChangeShards { change, force } => {
            wire::Body::ChangeShards(wire::ChangeShards {
                change: Some(encode_change(change)),
                force,
            })
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each kind of request")]
fn decode_body(body: wire::Body, max_ids: usize) -> Result<Request> {
    let request = match body {
        wire::Body::Create(create) => node::Request::Create {
            id: ObjectId::new(&create.id)?,
            size_bytes: create.size_bytes,
            metadata: metadata::decode(create.metadata, create.size_bytes)?,
            timeout: decode_timeout(create.timeout_ms),
        },
        wire::Body::Put(put) => decode_put(put)?,
        wire::Body::Batch(batch) => decode_batch(batch, max_ids)?,
        wire::Body::Seal(seal) => node::Request::Seal {
            copy: CopyId(seal.copy),
            timeout: decode_timeout(seal.timeout_ms),
        },
        wire::Body::SealUnconfirmed(seal) => {
            node::Request::SealUnconfirmed { copy: CopyId(seal.copy) }
        }
        wire::Body::Abort(abort) => node::Request::Abort { copy: CopyId(abort.copy) },
        wire::Body::Get(get) => node::Request::Get {
            id: ObjectId::new(&get.id)?,
            until: decode_until(get.until)?,
            timeout: decode_timeout(get.timeout_ms),
            allow_stale: get.allow_stale,
        },
        wire::Body::Release(release) => node::Request::Release { copy: CopyId(release.copy) },
        wire::Body::Delete(delete) => node::Request::Delete {
            ids: decode_ids(&delete.ids, max_ids)?,
            timeout: decode_timeout(delete.timeout_ms),
            wait: decode_delete_wait(delete.wait_all),
        },
        wire::Body::Wait(wait) => node::Request::Wait {
            ids: decode_ids(&wait.ids, max_ids)?,
            count: decode_count(wait.count, wait.ids.len())?,
            timeout: decode_timeout(wait.timeout_ms),
        },
        wire::Body::Locate(locate) => node::Request::Locate {
            id: ObjectId::new(&locate.id)?,
            timeout: decode_timeout(locate.timeout_ms),
        },
        wire::Body::Subscribe(subscribe) => {
            node::Request::Subscribe { id: ObjectId::new(&subscribe.id)? }
        }
        wire::Body::Unsubscribe(unsubscribe) => {
            node::Request::Unsubscribe { call: CallId(unsubscribe.call) }
        }
        wire::Body::Cancel(cancel) => node::Request::Cancel { call: CallId(cancel.call) },
        wire::Body::Drain(drain) => {
            node::Request::Drain { timeout: decode_timeout(drain.timeout_ms) }
        }
        wire::Body::DrainProgress(_) => node::Request::DrainProgress,
        wire::Body::Reduce(reduce) => node::Request::Reduce(decode_reduce(reduce, max_ids)?),
        wire::Body::Coordinate(coordinate) => decode_collective(coordinate, max_ids)?,
        wire::Body::Join(join) => node::Request::Join {
            target: ObjectId::new(&join.target)?,
            agreement: decode_agreement(join.agreement, Plane::Local)?,
            is_again: join.is_again,
            source_bytes: join.source_bytes,
            timeout: decode_timeout(join.timeout_ms),
        },
        wire::Body::Follow(follow) => node::Request::Follow {
            copy: CopyId(follow.copy),
            beyond_bytes: follow.beyond_bytes,
            timeout: decode_timeout(follow.timeout_ms),
        },
        wire::Body::List(list) => node::Request::Inspect(decode_list(list)?),
        wire::Body::ListOwnerless(list) => decode_ownerless(list)?,
        wire::Body::ListQuotas(_) => node::Request::ListQuotas,
        wire::Body::SetQuota(set) => decode_set(set)?,
        wire::Body::Describe(describe) => decode_describe(&describe)?,
        wire::Body::DrainNode(drain) => node::Request::Inspect(decode_drain_node(drain)?),
        wire::Body::Status(_) => node::Request::Inspect(Inspection::Status),
        wire::Body::Cluster(_) => node::Request::Inspect(Inspection::Cluster),
        wire::Body::Probe(probe) => node::Request::Inspect(decode_probe(&probe)?),
        wire::Body::ProbeProgress(_) => node::Request::Inspect(Inspection::ProbeProgress),
        wire::Body::Shards(_) => node::Request::Inspect(Inspection::Shards),
        wire::Body::ChangeShards(change) => decode_change_shards(change)?,
        wire::Body::Doorbell(doorbell) => {
            return Ok(Request::Doorbell { copy: CopyId(doorbell.copy) });
        }
    };
    Ok(Request::Node(request))
}

fn decode_put(put: wire::Put) -> Result<node::Request> {
    check_count("bytes of a put by one request", put.contents.len(), MAX_PUT_BYTES)?;
    Ok(node::Request::Put {
        id: ObjectId::new(&put.id)?,
        metadata: metadata::decode(put.metadata, put.contents.len() as u64)?,
        bytes: put.contents,
        confirm: if put.confirm { Confirm::Yes } else { Confirm::No },
        timeout: decode_timeout(put.timeout_ms),
    })
}

fn decode_collective(coordinate: wire::Coordinate, max_ids: usize) -> Result<node::Request> {
    let reduce =
        coordinate.reduce.ok_or(Error::malformed(Plane::Local, "a collective without a reduce"))?;
    let kind = decode_kind(coordinate.collective, Plane::Local)?;
    Ok(node::Request::Collective(kind, decode_reduce(reduce, max_ids)?))
}

const MAX_NODE_TEXT_BYTES: usize = 255;

fn decode_drain_node(drain: wire::DrainNode) -> Result<Inspection> {
    check_count("bytes of the name of a store", drain.node.len(), MAX_NODE_TEXT_BYTES)?;
    let timeout = drain.timeout_ms.map(decode_timeout);
    Ok(Inspection::DrainNode { node: drain.node, timeout })
}

fn encode_change(change: ShardChange) -> wire::change_shards::Change {
    match change {
        ShardChange::Add(address) => wire::change_shards::Change::Add(address),
        ShardChange::Remove(address) => wire::change_shards::Change::Remove(address),
    }
}

fn decode_describe(describe: &wire::Describe) -> Result<node::Request> {
    Ok(node::Request::Inspect(Inspection::Describe { id: ObjectId::new(&describe.id)? }))
}

fn decode_change_shards(
    wire::ChangeShards { change, force }: wire::ChangeShards,
) -> Result<node::Request> {
    let change = match change
        .ok_or(Error::malformed(Plane::Local, "a change of the shards without a shard"))?
    {
        wire::change_shards::Change::Add(address) => ShardChange::Add(address),
        wire::change_shards::Change::Remove(address) => ShardChange::Remove(address),
    };
    check_count("bytes of the address of a shard", change.address().len(), MAX_SHARD_NAME_BYTES)?;
    Ok(node::Request::Inspect(Inspection::ChangeShards { change, force }))
}

fn decode_probe(probe: &wire::Probe) -> Result<Inspection> {
    check_count("nodes of a probe", probe.nodes.len(), MAX_NODES)?;
    let nodes = probe.nodes.iter().map(|node| NodeId::new(node)).collect::<Result<_, _>>()?;
    let bandwidth = if probe.all_trains { Bandwidth::Pairs } else { Bandwidth::Nodes };
    if probe.apply && !probe.loaded {
        return Err(Error::invalid_request("only a measurement under load can be applied"));
    }
    if probe.apply && !probe.nodes.is_empty() {
        return Err(Error::invalid_request("only a probe of all nodes can be applied"));
    }
    let probes = probes::decode(probe.echoes);
    let options = SurveyOptions { probes, bandwidth, loaded: probe.loaded, apply: probe.apply };
    Ok(Inspection::Probe { nodes, options })
}

fn decode_list(list: wire::List) -> Result<Inspection> {
    let limit = decode_page([&list.prefix, &list.after], list.limit)?;
    Ok(Inspection::List { prefix: list.prefix, after: list.after, limit })
}

fn decode_ownerless(list: wire::ListOwnerless) -> Result<node::Request> {
    let limit = decode_page([&list.prefix, &list.after], list.limit)?;
    Ok(node::Request::ListOwnerless { prefix: list.prefix, after: list.after, limit })
}

/// Checks the first and last id of a page of a listing. Returns the most objects in the page.
fn decode_page(ends: [&Bytes; 2], limit: u32) -> Result<usize> {
    match ends.into_iter().find(|bytes| bytes.len() > MAX_OBJECT_ID_BYTES) {
        Some(bytes) => Err(Error::InvalidId { length_bytes: bytes.len() }),
        None => Ok(usize::try_from(limit).unwrap_or(usize::MAX).min(MAX_LISTED_OBJECTS)),
    }
}

fn encode_reduce(reduce: &Reduce) -> wire::Reduce {
    wire::Reduce {
        target: encode_id(&reduce.target),
        sources: encode_ids(&reduce.sources),
        count: u64::try_from(reduce.count).unwrap_or(u64::MAX),
        op: encode_op(reduce.op),
        order: encode_order(reduce.order),
        range: reduce.range.map(|ByteRange { offset_bytes, length_bytes }| wire::ByteRange {
            offset_bytes,
            length_bytes,
        }),
        replicas: reduce.replicas.into(),
        timeout_ms: encode_timeout(reduce.timeout),
    }
}

fn decode_reduce(reduce: wire::Reduce, max_ids: usize) -> Result<Reduce> {
    let decoded = Reduce {
        target: ObjectId::new(&reduce.target)?,
        sources: decode_ids(&reduce.sources, max_ids)?,
        count: usize::try_from(reduce.count).unwrap_or(usize::MAX),
        op: decode_op(reduce.op, Plane::Local)?,
        order: decode_order(reduce.order, Plane::Local)?,
        range: reduce.range.map(|wire::ByteRange { offset_bytes, length_bytes }| ByteRange {
            offset_bytes,
            length_bytes,
        }),
        replicas: decode_replicas(reduce.replicas)?,
        timeout: decode_timeout(reduce.timeout_ms),
    };
    decoded.check()?;
    Ok(decoded)
}

fn encode_ids(ids: &[ObjectId]) -> Vec<Bytes> {
    ids.iter().map(encode_id).collect()
}

fn decode_ids(ids: &[Bytes], max_ids: usize) -> Result<Vec<ObjectId>> {
    check_count("ids in a request", ids.len(), max_ids)?;
    Ok(ids.iter().map(ObjectId::new).collect::<Result<_, _>>()?)
}

fn decode_count(count: u64, ids: usize) -> Result<usize> {
    usize::try_from(count)
        .ok()
        .filter(|count| *count <= ids)
        .ok_or(Error::invalid_request("cannot wait for more objects than there are ids"))
}

fn encode_until(until: Until) -> wire::Until {
    match until {
        Until::Complete => wire::Until::Complete,
        Until::Started => wire::Until::Started,
        Until::Contents => wire::Until::Contents,
    }
}

fn decode_until(number: i32) -> Result<Until> {
    match wire::Until::try_from(number) {
        Ok(wire::Until::Complete) => Ok(Until::Complete),
        Ok(wire::Until::Started) => Ok(Until::Started),
        Ok(wire::Until::Contents) => Ok(Until::Contents),
        Err(_) => Err(Error::malformed(Plane::Local, "unknown state to wait for")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    fn decoded(body: wire::Body) -> Result<Request> {
        let (call, request) =
            decode_request(v1::Request { call: 9, body: Some(body), ..Default::default() }, 2);
        assert_eq!(call, CallId(9));
        request
    }

    #[test]
    fn errors_keep_the_number_of_their_call() {
        let (call, request) = decode_request(v1::Request { call: 3, ..Default::default() }, 2);
        assert_eq!(call, CallId(3));
        assert!(matches!(request, Err(Error::Malformed { .. })));
        let long = Bytes::from(vec![0; 256]);
        assert_eq!(
            decoded(wire::Body::Subscribe(wire::Subscribe { id: long })),
            Err(Error::InvalidId { length_bytes: 256 })
        );
    }

    #[test]
    fn lists_of_ids_are_bounded() {
        let wait = |ids: usize, count| {
            let ids = vec![Bytes::from_static(b"x"); ids];
            decoded(wire::Body::Wait(wire::Wait { ids, count, timeout_ms: 0 }))
        };
        assert!(wait(2, 2).is_ok());
        assert!(matches!(wait(2, 3), Err(Error::InvalidRequest { .. })));
        assert!(matches!(wait(3, 1), Err(Error::LimitExceeded { maximum: 2, .. })));
    }

    #[test]
    fn reduces_are_checked() {
        let reduce = |sources: &[&'static str], count| wire::Reduce {
            target: Bytes::from_static(b"t"),
            sources: sources.iter().map(|id| Bytes::from_static(id.as_bytes())).collect(),
            count,
            op: v1::ReduceOp::Sum.into(),
            ..Default::default()
        };
        let decoded = |reduce| decoded(wire::Body::Reduce(reduce));
        let duplicate = |id| Err(Error::DuplicateId { id: ObjectId::new(id).unwrap() });
        assert!(decoded(reduce(&["a", "b"], 1)).is_ok());
        assert!(matches!(decoded(reduce(&[], 0)), Err(Error::InvalidRequest { .. })));
        for count in [0, 3, u64::MAX] {
            assert!(matches!(
                decoded(reduce(&["a", "b"], count)),
                Err(Error::InvalidRequest { .. })
            ));
        }
        assert_eq!(decoded(reduce(&["a", "a"], 1)), duplicate("a"));
        assert_eq!(decoded(reduce(&["a", "t"], 1)), duplicate("t"));
        let many = decoded(reduce(&["a", "b", "c"], 1));
        assert!(matches!(many, Err(Error::LimitExceeded { maximum: 2, .. })));
        for range in [(0, u64::MAX, true), (1, u64::MAX, false)] {
            let (offset_bytes, length_bytes, is_valid) = range;
            let range = Some(wire::ByteRange { offset_bytes, length_bytes });
            assert_eq!(decoded(wire::Reduce { range, ..reduce(&["a"], 1) }).is_ok(), is_valid);
        }
        let many = |replicas| decoded(wire::Reduce { replicas, ..reduce(&["a"], 1) });
        assert!(many(64).is_ok());
        for replicas in [65, u32::MAX] {
            assert!(matches!(many(replicas), Err(Error::LimitExceeded { maximum: 64, .. })));
        }
        for op in [0, 5] {
            let unknown = decoded(wire::Reduce { op, ..reduce(&["a"], 1) });
            assert!(matches!(unknown, Err(Error::Malformed { .. })));
        }
        let unknown = decoded(wire::Reduce { order: 2, ..reduce(&["a"], 1) });
        assert!(matches!(unknown, Err(Error::Malformed { .. })));
    }

    #[test]
    fn listings_are_bounded() {
        let list = wire::List { limit: u32::MAX, ..Default::default() };
        let decoded_list = decoded(wire::Body::List(list));
        let Ok(Request::Node(node::Request::Inspect(Inspection::List { limit, .. }))) =
            decoded_list
        else {
            panic!("not a list")
        };
        assert_eq!(limit, MAX_LISTED_OBJECTS);
        let list = wire::List { prefix: Bytes::from(vec![0; 256]), ..Default::default() };
        assert!(decoded(wire::Body::List(list)).is_err());
    }

    proptest! {
        #[test]
        fn requests_round_trip(call in any::<u64>(), request in arbitrary::request()) {
            let bytes = encode_request(CallId(call), request.clone()).encode_to_vec();
            let wire = v1::Request::decode(&bytes[..]).unwrap();
            prop_assert_eq!(decode_request(wire, 100), (CallId(call), Ok(request)));
        }

        #[test]
        fn damaged_requests_never_panic(
            request in arbitrary::request(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encode_request(CallId(1), request).encode_to_vec();
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(request) = v1::Request::decode(&bytes[..]) {
                let _ = decode_request(request, 100);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = v1::Request::decode(&bytes[..]) {
                let _ = decode_request(request, 100);
            }
        }
    }
}
