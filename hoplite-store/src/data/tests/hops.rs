use hoplite_core::dtype::Dtype;
use hoplite_core::error::Error;
use hoplite_core::node::{HopFailure, HopInput};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::stall::Sign;
use hoplite_proto::data::encode_hop;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::v1;

use super::*;
use crate::data::connection::ConnectionError;

pub(super) fn hop(inputs: &[&str]) -> Hop {
    let input = |name: &&str| HopInput {
        id: id(name),
        put: PUT,
        size_bytes: 16,
        base_bytes: 8,
        node: NodeId::new("a").unwrap(),
        address: "127.0.0.1:7402".parse().unwrap(),
        is_hop: true,
    };
    Hop {
        output: ObjectId::of_hop(PUT),
        put: PUT,
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        size_bytes: 8,
        offset_bytes: 4,
        inputs: if inputs.is_empty() {
            vec![input(&"x")]
        } else {
            inputs.iter().map(input).collect()
        },
        timeout: Duration::from_secs(5),
    }
}

struct Directed {
    task: JoinHandle<()>,
    ended: CancellationToken,
    reports: mpsc::UnboundedReceiver<HopReport>,
}

impl Directed {
    fn start(coordinator: &TestNode, host: &str, address: SocketAddr, hop: Hop) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let (puller, ended) = (Arc::clone(&coordinator.puller), CancellationToken::new());
        let (peer, token) = ((NodeId::new(host).unwrap(), address), ended.clone());
        let task = tokio::spawn(async move {
            puller
                .direct(&HopRequest { spec: hop, trace: None }, &peer, &token, &|report| {
                    sender.send(report).unwrap()
                })
                .await;
        });
        Self { task, ended, reports }
    }

    async fn report(&mut self) -> Option<HopReport> {
        timeout(TIME_LIMIT, self.reports.recv()).await.unwrap()
    }

    async fn end(mut self) {
        self.ended.cancel();
        timeout(TIME_LIMIT, self.task).await.unwrap().unwrap();
        assert_eq!(self.reports.recv().await, None);
    }
}

async fn receive_hop_request(host: &mut TestNode) -> (Hop, mpsc::Sender<HopReport>) {
    timeout(TIME_LIMIT, host.hops.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_hop_lasts_until_it_is_released() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    for _ in 0..2 {
        let mut directed = Directed::start(&coordinator, "h", host.address, hop(&["x", "y"]));
        let (received, reports) = receive_hop_request(&mut host).await;
        assert_eq!(received, hop(&["x", "y"]));
        reports.send(HopReport::Complete).await.unwrap();
        assert_eq!(directed.report().await, Some(HopReport::Complete));
        host.test_store.wait_for_hosted(1).await;
        directed.end().await;
        assert_eq!(*host.test_store.hosted.borrow(), 0);
        assert_eq!(coordinator.puller.idle_connections(), 1);
    }
    host.test_store.add("x", &filled(&content(5000)));
    assert_eq!(coordinator.pull(&host, "x", &empty(5000)).await, (5000, PullOutcome::Complete));
    assert_eq!(coordinator.puller.idle_connections(), 1);
    assert_eq!(read(&host.metrics.malformed_connections), 0);
}

#[tokio::test]
async fn a_hop_is_released_before_it_is_complete() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    let directed = Directed::start(&coordinator, "h", host.address, hop(&[]));
    let (_, _reports) = receive_hop_request(&mut host).await;
    directed.end().await;
    host.test_store.wait_for_hosted(0).await;
    assert_eq!(coordinator.puller.idle_connections(), 1);
}

#[tokio::test]
async fn a_hop_released_before_its_request_is_not_requested() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    let directed = Directed::start(&coordinator, "h", host.address, hop(&[]));
    directed.end().await;
    assert!(host.hops.try_recv().is_err());
}

#[tokio::test]
async fn failures_travel_and_the_connection_stays() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    let failures = [
        HopFailure::Input { index: 1, outcome: PullOutcome::SenderHasNoCopy },
        HopFailure::Input { index: 0, outcome: PullOutcome::Corrupt },
        HopFailure::Refused(Error::StoreFull {
            needed_bytes: 3,
            free_bytes: 1,
            capacity_bytes: 2,
            holders: String::new(),
        }),
    ];
    for failure in failures {
        let mut directed = Directed::start(&coordinator, "h", host.address, hop(&["x", "y"]));
        let (_, reports) = receive_hop_request(&mut host).await;
        reports.send(HopReport::Complete).await.unwrap();
        reports.send(HopReport::Failed(failure.clone())).await.unwrap();
        assert_eq!(directed.report().await, Some(HopReport::Complete));
        assert_eq!(directed.report().await, Some(HopReport::Failed(failure)));
        host.test_store.wait_for_hosted(0).await;
        directed.end().await;
        assert_eq!(coordinator.puller.idle_connections(), 1);
    }
    assert_eq!(read(&host.metrics.malformed_connections), 0);
}

#[tokio::test]
async fn a_release_that_crosses_a_failure_is_ignored() {
    let mut host = TestNode::start("h").await;
    host.test_store.add("x", &filled(&content(100)));
    let mut coordinator = connect(&host).await;
    coordinator.write_control(Kind::Combine, &encode_hop(&hop(&[]))).await.unwrap();
    let (_, reports) = receive_hop_request(&mut host).await;
    reports.send(HopReport::Failed(HopFailure::Refused(Error::ShuttingDown))).await.unwrap();
    host.test_store.wait_for_hosted(0).await;
    coordinator.write_keepalive(Sign::default()).await.unwrap();
    coordinator.write_control(Kind::Release, &()).await.unwrap();
    let pull =
        v1::Pull { id: b"x".as_slice().into(), put: PUT.0, size_bytes: 100, ..v1::Pull::default() };
    coordinator.write_control(Kind::Pull, &pull).await.unwrap();
    coordinator.read_expected::<()>(Kind::Keepalive).await.unwrap();
    let end = coordinator.read_expected::<v1::End>(Kind::End).await.unwrap();
    assert_eq!(end.outcome(), v1::end::Outcome::Refused);
    assert_eq!(coordinator.read_header().await.unwrap().kind(), Kind::Block);
    assert_eq!(read(&host.metrics.malformed_connections), 0);
}

#[tokio::test]
async fn both_sides_send_keepalives() {
    let (often, silence) = (Duration::from_millis(20), Duration::from_secs(1));
    let lively = |name| DataConfig {
        keepalive_interval: often,
        silence_timeout: silence,
        write_stall_timeout: silence,
        ..config(name)
    };
    let mut host = TestNode::start_with(lively("h"), Duration::ZERO).await;
    let coordinator = TestNode::start_with(lively("c"), Duration::ZERO).await;
    let mut directed = Directed::start(&coordinator, "h", host.address, hop(&[]));
    let (_, reports) = receive_hop_request(&mut host).await;
    tokio::time::sleep(silence * 2).await;
    reports.send(HopReport::Complete).await.unwrap();
    assert_eq!(directed.report().await, Some(HopReport::Complete));
    tokio::time::sleep(silence * 2).await;
    assert_eq!(*host.test_store.hosted.borrow(), 1);
    directed.end().await;
}

#[tokio::test]
async fn a_coordinator_that_vanishes_frees_its_hop() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    for report in [None, Some(HopReport::Complete)] {
        let directed = Directed::start(&coordinator, "h", host.address, hop(&[]));
        let (_, reports) = receive_hop_request(&mut host).await;
        if let Some(report) = report {
            reports.send(report).await.unwrap();
        }
        directed.task.abort();
        host.test_store.wait_for_hosted(0).await;
    }
    assert_eq!(coordinator.puller.idle_connections(), 0);
}

#[tokio::test]
async fn a_coordinator_that_falls_silent_frees_its_hop() {
    let short_timeouts = DataConfig { silence_timeout: Duration::from_millis(100), ..config("h") };
    let mut host = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let mut coordinator = connect(&host).await;
    coordinator.write_control(Kind::Combine, &encode_hop(&hop(&[]))).await.unwrap();
    let (_, _reports) = receive_hop_request(&mut host).await;
    host.test_store.wait_for_hosted(0).await;
    coordinator.read_expected::<()>(Kind::Keepalive).await.unwrap();
    let ended = timeout(TIME_LIMIT, coordinator.read_header()).await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::Closed)), "{ended:?}");
}

#[tokio::test]
async fn a_request_during_a_hop_ends_it() {
    let mut host = TestNode::start("h").await;
    let mut coordinator = connect(&host).await;
    coordinator.write_control(Kind::Combine, &encode_hop(&hop(&[]))).await.unwrap();
    let (_, _reports) = receive_hop_request(&mut host).await;
    coordinator.write_control(Kind::Combine, &encode_hop(&hop(&[]))).await.unwrap();
    host.test_store.wait_for_hosted(0).await;
    assert!(host.hops.try_recv().is_err());
    coordinator.read_expected::<()>(Kind::Keepalive).await.unwrap();
    assert!(timeout(TIME_LIMIT, coordinator.read_header()).await.unwrap().is_err());
    assert_eq!(read(&host.metrics.malformed_connections), 1);
}

#[tokio::test]
async fn a_host_that_vanishes_has_failed() {
    let (mut host, coordinator) = (TestNode::start("h").await, TestNode::start("c").await);
    let mut directed = Directed::start(&coordinator, "h", host.address, hop(&[]));
    let (_, _reports) = receive_hop_request(&mut host).await;
    let (address, test_store) = (host.address, Arc::clone(&host.test_store));
    host.stop().await;
    assert_eq!(directed.report().await, Some(HopReport::Failed(HopFailure::Unreachable)));
    directed.end().await;
    assert_eq!(*test_store.hosted.borrow(), 0);
    let mut directed = Directed::start(&coordinator, "h", address, hop(&[]));
    assert_eq!(directed.report().await, Some(HopReport::Failed(HopFailure::Unreachable)));
}

#[tokio::test]
async fn a_silent_or_malformed_host_has_failed() {
    let short_timeouts = DataConfig { silence_timeout: Duration::from_millis(100), ..config("c") };
    let quick = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let usual = TestNode::start("c").await;
    let no_such_input = v1::End {
        outcome: v1::end::Outcome::InputFailed.into(),
        failed_input: Some(v1::FailedInput { index: 1, outcome: v1::PullOutcome::Corrupt.into() }),
        ..v1::End::default()
    };
    let complete = v1::End { outcome: v1::end::Outcome::Complete.into(), ..v1::End::default() };
    for (coordinator, end, corrupt_frames) in
        [(&quick, None, 0), (&usual, Some(no_such_input), 1), (&usual, Some(complete), 2)]
    {
        let (host, address) = FakePeer::start("h").await;
        let mut directed = Directed::start(coordinator, "h", address, hop(&[]));
        let mut connection = host.accept().await;
        connection.read_expected::<v1::Combine>(Kind::Combine).await.unwrap();
        if let Some(end) = end {
            connection.write_control(Kind::End, &end).await.unwrap();
        }
        assert_eq!(directed.report().await, Some(HopReport::Failed(HopFailure::Unreachable)));
        directed.end().await;
        assert_eq!(read(&coordinator.metrics.corrupt_frames), corrupt_frames);
        assert_eq!(coordinator.puller.idle_connections(), 0);
    }
}

#[tokio::test]
async fn a_host_that_does_not_confirm_a_release_is_disconnected() {
    let coordinator = TestNode::start("c").await;
    let (host, address) = FakePeer::start("h").await;
    let directed = Directed::start(&coordinator, "h", address, hop(&[]));
    let mut connection = host.accept().await;
    connection.read_expected::<v1::Combine>(Kind::Combine).await.unwrap();
    directed.end().await;
    connection.read_expected::<()>(Kind::Release).await.unwrap();
    assert!(matches!(connection.read_header().await, Err(ConnectionError::Closed)));
    assert_eq!(coordinator.puller.idle_connections(), 0);
}

#[tokio::test]
async fn a_hop_is_requested_again_if_the_idle_connection_was_dead() {
    let coordinator = TestNode::start("c").await;
    let (host, address) = FakePeer::start("h").await;
    let script = tokio::spawn(async move {
        let mut first = host.accept().await;
        first.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        let refusal = v1::End { outcome: v1::end::Outcome::NoCopy.into(), ..v1::End::default() };
        first.write_control(Kind::End, &refusal).await.unwrap();
        first.read_expected::<v1::Combine>(Kind::Combine).await.unwrap();
        drop(first);
        let mut second = host.accept().await;
        second.read_expected::<v1::Combine>(Kind::Combine).await.unwrap();
        second.write_control(Kind::Combined, &()).await.unwrap();
        second
    });
    let (pull, _) = coordinator.start_pull(request("x", "h", address), &empty(100));
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderHasNoCopy));
    let mut directed = Directed::start(&coordinator, "h", address, hop(&[]));
    assert_eq!(directed.report().await, Some(HopReport::Complete));
    timeout(TIME_LIMIT, script).await.unwrap().unwrap();
}
