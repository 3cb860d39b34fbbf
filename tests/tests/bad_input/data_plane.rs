use bytes::Bytes;
use hoplite_core::{ErrorCode, ObjectId, PutId};
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::v1::{self, Combine, DigestRequest, Dtype, End, HopInput, Pull, ReduceOp, end};
use hoplite_tests::cluster::{Cluster, await_that};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::{Kind, RawPeer, data_frame, data_frame_claiming, hello};
use prost::Message;

use super::TIME_LIMIT;

#[test]
fn a_peer_without_a_hello_is_disconnected() {
    let mut cluster = Cluster::open(2);
    let address = cluster.data_address(0);
    let introduction =
        |cluster: &str, version| data_frame(Kind::Hello, &hello(cluster, version).encode_to_vec());
    let right = introduction("hoplite", PROTOCOL_VERSION);
    let mut damaged = right.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut damaged_header = right.clone();
    damaged_header[9] ^= 1;
    for (what, bad_input) in [
        ("nothing", vec![]),
        ("eight zeros", vec![0; 8]),
        ("text", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("random bytes", bytes(1, 10_000)),
        ("half a header", right[..14].to_vec()),
        ("half a hello", right[..30].to_vec()),
        ("an oversized length", data_frame_claiming(Kind::Hello as u8, 1, u32::MAX, b"")),
        ("an oversized block", data_frame_claiming(Kind::Block as u8, 1, (1 << 20) + 1, b"")),
        ("another framing", data_frame_claiming(Kind::Hello as u8, 2, 0, b"")),
        ("an unknown kind", data_frame_claiming(99, 1, 0, b"")),
        ("a damaged hello", damaged),
        ("a damaged header", damaged_header),
        ("a hello that is no message", data_frame(Kind::Hello, &[0xff; 8])),
        ("another version", introduction("hoplite", PROTOCOL_VERSION + 1)),
        ("another cluster", introduction("other", PROTOCOL_VERSION)),
        ("a pull before the hello", data_frame(Kind::Pull, &Pull::default().encode_to_vec())),
    ] {
        let mut peer = RawPeer::connect(&address);
        peer.send_bytes(&bad_input);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    for _ in 0..100 {
        drop(RawPeer::connect(&address));
    }
    cluster.assert_serves();
}

#[test]
fn invalid_requests_are_refused_or_end_the_connection() {
    let mut cluster = Cluster::open(2);
    let client = cluster.client(0);
    client.put("object", &bytes(1, 200_000)).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let address = cluster.data_address(0);
    let pull = |id: &[u8], put, size_bytes, offset_bytes| Pull {
        id: id.to_vec().into(),
        put,
        size_bytes,
        offset_bytes,
        ..Pull::default()
    };

    let mut peer = RawPeer::greeted(&address);
    let mut outcome = |pull: &Pull| {
        peer.send(Kind::Pull, pull);
        let (kind, payload) = peer.receive().expect("the store answers");
        assert_eq!(kind, Kind::End as u8);
        let end = End::decode(payload.as_slice()).unwrap();
        (end.outcome(), end.error.map_or(0, |error| error.code))
    };
    let no_copy = (end::Outcome::NoCopy, 0);
    assert_eq!(outcome(&pull(b"unknown", 1, 1, 0)), no_copy);
    assert_eq!(outcome(&pull(b"object", put ^ 1, 200_000, 0)), no_copy, "another put of it");
    let refused = (end::Outcome::Refused, ErrorCode::InvalidRequest as u32);
    assert_eq!(outcome(&pull(b"object", put, 200_001, 0)), refused, "another size");
    assert_eq!(
        outcome(&pull(b"object", put, 200_000, 200_000)),
        (end::Outcome::Complete, 0),
        "its end"
    );
    peer.send(Kind::DigestRequest, &DigestRequest { id: b"unknown".to_vec().into(), put: 1 });
    assert_eq!(peer.receive().map(|(kind, _)| kind), Some(Kind::End as u8));

    for (what, bad_input) in [
        ("an empty id", data_frame(Kind::Pull, &pull(b"", 1, 1, 0).encode_to_vec())),
        ("a long id", data_frame(Kind::Pull, &pull(&[7; 256], 1, 1, 0).encode_to_vec())),
        ("a pull that is no message", data_frame(Kind::Pull, &[0xff; 40])),
        (
            "a pull beyond the end",
            data_frame(Kind::Pull, &pull(b"object", put, 200_000, 200_001).encode_to_vec()),
        ),
        (
            "a pull far beyond",
            data_frame(Kind::Pull, &pull(b"object", put, 200_000, u64::MAX).encode_to_vec()),
        ),
        ("a block that nobody asked for", data_frame(Kind::Block, &[0; 4096])),
        ("an end that nobody asked for", data_frame(Kind::End, &End::default().encode_to_vec())),
        (
            "a second hello",
            data_frame(Kind::Hello, &hello("hoplite", PROTOCOL_VERSION).encode_to_vec()),
        ),
        ("an oversized pull", data_frame_claiming(Kind::Pull as u8, 1, (64 << 10) + 1, b"")),
        ("eight zeros", vec![0; 8]),
        (
            "half a frame",
            data_frame(Kind::Pull, &pull(b"object", put, 200_000, 0).encode_to_vec())[..40]
                .to_vec(),
        ),
    ] {
        let mut peer = RawPeer::greeted(&address);
        peer.send_bytes(&bad_input);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
}

#[test]
fn a_receiver_that_stops_reading_blocks_no_other() {
    let mut cluster = Cluster::open(2);
    let client = cluster.client(0);
    let size = 24 << 20;
    let expected = bytes(2, size);
    client.put("object", &expected).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let mut peer = RawPeer::greeted(&cluster.data_address(0));
    let pull =
        Pull { id: b"object".to_vec().into(), put, size_bytes: size as u64, ..Pull::default() };
    peer.send(Kind::Pull, &pull);
    await_that("the transfer begun", || client.status().unwrap().sent_bytes > 0);
    let mut dying = RawPeer::greeted(&cluster.data_address(0));
    dying.send(Kind::Pull, &pull);
    assert_eq!(dying.receive().map(|(kind, _)| kind), Some(Kind::Block as u8));
    drop(dying);
    assert!(cluster.client(1).get("object", TIME_LIMIT).unwrap()[..] == expected[..]);
    cluster.assert_serves();
    assert!(client.status().unwrap().sent_bytes < 4 * size as u64, "the peer took little of it");
    assert_eq!(
        client.delete(["object"], TIME_LIMIT).unwrap(),
        1,
        "a delete does not wait for the peer"
    );
    await_that("all memory back", || {
        let status = client.status().unwrap();
        status.copies == 0 && status.free_bytes == status.capacity_bytes
    });
    cluster.assert_serves();
    peer.await_close();
}

fn output(put: u64) -> Bytes {
    Bytes::copy_from_slice(ObjectId::of_hop(PutId(put)).as_bytes())
}

fn combine(cluster: &Cluster, put: u64) -> Combine {
    let input = HopInput {
        id: b"object".to_vec().into(),
        put,
        size_bytes: 200_000,
        node: "node-0".to_owned(),
        address: cluster.data_address(0),
        ..HopInput::default()
    };
    Combine {
        output: output(1),
        put: 1,
        op: ReduceOp::Sum.into(),
        dtype: Dtype::F32.into(),
        size_bytes: 200_000,
        inputs: vec![input],
        timeout_ms: 10_000,
        ..Combine::default()
    }
}

type Change = fn(&mut Combine);

fn await_no_output(cluster: &Cluster) {
    let client = cluster.client(0);
    await_that("the output gone", || client.status().is_ok_and(|status| status.copies == 1));
}

#[test]
fn invalid_hops_end_the_connection() {
    let mut cluster = Cluster::open(2);
    let client = cluster.client(0);
    client.put("object", &bytes(1, 200_000)).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let address = cluster.data_address(0);
    let changes: [(&str, Change); 18] = [
        ("no output", |combine| combine.output = vec![].into()),
        ("a long name", |combine| combine.output = vec![7; 256].into()),
        ("the name of an object", |combine| combine.output = b"object".to_vec().into()),
        ("the name of another hop", |combine| combine.put = 2),
        ("no operation", |combine| combine.op = 0),
        ("an unknown operation", |combine| combine.op = 99),
        ("an unknown type", |combine| combine.dtype = 99),
        ("plain bytes", |combine| combine.dtype = Dtype::Opaque.into()),
        ("an operation that the type lacks", |combine| combine.dtype = Dtype::Bool.into()),
        ("no whole elements", |combine| combine.size_bytes = 199_999),
        ("a beginning inside of an element", |combine| combine.offset_bytes = 2),
        ("a beginning behind the end", |combine| combine.offset_bytes = 200_004),
        ("a size without end", |combine| combine.size_bytes = u64::MAX - 3),
        ("no inputs", |combine| combine.inputs.clear()),
        ("many inputs", |combine| combine.inputs = vec![combine.inputs[0].clone(); 65]),
        ("an input that is too short", |combine| combine.inputs[0].base_bytes = 4),
        ("an address that is none", |combine| combine.inputs[0].address = "nowhere".to_owned()),
        ("a node that is none", |combine| combine.inputs[0].node = "/".to_owned()),
    ];
    for (what, change) in changes {
        let mut combine = combine(&cluster, put);
        change(&mut combine);
        let mut peer = RawPeer::greeted(&address);
        peer.send(Kind::Combine, &combine);
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    for (what, bad_input) in [
        ("no message", data_frame(Kind::Combine, &[0xff; 40])),
        ("an oversized one", data_frame_claiming(Kind::Combine as u8, 1, (64 << 10) + 1, b"")),
        (
            "half of one",
            data_frame(Kind::Combine, &combine(&cluster, put).encode_to_vec())[..60].to_vec(),
        ),
        ("the news of a hop", data_frame(Kind::Combined, b"")),
        ("a release with a payload", data_frame(Kind::Release, b"x")),
    ] {
        let mut peer = RawPeer::greeted(&address);
        peer.send_bytes(&bad_input);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    await_no_output(&cluster);
}

#[test]
fn impossible_hops_are_refused_without_leftovers() {
    let mut cluster = Cluster::open(2);
    let client = cluster.client(0);
    client.put("object", &bytes(1, 200_000)).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let mut peer = RawPeer::greeted(&cluster.data_address(0));
    let right = combine(&cluster, put);
    let with_input = |change: &dyn Fn(&mut HopInput)| {
        let mut combine = right.clone();
        change(&mut combine.inputs[0]);
        combine
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut outcome = |combine: &Combine| {
        peer.send(Kind::Combine, combine);
        let (kind, payload) = peer.receive_other().expect("the store answers");
        assert_eq!(kind, Kind::End as u8);
        let end = End::decode(payload.as_slice()).unwrap();
        await_no_output(&cluster);
        (end.outcome(), end.failed_input.map(|failed| failed.outcome()))
    };
    let failed = |how| (end::Outcome::InputFailed, Some(how));
    let unknown = with_input(&|input| input.id = b"unknown".to_vec().into());
    assert_eq!(outcome(&unknown), failed(v1::PullOutcome::SenderHasNoCopy));
    let other_put = with_input(&|input| input.put ^= 1);
    assert_eq!(outcome(&other_put), failed(v1::PullOutcome::SenderHasNoCopy));
    let unreachable = with_input(&|input| {
        (input.node, input.address) = ("node-7".to_owned(), closed.to_string());
    });
    assert_eq!(outcome(&unreachable), failed(v1::PullOutcome::SenderUnreachable));
    let refused = (end::Outcome::Refused, None);
    let mut large = with_input(&|input| input.size_bytes = 1 << 40);
    large.size_bytes = 1 << 40;
    assert_eq!(outcome(&large), refused, "more than there is room for");
    cluster.assert_serves();
}

#[test]
fn a_hop_lives_as_long_as_it_is_wanted() {
    let mut cluster = Cluster::open(2);
    let client = cluster.client(0);
    let expected = bytes(1, 200_000);
    client.put("object", &expected).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let address = cluster.data_address(0);
    let right = combine(&cluster, put);
    let mut peer = RawPeer::greeted(&address);
    for round in 0..3 {
        peer.send(Kind::Combine, &right);
        assert_eq!(peer.receive_other(), Some((Kind::Combined as u8, vec![])), "round {round}");
        assert_eq!(client.status().unwrap().copies, 2);
        let mut puller = RawPeer::greeted(&address);
        let (id, size_bytes) = (output(1), 200_000);
        puller.send(
            Kind::Pull,
            &Pull { id, put: 1, size_bytes, awaits_hop: true, ..Pull::default() },
        );
        let mut pulled = Vec::new();
        while let Some((kind, payload)) = puller.receive_other()
            && kind != Kind::End as u8
        {
            assert_eq!(kind, Kind::Block as u8);
            pulled.extend(payload);
        }
        assert!(pulled == expected);
        assert!(!cluster.client(1).contains(output(1)).unwrap(), "no shard knows of it");
        let mut rival = RawPeer::greeted(&address);
        rival.send(Kind::Combine, &right);
        let (_, payload) = rival.receive_other().expect("the store refuses it");
        assert_eq!(End::decode(payload.as_slice()).unwrap().outcome(), end::Outcome::Refused);
        peer.send(Kind::Release, &());
        let (kind, payload) = peer.receive_other().expect("the store confirms");
        let end = End::decode(payload.as_slice()).unwrap();
        assert_eq!((kind, end.outcome()), (Kind::End as u8, end::Outcome::Released));
        await_no_output(&cluster);
    }
    let mut itself = right.clone();
    (itself.inputs[0].id, itself.inputs[0].put, itself.inputs[0].is_hop) = (right.output, 1, true);
    for is_released in [true, false] {
        peer.send(Kind::Combine, &itself);
        await_that("the output", || client.status().unwrap().copies == 2);
        if is_released {
            peer.send(Kind::Release, &());
            assert_eq!(peer.receive_other().map(|(kind, _)| kind), Some(Kind::End as u8));
        }
    }
    drop(peer);
    await_no_output(&cluster);
    let mut puller = RawPeer::greeted(&address);
    puller.send(
        Kind::Pull,
        &Pull { id: output(2), put: 2, size_bytes: 1, awaits_hop: true, ..Pull::default() },
    );
    cluster.assert_serves();
}
