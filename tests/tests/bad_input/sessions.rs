#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::net::TcpListener;
use std::thread::scope;

use bytes::Bytes;
use hoplite_proto::v1::{
    self, Agreement, AttemptId, Collective, Dtype, End, Enlist, MemberSource, Metadata, ReduceOp,
    Reject, SessionMember, Stop, Take, end,
};
use hoplite_tests::cluster::{Cluster, await_that};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::{Kind, RawPeer, data_block, data_frame, data_frame_claiming};
use prost::Message;

use super::TIME_LIMIT;

const SIZE: usize = 200_000;
const ATTEMPTS: usize = 4;

fn cluster() -> (Cluster, u64) {
    let cluster = Cluster::open(2);
    let client = cluster.client(0);
    client.put("object", &bytes(1, SIZE)).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    (cluster, put)
}

fn attempt(number: u64) -> Option<AttemptId> {
    Some(AttemptId { run: 1, number })
}

fn enlist(cluster: &Cluster, put: u64, address: String) -> Enlist {
    let member =
        |node: &str, address| SessionMember { node: node.to_owned(), address, ranks: vec![] };
    Enlist {
        target: b"target".to_vec().into(),
        attempt: attempt(1000),
        put: 1000,
        agreement: Some(Agreement {
            op: ReduceOp::Sum.into(),
            participants: 2,
            collective: Collective::Allreduce.into(),
            ..Agreement::default()
        }),
        size_bytes: SIZE as u64,
        metadata: Some(Metadata { dtype: Dtype::F32.into(), ..Metadata::default() }),
        radices: vec![2],
        frame_bytes: 16 << 10,
        members: vec![member("node-0", cluster.data_address(0)), member("raw", address)],
        index: 0,
        sources: vec![MemberSource { id: b"object".to_vec().into(), put }],
        timeout_ms: 2000,
        trace: Bytes::new(),
        account: "as it was planned".to_owned(),
    }
}

fn ended(peer: &mut RawPeer) -> End {
    let (kind, payload) = peer.receive_other().expect("the store answers");
    assert_eq!(kind, Kind::End as u8);
    End::decode(payload.as_slice()).unwrap()
}

fn await_no_target(cluster: &Cluster) {
    let client = cluster.client(0);
    await_that("the target gone", || {
        let status = client.status().unwrap();
        (status.copies, status.hops, status.combinations) == (1, 0, 0)
    });
}

type Change = fn(&mut Enlist);

#[test]
fn invalid_attempts_end_the_connection() {
    let (mut cluster, put) = cluster();
    let address = cluster.data_address(0);
    let right = enlist(&cluster, put, "127.0.0.1:9".to_owned());
    let changes: [(&str, Change); 22] = [
        ("no target", |enlist| enlist.target = vec![].into()),
        ("a long target", |enlist| enlist.target = vec![7; 256].into()),
        ("no agreement", |enlist| enlist.agreement = None),
        ("no collective", |enlist| enlist.agreement.as_mut().unwrap().collective = 0),
        ("no operation", |enlist| enlist.agreement.as_mut().unwrap().op = 0),
        ("no metadata", |enlist| enlist.metadata = None),
        ("plain bytes", |enlist| enlist.metadata.as_mut().unwrap().dtype = Dtype::Opaque.into()),
        ("no whole elements", |enlist| enlist.size_bytes = SIZE as u64 - 1),
        ("a schedule of others", |enlist| enlist.radices = vec![3]),
        ("a schedule without end", |enlist| enlist.radices = vec![u32::MAX; 300]),
        ("no frames", |enlist| enlist.frame_bytes = 0),
        ("large frames", |enlist| enlist.frame_bytes = 2 << 20),
        ("one member", |enlist| enlist.members.truncate(1)),
        ("many members", |enlist| enlist.members = vec![enlist.members[0].clone(); 257]),
        ("a member that is none", |enlist| enlist.index = 2),
        ("a node that is none", |enlist| enlist.members[1].node = "/".to_owned()),
        ("an address that is none", |enlist| enlist.members[1].address = "nowhere".to_owned()),
        ("no sources", |enlist| enlist.sources.clear()),
        ("many sources", |enlist| enlist.sources = vec![enlist.sources[0].clone(); 65]),
        ("a plan of no attempt", |enlist| enlist.attempt = None),
        ("an explanation for a terminal", |enlist| enlist.account = "\x1b[2J".to_owned()),
        ("parts without ranks", |enlist| {
            enlist.agreement.as_mut().unwrap().collective = Collective::Allgather.into();
        }),
    ];
    for (what, change) in changes {
        let mut enlist = right.clone();
        change(&mut enlist);
        let mut peer = RawPeer::greeted(&address);
        peer.send(Kind::Enlist, &enlist);
        peer.await_close();
        eprintln!("{what} was survived");
    }
    let beyond = Take { target: right.target.clone(), put: 1000, index: 256, ..Take::default() };
    for (what, bad_input) in [
        ("no message", data_frame(Kind::Enlist, &[0xff; 40])),
        ("an oversized plan", data_frame_claiming(Kind::Enlist as u8, 1, (64 << 10) + 1, b"")),
        ("half of one", data_frame(Kind::Enlist, &right.encode_to_vec())[..60].to_vec()),
        ("a word that nobody waits for", data_frame(Kind::Commit, b"")),
        ("a word with a payload", data_frame(Kind::Commit, b"x")),
        ("an end that nobody waits for", data_frame(Kind::Stop, &Stop::default().encode_to_vec())),
        (
            "a rejection without a reason",
            data_frame(Kind::Reject, &Reject::default().encode_to_vec()),
        ),
        ("what is asked for by nobody", data_frame(Kind::Take, &beyond.encode_to_vec())),
    ] {
        let mut peer = RawPeer::greeted(&address);
        peer.send_bytes(&bad_input);
        peer.finish();
        peer.await_close();
        eprintln!("{what} was survived");
    }
    await_no_target(&cluster);
    cluster.assert_serves();
}

#[test]
fn impossible_attempts_are_refused_without_leftovers() {
    let (mut cluster, put) = cluster();
    let mut peer = RawPeer::greeted(&cluster.data_address(0));
    let right = enlist(&cluster, put, "127.0.0.1:9".to_owned());
    let changes: [(&str, Change); 4] = [
        ("another put", |enlist| enlist.sources[0].put ^= 1),
        ("an unknown source", |enlist| enlist.sources[0].id = b"unknown".to_vec().into()),
        ("another size", |enlist| enlist.size_bytes -= 4),
        ("more than there is room for", |enlist| enlist.size_bytes = 1 << 40),
    ];
    for ((what, change), number) in changes.into_iter().zip(2000..) {
        let mut enlist = right.clone();
        (enlist.put, enlist.attempt) = (number, attempt(number));
        change(&mut enlist);
        peer.send(Kind::Enlist, &enlist);
        assert_eq!(ended(&mut peer).outcome(), end::Outcome::Refused, "{what}");
        await_no_target(&cluster);
    }
    let unknown =
        Take { target: right.target.clone(), put: 7, index: 1, offset_bytes: 1, ..Take::default() };
    peer.send(Kind::Take, &unknown);
    assert_eq!(ended(&mut peer).outcome(), end::Outcome::NoCopy);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut coordinator = RawPeer::greeted(&cluster.data_address(0));
    coordinator.send(
        Kind::Enlist,
        &Enlist { put: 3000, attempt: attempt(3000), ..enlist(&cluster, put, address) },
    );
    let _member = RawPeer::accepted(&listener);
    peer.send(Kind::Take, &Take { put: 3000, index: 0, offset_bytes: 0, ..unknown });
    assert_eq!(ended(&mut peer).outcome(), end::Outcome::NoCopy, "it is no member");
    drop(coordinator);
    await_no_target(&cluster);
    cluster.assert_serves();
}

#[test]
fn a_member_accepts_only_the_next_block_of_its_stream() {
    let (mut cluster, put) = cluster();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut damaged = data_block(0, &[0; 4096]);
    *damaged.last_mut().unwrap() ^= 1;
    let wrong = [
        ("a damaged block", damaged),
        ("a wrong position", data_block(4096, &[0; 4096])),
        ("a position without end", data_block(u64::MAX, &[0; 4096])),
        ("nothing", data_block(0, &[])),
        ("half an element", data_block(0, &[0; 4094])),
        ("more than a frame", data_block(0, &[0; (16 << 10) + 4])),
        ("what is no block", data_frame(Kind::Take, &Take::default().encode_to_vec())),
    ];
    for ((what, bad_input), number) in wrong.into_iter().zip(4000..) {
        let mut coordinator = RawPeer::greeted(&cluster.data_address(0));
        coordinator.send(
            Kind::Enlist,
            &Enlist {
                put: number,
                attempt: attempt(number),
                ..enlist(&cluster, put, address.clone())
            },
        );
        scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ATTEMPTS {
                    let mut sender = RawPeer::accepted(&listener);
                    let (kind, payload) = sender.receive().expect("the store asks");
                    assert_eq!(kind, Kind::Take as u8);
                    let take = Take::decode(payload.as_slice()).unwrap();
                    assert_eq!((take.put, take.index, take.offset_bytes), (number, 0, 0), "{what}");
                    sender.send_bytes(&bad_input);
                    sender.await_close();
                }
            });
            let end = ended(&mut coordinator);
            assert_eq!(end.outcome(), end::Outcome::InputFailed, "{what}");
            let failed = end.failed_input.unwrap();
            assert_eq!((failed.index, failed.outcome()), (1, v1::PullOutcome::Corrupt), "{what}");
        });
        await_no_target(&cluster);
    }
    assert!(cluster.client(0).status().unwrap().corrupt_frames >= ATTEMPTS as u64);
    cluster.assert_serves();
}
