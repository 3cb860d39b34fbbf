use hoplite_core::checksum::crc32c;
use hoplite_core::dtype::Dtype;
use hoplite_core::error::Error;
use hoplite_core::node::{CombineOutcome, HopInput};
use hoplite_core::reduce::{self, ReduceOp};
use hoplite_core::stall::Sign;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::v1;

use super::faults::{BIG_BYTES, damaged_positions, flipping_proxy};
use super::*;
use crate::data::{CombineRequest, CombineSource};

fn output(size_bytes: u64) -> Arc<LiveCopy> {
    Arc::new(LiveCopy::new(buffer(size_bytes), Producer::Reduce))
}

fn sum(dtype: Dtype, inputs: Vec<CombineSource>) -> CombineRequest {
    CombineRequest { op: ReduceOp::Sum, dtype, offset_bytes: 0, inputs, trace: None }
}

fn local(live: &Arc<LiveCopy>) -> CombineSource {
    CombineSource::Local { live: Arc::clone(live), base_bytes: 0 }
}

fn remote(node: &TestNode, name: &str, size_bytes: u64) -> CombineSource {
    remote_at(node.config.node.as_str(), node.address, name, size_bytes)
}

fn remote_at(node: &str, address: SocketAddr, name: &str, size_bytes: u64) -> CombineSource {
    let node = NodeId::new(node).unwrap();
    CombineSource::Remote(HopInput {
        id: id(name),
        put: PUT,
        size_bytes,
        base_bytes: 0,
        node,
        address,
        is_hop: false,
    })
}

fn seeded(size_bytes: usize, seed: usize) -> Vec<u8> {
    let mut bytes = content(size_bytes + 8 * seed);
    bytes.drain(..8 * seed);
    bytes
}

fn expected(dtype: Dtype, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = inputs[0].clone();
    for input in &inputs[1..] {
        reduce::combine(ReduceOp::Sum, dtype, &mut sum, input);
    }
    sum
}

fn start(
    node: &TestNode,
    request: CombineRequest,
    out: &Arc<LiveCopy>,
) -> (JoinHandle<(u64, CombineOutcome)>, CancellationToken) {
    let (puller, out, cancel) =
        (Arc::clone(&node.puller), Arc::clone(out), CancellationToken::new());
    let token = cancel.clone();
    let task =
        async move { timeout(TIME_LIMIT, puller.combine(&request, &out, &token)).await.unwrap() };
    (tokio::spawn(task), cancel)
}

const fn failed(index: usize, outcome: PullOutcome) -> CombineOutcome {
    CombineOutcome::InputFailed { index, outcome }
}

#[tokio::test]
async fn inputs_are_combined_wherever_they_are() {
    let (a, b, here) =
        (TestNode::start("a").await, TestNode::start("b").await, TestNode::start("c").await);
    let mut total_bytes = 0;
    for size_bytes in [0, 8, 4088, 4096, 4104, 32 << 10, 65_544, (1 << 20) + 8, (3 << 20) + 16] {
        let inputs: Vec<_> = (0..3).map(|seed| seeded(size_bytes, seed)).collect();
        let (name, size) = (size_bytes.to_string(), size_bytes as u64);
        a.test_store.add(&name, &filled(&inputs[0]));
        b.test_store.add(&name, &filled(&inputs[2]));
        let lanes =
            || vec![remote(&a, &name, size), local(&filled(&inputs[1])), remote(&b, &name, size)];
        for (order, dtype) in
            [([0, 1, 2], Dtype::F64), ([1, 0, 2], Dtype::F64), ([2, 1, 0], Dtype::I8)]
        {
            let (mut sources, out) =
                (lanes().into_iter().map(Some).collect::<Vec<_>>(), output(size));
            let request = sum(dtype, order.map(|index| sources[index].take().unwrap()).into());
            let (task, _) = start(&here, request, &out);
            assert_eq!(task.await.unwrap(), (size, CombineOutcome::Complete));
            let ordered = order.map(|index| inputs[index].clone());
            assert!(
                prefix(&out, size) == expected(dtype, &ordered),
                "{size} bytes, order {order:?}"
            );
            assert_eq!(
                out.valid_bytes(),
                size.saturating_sub(1) / 4096 * 4096,
                "its end is kept back"
            );
            assert_eq!(out.buffer().valid_bytes(), out.valid_bytes(), "also from workers");
            out.complete();
            assert_eq!(out.valid_bytes(), size);
            total_bytes += 2 * size;
        }
    }
    assert_eq!(read(&here.metrics.received_bytes), total_bytes);
    assert_eq!(here.puller.idle_connections(), 2, "one connection to each node serves all");
    a.test_store.wait_for_serves(0).await;
    b.test_store.wait_for_serves(0).await;
}

#[tokio::test]
async fn one_input_is_copied() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let bytes = content((2 << 20) + 4);
    let size_bytes = bytes.len() as u64;
    a.test_store.add("x", &filled(&bytes));
    for source in [remote(&a, "x", size_bytes), local(&filled(&bytes))] {
        let out = output(size_bytes);
        let (task, _) = start(&here, sum(Dtype::F32, vec![source]), &out);
        assert_eq!(task.await.unwrap(), (size_bytes, CombineOutcome::Complete));
        assert!(prefix(&out, size_bytes) == bytes);
    }
    assert_eq!(here.puller.idle_connections(), 1);
}

#[tokio::test]
async fn ranges_of_inputs_are_combined_from_an_offset_on() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let objects = [seeded(100_000, 0), seeded(50_000, 1)];
    a.test_store.add("x", &filled(&objects[0]));
    let remote = || match remote(&a, "x", 100_000) {
        CombineSource::Remote(input) => CombineSource::Remote(HopInput { base_bytes: 12, ..input }),
        local @ CombineSource::Local { .. } => local,
    };
    let local = || CombineSource::Local { live: filled(&objects[1]), base_bytes: 4 };
    let ranges = [objects[0][12..].to_vec(), objects[1][4..40_004].to_vec()];
    let both = expected(Dtype::I32, &ranges.each_ref().map(|range| range[..40_000].to_vec()));
    for (inputs, expected) in [
        (vec![remote(), local()], &both),
        (vec![remote()], &ranges[0]),
        (vec![local()], &ranges[1]),
    ] {
        let out = output(40_000);
        out.buffer().write(0, &[7; 20_004]);
        let request = CombineRequest { offset_bytes: 20_004, ..sum(Dtype::I32, inputs) };
        let (task, _) = start(&here, request, &out);
        assert_eq!(task.await.unwrap(), (40_000, CombineOutcome::Complete));
        assert!(prefix(&out, 40_000)[20_004..] == expected[20_004..40_000]);
        assert_eq!(prefix(&out, 20_004), [7; 20_004], "what nobody asks for is left alone");
    }
    assert_eq!(read(&a.metrics.sent_bytes), 2 * (40_000 - 20_004));
    assert_eq!(here.puller.idle_connections(), 1);
}

#[tokio::test]
async fn the_output_grows_as_the_slowest_input_does() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let inputs: [_; 3] = std::array::from_fn(|seed| seeded(40_000, seed));
    let all = expected(Dtype::U16, &inputs);
    let growing = [empty(40_000), empty(40_000)];
    a.test_store.add("x", &growing[0]);
    a.test_store.add("y", &filled(&inputs[2]));
    let out = output(40_000);
    let lanes = vec![remote(&a, "x", 40_000), local(&growing[1]), remote(&a, "y", 40_000)];
    let (task, _) = start(&here, sum(Dtype::U16, lanes), &out);
    let mut written = 0;
    for end in [4096, 8192, 20_480, 36_864] {
        for (source, bytes) in growing.iter().zip(&inputs) {
            source.buffer().write(written, &bytes[written as usize..end]);
            source.advance(end as u64);
        }
        written = end as u64;
        arrived(&out, written).await;
        assert!(prefix(&out, written) == all[..end]);
        assert_eq!(out.valid_bytes(), written);
    }
    for (source, bytes) in growing.iter().zip(&inputs) {
        source.buffer().write(written, &bytes[written as usize..]);
        source.complete();
    }
    assert_eq!(task.await.unwrap(), (40_000, CombineOutcome::Complete));
    assert!(prefix(&out, 40_000) == all);
}

#[tokio::test]
async fn a_chain_of_combinations_streams() {
    let nodes =
        [TestNode::start("a").await, TestNode::start("b").await, TestNode::start("c").await];
    let size_bytes = (3 << 20) + 8;
    let inputs: [_; 3] = std::array::from_fn(|seed| seeded(size_bytes, seed));
    let source = empty(size_bytes as u64);
    nodes[0].test_store.add("0", &source);
    let outs = [output(size_bytes as u64), output(size_bytes as u64)];
    let tasks = [1, 2].map(|hop| {
        let name = (hop - 1).to_string();
        let lanes =
            vec![remote(&nodes[hop - 1], &name, size_bytes as u64), local(&filled(&inputs[hop]))];
        nodes[hop].test_store.add(&hop.to_string(), &outs[hop - 1]);
        start(&nodes[hop], sum(Dtype::I64, lanes), &outs[hop - 1]).0
    });
    source.buffer().write(0, &inputs[0]);
    source.advance(1 << 20);
    arrived(&outs[1], 1 << 20).await;
    source.complete();
    for (task, out) in tasks.into_iter().zip(&outs) {
        assert_eq!(task.await.unwrap(), (size_bytes as u64, CombineOutcome::Complete));
        out.complete();
    }
    assert!(prefix(&outs[1], size_bytes as u64) == expected(Dtype::I64, &inputs));
}

#[tokio::test]
async fn an_input_may_be_awaited() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let CombineSource::Remote(input) = remote(&a, "x", 800) else { panic!("a remote input") };
    let awaiting = CombineSource::Remote(HopInput { is_hop: true, ..input });
    let out = output(800);
    let (task, _) = start(&here, sum(Dtype::F64, vec![awaiting, local(&filled(&[0; 800]))]), &out);
    let bytes = content(800);
    a.test_store.add("x", &filled(&bytes));
    assert_eq!(task.await.unwrap(), (800, CombineOutcome::Complete));
}

async fn send_in_pieces(sender: &FakePeer, bytes: &[u8], lengths: &[usize]) -> PeerConnection {
    let mut connection = sender.accept().await;
    let pull = connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    let mut start = pull.offset_bytes as usize;
    for length in lengths.iter().cycle() {
        if start == bytes.len() {
            break;
        }
        let piece = &bytes[start..(start + length).min(bytes.len())];
        let header = Header::block(start as u64, piece.len() as u64, crc32c(piece)).unwrap();
        connection.write_raw(&[header.encode().as_slice(), piece].concat()).await.unwrap();
        if start.is_multiple_of(3) {
            connection.write_keepalive(Sign::default()).await.unwrap();
        }
        start += piece.len();
    }
    let end = v1::End { outcome: v1::end::Outcome::Complete.into(), ..v1::End::default() };
    connection.write_control(Kind::End, &end).await.unwrap();
    connection
}

#[tokio::test]
async fn frames_may_end_inside_of_elements() {
    let here = TestNode::start("h").await;
    let inputs: [_; 3] = std::array::from_fn(|seed| seeded(20_000, seed));
    let all = expected(Dtype::F64, &inputs);
    let out = output(20_000);
    let mut lanes = vec![local(&filled(&inputs[0]))];
    let mut scripts = Vec::new();
    for (name, index, lengths) in [("a", 1, [1, 7, 13, 300]), ("b", 2, [9, 3, 5000, 2])] {
        let (sender, address) = FakePeer::start(name).await;
        lanes.push(remote_at(name, address, "x", 20_000));
        let bytes = inputs[index].clone();
        scripts.push(tokio::spawn(async move { send_in_pieces(&sender, &bytes, &lengths).await }));
    }
    let (task, _) = start(&here, sum(Dtype::F64, lanes), &out);
    assert_eq!(task.await.unwrap(), (20_000, CombineOutcome::Complete));
    assert!(prefix(&out, 20_000) == all);

    let (sender, address) = FakePeer::start("c").await;
    let bytes = inputs[0].clone();
    scripts.push(tokio::spawn(async move { send_in_pieces(&sender, &bytes, &[5, 4099, 1]).await }));
    let out = output(20_000);
    let (task, _) = start(&here, sum(Dtype::F64, vec![remote_at("c", address, "x", 20_000)]), &out);
    assert_eq!(task.await.unwrap(), (20_000, CombineOutcome::Complete));
    assert!(prefix(&out, 20_000) == inputs[0]);
    for script in scripts {
        script.await.unwrap();
    }
}

#[tokio::test]
async fn a_frame_may_take_longer_than_the_stall_limit_of_lanes() {
    let stall_limit = Duration::from_millis(20);
    let short_timeouts = DataConfig { write_stall_timeout: stall_limit * 3, ..config("h") };
    let here = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let bytes = content(8000);
    for with in [vec![], vec![local(&filled(&[0; 8000]))]] {
        let (sender, address) = FakePeer::start("a").await;
        let out = output(8000);
        let lanes = with.into_iter().chain([remote_at("a", address, "x", 8000)]).collect();
        let (task, _) = start(&here, sum(Dtype::F64, lanes), &out);
        let mut connection = sender.accept().await;
        connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        let header = Header::block(0, 8000, crc32c(&bytes)).unwrap();
        let frame = [header.encode().as_slice(), &bytes].concat();
        for part in [&frame[..11], &frame[11..28], &frame[28..5000], &frame[5000..]] {
            connection.write_raw(part).await.unwrap();
            tokio::time::sleep(stall_limit * 3).await;
        }
        assert_eq!(task.await.unwrap(), (8000, CombineOutcome::Complete));
        assert!(prefix(&out, 8000) == bytes);
    }
}

#[tokio::test]
async fn an_input_that_fails_ends_the_combination_where_it_is() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let inputs: [_; 2] = std::array::from_fn(|seed| seeded(100_000, seed));
    for failing in [0, 1] {
        let sources = [empty(100_000), empty(100_000)];
        for (source, bytes) in sources.iter().zip(&inputs) {
            source.buffer().write(0, bytes);
            source.advance(40_960);
        }
        sources[1 - failing].complete();
        a.test_store.add("x", &sources[0]);
        let out = output(100_000);
        let lanes = vec![remote(&a, "x", 100_000), local(&sources[1])];
        let (task, _) = start(&here, sum(Dtype::F32, lanes), &out);
        arrived(&out, 40_960).await;
        sources[failing].fail(Error::Deleted { id: id("x") });
        assert_eq!(task.await.unwrap(), (40_960, failed(failing, PullOutcome::SenderHasNoCopy)));
        assert!(prefix(&out, 40_960) == expected(Dtype::F32, &inputs)[..40_960]);
        a.test_store.wait_for_serves(0).await;
        assert_eq!(here.puller.idle_connections(), 1 - failing);

        a.test_store.add("x", &filled(&inputs[0]));
        let lanes = vec![remote(&a, "x", 100_000), local(&filled(&inputs[1]))];
        let request = CombineRequest { offset_bytes: 40_960, ..sum(Dtype::F32, lanes) };
        let (task, _) = start(&here, request, &out);
        assert_eq!(task.await.unwrap(), (100_000, CombineOutcome::Complete));
        assert!(prefix(&out, 100_000) == expected(Dtype::F32, &inputs));
    }
}

#[tokio::test]
async fn dead_stalled_and_unreachable_senders_are_distinguished() {
    let here = TestNode::start("h").await;
    let zeros = filled(&[0; 8192]);

    let a = TestNode::start("a").await;
    let (with_unknown, out) = (vec![local(&zeros), remote(&a, "x", 8192)], output(8192));
    let (task, _) = start(&here, sum(Dtype::F32, with_unknown), &out);
    assert_eq!(task.await.unwrap(), (0, failed(1, PullOutcome::SenderHasNoCopy)));

    let growing = empty(8192);
    growing.advance(4096);
    a.test_store.add("x", &growing);
    let (address, lanes) = (a.address, vec![remote(&a, "x", 8192), local(&zeros)]);
    let (task, _) = start(&here, sum(Dtype::F32, lanes), &out);
    arrived(&out, 4096).await;
    a.stop().await;
    assert_eq!(task.await.unwrap(), (4096, failed(0, PullOutcome::SenderUnreachable)));

    let (task, _) =
        start(&here, sum(Dtype::F32, vec![remote_at("a", address, "x", 8192)]), &output(8192));
    assert_eq!(task.await.unwrap(), (0, failed(0, PullOutcome::SenderUnreachable)));

    let short_timeouts = DataConfig { silence_timeout: Duration::from_millis(100), ..config("h") };
    let quick = TestNode::start_with(short_timeouts, Duration::ZERO).await;
    let (sender, address) = FakePeer::start("b").await;
    let lanes = vec![local(&zeros), remote_at("b", address, "x", 8192)];
    let (task, _) = start(&quick, sum(Dtype::F32, lanes), &output(8192));
    let mut connection = sender.accept().await;
    connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
    assert_eq!(task.await.unwrap(), (0, failed(1, PullOutcome::SenderStalled)));
    assert_eq!([&here, &quick].map(|node| read(&node.metrics.corrupt_frames)), [0; 2]);
}

#[tokio::test]
async fn damaged_or_wrong_bytes_are_never_combined() {
    let a = TestNode::start("a").await;
    let inputs: [_; 2] = std::array::from_fn(|seed| seeded(300_000, seed));
    let all = expected(Dtype::F32, &inputs);
    a.test_store.add("x", &filled(&inputs[0]));
    for (position, least_valid) in damaged_positions() {
        let here = TestNode::start("h").await;
        let proxy = flipping_proxy(a.address, position).await;
        let out = output(300_000);
        let lanes = vec![local(&filled(&inputs[1])), remote_at("a", proxy, "x", 300_000)];
        let (task, _) = start(&here, sum(Dtype::F32, lanes), &out);
        let (valid_bytes, outcome) = task.await.unwrap();
        assert_eq!(outcome, failed(1, PullOutcome::Corrupt), "position {position}");
        assert!((least_valid..=position as u64).contains(&valid_bytes), "{valid_bytes}");
        assert!(prefix(&out, valid_bytes) == all[..valid_bytes as usize]);
        assert_eq!(read(&here.metrics.corrupt_frames), 1);
        assert_eq!(here.puller.idle_connections(), 0, "the connection is of no more use");
    }
    let here = TestNode::start("h").await;
    for (earlier, kind) in
        [Kind::Hello, Kind::Combined, Kind::End, Kind::Block].into_iter().enumerate()
    {
        let (sender, address) = FakePeer::start("b").await;
        let lanes = vec![remote_at("b", address, "x", 8), local(&filled(&[0; 8]))];
        let (task, _) = start(&here, sum(Dtype::F32, lanes), &output(8));
        let mut connection = sender.accept().await;
        connection.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
        let complete = v1::End { outcome: v1::end::Outcome::Complete.into(), ..v1::End::default() };
        match kind {
            Kind::Block => {
                let header = Header::block(0, 9, crc32c(&[7; 9])).unwrap();
                connection
                    .write_raw(&[header.encode().as_slice(), &[7; 9]].concat())
                    .await
                    .unwrap();
            }
            Kind::End => connection.write_control(kind, &complete).await.unwrap(),
            kind => connection.write_control(kind, &()).await.unwrap(),
        }
        assert_eq!(task.await.unwrap(), (0, failed(0, PullOutcome::Corrupt)));
        assert_eq!(read(&here.metrics.corrupt_frames), earlier as u64 + 1);
    }
}

#[tokio::test]
async fn a_cancelled_combination_ends_at_once_and_so_do_its_serves() {
    let (a, here) = (TestNode::start("a").await, TestNode::start("b").await);
    let growing = empty(100_000);
    growing.advance(8192);
    a.test_store.add("x", &growing);
    a.test_store.add("y", &filled(&content(100_000)));
    let out = output(100_000);
    let lanes = vec![remote(&a, "x", 100_000), remote(&a, "y", 100_000), local(&growing)];
    let (task, cancel) = start(&here, sum(Dtype::F32, lanes), &out);
    arrived(&out, 8192).await;
    cancel.cancel();
    assert_eq!(task.await.unwrap(), (8192, CombineOutcome::Cancelled));
    a.test_store.wait_for_serves(0).await;
    assert_eq!(here.puller.idle_connections(), 0);
    assert_eq!(read(&a.metrics.malformed_connections), 0);
}

#[tokio::test]
async fn a_fast_sender_is_not_kept_waiting_for_a_slow_input() {
    let short_timeouts = |name| DataConfig {
        write_stall_timeout: Duration::from_millis(2000),
        silence_timeout: Duration::from_millis(1400),
        keepalive_interval: Duration::from_millis(50),
        ..config(name)
    };
    let a = TestNode::start_with(short_timeouts("a"), Duration::ZERO).await;
    let here = TestNode::start_with(short_timeouts("b"), Duration::ZERO).await;
    let bytes = content(BIG_BYTES as usize);
    let (slow, slower) = (empty(BIG_BYTES), empty(BIG_BYTES));
    a.test_store.add("fast", &filled(&bytes));
    a.test_store.add("slow", &slow);
    let out = output(BIG_BYTES);
    let lanes = vec![remote(&a, "fast", BIG_BYTES), remote(&a, "slow", BIG_BYTES), local(&slower)];
    let (task, _) = start(&here, sum(Dtype::I8, lanes), &out);
    a.test_store.wait_for_serves(2).await;
    a.test_store.wait_for_serves(1).await;
    slow.complete();
    a.test_store.wait_for_serves(0).await;
    slower.complete();
    assert_eq!(task.await.unwrap(), (BIG_BYTES, CombineOutcome::Complete));
    assert!(prefix(&out, BIG_BYTES) == bytes, "two of the inputs are zero");
}

#[tokio::test]
async fn an_idle_connection_that_turns_out_dead_is_replaced() {
    let here = TestNode::start("h").await;
    let (sender, address) = FakePeer::start("a").await;
    let bytes = content(800);
    let script = tokio::spawn({
        let bytes = bytes.clone();
        async move {
            let mut first = send_in_pieces(&sender, &bytes, &[800]).await;
            first.read_expected::<v1::Pull>(Kind::Pull).await.unwrap();
            drop(first);
            send_in_pieces(&sender, &bytes, &[800]).await
        }
    });
    for _ in 0..2 {
        let out = output(800);
        let lanes = vec![remote_at("a", address, "x", 800), local(&filled(&[0; 800]))];
        let (task, _) = start(&here, sum(Dtype::I64, lanes), &out);
        assert_eq!(task.await.unwrap(), (800, CombineOutcome::Complete));
        assert!(prefix(&out, 800) == bytes);
    }
    timeout(TIME_LIMIT, script).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_range_ends_at_its_requested_end() {
    let a = TestNode::start("a").await;
    let bytes = content(100_000);
    a.test_store.add("x", &filled(&bytes));
    let mut receiver = connect(&a).await;
    for range in [10_000_u64..61_000, 61_440..61_440, 0..0] {
        let pull = v1::Pull {
            id: id("x").as_bytes().to_vec().into(),
            put: PUT.0,
            size_bytes: 100_000,
            offset_bytes: range.start,
            end_bytes: Some(range.end),
            ..v1::Pull::default()
        };
        receiver.write_control(Kind::Pull, &pull).await.unwrap();
        let copy = empty(100_000);
        let mut offset_bytes = range.start;
        loop {
            let header = receiver.read_header().await.unwrap();
            if header.kind() == Kind::End {
                let end = receiver.read_control::<v1::End>(&header).await.unwrap();
                assert_eq!(end.outcome(), v1::end::Outcome::Complete);
                break;
            }
            assert_eq!(header.offset_bytes(), offset_bytes);
            receiver.read_block(&header, copy.buffer(), offset_bytes).await.unwrap();
            offset_bytes += u64::from(header.length_bytes());
        }
        assert_eq!(offset_bytes, range.end);
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(prefix(&copy, range.end)[start..] == bytes[start..end]);
    }
}

#[tokio::test]
async fn the_end_of_a_range_waits_until_the_object_is_complete() {
    let a = TestNode::start("a").await;
    let bytes = content(100_000);
    // A receiver of the whole range would count as the source of a complete part, although the
    // object may be aborted later.
    for (start_bytes, end_bytes) in
        [(0, Some(61_000)), (61_000, Some(61_000)), (0, Some(0)), (61_440, None)]
    {
        let growing = empty(100_000);
        growing.buffer().write(0, &bytes);
        growing.advance(81_920);
        a.test_store.add("x", &growing);
        let mut receiver = connect(&a).await;
        let pull = v1::Pull {
            id: id("x").as_bytes().to_vec().into(),
            put: PUT.0,
            size_bytes: 100_000,
            offset_bytes: start_bytes,
            end_bytes,
            ..v1::Pull::default()
        };
        receiver.write_control(Kind::Pull, &pull).await.unwrap();
        a.test_store.wait_for_serves(1).await;
        let copy = empty(100_000);
        let mut offset_bytes = start_bytes;
        let end = loop {
            let header = receiver.read_header().await.unwrap();
            match header.kind() {
                Kind::End => break receiver.read_control::<v1::End>(&header).await.unwrap(),
                Kind::Keepalive => {
                    receiver.read_control::<()>(&header).await.unwrap();
                    growing.fail(Error::Deleted { id: id("x") });
                }
                _ => {
                    receiver.read_block(&header, copy.buffer(), offset_bytes).await.unwrap();
                    offset_bytes += u64::from(header.length_bytes());
                }
            }
        };
        assert_eq!(end.outcome(), v1::end::Outcome::NoCopy);
        assert!(
            end_bytes.is_none_or(|end_bytes| offset_bytes < end_bytes || start_bytes == end_bytes)
        );
        drop(receiver);
        a.test_store.wait_for_serves(0).await;
    }
}
