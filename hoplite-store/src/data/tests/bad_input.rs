use hoplite_core::checksum::crc32c;
use hoplite_core::id::ClusterId;
use hoplite_proto::data::encode_hop;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::{PROTOCOL_VERSION, v1};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::hops::hop;
use super::*;
use crate::data::connection::ConnectionError;

fn frame(kind: Kind, message: &impl Message) -> Vec<u8> {
    let payload = message.encode_to_vec();
    let mut bytes = Header::control(kind, &payload).unwrap().encode().to_vec();
    bytes.extend_from_slice(&payload);
    bytes
}

fn hello(version: u32, cluster: &str, node: &str) -> Vec<u8> {
    let hello =
        v1::DataHello { version, cluster: cluster.into(), node: node.into(), ..Default::default() };
    frame(Kind::Hello, &hello)
}

fn hello_of_cards(cards: usize, address: &str) -> Vec<u8> {
    let hello = v1::DataHello {
        version: PROTOCOL_VERSION,
        cluster: "test".into(),
        node: "tester".into(),
        rails: vec![address.to_owned(); cards],
        ..Default::default()
    };
    frame(Kind::Hello, &hello)
}

async fn send_until_closed(node: &TestNode, bytes: &[u8], and_then_close: Close) {
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    if and_then_close == Close::AfterSending {
        stream.shutdown().await.unwrap();
    }
    let mut answer = Vec::new();
    // An error counts as an end, because closing with unread bytes resets the connection.
    let _ = timeout(TIME_LIMIT, stream.read_to_end(&mut answer)).await.expect("the server closes");
}

async fn refusals(node: &TestNode, count: u64) {
    let counted = async {
        while read(&node.metrics.malformed_connections) < count {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIME_LIMIT, counted).await.expect("the refusal is counted");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    AfterSending,
    Never,
}

#[tokio::test]
async fn bad_addresses_of_cards_close_the_connection() {
    let sender = TestNode::start("a").await;
    for (cards, address) in [(17, "10.0.0.1:7400"), (2, "card"), (2, "10.0.0.1:0")] {
        let before = read(&sender.metrics.malformed_connections);
        send_until_closed(&sender, &hello_of_cards(cards, address), Close::Never).await;
        refusals(&sender, before + 1).await;
    }
    sender.stop().await;
}

#[tokio::test]
async fn bad_input_closes_only_its_connection() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content(5000);
    sender.test_store.add("x", &filled(&bytes));
    let good = hello(PROTOCOL_VERSION, "test", "tester");
    let after_hello = |frame: &[u8]| [good.as_slice(), frame].concat();
    let mut oversized = Header::control(Kind::Pull, b"x").unwrap().encode();
    oversized[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = crc32c(&oversized[..24]);
    oversized[24..].copy_from_slice(&crc.to_le_bytes());
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let no_id = v1::Pull::default();
    let beyond = v1::Pull {
        id: b"x".as_slice().into(),
        size_bytes: 9,
        offset_bytes: 10,
        ..v1::Pull::default()
    };
    let combine = encode_hop(&hop(&[]));
    let no_inputs = v1::Combine { inputs: Vec::new(), ..combine.clone() };
    let misaligned = v1::Combine { size_bytes: 6, ..combine.clone() };
    let truncated_message =
        [Header::control(Kind::Pull, &[0x0a, 99]).unwrap().encode().as_slice(), &[0x0a, 99]]
            .concat();
    let cases: Vec<(&str, Vec<u8>, Close)> = vec![
        ("garbage", content(1000), Close::Never),
        ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec(), Close::Never),
        ("eight zero bytes", vec![0; 8], Close::Never),
        ("connect and close", vec![], Close::AfterSending),
        ("truncated header", good[..11].to_vec(), Close::AfterSending),
        ("truncated hello", good[..good.len() - 3].to_vec(), Close::AfterSending),
        ("damaged hello", damaged, Close::Never),
        ("wrong version", hello(PROTOCOL_VERSION + 1, "test", "tester"), Close::Never),
        ("wrong cluster", hello(PROTOCOL_VERSION, "production", "tester"), Close::Never),
        ("bad node name", hello(PROTOCOL_VERSION, "test", "no such name!"), Close::Never),
        ("no hello", frame(Kind::Pull, &no_id), Close::Never),
        ("oversized length", oversized.to_vec(), Close::Never),
        ("oversized length later", after_hello(&oversized), Close::Never),
        ("garbage later", after_hello(&[0xff; 28]), Close::Never),
        ("second hello", after_hello(&good), Close::Never),
        ("a block", after_hello(&Header::block(0, 0, 0).unwrap().encode()), Close::Never),
        ("pull without an id", after_hello(&frame(Kind::Pull, &no_id)), Close::Never),
        ("pull beyond the end", after_hello(&frame(Kind::Pull, &beyond)), Close::Never),
        ("combine without inputs", after_hello(&frame(Kind::Combine, &no_inputs)), Close::Never),
        (
            "combine of halves of elements",
            after_hello(&frame(Kind::Combine, &misaligned)),
            Close::Never,
        ),
        ("combined", after_hello(&frame(Kind::Combined, &())), Close::Never),
        (
            "pull during a hop",
            after_hello(&[frame(Kind::Combine, &combine), frame(Kind::Pull, &no_id)].concat()),
            Close::Never,
        ),
        ("truncated message", after_hello(&truncated_message), Close::Never),
    ];
    let expected = cases.len() as u64;
    for (name, bytes, close) in cases {
        let before = read(&sender.metrics.malformed_connections);
        send_until_closed(&sender, &bytes, close).await;
        refusals(&sender, before + 1).await;
        assert_eq!(read(&sender.metrics.malformed_connections), before + 1, "{name}");
    }
    assert_eq!(read(&sender.metrics.malformed_connections), expected);
    let copy = empty(5000);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (5000, PullOutcome::Complete));
    assert!(prefix(&copy, 5000) == bytes);
    sender.stop().await;
}

#[tokio::test]
async fn a_silent_peer_is_closed_at_the_handshake_deadline() {
    let short_timeouts = DataConfig { handshake_timeout: Duration::from_millis(50), ..config("a") };
    let sender = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let part = hello(PROTOCOL_VERSION, "test", "tester");
    for bytes in [&[][..], &part[..11], &part[..part.len() - 1]] {
        send_until_closed(&sender, bytes, Close::Never).await;
    }
    refusals(&sender, 3).await;
    assert_eq!(read(&sender.metrics.malformed_connections), 3);
}

#[tokio::test]
async fn a_request_while_another_is_answered_closes_the_connection() {
    let sender = TestNode::start("a").await;
    sender.test_store.add("x", &empty(5000));
    let id = id("x").as_bytes().to_vec().into();
    let pull = v1::Pull { id, put: PUT.0, size_bytes: 5000, ..v1::Pull::default() };
    let mut connection = connect(&sender).await;
    connection.write_control(Kind::Pull, &pull).await.unwrap();
    sender.test_store.wait_for_serves(1).await;
    connection.write_control(Kind::Pull, &pull).await.unwrap();
    sender.test_store.wait_for_serves(0).await;
    let ended = timeout(TIME_LIMIT, connection.read_header()).await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::Closed | ConnectionError::Io(_))), "{ended:?}");
    assert_eq!(read(&sender.metrics.malformed_connections), 1);
}

#[tokio::test]
async fn connections_are_limited() {
    let small = DataConfig { max_connections: 2, ..config("a") };
    let sender = TestNode::start_with(small, Duration::ZERO).await;
    let receiver = TestNode::start("b").await;
    sender.test_store.add("x", &filled(&content(9)));
    let first = connect(&sender).await;
    let _second = connect(&sender).await;
    assert_eq!(receiver.pull(&sender, "x", &empty(9)).await, (0, PullOutcome::SenderUnreachable));
    assert_eq!(read(&sender.metrics.refused_connections), 1);
    drop(first);
    let served =
        async { while receiver.pull(&sender, "x", &empty(9)).await.1 != PullOutcome::Complete {} };
    timeout(TIME_LIMIT, served).await.unwrap();
}

#[tokio::test]
async fn another_cluster_is_refused_by_either_side() {
    let elsewhere = DataConfig { cluster: ClusterId::new("elsewhere").unwrap(), ..config("b") };
    let receiver = TestNode::start_with(elsewhere, Duration::ZERO).await;
    let sender = TestNode::start("a").await;
    sender.test_store.add("x", &filled(&content(9)));
    assert_eq!(receiver.pull(&sender, "x", &empty(9)).await, (0, PullOutcome::SenderUnreachable));
    assert_eq!(read(&sender.metrics.serves), 0);
}

enum BadMessage {
    Frame(Kind, u64, &'static [u8]),
    End(v1::end::Outcome),
    Bytes(&'static [u8]),
}

#[tokio::test]
async fn invalid_messages_of_a_sender_are_detected() {
    let bad_messages = [
        BadMessage::Frame(Kind::Block, 4, b"not the next byte"),
        BadMessage::Frame(Kind::Block, u64::MAX, b"so that the sum wraps around"),
        BadMessage::Frame(Kind::Block, 0, &[7; 101]),
        BadMessage::Frame(Kind::Block, 0, b""),
        BadMessage::Frame(Kind::Hello, 0, b""),
        BadMessage::End(v1::end::Outcome::Complete),
        BadMessage::End(v1::end::Outcome::Unspecified),
        BadMessage::Bytes(b"HPLD and then something else entirely"),
        BadMessage::Bytes(&[0; 64]),
    ];
    let receiver = TestNode::start("b").await;
    let bad_message_count = bad_messages.len() as u64;
    for bad_message in bad_messages {
        let (sender, address) = FakePeer::start("a").await;
        let copy = empty(100);
        let (pull, _) = receiver.start_pull(request("x", "a", address), &copy);
        let mut connection = sender.accept().await;
        connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        match bad_message {
            BadMessage::Frame(Kind::Block, offset, bytes) => {
                let header = Header::block(offset, bytes.len() as u64, crc32c(bytes)).unwrap();
                connection.write_raw(&[header.encode().as_slice(), bytes].concat()).await.unwrap();
            }
            BadMessage::Frame(kind, _, bytes) => {
                let header = Header::control(kind, bytes).unwrap();
                connection.write_raw(&[header.encode().as_slice(), bytes].concat()).await.unwrap();
            }
            BadMessage::End(outcome) => {
                let end = v1::End { outcome: outcome.into(), ..v1::End::default() };
                connection.write_control(Kind::End, &end).await.unwrap();
            }
            BadMessage::Bytes(bytes) => connection.write_raw(bytes).await.unwrap(),
        }
        assert_eq!(pull.await.unwrap(), (0, PullOutcome::Corrupt));
        assert_eq!(prefix(&copy, 100), [0; 100]);
    }
    assert_eq!(read(&receiver.metrics.corrupt_frames), bad_message_count);
}
