//! Valid messages, as a start for the fuzzer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::extent::Extent;
use hoplite_core::id::Incarnation;
use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
use hoplite_core::link::Uplink;
use hoplite_core::load::{
    CombinationLoad, LinkLoad, Load, RailLoad, ReduceLoad, Sender, TransferLoad,
};
use hoplite_core::missing::Named;
use hoplite_core::node::{
    self, ByteRange, CallId, Confirm, CopyId, DrainReport, Hop, HopFailure, HopInput, Inspection,
    ObjectView, Ownerless, OwnerlessPage, Reduce, ReduceOrder, Until,
};
use hoplite_core::placement::ShardList;
use hoplite_core::quota::{Quota, QuotaLimits, QuotaSubject, QuotaUse};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, DropReason, Equality, Grant, GrantId, GrantReason, Lead, Location,
    LocationState, Locations, NodeInfo, ObjectSummary, Obstacle, Placed, Publish, PullOutcome,
    Query, Replicate, Replication, RequestId, Retention, ShardRun, ToShard, ToStore,
    UnpublishReason, Verdict, Wants,
};
use hoplite_core::{ClusterId, Dtype, Error, Metadata, NodeId, ObjectId, Operation, PutId};
use hoplite_proto::data::drain::{encode_drain_answer, encode_drain_store};
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::{KEY_BYTES, StreamKey, encode_lane, encode_lanes};
use hoplite_proto::data::{Pull, encode_hop, encode_hop_failure, encode_pull};
use hoplite_proto::directory::{
    encode_hello, encode_load, encode_to_shard, encode_to_store, welcome,
};
use hoplite_proto::local::{Request, Response, encode_request, encode_response};
use hoplite_proto::{error, v1};
use prost::Message;

const SIZE: u64 = 24;
const PLACED: Placed = Placed { version: 1, path: [0, 0, 7, 0], uplink: Uplink::measured(250) };
const TIMEOUT: Duration = Duration::from_secs(1);

/// Writes `samples` into `$FUZZ_SEEDS`, if set.
pub fn write(samples: impl IntoIterator<Item = Vec<u8>>) {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS") else { return };
    for (number, sample) in samples.into_iter().enumerate() {
        let path = std::path::Path::new(&directory).join(format!("sample-{number}"));
        std::fs::write(path, sample).expect("the directory of the seeds can be written to");
    }
}

/// Requests of the dashboard's page.
pub fn questions() -> Vec<Vec<u8>> {
    let questions = [
        "/api/overview",
        "/api/nodes?after=node-1&limit=50",
        "/api/objects?prefix=a%2Fb&after=ff00&size=7&copies=2&limit=9999",
        "/api/object?id=78",
        "/api/links?group=rack",
        "token=a+secret%21&limit=1",
        "00ff",
    ];
    questions.map(|question| question.as_bytes().to_vec()).to_vec()
}

/// Messages of clients.
pub fn requests() -> Vec<Vec<u8>> {
    let ids = || vec![object(), ObjectId::new("y").expect("the id is short")];
    let copy = CopyId(7);
    let requests = [
        node::Request::Create {
            id: object(),
            size_bytes: SIZE,
            metadata: metadata(),
            timeout: TIMEOUT,
        },
        node::Request::Put {
            id: object(),
            metadata: metadata(),
            bytes: vec![7; usize::try_from(SIZE).expect("it is small")].into(),
            confirm: Confirm::Yes,
            timeout: TIMEOUT,
        },
        node::Request::Batch(vec![
            get(Until::Contents, false),
            node::Request::Delete { ids: vec![object()], timeout: TIMEOUT, wait: DeleteWait::All },
        ]),
        node::Request::Seal { copy, timeout: TIMEOUT },
        node::Request::Drain { timeout: TIMEOUT },
        node::Request::DrainProgress,
        node::Request::ListOwnerless {
            prefix: Bytes::from_static(b"w"),
            after: Bytes::new(),
            limit: 10,
        },
        node::Request::ListQuotas,
        node::Request::SetQuota {
            subject: QuotaSubject::User(1000),
            limits: Some(QuotaLimits {
                memory_bytes: Some(SIZE),
                disk_bytes: Some(SIZE),
                objects: Some(1),
            }),
        },
        node::Request::SetQuota { subject: QuotaSubject::Prefix(object()), limits: None },
        node::Request::SetQuota { subject: QuotaSubject::EachClient, limits: None },
        get(Until::Started, true),
        node::Request::Delete { ids: ids(), timeout: TIMEOUT, wait: DeleteWait::Reachable },
        node::Request::Wait { ids: ids(), count: 1, timeout: TIMEOUT },
        node::Request::Locate { id: object(), timeout: TIMEOUT },
        node::Request::Follow { copy, beyond_bytes: 4096, timeout: TIMEOUT },
        node::Request::Subscribe { id: object() },
        node::Request::Unsubscribe { call: CallId(3) },
        node::Request::Reduce(reduce(ids())),
        node::Request::Inspect(Inspection::List {
            prefix: Bytes::from_static(b"w"),
            after: Bytes::new(),
            limit: 10,
        }),
        node::Request::Inspect(Inspection::Describe { id: object() }),
        node::Request::Inspect(Inspection::DrainNode {
            node: "b".to_owned(),
            timeout: Some(TIMEOUT),
        }),
    ];
    let encoded = |request| encode_request(CallId(1), Request::Node(request)).encode_to_vec();
    let messages: Vec<Vec<u8>> = requests.into_iter().map(encoded).collect();
    let stream =
        messages.iter().flat_map(|message| [length_of(message).to_vec(), message.clone()].concat());
    let stream = stream.collect();
    messages.into_iter().chain([stream]).collect()
}

fn get(until: Until, allow_stale: bool) -> node::Request {
    node::Request::Get { id: object(), until, timeout: TIMEOUT, allow_stale }
}

fn reduce(sources: Vec<ObjectId>) -> Reduce {
    Reduce {
        target: ObjectId::new("sum").expect("the id is short"),
        sources,
        count: 2,
        op: ReduceOp::Max,
        order: ReduceOrder::Fixed,
        range: Some(ByteRange { offset_bytes: 8, length_bytes: 16 }),
        replicas: 2,
        timeout: TIMEOUT,
    }
}

fn length_of(message: &[u8]) -> [u8; 4] {
    u32::try_from(message.len()).expect("samples are short").to_le_bytes()
}

/// Answers of stores to clients.
pub fn responses() -> Vec<Vec<u8>> {
    let view = ObjectView {
        copy: CopyId(7),
        extent: Extent { offset_bytes: 64, length_bytes: 128 },
        put: PutId(1),
        size_bytes: SIZE,
        metadata: metadata(),
        is_stale: true,
    };
    let of_nodes = [
        node::Response::Created(view.clone()),
        node::Response::Existing(view.clone()),
        node::Response::Object(view),
        node::Response::Sealed,
        node::Response::Deleted { count: 2, absent: Named::of([NodeId::new("absent").unwrap()]) },
        node::Response::Ready { indices: vec![0, 2] },
        node::Response::Reduced { indices: vec![2, 0] },
        node::Response::Locations(locations()),
        node::Response::Progress { valid_bytes: 4096 },
        node::Response::Quotas(vec![Quota {
            subject: QuotaSubject::Prefix(object()),
            limits: QuotaLimits { memory_bytes: Some(SIZE), disk_bytes: None, objects: None },
            used: QuotaUse { memory_bytes: SIZE, disk_bytes: SIZE, objects: 1 },
        }]),
        node::Response::Ownerless(OwnerlessPage {
            objects: vec![Ownerless { id: object(), size_bytes: SIZE, owner: Some(owner()) }],
            next: Some(object()),
        }),
    ];
    let of_shells = [
        Response::Listing { objects: vec![locations()], more: true },
        Response::Status(Box::default()),
    ];
    let all = of_nodes.into_iter().map(Response::Node).chain(of_shells).map(Ok);
    let all = all.chain(errors().into_iter().map(Err));
    all.map(|response| encode_response(CallId(1), response).encode_to_vec()).collect()
}

/// Messages of stores to shards.
pub fn store_batches() -> Vec<Vec<u8>> {
    let (request, put) = (RequestId(5), PutId(1));
    let publish = Publish {
        id: object(),
        put,
        size_bytes: SIZE,
        metadata: metadata(),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        inline: Some(Bytes::from(vec![7; 24]).into()),
        slot: Some(GrantId(1)),
        wants_answer: true,
        returning: None,
    };
    let partial = Publish {
        state: LocationState::Partial,
        pulling_from: Some(node_id()),
        inline: None,
        slot: None,
        ..publish.clone()
    };
    let query = Query {
        request,
        id: object(),
        timeout: TIMEOUT,
        resume: Some(put),
        avoid: vec![node_id()],
    };
    let messages = [
        ToShard::Publish(publish),
        ToShard::Publish(partial),
        ToShard::Unpublish { id: object(), put, reason: UnpublishReason::Evicted },
        ToShard::Query(query),
        ToShard::Cancel { request },
        ToShard::Lead(Lead { id: object(), put, leads: true, is_new: true }),
        ToShard::NotReplicated { id: object(), put, reason: Obstacle::NoRoom },
        ToShard::Drain { is_draining: true },
        ToShard::Shards(shard_list()),
        ToShard::ReturnSlot { grant: GrantId(1), outcome: PullOutcome::Corrupt },
        ToShard::Delete {
            request,
            id: object(),
            terms: DeleteTerms { only: Some(put), wait: DeleteWait::All },
        },
        ToShard::Forget { id: object(), put },
        ToShard::Subscribe { request, id: object(), wants: Wants::Bytes, makes: false },
        ToShard::Unsubscribe { request },
        ToShard::Placed(PLACED),
    ];
    let batch =
        |message| v1::StoreMessages { hello: None, messages: vec![encode_to_shard(message)] };
    let info = NodeInfo {
        node: node_id(),
        incarnation: Incarnation(1),
        data_address: address(),
        labels: vec![("rack".to_owned(), "7".to_owned())],
        shards: shard_list(),
        version: hoplite_core::Version::NEWEST,
    };
    let cluster = ClusterId::new("c").expect("the name is valid");
    let hello =
        v1::StoreMessages { hello: Some(encode_hello(&info, &cluster)), messages: Vec::new() };
    let batches = messages.into_iter().map(batch).chain([hello]).map(|batch| batch.encode_to_vec());
    batches.chain([load_report()]).collect()
}

fn load_report() -> Vec<u8> {
    let transfer = TransferLoad { id: object(), size_bytes: SIZE, valid_bytes: 8, rate: 4 };
    let reduce = ReduceLoad {
        target: object(),
        op: "sum".to_owned(),
        joined: 1,
        sources: 2,
        plan: "chain".to_owned(),
        elapsed: TIMEOUT,
    };
    let link = LinkLoad {
        peer: NodeId::new("n").expect("the name is short"),
        bytes_per_second: 1000,
        round_trip_ns: 5000,
        is_slow: true,
        lanes: 4,
    };
    let sender = Sender { node: NodeId::new("n").expect("the name is short"), hop: Some(object()) };
    let combination = CombinationLoad {
        number: 1,
        output: object(),
        put: PutId(1),
        op: "sum".to_owned(),
        plan: "chain".to_owned(),
        senders: vec![sender],
        all_senders: 1,
        size_bytes: SIZE,
        age: TIMEOUT,
        took: TIMEOUT,
        is_complete: true,
    };
    let rail = RailLoad {
        address: [127, 0, 0, 1].into(),
        sent_bytes: SIZE,
        received_bytes: SIZE,
        send_rate: SIZE,
        receive_rate: SIZE,
        failed_routes: 1,
    };
    let load = Load {
        combinations: vec![combination],
        capacity_bytes: SIZE,
        shards_up: vec![true, false],
        transfers: vec![transfer],
        reduces: vec![reduce],
        links: vec![link],
        rails: vec![rail],
        ..Load::default()
    };
    encode_load(load).encode_to_vec()
}

/// Messages of shards to stores.
pub fn shard_batches() -> Vec<Vec<u8>> {
    let (request, put) = (RequestId(5), PutId(1));
    let grant = Grant {
        request,
        grant: GrantId(1),
        id: object(),
        put,
        size_bytes: SIZE,
        metadata: metadata(),
        sender: node_id(),
        sender_address: address(),
        sender_state: LocationState::Complete,
        reason: GrantReason::Closest,
        complete_copies: 2,
    };
    let equality = Equality::Unknown { holder: Some((node_id(), address())) };
    let conflict = Verdict::Conflict { winner: PutId(2), equality };
    let bytes = Bytes::from(vec![7; 24]);
    let messages = [
        ToStore::Published { id: object(), put, verdict: Verdict::Accepted },
        ToStore::Published { id: object(), put, verdict: Verdict::Cyclic { sender: node_id() } },
        ToStore::Published { id: object(), put, verdict: conflict },
        ToStore::Granted(grant),
        ToStore::Inline {
            request,
            id: object(),
            put,
            metadata: metadata(),
            bytes: bytes.clone().into(),
        },
        ToStore::GiveWay { grant: GrantId(1) },
        ToStore::Placed(PLACED),
        ToStore::TakeOver { id: object(), put, metadata: metadata(), bytes: bytes.into() },
        ToStore::Drop { id: object(), put, reason: DropReason::Lost },
        ToStore::Promote { id: object(), put },
        ToStore::DeleteDone {
            request,
            put: Some(put),
            absent: Named::of([NodeId::new("absent").unwrap()]),
        },
        ToStore::Locations { request, locations: locations() },
        ToStore::Replicate(Replicate { id: object(), put, size_bytes: SIZE, metadata: metadata() }),
        ToStore::Replication(Replication {
            id: object(),
            put,
            copies: 1,
            nodes: 2,
            is_draining: true,
            obstacle: Some(Obstacle::NoRoom),
        }),
        ToStore::Shards(shard_list()),
    ];
    let failures = errors().into_iter().map(|error| ToStore::Failed { request, error });
    let batch = |message| v1::ShardMessages {
        messages: vec![encode_to_store(message)],
        ..Default::default()
    };
    let first = v1::ShardMessages {
        welcome: Some(welcome(ShardRun(7), hoplite_core::Version::NEWEST)),
        ..Default::default()
    };
    let last = v1::ShardMessages {
        error: Some(error::encode(&Error::ShuttingDown)),
        ..Default::default()
    };
    let all = messages.into_iter().chain(failures).map(batch).chain([first, last]);
    all.map(|batch| batch.encode_to_vec()).collect()
}

/// Messages between stores.
pub fn frames() -> Vec<Vec<u8>> {
    let (put, size_bytes) = (PutId(1), SIZE);
    let pull = Pull { id: object(), put, size_bytes, range: 4..20, awaits_hop: true };
    let input = HopInput {
        id: object(),
        put,
        size_bytes,
        base_bytes: 8,
        node: node_id(),
        address: address(),
        is_hop: true,
    };
    let hop = Hop {
        output: ObjectId::of_hop(put),
        put,
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        size_bytes: 16,
        offset_bytes: 4,
        inputs: vec![input.clone(), input],
        timeout: TIMEOUT,
    };
    let failed = HopFailure::Input { index: 1, outcome: PullOutcome::Corrupt };
    let refused = errors().into_iter().map(HopFailure::Refused);
    let ends = refused
        .chain([failed])
        .map(|failure| (Kind::End, encode_hop_failure(&failure).encode_to_vec()));
    let requests = [
        (Kind::Pull, encode_pull(&pull).encode_to_vec()),
        (Kind::Combine, encode_hop(&hop).encode_to_vec()),
        (Kind::Combined, Vec::new()),
        (Kind::Release, Vec::new()),
        (Kind::Lanes, encode_lanes(StreamKey([7; KEY_BYTES]), 3).encode_to_vec()),
        (Kind::Lane, encode_lane(StreamKey([7; KEY_BYTES]), 1).encode_to_vec()),
        (Kind::DrainStore, encode_drain_store(Some(TIMEOUT)).encode_to_vec()),
        (Kind::DrainAnswer, encode_drain_answer(DrainReport::default()).encode_to_vec()),
        (Kind::Proof, v1::DataProof { tag: vec![7; 32].into(), refusal: None }.encode_to_vec()),
    ];
    let frame = |(kind, payload): (Kind, Vec<u8>)| {
        let header = Header::control(kind, &payload).expect("samples are short").encode();
        [&[1], header.as_slice(), &payload].concat()
    };
    requests.into_iter().chain(ends).map(frame).collect()
}

fn errors() -> Vec<Error> {
    vec![
        Error::InvalidName { name: "a b".to_owned() },
        Error::invalid_request("why"),
        Error::ObjectTooLarge { id: object(), size_bytes: 2, limit_bytes: 1 },
        Error::StoreFull {
            needed_bytes: 3,
            free_bytes: 1,
            capacity_bytes: 2,
            holders: "a".to_owned(),
        },
        Error::timeout(Operation::Get, TIMEOUT),
        Error::ObjectLost { id: object() },
        Error::TypeMismatch { id: object(), reason: "its type is another".into() },
        Error::DuplicateId { id: object() },
        Error::NodeIdInUse { node: node_id() },
        Error::VersionMismatch { ours: 1, theirs: 2 },
        Error::ShardListMismatch { refused: "a:1, b:1".to_owned(), in_use: "a:1, c:1".to_owned() },
        metadata().validate(SIZE + 1).expect_err("the shape does not fit"),
    ]
}

fn shard_list() -> ShardList {
    ShardList::new(["10.0.0.1:7401", "10.0.0.2:7401"]).with_version(1)
}

fn locations() -> Locations {
    let location = Location {
        node: node_id(),
        data_address: address(),
        state: LocationState::Partial,
        retention: Retention::Evictable,
        pulling_from: Some(node_id()),
        path: [7, 0, 3, 0],
        slow_peers: vec![node_id()],
    };
    let object_summary = ObjectSummary {
        put: PutId(1),
        size_bytes: SIZE,
        metadata: metadata(),
        inline: false,
        lost: false,
        origin: None,
    };
    Locations { id: object(), object: Some(object_summary), locations: vec![location] }
}

fn metadata() -> Metadata {
    Metadata {
        dtype: Dtype::F32,
        shape: Some(vec![2, 3]),
        user: Bytes::from_static(b"u"),
        agreement: None,
        lifetime: Lifetime::of(Some(owner()), Ttl::of_seconds(60.0, TtlAction::Free).ok()),
        ..Metadata::default()
    }
}

fn owner() -> Owner {
    Owner::new("job-7").expect("the name is valid")
}

fn object() -> ObjectId {
    ObjectId::new("weights").expect("the id is short")
}

fn node_id() -> NodeId {
    NodeId::new("node-1").expect("the name is valid")
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7000))
}
