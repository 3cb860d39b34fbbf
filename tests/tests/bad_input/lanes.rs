//! Peers that misuse the further connections (lanes) of a stream.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use hoplite_client::blocking::Client;
use hoplite_proto::v1::{End, Lane, Lanes, Pull, end};
use hoplite_tests::cluster::{Cluster, Plan, await_that};
use hoplite_tests::contents::bytes;
use hoplite_tests::http::get;
use hoplite_tests::raw::{Kind, RawPeer};
use prost::Message;

use super::TIME_LIMIT;
use crate::lanes::await_request;

/// Large enough for a trial of more lanes on a fast machine.
const SIZE: usize = 96 << 20;

fn cluster() -> (Cluster, Client, Vec<u8>, Pull) {
    let store_arguments =
        ["--insecure", "--lanes", "16", "--metrics", "0"].map(str::to_owned).to_vec();
    let cluster =
        Cluster::start(Plan { memory: "128MiB".to_owned(), store_arguments, ..Plan::open() });
    let client = cluster.client(0);
    let contents = bytes(1, SIZE);
    client.put("object", &contents).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let pull =
        Pull { id: b"object".to_vec().into(), put, size_bytes: SIZE as u64, ..Pull::default() };
    (cluster, client, contents, pull)
}

fn read_stream(peer: &mut RawPeer) -> (Vec<u8>, Option<Lanes>) {
    let (mut contents, mut asked) = (Vec::new(), None);
    loop {
        let (kind, payload) = peer.receive_other().expect("the stream has an end");
        match kind {
            kind if kind == Kind::Block as u8 => contents.extend(payload),
            kind if kind == Kind::Lanes as u8 => {
                asked.get_or_insert(Lanes::decode(payload.as_slice()).unwrap());
            }
            kind => {
                assert_eq!(kind, Kind::End as u8);
                let end = End::decode(payload.as_slice()).unwrap();
                assert_eq!(end.outcome(), end::Outcome::Complete);
                return (contents, asked);
            }
        }
    }
}

fn outcome_of(peer: &mut RawPeer, key: &[u8]) -> end::Outcome {
    peer.send(Kind::Lane, &Lane { key: key.to_vec().into(), other_streams: u32::MAX });
    let (kind, payload) = peer.receive().expect("the store answers");
    assert_eq!(kind, Kind::End as u8);
    End::decode(payload.as_slice()).unwrap().outcome()
}

fn open_lanes(cluster: &Cluster) -> u64 {
    let address = cluster.stores[0].as_ref().unwrap().addresses().metrics.unwrap();
    let (_, text) = get(address, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix("hoplite_store_lanes "));
    line.expect("the metric exists").trim().parse().unwrap()
}

#[test]
fn peers_without_lanes_use_one_connection() {
    let (mut cluster, _client, contents, pull) = cluster();
    let address = cluster.data_address(0);
    for max_lanes in [0, 1] {
        let mut peer = RawPeer::greeted(&address);
        peer.send(Kind::Pull, &Pull { max_lanes, ..pull.clone() });
        let (read, asked) = read_stream(&mut peer);
        assert!(read == contents && asked.is_none());
    }
    cluster.assert_serves();
}

#[test]
fn peers_that_open_no_lanes_get_all_bytes_over_one_connection() {
    let (mut cluster, _client, contents, pull) = cluster();
    let address = cluster.data_address(0);
    let pull = Pull { max_lanes: u32::MAX, ..pull };
    let mut was_requested = false;
    await_that("the store asks for lanes", || {
        let mut peer = RawPeer::greeted(&address);
        peer.send(Kind::Pull, &pull);
        let (read, asked) = read_stream(&mut peer);
        assert!(read == contents, "each stream is whole");
        was_requested |= asked.is_some();
        was_requested
    });
    assert_eq!(open_lanes(&cluster), 0);
    cluster.assert_serves();
}

#[test]
fn forged_and_malformed_keys_join_nothing() {
    let (mut cluster, _client, _contents, pull) = cluster();
    let address = cluster.data_address(0);
    let (mut main, lanes) = await_request(&address, &Pull { max_lanes: 16, ..pull.clone() }, SIZE);
    let mut peer = RawPeer::greeted(&address);
    let mut forged = lanes.key.to_vec();
    forged[0] ^= 1;
    for key in [[0; 16].as_slice(), &[0xff; 16], &forged] {
        assert_eq!(outcome_of(&mut peer, key), end::Outcome::NoCopy);
    }
    for key in [&[][..], &lanes.key[..15], &[7; 17], &[7; 4096]] {
        let mut peer = RawPeer::greeted(&address);
        peer.send(Kind::Lane, &Lane { key: key.to_vec().into(), other_streams: 0 });
        peer.await_close();
    }
    assert_eq!(open_lanes(&cluster), 0, "no connection has joined the stream");
    while main.receive_other().expect("the stream has an end").0 != Kind::End as u8 {}
    assert_eq!(outcome_of(&mut peer, &lanes.key), end::Outcome::NoCopy);
    peer.send(Kind::Pull, &Pull { offset_bytes: SIZE as u64 - 100, ..pull });
    assert_eq!(
        peer.receive().map(|(kind, payload)| (kind, payload.len())),
        Some((Kind::Block as u8, 100))
    );
    cluster.assert_serves();
}

#[test]
fn silent_and_surplus_lanes_block_no_other_peer() {
    let (mut cluster, client, contents, pull) = cluster();
    let address = cluster.data_address(0);
    let (main, asked) = await_request(&address, &Pull { max_lanes: 2, ..pull }, SIZE);
    assert_eq!(asked.count, 1, "the peer allows two lanes");
    let mut lanes: Vec<RawPeer> = (0..8).map(|_| RawPeer::greeted(&address)).collect();
    for lane in &mut lanes {
        lane.send(Kind::Lane, &Lane { key: asked.key.clone(), other_streams: 0 });
    }
    assert!(cluster.client(1).get("object", TIME_LIMIT).unwrap()[..] == contents[..]);
    assert!(open_lanes(&cluster) <= 15 + 1, "those of the other store, and one");
    cluster.assert_serves();
    drop((main, lanes));
    await_that("the lanes end with their connections", || open_lanes(&cluster) == 0);
    assert_eq!(client.delete(["object"], TIME_LIMIT).unwrap(), 1);
    cluster.assert_serves();
}
