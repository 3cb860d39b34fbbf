//! Live senders without bytes, with and without a live producer.

use super::*;

const SIZE_BYTES: u64 = 100_000;

async fn start(name: &str) -> TestNode {
    let config = DataConfig {
        keepalive_interval: Duration::from_millis(50),
        silence_timeout: Duration::from_millis(900),
        stall_timeout: Duration::from_millis(1000),
        ..config(name)
    };
    TestNode::start_with(config, Duration::ZERO).await
}

async fn pull_in_cycle(valid_bytes: u64) {
    let nodes = [start("a").await, start("b").await];
    let copies = [empty(SIZE_BYTES), empty(SIZE_BYTES)];
    for (node, copy) in nodes.iter().zip(&copies) {
        copy.advance(valid_bytes);
        node.test_store.add("x", copy);
    }
    let begun = tokio::time::Instant::now();
    let pull = |index: usize| {
        let request = PullRequest { offset_bytes: valid_bytes, ..nodes[1 - index].request("x") };
        nodes[index].start_pull(request, &copies[index]).0
    };
    for pull in [pull(0), pull(1)] {
        assert_eq!(pull.await.unwrap(), (valid_bytes, PullOutcome::SenderStalled));
    }
    assert!(begun.elapsed() >= nodes[0].config.stall_timeout);
    assert!(begun.elapsed() < TIME_LIMIT, "{:?}", begun.elapsed());
    for node in &nodes {
        node.test_store.wait_for_serves(0).await;
    }
}

#[tokio::test]
async fn a_cycle_of_pulls_ends() {
    pull_in_cycle(0).await;
    pull_in_cycle(40_960).await;
}

#[tokio::test]
async fn a_cycle_with_signs_of_the_producer_ends() {
    let (a, b, producer) = (start("a").await, start("b").await, start("p").await);
    let copies = [empty(SIZE_BYTES), empty(SIZE_BYTES)];
    a.test_store.add("x", &copies[0]);
    b.test_store.add("x", &copies[1]);
    producer.test_store.add("x", &Arc::new(LiveCopy::new(buffer(SIZE_BYTES), Producer::Worker)));
    let (from_producer, _) = a.start_pull(producer.request("x"), &copies[0]);
    let (from_a, _) = b.start_pull(a.request("x"), &copies[1]);
    let mut signs = copies[1].signs();
    for _ in 0..3 {
        timeout(TIME_LIMIT, signs.changed()).await.unwrap().unwrap();
    }
    producer.stop().await;
    assert_eq!(from_producer.await.unwrap(), (0, PullOutcome::SenderUnreachable));
    let (from_b, _) = a.start_pull(b.request("x"), &copies[0]);
    for pull in [from_a, from_b] {
        assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderStalled));
    }
}

#[tokio::test]
async fn relays_wait_for_a_producer_that_is_slow() {
    let nodes = [start("a").await, start("b").await, start("c").await, start("d").await];
    let source = Arc::new(LiveCopy::new(buffer(SIZE_BYTES), Producer::Worker));
    let copies = [Arc::clone(&source), empty(SIZE_BYTES), empty(SIZE_BYTES), empty(SIZE_BYTES)];
    for (node, copy) in nodes.iter().zip(&copies) {
        node.test_store.add("x", copy);
    }
    let pulls: Vec<_> = (1..4)
        .map(|index| nodes[index].start_pull(nodes[index - 1].request("x"), &copies[index]).0)
        .collect();
    let bytes = content(SIZE_BYTES as usize);
    source.buffer().write(0, &bytes);
    for valid_bytes in [40_960, 81_920] {
        tokio::time::sleep(nodes[0].config.stall_timeout * 3).await;
        assert!(pulls.iter().all(|pull| !pull.is_finished()));
        source.buffer().publish(valid_bytes);
        source.ring();
        arrived(&copies[3], valid_bytes).await;
    }
    source.complete();
    for pull in pulls {
        assert_eq!(pull.await.unwrap(), (SIZE_BYTES, PullOutcome::Complete));
    }
    assert!(prefix(&copies[3], SIZE_BYTES) == bytes);
}

#[tokio::test]
async fn a_relay_without_a_producer_is_left() {
    let (relay, receiver) = (start("a").await, start("b").await);
    relay.test_store.add("x", &empty(SIZE_BYTES));
    let ended = receiver.pull(&relay, "x", &empty(SIZE_BYTES)).await;
    assert_eq!(ended, (0, PullOutcome::SenderStalled));
    assert_eq!(receiver.puller.idle_connections(), 0);
}
