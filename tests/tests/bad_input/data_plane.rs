//! What is not of the protocol, and who does not take what he asked for, on the port between stores.

use hoplite_core::ErrorCode;
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::v1::{DigestRequest, End, Pull, end};
use hoplite_tests::cluster::{Cluster, await_that};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::{Kind, RawPeer, data_frame, data_frame_claiming, hello};
use prost::Message;

use crate::PATIENCE;

#[test]
fn whoever_does_not_introduce_himself_is_sent_away() {
    let mut cluster = Cluster::of(2);
    let address = cluster.data_address(0);
    let introduction =
        |cluster: &str, version| data_frame(Kind::Hello, &hello(cluster, version).encode_to_vec());
    let right = introduction("hoplite", PROTOCOL_VERSION);
    let mut damaged = right.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut damaged_header = right.clone();
    damaged_header[9] ^= 1;
    for (what, said) in [
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
        peer.send_bytes(&said);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    // Connect and close, many times.
    for _ in 0..100 {
        drop(RawPeer::connect(&address));
    }
    cluster.assert_serves();
}

#[test]
fn requests_that_make_no_sense_end_the_connection_or_are_refused() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    client.put("object", &bytes(1, 200_000)).unwrap();
    let put = client.get("object", PATIENCE).unwrap().put_id().0;
    let address = cluster.data_address(0);
    let pull = |id: &[u8], put, size_bytes, offset_bytes| Pull {
        id: id.to_vec().into(),
        put,
        size_bytes,
        offset_bytes,
    };

    let mut peer = RawPeer::greeted(&address);
    let mut outcome = |pull: &Pull| {
        peer.say(Kind::Pull, pull);
        let (kind, payload) = peer.hear().expect("the store answers");
        assert_eq!(kind, Kind::End as u8);
        let end = End::decode(payload.as_slice()).unwrap();
        (end.outcome(), end.error.map_or(0, |error| error.code))
    };
    let no_copy = (end::Outcome::NoCopy, 0);
    assert_eq!(outcome(&pull(b"unknown", 1, 1, 0)), no_copy);
    assert_eq!(outcome(&pull(b"object", put ^ 1, 200_000, 0)), no_copy, "another put of it");
    let refused = (end::Outcome::Refused, ErrorCode::InvalidRequest as u32);
    assert_eq!(outcome(&pull(b"object", put, 200_001, 0)), refused, "another size");
    assert_eq!(outcome(&pull(b"object", put, 200_000, 200_001)), refused, "beyond its end");
    assert_eq!(outcome(&pull(b"object", put, 200_000, u64::MAX)), refused, "far beyond its end");
    assert_eq!(outcome(&pull(b"object", put, 200_000, 200_000)), (end::Outcome::Complete, 0), "its end");
    peer.say(Kind::DigestRequest, &DigestRequest { id: b"unknown".to_vec().into(), put: 1 });
    assert_eq!(peer.hear().map(|(kind, _)| kind), Some(Kind::End as u8));

    for (what, said) in [
        ("an empty id", data_frame(Kind::Pull, &pull(b"", 1, 1, 0).encode_to_vec())),
        ("a long id", data_frame(Kind::Pull, &pull(&[7; 256], 1, 1, 0).encode_to_vec())),
        ("a pull that is no message", data_frame(Kind::Pull, &[0xff; 40])),
        ("a block that nobody asked for", data_frame(Kind::Block, &[0; 4096])),
        ("an end that nobody asked for", data_frame(Kind::End, &End::default().encode_to_vec())),
        ("a second hello", data_frame(Kind::Hello, &hello("hoplite", PROTOCOL_VERSION).encode_to_vec())),
        ("an oversized pull", data_frame_claiming(Kind::Pull as u8, 1, (64 << 10) + 1, b"")),
        ("eight zeros", vec![0; 8]),
        (
            "half a frame",
            data_frame(Kind::Pull, &pull(b"object", put, 200_000, 0).encode_to_vec())[..40].to_vec(),
        ),
    ] {
        let mut peer = RawPeer::greeted(&address);
        peer.send_bytes(&said);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
}

#[test]
fn a_receiver_that_stops_reading_blocks_nobody() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    let size = 24 << 20;
    let expected = bytes(2, size);
    client.put("object", &expected).unwrap();
    let put = client.get("object", PATIENCE).unwrap().put_id().0;
    let mut peer = RawPeer::greeted(&cluster.data_address(0));
    peer.say(
        Kind::Pull,
        &Pull { id: b"object".to_vec().into(), put, size_bytes: size as u64, offset_bytes: 0 },
    );
    await_that("the transfer begun", || client.status().unwrap().sent_bytes > 0);
    // Another one dies while it is sent to.
    let mut dying = RawPeer::greeted(&cluster.data_address(0));
    dying.say(
        Kind::Pull,
        &Pull { id: b"object".to_vec().into(), put, size_bytes: size as u64, offset_bytes: 0 },
    );
    assert_eq!(dying.hear().map(|(kind, _)| kind), Some(Kind::Block as u8));
    drop(dying);
    assert!(cluster.client(1).get("object", PATIENCE).unwrap()[..] == expected[..]);
    cluster.assert_serves();
    assert!(client.status().unwrap().sent_bytes < 4 * size as u64, "the peer took little of it");
    assert_eq!(client.delete(["object"], PATIENCE).unwrap(), 1, "a delete does not wait for the peer");
    await_that("all memory back", || {
        let status = client.status().unwrap();
        status.copies == 0 && status.free_bytes == status.capacity_bytes
    });
    cluster.assert_serves();
    peer.await_close();
}
