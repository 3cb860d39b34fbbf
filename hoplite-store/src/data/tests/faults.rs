use hoplite_core::checksum::crc32c;
use hoplite_core::error::Error;
use hoplite_net::TransportKind;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::data::connection::ConnectionError;
use crate::data::serving::{Ending, end_message};

/// More bytes than the socket buffers on the way hold.
pub(super) const BIG_BYTES: u64 = 48 << 20;

fn pull_message(name: &str, size_bytes: u64) -> v1::Pull {
    v1::Pull {
        id: id(name).as_bytes().to_vec().into(),
        put: PUT.0,
        size_bytes,
        ..v1::Pull::default()
    }
}

#[tokio::test]
async fn a_receiver_keeps_its_bytes_when_the_sender_dies() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content(100_000);
    let source = empty(100_000);
    source.buffer().write(0, &bytes);
    source.advance(40_960);
    sender.test_store.add("x", &source);
    let copy = empty(100_000);
    let (pull, _) = receiver.start_pull(sender.request("x"), &copy);
    arrived(&copy, 40_960).await;
    let test_store = Arc::clone(&sender.test_store);
    sender.stop().await;
    assert_eq!(pull.await.unwrap(), (40_960, PullOutcome::SenderUnreachable));
    assert!(prefix(&copy, 40_960) == bytes[..40_960]);
    test_store.wait_for_serves(0).await;

    let other = TestNode::start("c").await;
    other.test_store.add("x", &filled(&bytes));
    let request = PullRequest { offset_bytes: 40_960, ..other.request("x") };
    assert_eq!(
        receiver.start_pull(request, &copy).0.await.unwrap(),
        (100_000, PullOutcome::Complete)
    );
    assert!(prefix(&copy, 100_000) == bytes);
}

#[tokio::test]
async fn a_closed_port_at_the_senders_address_is_unreachable() {
    let receiver = TestNode::start("b").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(10));
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderUnreachable));
}

#[tokio::test]
async fn a_peer_of_another_name_at_the_senders_address_is_refused() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    sender.test_store.add("x", &filled(&content(10)));
    let (pull, _) = receiver.start_pull(request("x", "not-a", sender.address), &empty(10));
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderUnreachable));
}

#[tokio::test]
async fn a_copy_that_fails_ends_its_serves() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let source = empty(100_000);
    source.advance(8192);
    sender.test_store.add("x", &source);
    let copy = empty(100_000);
    let (pull, _) = receiver.start_pull(sender.request("x"), &copy);
    arrived(&copy, 8192).await;
    source.fail(Error::Deleted { id: id("x") });
    assert_eq!(pull.await.unwrap(), (8192, PullOutcome::SenderHasNoCopy));
    sender.test_store.wait_for_serves(0).await;
    assert_eq!(receiver.puller.idle_connections(), 1, "the connection is still good");
}

#[tokio::test]
async fn a_copy_that_fails_ends_also_a_serve_that_is_stuck() {
    let sender = TestNode::start("a").await;
    let source = empty(BIG_BYTES);
    source.complete();
    sender.test_store.add("x", &source);
    let mut receiver = connect(&sender).await;
    receiver.write_control(Kind::Pull, &pull_message("x", BIG_BYTES)).await.unwrap();
    sender.test_store.wait_for_serves(1).await;
    source.fail(Error::Deleted { id: id("x") });
    sender.test_store.wait_for_serves(0).await;
}

#[tokio::test]
async fn a_cancelled_pull_ends_at_once_and_so_does_the_serve() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let source = empty(100_000);
    source.advance(4096);
    sender.test_store.add("x", &source);
    let copy = empty(100_000);
    let (pull, cancel) = receiver.start_pull(sender.request("x"), &copy);
    arrived(&copy, 4096).await;
    cancel.cancel();
    assert_eq!(pull.await.unwrap(), (4096, PullOutcome::Cancelled));
    sender.test_store.wait_for_serves(0).await;
    assert_eq!(receiver.puller.idle_connections(), 0);
    assert_eq!(read(&sender.metrics.malformed_connections), 0);
}

#[tokio::test]
async fn a_silent_sender_counts_as_stalled() {
    let short_timeouts = DataConfig { silence_timeout: Duration::from_millis(100), ..config("b") };
    let receiver = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let (sender, address) = FakePeer::start("a").await;
    let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(100));
    let mut connection = sender.accept().await;
    connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderStalled));
}

#[tokio::test]
async fn a_silent_sender_is_left_early_if_another_one_is_known() {
    let receiver = TestNode::start("b").await;
    let (sender, address) = FakePeer::start("a").await;
    let silence_limit = Some(Duration::from_millis(100));
    let (pull, _) = receiver
        .start_pull(PullRequest { silence_limit, ..request("x", "a", address) }, &empty(100));
    let mut connection = sender.accept().await;
    connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    let silence_timeout = config("b").silence_timeout;
    let ended =
        tokio::time::timeout(silence_timeout / 2, pull).await.expect("long before the timeout");
    assert_eq!(ended.unwrap(), (0, PullOutcome::SenderStalled));
}

#[tokio::test]
async fn a_slow_sender_is_not_left_early_while_bytes_arrive() {
    let limit = Duration::from_secs(3);
    slow_sender(limit, Duration::ZERO, limit / 7).await;
}

#[tokio::test]
async fn the_limit_of_silence_begins_with_the_connection() {
    let limit = Duration::from_millis(500);
    slow_sender(limit, limit + Duration::from_millis(100), Duration::ZERO).await;
}

async fn slow_sender(silence_limit: Duration, until_accepted: Duration, between_bytes: Duration) {
    let receiver = TestNode::start("b").await;
    let (sender, address) = FakePeer::start("a").await;
    let silence_limit = Some(silence_limit);
    let copy = empty(8);
    let (pull, _) =
        receiver.start_pull(PullRequest { silence_limit, ..request("x", "a", address) }, &copy);
    tokio::time::sleep(until_accepted).await;
    let mut connection = sender.accept().await;
    connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    let header = Header::block(0, 8, crc32c(&[7; 8])).unwrap().encode();
    connection.write_raw(&header).await.unwrap();
    for _ in 0..8 {
        tokio::time::sleep(between_bytes).await;
        connection.write_raw(&[7]).await.unwrap();
    }
    connection.write_control(Kind::End, &end_message(Ending::Complete)).await.unwrap();
    assert_eq!(pull.await.unwrap(), (8, PullOutcome::Complete));
}

#[tokio::test]
async fn a_sender_that_is_silent_within_a_block_is_left_early() {
    let receiver = TestNode::start("b").await;
    let (sender, address) = FakePeer::start("a").await;
    let silence_limit = Some(Duration::from_millis(100));
    let (pull, _) =
        receiver.start_pull(PullRequest { silence_limit, ..request("x", "a", address) }, &empty(8));
    let mut connection = sender.accept().await;
    connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    let header = Header::block(0, 8, crc32c(&[7; 8])).unwrap().encode();
    connection.write_raw(&[&header[..], &[7]].concat()).await.unwrap();
    let silence_timeout = config("b").silence_timeout;
    let ended =
        tokio::time::timeout(silence_timeout / 2, pull).await.expect("long before the timeout");
    assert_eq!(ended.unwrap(), (0, PullOutcome::SenderStalled));
}

#[tokio::test]
async fn a_receiver_that_stops_reading_is_disconnected() {
    let short_timeouts =
        DataConfig { write_stall_timeout: Duration::from_millis(200), ..config("a") };
    let sender = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let source = empty(BIG_BYTES);
    source.complete();
    sender.test_store.add("x", &source);
    let mut receiver = connect(&sender).await;
    receiver.write_control(Kind::Pull, &pull_message("x", BIG_BYTES)).await.unwrap();
    sender.test_store.wait_for_serves(1).await;
    sender.test_store.wait_for_serves(0).await;
    assert!(read(&sender.metrics.sent_bytes) < BIG_BYTES);
}

#[tokio::test]
async fn a_receiver_that_dies_during_a_transfer_affects_no_other() {
    let (sender, other) = (TestNode::start("a").await, TestNode::start("b").await);
    let source = empty(BIG_BYTES);
    source.complete();
    sender.test_store.add("x", &source);
    for _ in 0..3 {
        let mut receiver = connect(&sender).await;
        receiver.write_control(Kind::Pull, &pull_message("x", BIG_BYTES)).await.unwrap();
        assert_eq!(receiver.read_header().await.unwrap().kind(), Kind::Block);
        drop(receiver);
        sender.test_store.wait_for_serves(0).await;
    }
    assert_eq!(
        other.pull(&sender, "x", &empty(BIG_BYTES)).await,
        (BIG_BYTES, PullOutcome::Complete)
    );
}

#[tokio::test]
async fn an_idle_connection_that_turns_out_dead_is_replaced() {
    let receiver = TestNode::start("b").await;
    let (sender, address) = FakePeer::start("a").await;
    let script = tokio::spawn(async move {
        let refusal = v1::End { outcome: v1::end::Outcome::NoCopy.into(), ..v1::End::default() };
        let mut first = sender.accept().await;
        first.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        first.write_control(Kind::End, &refusal).await.unwrap();
        first.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        drop(first);
        let mut second = sender.accept().await;
        second.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        second.write_control(Kind::End, &refusal).await.unwrap();
    });
    for _ in 0..2 {
        let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(100));
        assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderHasNoCopy));
    }
    timeout(TIME_LIMIT, script).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_replaced() {
    let short = DataConfig { server_idle_timeout: Duration::from_millis(20), ..config("a") };
    let sender = TestNode::start_with(short, Duration::ZERO).await;
    let receiver = TestNode::start("b").await;
    sender.test_store.add("x", &filled(&content(9)));
    let mut idle = connect(&sender).await;
    for _ in 0..2 {
        assert_eq!(receiver.pull(&sender, "x", &empty(9)).await, (9, PullOutcome::Complete));
        assert!(matches!(idle.read_header().await, Err(ConnectionError::Closed)));
        idle = connect(&sender).await;
    }
    assert_eq!(read(&sender.metrics.malformed_connections), 0);
}

pub(super) async fn flipping_proxy(target: SocketAddr, position: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (from, _) = listener.accept().await.unwrap();
        let to = TcpStream::connect(target).await.unwrap();
        let (mut from_read, mut from_write) = from.into_split();
        let (mut to_read, mut to_write) = to.into_split();
        let up = async move {
            let _ = tokio::io::copy(&mut from_read, &mut to_write).await;
        };
        let down = async move {
            let (mut passed, mut bytes) = (0, vec![0; 10_000]);
            while let Ok(length @ 1..) = to_read.read(&mut bytes).await {
                if (passed..passed + length).contains(&position) {
                    bytes[position - passed] ^= 0x10;
                }
                passed += length;
                if from_write.write_all(&bytes[..length]).await.is_err() {
                    break;
                }
            }
        };
        tokio::join!(up, down);
    });
    address
}

pub(super) fn damaged_positions() -> Vec<(usize, u64)> {
    let mut positions = vec![(150_000, 65_536), (5_000, 0), (60, 0)];
    if matches!(transport(), TransportKind::Tls(_)) {
        positions.pop();
    }
    positions
}

#[tokio::test]
async fn damaged_bytes_are_never_accepted() {
    let sender = TestNode::start("a").await;
    let bytes = content(300_000);
    sender.test_store.add("x", &filled(&bytes));
    for (position, least_valid) in damaged_positions() {
        let receiver = TestNode::start("b").await;
        let copy = empty(300_000);
        let proxy = flipping_proxy(sender.address, position).await;
        let (pull, _) = receiver.start_pull(request("x", "a", proxy), &copy);
        let (valid_bytes, outcome) = pull.await.unwrap();
        assert_eq!(outcome, PullOutcome::Corrupt, "position {position}");
        assert!((least_valid..=position as u64).contains(&valid_bytes), "{valid_bytes}");
        assert!(prefix(&copy, valid_bytes) == bytes[..valid_bytes as usize]);
        assert_eq!(copy.valid_bytes(), valid_bytes);
        assert_eq!(read(&receiver.metrics.corrupt_frames), 1);
        assert_eq!(receiver.puller.idle_connections(), 0, "the connection is of no more use");

        let request = PullRequest { offset_bytes: valid_bytes, ..sender.request("x") };
        assert_eq!(
            receiver.start_pull(request, &copy).0.await.unwrap(),
            (300_000, PullOutcome::Complete)
        );
        assert!(prefix(&copy, 300_000) == bytes);
    }
}
