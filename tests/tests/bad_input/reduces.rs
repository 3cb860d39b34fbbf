//! Invalid reduces fail immediately, and leave no objects behind.

use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_client::{
    Confirmation, Dtype, Metadata, ObjectId, PutOptions, ReduceOp, ReduceOptions,
};
use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, await_that, refusal, retry};
use hoplite_tests::contents::bytes;

use super::TIME_LIMIT;

const TIMEOUT: Duration = TIME_LIMIT;

fn put(client: &Client, id: &str, dtype: Dtype, shape: Option<Vec<u64>>, size: usize) {
    let metadata = Metadata { dtype, shape, ..Metadata::default() };
    let options = PutOptions { metadata, ..PutOptions::default() };
    client.put_with(id, &bytes(1, size), options).expect("an array is put");
}

fn id(text: &str) -> ObjectId {
    ObjectId::new(text).expect("an id")
}

fn attempt(client: &Client, target: &str, sources: &[&str], op: ReduceOp) -> ObjectError {
    let options = ReduceOptions { op, timeout: TIMEOUT, ..ReduceOptions::default() };
    let started = Instant::now();
    let error = refusal(client.reduce_with(target, sources, options));
    assert!(started.elapsed() < TIMEOUT / 2, "it does not wait for its timeout: {error}");
    error
}

fn assert_mismatch(error: &ObjectError, right: (&str, &str), wrong: (&str, &str)) {
    let ObjectError::TypeMismatch { id: named, reason } = error else { panic!("{error}") };
    let says = |(first, kind): (&str, &str), (second, other): (&str, &str)| {
        *named == id(second) && **reason == *format!("it is {other}, but {first} is {kind}")
    };
    assert!(says(right, wrong) || says(wrong, right), "{error}");
}

#[test]
fn arrays_that_do_not_go_together_are_refused_with_both_ids() {
    let mut cluster = Cluster::of(3);
    let (one, other) = (cluster.client(1), cluster.client(2));
    let kinds = [
        ("array", Dtype::F32, Some(vec![50, 1000]), 200_000, "f32[50, 1000]"),
        ("other-type", Dtype::I32, Some(vec![50, 1000]), 200_000, "i32[50, 1000]"),
        ("other-shape", Dtype::F32, Some(vec![1000, 50]), 200_000, "f32[1000, 50]"),
        ("flat", Dtype::F32, Some(vec![50_000]), 200_000, "f32[50000]"),
        ("shapeless", Dtype::F32, None, 200_000, "f32 of 200000 bytes"),
        ("longer", Dtype::F32, Some(vec![50, 1001]), 200_200, "f32[50, 1001]"),
        ("small", Dtype::F32, Some(vec![3]), 12, "f32[3]"),
        ("empty", Dtype::F32, Some(vec![0]), 0, "f32[0]"),
    ];
    for (name, dtype, shape, size, _) in &kinds {
        let client = if *name == "array" { &one } else { &other };
        put(client, name, *dtype, shape.clone(), *size);
    }
    let right = (kinds[0].0, kinds[0].4);
    put(&cluster.client(0), "array-0", Dtype::F32, Some(vec![50, 1000]), 200_000);
    put(&cluster.client(0), "small-0", Dtype::F32, Some(vec![3]), 12);
    for (name, .., kind) in &kinds[1..] {
        for sources in [["array", *name], [*name, "array"]] {
            for node in 0..3 {
                let error = attempt(&cluster.client(node), "target", &sources, ReduceOp::Sum);
                assert_mismatch(&error, right, (*name, *kind));
            }
        }
    }
    let error = attempt(&cluster.client(0), "target", &["array-0", "small-0"], ReduceOp::Sum);
    assert_mismatch(&error, ("array-0", "f32[50, 1000]"), ("small-0", "f32[3]"));
    std::thread::scope(|scope| {
        let client = cluster.client(0);
        let late =
            scope.spawn(move || attempt(&client, "target", &["array", "late"], ReduceOp::Sum));
        put(&one, "late", Dtype::F64, Some(vec![50, 500]), 200_000);
        assert_mismatch(&late.join().unwrap(), right, ("late", "f64[50, 500]"));
    });
    assert!(!one.contains("target").unwrap());
    let all = retry("list", || one.list("", "", 100)).objects;
    assert_eq!(one.delete(all.iter().map(|object| &object.id), TIME_LIMIT).unwrap(), all.len());
    for node in 0..3 {
        cluster.await_empty(node);
    }
    cluster.assert_serves();
}

#[test]
fn operations_that_a_type_lacks_are_refused() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    for (name, dtype) in [("opaque", Dtype::Opaque), ("bool", Dtype::Bool)] {
        for (size, node) in [(100, 0), (100, 1), (100_000, 0), (100_000, 1)] {
            let name = format!("{name}-{size}-{node}");
            put(&cluster.client(node), &name, dtype, None, size);
            for op in ReduceOp::ALL.iter().copied().filter(|op| !op.is_defined_for(dtype)) {
                let error = attempt(&client, "target", &[&name], op);
                let ObjectError::TypeMismatch { id: named, reason } = &error else {
                    panic!("{error}")
                };
                assert_eq!(*named, id(&name));
                assert_eq!(**reason, format!("{op} is not defined for elements of type {dtype}"));
            }
        }
    }
    cluster.assert_serves();
}

#[test]
fn invalid_lists_of_sources_are_refused() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    put(&client, "a", Dtype::F32, None, 400);
    let duplicate = |sources: &[&str], target: &str, named: &str| {
        let error = attempt(&client, target, sources, ReduceOp::Sum);
        assert!(
            matches!(&error, ObjectError::DuplicateId { id: twice } if *twice == id(named)),
            "{error}"
        );
    };
    duplicate(&["a", "a"], "target", "a");
    duplicate(&["a", "unknown", "unknown"], "target", "unknown");
    duplicate(&["a", "target"], "target", "target");
    let count = |sources: &[&str], count| {
        let options = ReduceOptions {
            num_objects: Some(count),
            timeout: TIMEOUT,
            ..ReduceOptions::default()
        };
        let error = refusal(client.reduce_with("target", sources, options));
        assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    };
    count(&[], 0);
    count(&[], 1);
    count(&["a", "b"], 0);
    count(&["a", "b"], 3);
    count(&["a", "b"], usize::MAX);
    for (target, source) in [("", "a"), ("target", ""), (&*"x".repeat(256), "a")] {
        let error = attempt(&client, target, &[source], ReduceOp::Sum);
        assert!(matches!(error, ObjectError::InvalidId { .. }), "{error}");
    }
    assert_eq!(client.status().unwrap().copies, 1);
    cluster.assert_serves();
}

#[test]
fn ranges_that_do_not_fit_are_refused() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    put(&cluster.client(1), "large", Dtype::F64, None, 200_000);
    put(&cluster.client(1), "small", Dtype::F64, None, 800);
    for (name, size) in [("large", 200_000), ("small", 800)] {
        for (offset_bytes, length_bytes) in [
            (4, 8),
            (8, 4),
            (0, size + 8),
            (size, 8),
            (size + 8, 0),
            (8, u64::MAX - 7),
            (u64::MAX - 7, 8),
        ] {
            let range = Some(hoplite_client::ByteRange { offset_bytes, length_bytes });
            let options = ReduceOptions { range, timeout: TIMEOUT, ..ReduceOptions::default() };
            let error = refusal(client.reduce_with("target", [name], options));
            let is_named = match &error {
                ObjectError::TypeMismatch { id: named, .. } => *named == id(name),
                ObjectError::InvalidRequest { .. } => {
                    offset_bytes.checked_add(length_bytes).is_none()
                }
                _ => false,
            };
            assert!(is_named, "{offset_bytes} {length_bytes}: {error}");
        }
    }
    cluster.assert_serves();
}

#[test]
fn a_target_that_exists_is_refused() {
    let mut cluster = Cluster::of(3);
    for node in 0..3 {
        put(&cluster.client(node), &format!("source-{node}"), Dtype::F32, None, 200_000);
    }
    let sources = ["source-0", "source-1", "source-2"];
    for (size, node) in [(4, 0), (4, 1), (200_000, 0), (200_000, 1)] {
        let name = format!("target-{size}-{node}");
        let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
        let options =
            PutOptions { metadata, confirm: Confirmation::Confirmed, ..PutOptions::default() };
        cluster.client(node).put_with(&name, &bytes(1, size), options).unwrap();
        for caller in 0..3 {
            let error = attempt(&cluster.client(caller), &name, &sources, ReduceOp::Sum);
            assert!(
                matches!(&error, ObjectError::AlreadyExists { id: named } if *named == id(&name)),
                "{error}"
            );
        }
        assert!(
            cluster.client(2).get(&name, TIME_LIMIT).unwrap()[..] == bytes(1, size)[..],
            "it stays"
        );
    }
    std::thread::scope(|scope| {
        let client = cluster.client(0);
        let first = scope.spawn(move || {
            client.reduce("target", ["source-0", "source-1", "late"], ReduceOp::Sum, TIME_LIMIT)
        });
        let client = cluster.client(0);
        await_that("the first", || client.status().unwrap().reduces == 1);
        let error = attempt(&client, "target", &["never"], ReduceOp::Sum);
        assert!(
            matches!(&error, ObjectError::AlreadyExists { id: named } if *named == id("target")),
            "{error}"
        );
        put(&cluster.client(1), "late", Dtype::F32, None, 200_000);
        assert_eq!(first.join().unwrap().unwrap().len(), 3);
    });
    cluster.assert_serves();
}
