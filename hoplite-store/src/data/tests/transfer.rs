use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::shard::PullOutcome;
use hoplite_shm::{Doorbell, Mapping};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::data::{CompareRequest, SMALL_BYTES};

#[tokio::test]
async fn objects_of_all_sizes_arrive() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let mut total_bytes = 0;
    for size_bytes in [0, 1, 255, 4095, 4096, 4097, (1 << 20) + 1, (5 << 20) + 3] {
        let bytes = content(size_bytes);
        let name = size_bytes.to_string();
        sender.test_store.add(&name, &filled(&bytes));
        let copy = empty(size_bytes as u64);
        let ended = receiver.pull(&sender, &name, &copy).await;
        assert_eq!(ended, (size_bytes as u64, PullOutcome::Complete));
        assert!(prefix(&copy, size_bytes as u64) == bytes, "{size_bytes} bytes differ");
        assert_eq!(copy.valid_bytes(), size_bytes as u64);
        total_bytes += size_bytes as u64;
    }
    assert_eq!(read(&sender.metrics.sent_bytes), total_bytes);
    assert_eq!(read(&receiver.metrics.received_bytes), total_bytes);
    assert_eq!((read(&sender.metrics.serves), read(&receiver.metrics.pulls)), (8, 8));
    assert_eq!(receiver.puller.idle_connections(), 1, "one connection serves all pulls in turn");
    sender.test_store.wait_for_serves(0).await;
    sender.stop().await;
}

#[tokio::test]
async fn connections_for_small_objects_carry_no_large_objects() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let puller = receiver.puller.for_small();
    let cancel = CancellationToken::new();
    for (name, size_bytes, ended) in [
        ("small", SMALL_BYTES, (SMALL_BYTES, PullOutcome::Complete)),
        ("large", SMALL_BYTES + 1, (0, PullOutcome::SenderHasNoCopy)),
        ("again", 1, (1, PullOutcome::Complete)),
    ] {
        let bytes = content(size_bytes as usize);
        sender.test_store.add(name, &filled(&bytes));
        let copy = empty(size_bytes);
        let request = sender.request(name);
        let pull = puller.pull(&request, &copy, &cancel);
        assert_eq!(timeout(TIME_LIMIT, pull).await.unwrap(), ended, "{name}");
        assert!(prefix(&copy, ended.0) == bytes[..ended.0 as usize]);
    }
    assert_eq!((puller.idle_connections(), receiver.puller.idle_connections()), (1, 0));
    sender.test_store.wait_for_serves(0).await;
    sender.stop().await;
}

#[tokio::test]
async fn transfers_update_the_link_estimate() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let assumed = LinkEstimate::default();
    assert_eq!(receiver.puller.link(), assumed);
    for (name, size_bytes) in [("small", 10_000), ("large", 8 << 20)] {
        sender.test_store.add(name, &filled(&content(size_bytes)));
        receiver.pull(&sender, name, &empty(size_bytes as u64)).await;
        let link = receiver.puller.link();
        assert_eq!(link.bytes_per_second != assumed.bytes_per_second, name == "large");
        assert_ne!(link.latency, assumed.latency);
    }
}

#[tokio::test]
async fn bytes_arrive_while_the_object_is_still_being_written() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content(40_000);
    let source = empty(40_000);
    sender.test_store.add("x", &source);
    let copy = empty(40_000);
    let (pull, _) = receiver.start_pull(sender.request("x"), &copy);
    let mut written = 0;
    for end in [4096, 8192, 20_480, 36_864, 40_000] {
        source.buffer().write(written, &bytes[written as usize..end]);
        written = end as u64;
        source.advance(written);
        arrived(&copy, written).await;
        assert!(prefix(&copy, written) == bytes[..end]);
    }
    assert_eq!(pull.await.unwrap(), (40_000, PullOutcome::Complete));
}

#[tokio::test]
async fn a_writing_worker_is_asked_to_ring_the_doorbell() {
    let (arena, extent) = arena(16_384);
    let buffer = arena.buffer(extent, 16_384).unwrap();
    buffer.initialise();
    let live = Arc::new(LiveCopy::new(buffer, Producer::Worker));
    let fd = arena.writable_fd().try_clone_to_owned().unwrap();
    let mut writer =
        Mapping::writable(fd, arena.capacity_bytes()).unwrap().writer(extent, 16_384).unwrap();
    assert_eq!(writer.advance(4096).unwrap(), Doorbell::Silent, "nobody waits yet");
    assert_eq!(live.beyond(0).await, Ok(4096), "what is there needs no waiting");
    assert_eq!(writer.advance(4096).unwrap(), Doorbell::Silent);
    assert_eq!(live.beyond(4096).await, Ok(8192));

    let waiter = tokio::spawn({
        let live = Arc::clone(&live);
        async move { live.beyond(8192).await }
    });
    tokio::task::yield_now().await;
    live.ring();
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished(), "a doorbell without progress is no news");
    assert_eq!(writer.advance(4096).unwrap(), Doorbell::Ring);
    assert!(!waiter.is_finished());
    live.ring();
    assert_eq!(timeout(TIME_LIMIT, waiter).await.unwrap().unwrap(), Ok(12_288));

    let waiter = tokio::spawn({
        let live = Arc::clone(&live);
        async move { live.beyond(12_288).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(
        writer.advance(4096).unwrap(),
        Doorbell::Silent,
        "the last block comes with the seal"
    );
    live.complete();
    assert_eq!(timeout(TIME_LIMIT, waiter).await.unwrap().unwrap(), Ok(16_384));
}

#[tokio::test]
async fn a_workers_header_does_not_complete_an_object() {
    for (size_bytes, head_bytes) in [(0, 0), (1, 0), (4096, 0), (12_288, 8192), (12_289, 12_288)] {
        let live = Arc::new(LiveCopy::new(buffer(size_bytes), Producer::Worker));
        live.buffer().publish(size_bytes);
        live.ring();
        assert_eq!(live.valid_bytes(), head_bytes);
        let mut rest = {
            let live = Arc::clone(&live);
            tokio::spawn(async move { live.beyond(head_bytes).await })
        };
        tokio::task::yield_now().await;
        live.ring();
        assert!(timeout(Duration::ZERO, &mut rest).await.is_err(), "{size_bytes} bytes");
        live.complete();
        assert_eq!(timeout(TIME_LIMIT, rest).await.unwrap().unwrap(), Ok(size_bytes));
        assert_eq!(live.valid_bytes(), size_bytes);
    }
}

#[tokio::test]
async fn a_forged_header_does_not_change_the_stores_progress() {
    const SIZE_BYTES: u64 = 16_384;
    let (arena, extent) = arena(SIZE_BYTES);
    let forge = |valid_bytes: u64| {
        let header = [valid_bytes.to_ne_bytes(), [0; 8]].concat();
        rustix::io::pwrite(arena.writable_fd(), &header, extent.offset_bytes + 16).unwrap();
    };
    let live = |producer| {
        let buffer = arena.buffer(extent, SIZE_BYTES).unwrap();
        buffer.initialise();
        LiveCopy::new(buffer, producer)
    };
    for producer in [Producer::Store, Producer::Reduce] {
        let live = live(producer);
        forge(SIZE_BYTES);
        assert_eq!((live.valid_bytes(), live.known_bytes()), (0, 0), "{producer:?}");
        live.advance(8192);
        forge(0);
        assert_eq!(timeout(TIME_LIMIT, live.beyond(0)).await.unwrap(), Ok(8192), "{producer:?}");
        live.complete();
        forge(0);
        assert_eq!(
            timeout(TIME_LIMIT, live.beyond(8192)).await.unwrap(),
            Ok(SIZE_BYTES),
            "{producer:?}"
        );
    }
    let live = live(Producer::Worker);
    forge(8192);
    assert_eq!(live.valid_bytes(), 8192);
    forge(0);
    assert_eq!(live.valid_bytes(), 8192);
    forge(SIZE_BYTES);
    assert_eq!(live.valid_bytes(), 12_288);
    live.complete();
    forge(0);
    assert_eq!(timeout(TIME_LIMIT, live.beyond(12_288)).await.unwrap(), Ok(SIZE_BYTES));
}

#[tokio::test(start_paused = true)]
async fn a_silenced_doorbell_does_not_hide_progress() {
    let (arena, extent) = arena(16_384);
    let buffer = arena.buffer(extent, 16_384).unwrap();
    buffer.initialise();
    let live = Arc::new(LiveCopy::new(buffer, Producer::Worker));
    let waiter = tokio::spawn({
        let live = Arc::clone(&live);
        async move { live.beyond(0).await }
    });
    tokio::task::yield_now().await;
    live.buffer().publish(8192);
    assert_eq!(timeout(TIME_LIMIT, waiter).await.unwrap().unwrap(), Ok(8192));
}

#[tokio::test]
async fn an_object_that_is_never_sealed_never_arrives() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    for size_bytes in [0, 4096, 20_000] {
        let source = Arc::new(LiveCopy::new(buffer(size_bytes), Producer::Worker));
        source.buffer().publish(size_bytes);
        let name = size_bytes.to_string();
        sender.test_store.add(&name, &source);
        let copy = empty(size_bytes);
        let (pull, _) = receiver.start_pull(sender.request(&name), &copy);
        sender.test_store.wait_for_serves(1).await;
        if size_bytes > 4096 {
            arrived(&copy, 16_384).await;
        }
        source.fail(Error::ObjectLost { id: id(&name) });
        let (_, outcome) = pull.await.unwrap();
        assert_eq!(outcome, PullOutcome::SenderHasNoCopy, "{size_bytes} bytes");
        sender.test_store.wait_for_serves(0).await;
    }
}

#[tokio::test]
async fn many_wait_for_one_copy_and_all_learn_of_its_end() {
    let live = empty(8192);
    let waiters: Vec<_> = (0..20_u64)
        .map(|i| {
            let live = Arc::clone(&live);
            tokio::spawn(async move { live.beyond(i % 2 * 4096).await })
        })
        .collect();
    tokio::task::yield_now().await;
    live.advance(4096);
    let error = Error::Deleted { id: id("x") };
    tokio::task::yield_now().await;
    live.fail(error.clone());
    live.fail(Error::ShuttingDown);
    for (i, waiter) in waiters.into_iter().enumerate() {
        let expected = if i % 2 == 0 { Ok(4096) } else { Err(error.clone()) };
        assert_eq!(timeout(TIME_LIMIT, waiter).await.unwrap().unwrap(), expected);
    }
    assert_eq!(live.beyond(0).await, Err(error), "the first error stays");
}

#[tokio::test]
async fn a_receiver_relays_what_it_is_still_receiving() {
    let nodes =
        [TestNode::start("a").await, TestNode::start("b").await, TestNode::start("c").await];
    let [a, b, c] = &nodes;
    let size_bytes = (3 << 20) + 5;
    let bytes = content(size_bytes);
    let copies = [0; 3].map(|_| empty(size_bytes as u64));
    a.test_store.add("x", &copies[0]);
    b.test_store.add("x", &copies[1]);
    let (to_b, _) = b.start_pull(a.request("x"), &copies[1]);
    let (to_c, _) = c.start_pull(b.request("x"), &copies[2]);
    copies[0].buffer().write(0, &bytes);
    copies[0].advance(1 << 20);
    arrived(&copies[2], 1 << 20).await;
    copies[0].complete();
    for pull in [to_b, to_c] {
        assert_eq!(pull.await.unwrap(), (size_bytes as u64, PullOutcome::Complete));
    }
    assert!(prefix(&copies[2], size_bytes as u64) == bytes);
    let sent = [a, b, c].map(|node| read(&node.metrics.sent_bytes));
    assert_eq!(sent, [size_bytes as u64, size_bytes as u64, 0]);
}

#[tokio::test]
async fn a_pull_resumes_where_another_one_ended() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content(100_000);
    sender.test_store.add("x", &filled(&bytes));
    let copy = empty(100_000);
    copy.buffer().write(0, &bytes[..8192]);
    copy.advance(8192);
    let request = PullRequest { offset_bytes: 8192, ..sender.request("x") };
    let (pull, _) = receiver.start_pull(request, &copy);
    assert_eq!(pull.await.unwrap(), (100_000, PullOutcome::Complete));
    assert!(prefix(&copy, 100_000) == bytes);
    assert_eq!(read(&receiver.metrics.received_bytes), 100_000 - 8192);
}

#[tokio::test]
async fn an_unknown_object_is_no_reason_to_close_the_connection() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let copy = empty(5000);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (0, PullOutcome::SenderHasNoCopy));
    sender.test_store.add("other size", &filled(&content(4999)));
    assert_eq!(
        receiver.pull(&sender, "other size", &copy).await,
        (0, PullOutcome::SenderHasNoCopy)
    );
    sender.test_store.add("x", &filled(&content(5000)));
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (5000, PullOutcome::Complete));
    assert_eq!(receiver.puller.idle_connections(), 1);
    assert_eq!(read(&receiver.metrics.corrupt_frames), 0);
}

#[tokio::test]
async fn idle_connections_are_bounded_and_closed_at_shutdown() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let source = empty(8192);
    sender.test_store.add("x", &source);
    let pulls: Vec<_> =
        (0..8).map(|_| receiver.start_pull(sender.request("x"), &empty(8192)).0).collect();
    sender.test_store.wait_for_serves(8).await;
    source.complete();
    for pull in pulls {
        assert_eq!(pull.await.unwrap(), (8192, PullOutcome::Complete));
    }
    assert_eq!(receiver.puller.idle_connections(), receiver.config.max_idle_per_peer);
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    receiver.puller.maintain(shutdown).await;
    assert_eq!(receiver.puller.idle_connections(), 0);
    assert_eq!(receiver.pull(&sender, "x", &empty(8192)).await, (8192, PullOutcome::Complete));
    assert_eq!(receiver.puller.idle_connections(), 0);
}

#[tokio::test]
async fn idle_connections_expire() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    sender.test_store.add("x", &filled(&content(8192)));
    receiver.pull(&sender, "x", &empty(8192)).await;
    tokio::time::pause();
    let shutdown = CancellationToken::new();
    let idle = receiver.config.pool_idle_timeout;
    let pass_time = async {
        tokio::time::advance(idle - Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
        assert_eq!(receiver.puller.idle_connections(), 1);
        tokio::time::advance(idle).await;
        tokio::task::yield_now().await;
        assert_eq!(receiver.puller.idle_connections(), 0);
        shutdown.cancel();
    };
    tokio::join!(receiver.puller.maintain(shutdown.clone()), pass_time);
}

#[tokio::test]
async fn a_slow_decision_does_not_look_like_a_dead_sender() {
    let slow = DataConfig { keepalive_interval: Duration::from_millis(20), ..config("a") };
    let sender = TestNode::start_with(slow, Duration::from_secs(3)).await;
    let short_timeouts = DataConfig { silence_timeout: Duration::from_secs(1), ..config("b") };
    let receiver = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    sender.test_store.add("x", &filled(&content(5000)));
    assert_eq!(receiver.pull(&sender, "x", &empty(5000)).await, (5000, PullOutcome::Complete));
}

#[tokio::test]
async fn digests_tell_equal_puts_from_different_ones() {
    let (sender, receiver) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content((2 << 20) + 77);
    let mut other = bytes.clone();
    other[1 << 20] ^= 1;
    let local = filled(&bytes);
    sender.test_store.add("equal", &filled(&bytes));
    sender.test_store.add("different", &filled(&other));
    let cancel = CancellationToken::new();
    for (name, expected) in [("equal", Some(true)), ("different", Some(false)), ("absent", None)] {
        let request = CompareRequest {
            id: id(name),
            put: PUT,
            holder: sender.config.node.clone(),
            holder_address: sender.address,
        };
        let equal =
            timeout(TIME_LIMIT, receiver.puller.compare(&request, &local, &cancel)).await.unwrap();
        assert_eq!(equal, expected, "{name}");
    }
    assert_eq!(receiver.puller.idle_connections(), 1);
    sender.test_store.wait_for_serves(0).await;
}
