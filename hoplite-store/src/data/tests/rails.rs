use hoplite_core::plan::lanes::Start;
use hoplite_core::plan::rails::RAIL_TIMEOUT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::*;
use crate::advertised::Advertised;
use crate::data::RailTable;

const CARDS: [&str; 2] = ["127.0.0.1:0", "127.0.0.2:0"];

async fn listeners() -> Vec<TcpListener> {
    let mut listeners = Vec::new();
    for card in CARDS {
        listeners.push(TcpListener::bind(card).await.unwrap());
    }
    listeners
}

fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

async fn start(name: &str, listeners: Vec<TcpListener>, advertised: &[SocketAddr]) -> TestNode {
    let names: Vec<_> = advertised.iter().map(ToString::to_string).collect();
    let advertised = Advertised::find(&names, &addresses(&listeners)).await.unwrap();
    let (address, own) = (advertised.address(), advertised.own());
    let config = DataConfig {
        max_lanes: 2,
        first_lanes: Start { lanes: 2, is_settled: true },
        rails: Arc::new(RailTable::new(own)),
        advertised: Some(advertised),
        ..config(name)
    };
    TestNode { address, ..TestNode::start_at(listeners, config, Duration::ZERO).await }
}

/// A relay in front of each card of a store. A frozen relay holds all bytes back.
struct Relays {
    advertised: Vec<SocketAddr>,
    frozen: Vec<watch::Sender<bool>>,
}

impl Relays {
    async fn start(targets: Vec<SocketAddr>) -> Self {
        let (mut advertised, mut frozen) = (Vec::new(), Vec::new());
        for (listener, target) in listeners().await.into_iter().zip(targets) {
            advertised.push(listener.local_addr().unwrap());
            let (sender, receiver) = watch::channel(false);
            frozen.push(sender);
            tokio::spawn(async move {
                while let Ok((from, _)) = listener.accept().await {
                    let to = TcpStream::connect(target).await.unwrap();
                    let ((from_read, from_write), (to_read, to_write)) =
                        (from.into_split(), to.into_split());
                    tokio::spawn(pass(from_read, to_write, receiver.clone()));
                    tokio::spawn(pass(to_read, from_write, receiver.clone()));
                }
            });
        }
        Self { advertised, frozen }
    }

    fn freeze(&self, card: usize, is_frozen: bool) {
        self.frozen[card].send_replace(is_frozen);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, frozen: watch::Receiver<bool>) {
    let (mut frozen, mut bytes) = (frozen, vec![0; 10_000]);
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let _ = frozen.wait_for(|is_frozen| !is_frozen).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            break;
        }
    }
}

fn received(node: &TestNode) -> Vec<u64> {
    node.config.rails.reports().iter().map(|card| card.received_bytes).collect()
}

fn sent(node: &TestNode) -> Vec<u64> {
    node.config.rails.reports().iter().map(|card| card.sent_bytes).collect()
}

#[tokio::test]
async fn a_transfer_uses_all_network_cards() {
    let sender = start("a", listeners().await, &[]).await;
    let receiver = start("b", listeners().await, &[]).await;
    let bytes = content(16 << 20);
    let size = bytes.len() as u64;
    sender.test_store.add("x", &filled(&bytes));
    for _ in 0..2 {
        let copy = empty(size);
        assert_eq!(receiver.pull(&sender, "x", &copy).await, (size, PullOutcome::Complete));
        assert!(prefix(&copy, size) == bytes);
    }
    assert_eq!(sent(&sender), received(&receiver), "each card reaches one of the peer");
    assert_eq!(sent(&sender).iter().sum::<u64>(), 2 * size);
    assert!(sent(&sender).iter().all(|bytes| *bytes > size / 8), "{:?}", sent(&sender));
    assert_eq!(receiver.puller.idle_connections(), 2);
    assert!(receiver.config.rails.reports().iter().all(|card| card.connections == 0));
    sender.stop().await;
}

#[tokio::test]
async fn a_receiver_with_one_network_card_reaches_all_of_the_sender() {
    let sender = start("a", listeners().await, &[]).await;
    let one = DataConfig { max_lanes: 2, ..config("b") };
    let receiver = TestNode::start_with(one, Duration::ZERO).await;
    let bytes = content(4 << 20);
    sender.test_store.add("x", &filled(&bytes));
    let copy = empty(4 << 20);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (4 << 20, PullOutcome::Complete));
    assert!(prefix(&copy, 4 << 20) == bytes);
    assert!(sent(&sender).iter().all(|bytes| *bytes > 0), "{:?}", sent(&sender));
    assert!(received(&receiver).is_empty(), "it has no cards to count");
    sender.stop().await;
}

/// A transfer whose receiver has a quarter, and whose sender has a third.
struct Running {
    bytes: Vec<u8>,
    source: Arc<LiveCopy>,
    copy: Arc<LiveCopy>,
    pull: JoinHandle<(u64, PullOutcome)>,
}

impl Running {
    async fn start(sender: &TestNode, receiver: &TestNode) -> Self {
        let bytes = content(24 << 20);
        let size = bytes.len() as u64;
        let (source, copy) = (empty(size), empty(size));
        sender.test_store.add("x", &source);
        let (pull, _) = receiver.start_pull(sender.request("x"), &copy);
        source.buffer().write(0, &bytes);
        source.advance(size / 3);
        arrived(&copy, size / 4).await;
        Self { bytes, source, copy, pull }
    }
}

/// Cuts one card in the middle of a transfer, and restores it after the next one.
async fn survives_a_cut(card: usize) {
    let behind = listeners().await;
    let relays = Relays::start(addresses(&behind)).await;
    let sender = start("a", behind, &relays.advertised).await;
    let receiver = start("b", listeners().await, &[]).await;
    let Running { bytes, source, copy, pull } = Running::start(&sender, &receiver).await;
    let size = bytes.len() as u64;
    assert!(received(&receiver).iter().all(|bytes| *bytes > 0), "both cards are in use");
    relays.freeze(card, true);
    source.complete();
    assert_eq!(pull.await.unwrap(), (size, PullOutcome::Complete));
    assert!(prefix(&copy, size) == bytes);
    assert_eq!(receiver.config.rails.failed_routes(), 1);
    let failed: Vec<_> =
        receiver.config.rails.reports().iter().map(|card| card.failed_routes).collect();
    assert_eq!((failed[card], failed[1 - card]), (1, 0));

    let copy = empty(size);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (size, PullOutcome::Complete));
    assert_eq!(receiver.config.rails.failed_routes(), 1, "it was not needed");
    relays.freeze(card, false);
    let shutdown = CancellationToken::new();
    let again = async {
        while receiver.config.rails.failed_routes() > 0 {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
    };
    let both = async { tokio::join!(again, receiver.puller.keep_testing_routes(shutdown.clone())) };
    timeout(TIME_LIMIT, both).await.expect("the card is in use again");
    let (before, copy) = (received(&receiver)[card], empty(size));
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (size, PullOutcome::Complete));
    assert!(received(&receiver)[card] > before);
    sender.stop().await;
}

#[tokio::test]
async fn a_transfer_survives_the_card_of_its_request() {
    survives_a_cut(0).await;
}

#[tokio::test]
async fn a_transfer_survives_the_card_of_another_lane() {
    survives_a_cut(1).await;
}

#[tokio::test]
async fn an_empty_object_is_complete_only_when_the_sender_says_so() {
    let sender = start("a", listeners().await, &[]).await;
    let receiver = start("b", listeners().await, &[]).await;
    sender.test_store.add("x", &filled(&content(9)));
    assert_eq!(receiver.pull(&sender, "x", &empty(9)).await, (9, PullOutcome::Complete));
    let source = empty(0);
    sender.test_store.add("y", &source);
    let copy = empty(0);
    let (mut pull, _) = receiver.start_pull(sender.request("y"), &copy);
    assert!(timeout(2 * RAIL_TIMEOUT, &mut pull).await.is_err(), "the object is not complete");
    source.complete();
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::Complete));
    sender.stop().await;
}

#[tokio::test]
async fn a_transfer_over_one_connection_moves_to_another_card() {
    let behind = listeners().await;
    let relays = Relays::start(addresses(&behind)).await;
    let sender = start("a", behind, &relays.advertised).await;
    let listeners = listeners().await;
    let advertised = Advertised::find(&[], &addresses(&listeners)).await.unwrap();
    let config = DataConfig {
        rails: Arc::new(RailTable::new(advertised.own())),
        advertised: Some(advertised),
        ..config("b")
    };
    let receiver = TestNode::start_at(listeners, config, Duration::ZERO).await;
    let Running { bytes, source, copy, pull } = Running::start(&sender, &receiver).await;
    let size = bytes.len() as u64;
    relays.freeze(0, true);
    source.complete();
    assert_eq!(pull.await.unwrap(), (size, PullOutcome::Complete));
    assert!(prefix(&copy, size) == bytes);
    assert!(received(&receiver).iter().all(|bytes| *bytes > 0));
    sender.stop().await;
}

#[tokio::test]
async fn a_card_behind_a_firewall_costs_a_short_wait() {
    let behind = listeners().await;
    let relays = Relays::start(addresses(&behind)).await;
    let sender = start("a", behind, &relays.advertised).await;
    let receiver = start("b", listeners().await, &[]).await;
    relays.freeze(1, true);
    let bytes = content(4 << 20);
    sender.test_store.add("x", &filled(&bytes));
    for _ in 0..3 {
        let copy = empty(4 << 20);
        assert_eq!(receiver.pull(&sender, "x", &copy).await, (4 << 20, PullOutcome::Complete));
        assert!(prefix(&copy, 4 << 20) == bytes);
    }
    assert_eq!(received(&receiver)[1], 0);
    sender.stop().await;
}

#[tokio::test]
async fn requests_avoid_a_broken_card_even_if_it_is_the_main_one() {
    let behind = listeners().await;
    let relays = Relays::start(addresses(&behind)).await;
    let sender = start("a", behind, &relays.advertised).await;
    let receiver = start("b", listeners().await, &[]).await;
    sender.test_store.add("x", &filled(&content(9)));
    assert_eq!(receiver.pull(&sender, "x", &empty(9)).await, (9, PullOutcome::Complete));
    relays.freeze(0, true);
    receiver.puller.forget_idle();
    let copy = empty(9);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (9, PullOutcome::Complete));
    assert_eq!(receiver.config.rails.failed_routes(), 1);
    assert_eq!(sent(&sender), [9, 9]);
    sender.stop().await;
}
