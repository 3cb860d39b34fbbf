//! Failures that Hoplite tolerates: real processes are killed or frozen.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod chances;
mod paused;
mod races;
mod shards;
mod split;
mod stale;
mod stores;
mod workers;

use hoplite_client::PutOptions;
use hoplite_client::blocking::ObjectWriter;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, await_that};

fn begin(
    cluster: &Cluster,
    node: usize,
    id: &str,
    contents: &[u8],
    written_bytes: usize,
) -> ObjectWriter {
    let size_bytes = contents.len() as u64;
    let mut writer = cluster.client(node).create(id, size_bytes, PutOptions::default()).unwrap();
    writer.write(&contents[..written_bytes]).unwrap();
    writer
}

fn finish(mut writer: ObjectWriter, contents: &[u8]) -> hoplite_client::Result<()> {
    let written_bytes = usize::try_from(writer.written_bytes()).unwrap();
    writer.write(&contents[written_bytes..])?;
    writer.seal()
}

fn await_received(cluster: &Cluster, node: usize, bytes: usize) {
    let client = cluster.client(node);
    await_that("bytes received", || client.status().unwrap().received_bytes >= bytes as u64);
}

fn gets<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    cluster: &Cluster,
    nodes: impl IntoIterator<Item = usize>,
    id: &'scope str,
) -> Vec<(usize, std::thread::ScopedJoinHandle<'scope, hoplite_client::Result<Vec<u8>>>)> {
    let get = |node| {
        let client = cluster.client(node);
        (node, scope.spawn(move || client.get(id, TIME_LIMIT).map(|view| view.to_vec())))
    };
    nodes.into_iter().map(get).collect()
}
