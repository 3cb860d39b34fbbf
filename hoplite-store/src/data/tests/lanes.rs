use hoplite_core::plan::lanes::{LANE_BYTES, Start};
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::{
    KEY_BYTES, StreamKey, decode_lane, decode_lanes, encode_lane, encode_lanes,
};
use hoplite_proto::v1;
use hoplite_proto::v1::end::Outcome;

use super::*;

const MAX_LANES: usize = 8;
const KEY: StreamKey = StreamKey([7; KEY_BYTES]);
const BLOCK: u64 = 400 << 10;

fn laned(name: &str, lanes: usize) -> DataConfig {
    let first_lanes = Start { lanes, is_settled: true };
    DataConfig { max_lanes: MAX_LANES, first_lanes, ..config(name) }
}

async fn start(name: &str, lanes: usize) -> TestNode {
    TestNode::start_with(laned(name, lanes), Duration::ZERO).await
}

async fn await_lanes(node: &TestNode, count: u64) {
    let reached = async {
        while read(&node.metrics.lanes) != count {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIME_LIMIT, reached).await.expect("the lanes change");
}

fn pull_message(name: &str, size_bytes: u64, max_lanes: u32) -> v1::Pull {
    let id = id(name).as_bytes().to_vec().into();
    v1::Pull { id, put: PUT.0, size_bytes, max_lanes, ..v1::Pull::default() }
}

async fn await_control<M: prost::Message + Default>(
    connection: &mut PeerConnection,
    kind: Kind,
) -> M {
    loop {
        let header = timeout(TIME_LIMIT, connection.read_header()).await.unwrap().unwrap();
        if header.kind() == kind {
            return connection.read_control(&header).await.unwrap();
        }
        let mut payload = vec![0; header.length_bytes() as usize];
        connection.read_payload(&header, &mut payload).await.unwrap();
    }
}

async fn outcome_of_lane(connection: &mut PeerConnection, key: StreamKey) -> Outcome {
    connection.write_control(Kind::Lane, &encode_lane(key, 0)).await.unwrap();
    await_control::<v1::End>(connection, Kind::End).await.outcome()
}

#[tokio::test]
async fn a_stream_arrives_whole_over_several_lanes() {
    let (sender, receiver) = (start("a", 4).await, start("b", 1).await);
    for round in 0..3 {
        let bytes = content((6 << 20) + round);
        let size = bytes.len() as u64;
        let (source, name) = (empty(size), round.to_string());
        sender.test_store.add(&name, &source);
        let copy = empty(size);
        let (pull, _) = receiver.start_pull(sender.request(&name), &copy);
        source.buffer().write(0, &bytes);
        source.advance(LANE_BYTES);
        await_lanes(&sender, 3).await;
        source.complete();
        assert_eq!(pull.await.unwrap(), (size, PullOutcome::Complete));
        assert!(prefix(&copy, size) == bytes);
        assert_eq!(copy.valid_bytes(), size);
        sender.test_store.wait_for_serves(0).await;
        assert_eq!(receiver.puller.idle_connections(), 4, "the lanes are kept for the next stream");
    }
    assert_eq!(read(&sender.metrics.lanes_opened), 9);
    assert_eq!(read(&sender.metrics.lanes_lost) + read(&sender.metrics.lanes_left), 0);
    assert_eq!((read(&sender.metrics.serves), read(&receiver.metrics.pulls)), (3, 3));
    assert_eq!(read(&sender.metrics.sent_bytes), read(&receiver.metrics.received_bytes));
    sender.stop().await;
}

#[tokio::test]
async fn bytes_to_combine_arrive_in_order() {
    use hoplite_core::dtype::Dtype;
    use hoplite_core::node::{CombineOutcome, HopInput};
    use hoplite_core::reduce::{self, ReduceOp};

    use crate::data::{CombineRequest, CombineSource};

    let (sender, other, here) = (start("a", 4).await, start("b", 4).await, start("c", 1).await);
    let (bytes, more) = (content(4 << 20), content((4 << 20) + 8)[8..].to_vec());
    let size = bytes.len() as u64;
    let input = |node: &TestNode| {
        let (node, address) = (node.config.node.clone(), node.address);
        let (id, size_bytes) = (id("x"), size);
        CombineSource::Remote(HopInput {
            id,
            put: PUT,
            size_bytes,
            base_bytes: 0,
            node,
            address,
            is_hop: false,
        })
    };
    let source = empty(size);
    sender.test_store.add("x", &source);
    other.test_store.add("x", &filled(&more));
    let inputs = vec![input(&sender), input(&other)];
    let request = CombineRequest {
        op: ReduceOp::Sum,
        dtype: Dtype::U64,
        offset_bytes: 0,
        inputs,
        trace: None,
    };
    let out = Arc::new(LiveCopy::new(buffer(size), Producer::Reduce));
    let combining = tokio::spawn({
        let (puller, out) = (Arc::clone(&here.puller), Arc::clone(&out));
        async move { puller.combine(&request, &out, &CancellationToken::new()).await }
    });
    source.buffer().write(0, &bytes);
    source.advance(LANE_BYTES);
    await_lanes(&sender, 3).await;
    source.complete();
    let ended = timeout(TIME_LIMIT, combining).await.unwrap().unwrap();
    assert_eq!(ended, (size, CombineOutcome::Complete));
    let mut sum = bytes;
    reduce::combine(ReduceOp::Sum, Dtype::U64, &mut sum, &more);
    assert!(prefix(&out, size) == sum);
}

#[tokio::test]
async fn peers_that_offer_no_lanes_see_none() {
    let sender = start("a", 8).await;
    let bytes = content(4 << 20);
    sender.test_store.add("x", &filled(&bytes));
    let mut connection = connect(&sender).await;
    connection.write_control(Kind::Pull, &pull_message("x", 4 << 20, 0)).await.unwrap();
    let mut at = 0;
    loop {
        let header = timeout(TIME_LIMIT, connection.read_header()).await.unwrap().unwrap();
        if header.kind() == Kind::End {
            break;
        }
        assert_eq!((header.kind(), header.offset_bytes()), (Kind::Block, at));
        let mut payload = vec![0; header.length_bytes() as usize];
        connection.read_payload(&header, &mut payload).await.unwrap();
        assert!(payload == bytes[at as usize..][..payload.len()]);
        at += u64::from(header.length_bytes());
    }
    assert_eq!(at, 4 << 20);
    assert_eq!(read(&sender.metrics.lanes_opened), 0);
}

#[tokio::test]
async fn small_objects_and_single_lanes_request_no_further_lanes() {
    let (fake_peer, address) = FakePeer::start("a").await;
    for (lanes, size, offered) in [
        (MAX_LANES, 2 * LANE_BYTES - 1, 0),
        (MAX_LANES, 2 * LANE_BYTES, 2),
        (1, 64 * LANE_BYTES, 0),
    ] {
        let config = DataConfig { max_lanes: lanes, ..config("b") };
        let receiver = TestNode::start_with(config, Duration::ZERO).await;
        let (pull, cancel) = receiver.start_pull(request("x", "a", address), &empty(size));
        let mut connection = fake_peer.accept().await;
        let request: v1::Pull = await_control(&mut connection, Kind::Pull).await;
        assert_eq!(request.max_lanes, offered, "{size} bytes, {lanes} lanes");
        cancel.cancel();
        pull.await.unwrap();
    }
}

/// A receiver of five blocks from a fake peer, which has sent the first one and requested another
/// lane.
struct LaneScenario {
    receiver: TestNode,
    fake_peer: FakePeer,
    source: Buffer,
    bytes: Vec<u8>,
    copy: Arc<LiveCopy>,
    pull: JoinHandle<(u64, PullOutcome)>,
    main: PeerConnection,
    lane: PeerConnection,
}

impl LaneScenario {
    async fn start() -> Self {
        let (fake_peer, address) = FakePeer::start("a").await;
        let receiver = start("b", 1).await;
        let bytes = content(5 * BLOCK as usize);
        let (source, copy) = (buffer(5 * BLOCK), empty(5 * BLOCK));
        source.write(0, &bytes);
        let (pull, _) = receiver.start_pull(request("x", "a", address), &copy);
        let mut main = fake_peer.accept().await;
        let request: v1::Pull = await_control(&mut main, Kind::Pull).await;
        assert_eq!(
            (request.max_lanes, request.offset_bytes),
            (7, 0),
            "as many as have enough bytes each"
        );
        main.write_control(Kind::Lanes, &encode_lanes(KEY, 1)).await.unwrap();
        main.write_block(0..BLOCK, &source).await.unwrap();
        let mut lane = fake_peer.accept().await;
        assert_eq!(decode_lane(&await_control(&mut lane, Kind::Lane).await), Ok((KEY, 0)));
        Self { receiver, fake_peer, source, bytes, copy, pull, main, lane }
    }
}

fn block(index: u64) -> std::ops::Range<u64> {
    index * BLOCK..(index + 1) * BLOCK
}

fn complete() -> v1::End {
    v1::End { outcome: Outcome::Complete.into(), ..v1::End::default() }
}

#[tokio::test]
async fn a_broken_lane_costs_only_its_own_frames() {
    let mut scene = LaneScenario::start().await;
    scene.lane.write_block(block(1), &scene.source).await.unwrap();
    scene.main.write_block(block(2), &scene.source).await.unwrap();
    arrived(&scene.copy, 3 * BLOCK).await;
    let head = Header::block(3 * BLOCK, BLOCK, 0).unwrap().encode();
    scene
        .lane
        .write_raw(&[&head[..], &scene.bytes[3 * BLOCK as usize..][..1000]].concat())
        .await
        .unwrap();
    drop(scene.lane);
    let rest = async {
        scene.main.write_block(block(4), &scene.source).await.unwrap();
        scene.main.write_control(Kind::End, &complete()).await.unwrap();
    };
    let repair = async {
        let mut again = scene.fake_peer.accept().await;
        let request: v1::Pull = await_control(&mut again, Kind::Pull).await;
        assert_eq!(
            (request.offset_bytes, request.end_bytes, request.max_lanes),
            (3 * BLOCK, Some(4 * BLOCK), 0)
        );
        again.write_block(block(3), &scene.source).await.unwrap();
        again.write_control(Kind::End, &complete()).await.unwrap();
        again
    };
    let ((), _again) = tokio::join!(rest, repair);
    assert_eq!(scene.pull.await.unwrap(), (5 * BLOCK, PullOutcome::Complete));
    assert!(prefix(&scene.copy, 5 * BLOCK) == scene.bytes);
}

#[tokio::test]
async fn a_lane_that_is_being_opened_may_have_the_next_block() {
    let mut scene = LaneScenario::start().await;
    arrived(&scene.copy, BLOCK).await;
    scene.main.write_control(Kind::Lanes, &encode_lanes(KEY, 1)).await.unwrap();
    let frame = |from: u64, to: u64| BLOCK + from..BLOCK + to;
    scene.main.write_block(frame(1000, 2000), &scene.source).await.unwrap();
    scene.lane.write_block(frame(2000, 3000), &scene.source).await.unwrap();
    let mut third = scene.fake_peer.accept().await;
    third.write_block(frame(0, 1000), &scene.source).await.unwrap();
    third.write_block(BLOCK + 3000..2 * BLOCK, &scene.source).await.unwrap();
    for index in 2..5 {
        scene.lane.write_block(block(index), &scene.source).await.unwrap();
    }
    scene.main.write_control(Kind::End, &complete()).await.unwrap();
    assert_eq!(scene.pull.await.unwrap(), (5 * BLOCK, PullOutcome::Complete));
    assert!(prefix(&scene.copy, 5 * BLOCK) == scene.bytes);
}

#[tokio::test]
async fn a_stream_outlives_the_connection_of_its_request() {
    let mut scene = LaneScenario::start().await;
    arrived(&scene.copy, BLOCK).await;
    drop(scene.main);
    for index in 1..5 {
        scene.lane.write_block(block(index), &scene.source).await.unwrap();
    }
    scene.lane.write_control(Kind::End, &complete()).await.unwrap();
    assert_eq!(scene.pull.await.unwrap(), (5 * BLOCK, PullOutcome::Complete));
    assert!(prefix(&scene.copy, 5 * BLOCK) == scene.bytes);
}

#[tokio::test]
async fn a_stream_ends_with_its_last_lane() {
    let scene = LaneScenario::start().await;
    arrived(&scene.copy, BLOCK).await;
    drop((scene.main, scene.lane));
    assert_eq!(scene.pull.await.unwrap(), (BLOCK, PullOutcome::SenderUnreachable));
}

#[tokio::test]
async fn frames_that_repeat_overlap_or_are_missing_end_the_stream() {
    // Frames so small that the kernel accepts them without a reader.
    let frame = |from: u64, to: u64| BLOCK + from..BLOCK + to;
    let cases: [(&str, [std::ops::Range<u64>; 2]); 4] = [
        ("repeats", [0..1000, frame(1000, 2000)]),
        ("overlaps", [frame(1000, 2000), frame(0, 1001)]),
        ("is missing", [frame(1000, 2000), frame(2000, 3000)]),
        ("is empty", [frame(1000, 2000), frame(0, 0)]),
    ];
    for (name, ranges) in cases {
        let mut scene = LaneScenario::start().await;
        arrived(&scene.copy, BLOCK).await;
        for (range, lane) in ranges.iter().zip([&mut scene.lane, &mut scene.main]) {
            let _ = lane.write_block(range.clone(), &scene.source).await;
        }
        assert_eq!(scene.pull.await.unwrap().1, PullOutcome::Corrupt, "{name}");
        assert_eq!(read(&scene.receiver.metrics.corrupt_frames), 1);
    }
}

#[tokio::test]
async fn a_sender_gets_no_more_lanes_than_were_offered() {
    let mut scene = LaneScenario::start().await;
    for _ in 0..10 {
        scene.main.write_control(Kind::Lanes, &encode_lanes(KEY, 64)).await.unwrap();
    }
    scene.main.write_block(block(1), &scene.source).await.unwrap();
    let mut lanes = Vec::new();
    for _ in 0..5 {
        lanes.push(scene.fake_peer.accept().await);
    }
    for index in 2..5 {
        scene.main.write_block(block(index), &scene.source).await.unwrap();
    }
    scene.main.write_control(Kind::End, &complete()).await.unwrap();
    assert_eq!(scene.pull.await.unwrap(), (5 * BLOCK, PullOutcome::Complete));
    let waiting = timeout(Duration::ZERO, scene.fake_peer.listener.accept()).await;
    assert!(waiting.is_err(), "seven lanes in all: the first one, the second one, and five more");
}

#[tokio::test]
async fn malformed_requests_for_lanes_end_the_stream() {
    for lanes in [
        encode_lanes(KEY, 0),
        encode_lanes(KEY, 65),
        v1::Lanes { count: 1, ..v1::Lanes::default() },
    ] {
        let mut scene = LaneScenario::start().await;
        scene.main.write_control(Kind::Lanes, &lanes).await.unwrap();
        assert_eq!(scene.pull.await.unwrap().1, PullOutcome::Corrupt);
    }
}

#[tokio::test]
async fn forged_finished_and_surplus_lanes_get_nothing() {
    let sender = start("a", 3).await;
    let size = 4 << 20;
    let source = empty(size);
    source.buffer().write(0, &content(size as usize));
    source.advance(LANE_BYTES);
    sender.test_store.add("x", &source);
    let mut main = connect(&sender).await;
    main.write_control(Kind::Pull, &pull_message("x", size, 4)).await.unwrap();
    let (key, count) = decode_lanes(&await_control(&mut main, Kind::Lanes).await).unwrap();
    assert_eq!(count, 2);

    let mut lanes = Vec::new();
    for number in 1..=2 {
        let mut lane = connect(&sender).await;
        lane.write_control(Kind::Lane, &encode_lane(key, 0)).await.unwrap();
        await_lanes(&sender, number).await;
        lanes.push(lane);
    }
    let mut other = connect(&sender).await;
    assert_eq!(outcome_of_lane(&mut other, key).await, Outcome::NoCopy, "a lane too many");
    assert_eq!(outcome_of_lane(&mut other, KEY).await, Outcome::NoCopy, "a forged key");
    let thief = (sender.config.node.clone(), sender.address);
    let stream = TcpStream::connect(sender.address).await.unwrap();
    let stolen =
        handshake::open(&config("thief"), stream, Side::Connecting(&thief), TIME_LIMIT).await;
    assert_eq!(outcome_of_lane(&mut stolen.unwrap().0, key).await, Outcome::NoCopy, "another peer");

    drop(lanes);
    source.complete();
    assert_eq!(await_control::<v1::End>(&mut main, Kind::End).await.outcome(), Outcome::Complete);
    await_lanes(&sender, 0).await;
    assert_eq!(outcome_of_lane(&mut other, key).await, Outcome::NoCopy, "a finished stream");
    sender.test_store.wait_for_serves(0).await;
}
