//! Reduces with real daemons. Partly written sources stop them at a given byte.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod arrays;
mod chances;
mod collectives;
mod ends;
mod frozen;
mod inspected;
mod links;
mod mistakes;
mod parts;
mod results;
mod sessions;
mod shards;
mod sources;
mod stores;
mod streams;

use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use hoplite_client::blocking::{Client, ObjectReader, ObjectWriter};
use hoplite_client::{ObjectId, ReduceOp, ReduceOptions, ReduceRecord, Result};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal, retry};

use arrays::Arrays;

const MIB: usize = 1 << 20;
const LARGE: Arrays = Arrays::of_bytes(2 * MIB);

/// Little memory and short graces; reduces are chains in the order of sources.
fn chained(nodes: usize) -> Plan {
    let all =
        |arguments: &[&str]| arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Plan {
        nodes,
        memory: "24MiB".to_owned(),
        store_arguments: all(&["--no-prefault", "--link-bandwidth=100MiB", "--link-latency=100us"]),
        shard_arguments: all(&["--node-grace=300ms"]),
        ..Plan::default()
    }
}

fn id(number: u64) -> String {
    format!("array-{number}")
}

fn ids(numbers: &[u64]) -> Vec<String> {
    numbers.iter().copied().map(id).collect()
}

fn numbers(joined: &[ObjectId]) -> Vec<u64> {
    let number = |id: &ObjectId| id.to_string().strip_prefix("array-")?.parse().ok();
    joined.iter().map(|id| number(id).unwrap_or_else(|| panic!("{id} is no source"))).collect()
}

fn put(cluster: &Cluster, node: usize, arrays: Arrays, number: u64) {
    cluster.client(node).put_with(id(number), &arrays.bytes(number), arrays.options()).unwrap();
}

struct Unfinished {
    writer: ObjectWriter,
    contents: Vec<u8>,
}

impl Unfinished {
    fn begin(cluster: &Cluster, node: usize, arrays: Arrays, number: u64) -> Self {
        let contents = arrays.bytes(number);
        let client = cluster.client(node);
        let writer = client.create(id(number), contents.len() as u64, arrays.options()).unwrap();
        Self { writer, contents }
    }

    fn half(cluster: &Cluster, node: usize, arrays: Arrays, number: u64) -> Self {
        let mut unfinished = Self::begin(cluster, node, arrays, number);
        unfinished.write_to(unfinished.contents.len() / 2).unwrap();
        unfinished
    }

    fn write_to(&mut self, end: usize) -> Result<()> {
        let start = usize::try_from(self.writer.written_bytes()).unwrap();
        self.writer.write(&self.contents[start..end])
    }

    fn finish(mut self) -> Result<()> {
        self.write_to(self.contents.len())?;
        self.writer.seal()
    }
}

fn halves(cluster: &Cluster, nodes: usize) -> Vec<Unfinished> {
    (1..=nodes).map(|node| Unfinished::half(cluster, node, LARGE, node as u64)).collect()
}

fn finish_all(unfinished: impl IntoIterator<Item = Unfinished>) {
    unfinished.into_iter().for_each(|unfinished| unfinished.finish().unwrap());
}

type Running<'scope> = ScopedJoinHandle<'scope, Result<Vec<ObjectId>>>;

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    cluster: &Cluster,
    node: usize,
    target: &'scope str,
    numbers: &[u64],
    options: ReduceOptions,
) -> Running<'scope> {
    let (client, sources) = (cluster.client(node), ids(numbers));
    scope.spawn(move || client.reduce_with(target, sources, options))
}

fn first(count: usize) -> ReduceOptions {
    ReduceOptions { num_objects: Some(count), ..ReduceOptions::default() }
}

fn assert_reduced(
    cluster: &Cluster,
    nodes: impl IntoIterator<Item = usize>,
    target: &str,
    (arrays, op): (Arrays, ReduceOp),
    numbers: &[u64],
) {
    let expected = arrays.reduced(op, numbers);
    for node in nodes {
        let view = cluster.client(node).get(target, TIME_LIMIT).unwrap();
        assert_eq!(*view.metadata(), arrays.options().metadata, "{target} on node {node}");
        assert!(
            view[..] == expected[..],
            "{target} on node {node}: {op} of {numbers:?}, {arrays:?}"
        );
    }
}

fn assert_sum(cluster: &Cluster, target: &str, numbers: &[u64]) {
    assert_reduced(cluster, running(cluster), target, (LARGE, ReduceOp::Sum), numbers);
}

fn running(cluster: &Cluster) -> Vec<usize> {
    (0..cluster.stores.len()).filter(|node| cluster.stores[*node].is_some()).collect()
}

fn read_to(reader: &mut ObjectReader, end: usize) -> Vec<u8> {
    let mut bytes = vec![0; end];
    let mut length = 0;
    while length < end {
        length += reader.read(&mut bytes[length..], TIME_LIMIT).unwrap();
    }
    bytes
}

fn await_half(cluster: &Cluster, node: usize, target: &str, numbers: &[u64]) -> ObjectReader {
    let mut reader = cluster.client(node).get_reader(target, TIME_LIMIT).unwrap();
    let half = LARGE.bytes(0).len() / 2;
    let expected = LARGE.reduced(ReduceOp::Sum, numbers);
    assert!(read_to(&mut reader, half) == expected[..half], "the first half of {target}");
    reader
}

fn await_superseded(mut reader: ObjectReader) {
    let error = refusal(reader.read(&mut [0; 10], TIME_LIMIT));
    assert!(matches!(error, ObjectError::Superseded { .. }), "{error}");
}

fn record(cluster: &Cluster, node: usize, target: &str) -> ReduceRecord {
    retry("describe", || cluster.client(node).describe(target))
        .reduce
        .expect("the coordinator remembers")
}

fn await_given_up(cluster: &Cluster, coordinator: usize, target: &str, plan: &str) {
    let client = cluster.client(coordinator);
    await_that(plan, || {
        retry("describe", || client.describe(target))
            .reduce
            .is_some_and(|reduce| reduce.plan.contains(plan))
    });
}

fn await_no_hops(cluster: &Cluster) {
    let watcher = cluster.client(running(cluster)[0]);
    for node in running(cluster) {
        let client = cluster.client(node);
        let name = client.node();
        await_that("no other copies", || {
            let objects = retry("list", || watcher.list("", "", 1000)).objects;
            let locations = objects.iter().flat_map(|object| &object.locations);
            let known = locations.filter(|location| location.node == name).count();
            client.status().unwrap().copies == known as u64
        });
    }
}

fn await_idle(cluster: &Cluster) {
    for node in running(cluster) {
        let client = cluster.client(node);
        await_that("nothing under way", || {
            let status = client.status().unwrap();
            [status.reduces, status.directed_hops, status.hops, status.combinations] == [0; 4]
        });
    }
}

fn assert_nothing_left(cluster: &mut Cluster) {
    await_no_hops(cluster);
    await_idle(cluster);
    let client: Client = cluster.client(running(cluster)[0]);
    let objects = retry("list", || client.list("", "", 1000)).objects;
    client.delete(objects.iter().map(|object| object.id.as_bytes()), TIME_LIMIT).unwrap();
    for node in running(cluster) {
        cluster.await_empty(node);
    }
    cluster.assert_serves();
}
