use hoplite_client::{ByteRange, Dtype, ReduceOp, ReduceOptions, ReduceOrder};
use hoplite_tests::cluster::{Cluster, retry};

use super::arrays::Arrays;
use super::*;

const ORDERS: [ReduceOrder; 2] = [ReduceOrder::Any, ReduceOrder::Fixed];

fn reduce(
    cluster: &Cluster,
    node: usize,
    target: &str,
    numbers: &[u64],
    options: ReduceOptions,
) -> Vec<u64> {
    let joined = cluster.client(node).reduce_with(target, ids(numbers), options).unwrap();
    super::numbers(&joined)
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

fn assert_joined(joined: Vec<u64>, order: ReduceOrder, expected: &[u64]) {
    if order == ReduceOrder::Fixed {
        assert_eq!(joined, expected);
    } else {
        assert_eq!(sorted(joined), sorted(expected.to_vec()));
    }
}

#[test]
fn all_types_are_reduced_by_all_operations() {
    let mut cluster = Cluster::start(chained(3));
    for dtype in Dtype::ALL.iter().copied().filter(|dtype| *dtype != Dtype::Opaque) {
        let arrays = Arrays { dtype, length: 70_001 };
        for number in 0..3 {
            put(&cluster, number, arrays, number as u64);
        }
        for op in ReduceOp::ALL.iter().copied().filter(|op| op.is_defined_for(dtype)) {
            let target = format!("{op} of {dtype}");
            let options = ReduceOptions { op, ..ReduceOptions::default() };
            assert_joined(
                reduce(&cluster, 0, &target, &[0, 1, 2], options),
                ReduceOrder::Any,
                &[0, 1, 2],
            );
            assert_reduced(&cluster, [0, 2], &target, (arrays, op), &[0, 1, 2]);
            cluster.client(1).delete([&target], TIME_LIMIT).unwrap();
        }
        cluster.client(0).delete(ids(&[0, 1, 2]), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn arrays_of_any_size_are_reduced_in_any_order() {
    let mut cluster = Cluster::start(chained(3));
    for length in [0, 1, 2, 1023, 1024, 1025, 16_383, 16_384, 16_385, 262_145, 1_000_003] {
        let arrays = Arrays { dtype: Dtype::F32, length };
        for number in 0..3 {
            put(&cluster, number, arrays, number as u64);
        }
        for order in ORDERS {
            let options = ReduceOptions { order, ..ReduceOptions::default() };
            for numbers in [&[0, 1, 2][..], &[2, 0, 1], &[1, 2], &[2]] {
                let joined = reduce(&cluster, 0, "target", numbers, options.clone());
                assert_joined(joined, order, numbers);
                assert_reduced(&cluster, 0..3, "target", (arrays, ReduceOp::Sum), numbers);
                cluster.client(1).delete(["target"], TIME_LIMIT).unwrap();
            }
        }
        cluster.client(0).delete(ids(&[0, 1, 2]), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn sources_may_be_anywhere() {
    let mut cluster = Cluster::start(chained(3));
    for arrays in [Arrays::of_bytes(1000), Arrays::of_bytes(100_000)] {
        for places in [
            &[0][..],
            &[0, 0, 0],
            &[1],
            &[1, 1, 1],
            &[0, 1, 0, 1],
            &[2, 1, 1, 2, 0, 0, 1],
            &[1; 70],
        ] {
            for (number, node) in places.iter().enumerate() {
                put(&cluster, *node, arrays, number as u64);
            }
            let numbers: Vec<u64> = (0..places.len() as u64).collect();
            for order in ORDERS {
                let options = ReduceOptions { order, ..ReduceOptions::default() };
                assert_joined(reduce(&cluster, 0, "target", &numbers, options), order, &numbers);
                assert_reduced(&cluster, [0, 1], "target", (arrays, ReduceOp::Sum), &numbers);
                cluster.client(1).delete(["target"], TIME_LIMIT).unwrap();
            }
            cluster.client(0).delete(ids(&numbers), TIME_LIMIT).unwrap();
        }
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn the_first_ready_sources_are_reduced_and_named() {
    let mut cluster = Cluster::start(chained(4));
    for arrays in [Arrays::of_bytes(1000), LARGE] {
        for number in 0..4 {
            put(&cluster, number, arrays, number as u64);
        }
        let numbers = [10, 3, 0, 11, 1, 2];
        for order in ORDERS {
            for count in 1..=4 {
                let options = ReduceOptions { order, ..first(count) };
                let joined = reduce(&cluster, 0, "target", &numbers, options);
                assert_eq!(joined.len(), count, "{joined:?}");
                let mut distinct = sorted(joined.clone());
                distinct.dedup();
                assert!(
                    distinct.len() == count && distinct.iter().all(|number| *number < 4),
                    "{joined:?}"
                );
                assert_reduced(&cluster, [0, 1], "target", (arrays, ReduceOp::Sum), &joined);
                assert_eq!(record(&cluster, 0, "target").reduced, count as u64);
                cluster.client(1).delete(["target"], TIME_LIMIT).unwrap();
            }
        }
        cluster.client(0).delete(ids(&[0, 1, 2, 3]), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

fn rough(number: u64) -> Vec<f32> {
    (0..100_000_u64).map(|index| 1.0 / (1 + (index * 31 + number * 17) % 1009) as f32).collect()
}

#[test]
fn a_fixed_order_gives_the_same_bits_whatever_comes_first() {
    let mut cluster = Cluster::start(chained(4));
    let numbers = [3, 0, 2, 1, 4];
    let sum = |numbers: &[u64]| -> Vec<u8> {
        let add = |mut sum: Vec<f32>, other: Vec<f32>| {
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
            sum
        };
        let sum = numbers.iter().map(|number| rough(*number)).reduce(add).unwrap();
        sum.into_iter().flat_map(f32::to_le_bytes).collect()
    };
    let expected = sum(&numbers);
    assert_ne!(expected, sum(&[0, 1, 2, 3, 4]), "it matters");
    let arrays = Arrays { dtype: Dtype::F32, length: 100_000 };
    for (caller, arrival) in [(0, [0, 1, 2, 3, 4]), (1, [4, 3, 2, 1, 0]), (3, [2, 4, 0, 3, 1])] {
        std::thread::scope(|scope| {
            let options = ReduceOptions { order: ReduceOrder::Fixed, ..ReduceOptions::default() };
            let running = start(scope, &cluster, caller, "target", &numbers, options);
            for number in arrival {
                let contents: Vec<u8> =
                    rough(number).into_iter().flat_map(f32::to_le_bytes).collect();
                let node = cluster.client(number as usize % 4);
                node.put_with(id(number), &contents, arrays.options()).unwrap();
            }
            assert_eq!(super::numbers(&running.join().unwrap().unwrap()), numbers);
        });
        assert!(
            cluster.client(2).get("target", TIME_LIMIT).unwrap()[..] == expected[..],
            "called on {caller}"
        );
        cluster
            .client(0)
            .delete(ids(&numbers).into_iter().chain(["target".to_owned()]), TIME_LIMIT)
            .unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn every_schedule_gives_the_sum() {
    let numbers = [1, 2, 3, 4, 5, 6, 7];
    for (schedule, hops, latency, bandwidth) in [
        ("chain", 6, "0us", "1MiB"),
        ("star", 0, "1s", "1GiB"),
        ("binary tree", 3, "20ms", "100MiB"),
    ] {
        let mut plan = chained(8);
        plan.store_arguments = vec![
            "--no-prefault".to_owned(),
            format!("--link-latency={latency}"),
            format!("--link-bandwidth={bandwidth}"),
        ];
        let mut cluster = Cluster::start(plan);
        let arrays = Arrays::of_bytes(MIB);
        for node in 1..8 {
            put(&cluster, node, arrays, node as u64);
        }
        reduce(&cluster, 0, "target", &numbers, ReduceOptions::default());
        assert_reduced(&cluster, [0], "target", (arrays, ReduceOp::Sum), &numbers);
        let record = record(&cluster, 0, "target");
        assert!(record.plan.starts_with(schedule), "{}", record.plan);
        assert_eq!((record.hops, record.mendings, record.restarts), (hops, 0, 0), "{schedule}");
        let received = |node: usize| cluster.client(node).status().unwrap().received_bytes;
        let total: u64 = (0..8).map(received).sum();
        assert_eq!(total, 7 * arrays.size_bytes(), "each source, or sum of some, is sent once");
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_range_of_each_source_is_reduced() {
    let mut cluster = Cluster::start(chained(3));
    for number in 0..3 {
        put(&cluster, number, LARGE, number as u64);
    }
    let sum = LARGE.reduced(ReduceOp::Sum, &[0, 1, 2]);
    let size = LARGE.size_bytes();
    for (offset_bytes, length_bytes) in
        [(0, size), (4, 4), (4096, 100_000), (size / 2 + 4, size / 2 - 4), (8, 0)]
    {
        let range = ByteRange { offset_bytes, length_bytes };
        let options = ReduceOptions { range: Some(range), ..ReduceOptions::default() };
        reduce(&cluster, 0, "target", &[2, 0, 1], options);
        let end = usize::try_from(offset_bytes + length_bytes).unwrap();
        let expected = &sum[usize::try_from(offset_bytes).unwrap()..end];
        for node in 0..3 {
            assert!(
                cluster.client(node).get("target", TIME_LIMIT).unwrap()[..] == *expected,
                "{range:?}"
            );
        }
        cluster.client(1).delete(["target"], TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn each_node_reports_how_a_target_was_made() {
    let mut cluster = Cluster::start(chained(2));
    for number in 0..2 {
        put(&cluster, number, LARGE, number as u64);
    }
    reduce(&cluster, 0, "target", &[0, 1], ReduceOptions::default());
    let record = record(&cluster, 0, "target");
    assert_eq!((record.op.as_str(), record.reduced, record.sources), ("sum", 2, 2));
    let mut elsewhere = None;
    await_that("an answer of its coordinator", || {
        elsewhere = retry("describe", || cluster.client(1).describe("target")).reduce;
        elsewhere.is_some()
    });
    assert_eq!(elsewhere, Some(record), "its coordinator is asked");
    for (node, id) in [(0, "unknown"), (0, "array-1"), (1, "unknown")] {
        assert_eq!(
            retry("describe", || cluster.client(node).describe(id)).reduce,
            None,
            "{id} at node {node}"
        );
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_is_kept_like_an_object_that_was_put() {
    let mut cluster = Cluster::start(chained(3));
    let client = cluster.client(0);
    put(&cluster, 0, LARGE, 0);
    let pinned_bytes = client.status().unwrap().pinned_bytes;
    for node in [1, 2] {
        put(&cluster, node, LARGE, node as u64);
    }
    reduce(&cluster, 0, "target", &[0, 1, 2], ReduceOptions::default());
    await_no_hops(&cluster);
    for node in 0..3 {
        let status = cluster.client(node).status().unwrap();
        let objects = if node == 0 { 2 } else { 1 };
        assert_eq!(
            (status.copies, status.pinned_bytes),
            (objects, objects * pinned_bytes),
            "node {node}"
        );
    }
    assert_nothing_left(&mut cluster);
}
