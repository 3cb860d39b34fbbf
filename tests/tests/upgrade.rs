//! Clusters whose daemons have different versions of the protocol, and their upgrade under load.
//!
//! Old daemons are the previous release's, in the folder `HOPLITE_PREVIOUS` if set, or else
//! today's, limited to the oldest protocol version.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hoplite_client::blocking::Client;
use hoplite_client::{Dtype, Error, LostCall, Metadata, PutOptions, ReduceOp};
use hoplite_core::{Error as ObjectError, Version};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, retry};
use hoplite_tests::contents::bytes;

const STORES: usize = 4;
const ELEMENTS: usize = 50_000;
const KEPT: usize = 30;

fn as_old(plan: &mut Plan) {
    plan.programs = std::env::var_os("HOPLITE_PREVIOUS").map(PathBuf::from);
    let cap = ["--newest-version".to_owned(), Version::OLDEST.number().to_string()];
    let cap = if plan.programs.is_some() { &[][..] } else { &cap };
    plan.shard_arguments = cap.to_vec();
    plan.store_arguments = [cap, &["--drain".to_owned(), "60s".to_owned()]].concat();
}

fn as_new(plan: &mut Plan) {
    plan.programs = None;
    plan.shard_arguments = Vec::new();
    plan.store_arguments = vec!["--drain".to_owned(), "60s".to_owned()];
}

/// Repeats a call even if its outcome is unknown.
fn repeat<T>(what: &str, mut call: impl FnMut() -> Result<T, Error>) -> T {
    retry(what, || {
        call().map_err(|error| match error {
            Error::ConnectionLost { call: LostCall::MayHaveHappened, .. } => {
                error.leaving(LostCall::Repeatable)
            }
            error => error,
        })
    })
}

fn put(client: &Client, id: &str, value: &[u8], metadata: Metadata) {
    let mut is_repeated = false;
    repeat(id, || {
        let put = client.put_with(
            id,
            value,
            PutOptions { metadata: metadata.clone(), ..PutOptions::default() },
        );
        match put {
            Err(Error::Object(ObjectError::AlreadyExists { .. })) if is_repeated => Ok(()),
            put => {
                is_repeated = true;
                put.map(drop)
            }
        }
    });
}

fn source(node: usize) -> String {
    format!("source-{node}")
}

fn put_array(client: &Client, id: &str, number: i32) {
    let metadata =
        Metadata { dtype: Dtype::I32, shape: Some(vec![ELEMENTS as u64]), ..Metadata::default() };
    put(client, id, &number.to_le_bytes().repeat(ELEMENTS), metadata);
}

fn reduce(client: &Client, target: &str) {
    let sources: Vec<String> = (0..STORES).map(source).collect();
    let mut is_repeated = false;
    repeat(target, || {
        let reduced = client.reduce(target, &sources, ReduceOp::Sum, TIME_LIMIT);
        match reduced {
            Err(Error::Object(ObjectError::AlreadyExists { .. })) if is_repeated => Ok(()),
            reduced => {
                is_repeated = true;
                reduced.map(drop)
            }
        }
    });
    let sum: i32 = (0..STORES).map(|node| 1 << node).sum();
    let result = repeat(target, || client.get(target, TIME_LIMIT).map(|view| view.to_vec()));
    assert!(result == sum.to_le_bytes().repeat(ELEMENTS), "{target} has the sum");
    repeat(target, || client.delete([target], TIME_LIMIT));
}

fn work(
    socket: &Path,
    name: usize,
    rounds: &AtomicU64,
    stop: &AtomicBool,
) -> VecDeque<(String, u64, usize)> {
    let client = repeat("connect", || Client::connect(socket));
    let mut kept = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let id = format!("{name}/{round}");
        let size = [500, 20_000, 300_000][(round % 3) as usize];
        put(&client, &id, &bytes(round, size), Metadata::default());
        kept.push_back((id, round, size));
        let (id, seed, size) = &kept[(round * 7) as usize % kept.len()];
        let got = repeat(id, || client.get(id, TIME_LIMIT).map(|view| view.to_vec()));
        assert!(got == bytes(*seed, *size), "{id} has its bytes");
        let other = source((name + 1) % STORES);
        let got = repeat(&other, || client.get(&other, TIME_LIMIT).map(|view| view.to_vec()));
        assert_eq!(got.len(), 4 * ELEMENTS);
        if round.is_multiple_of(2) {
            reduce(&client, &format!("sum-{name}-{round}"));
        }
        if kept.len() > KEPT {
            let (oldest, ..) = kept.pop_front().unwrap();
            repeat(&oldest, || client.delete([&oldest], TIME_LIMIT));
        }
        rounds.store(round + 1, Ordering::Relaxed);
    }
    kept
}

/// Stops the clients on drop, even after a failed assertion.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn protocols(cluster: &Cluster) -> Vec<u32> {
    let of = |node| {
        cluster.client(node).status().unwrap().shards.into_iter().map(|shard| shard.protocol)
    };
    let mut all: Vec<u32> = Vec::new();
    await_that("all sessions with the directory", || {
        all = (0..STORES).flat_map(of).collect();
        !all.contains(&0)
    });
    all.sort_unstable();
    all
}

#[test]
fn an_upgrade_of_one_daemon_at_a_time_loses_nothing_and_fails_no_call() {
    let mut plan = Plan { nodes: STORES, shards: 2, ..Plan::default() };
    as_old(&mut plan);
    let mut cluster = Cluster::start(plan);
    for node in 0..STORES {
        put_array(&cluster.client(node), &source(node), 1 << node);
    }
    let rounds: [AtomicU64; STORES] = std::array::from_fn(|_| AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let kept = std::thread::scope(|scope| {
        let sockets: Vec<PathBuf> = (0..STORES).map(|node| cluster.socket(node)).collect();
        let (rounds, stop) = (&rounds, &stop);
        let stop_clients = Stop(stop);
        let workers: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(node, socket)| scope.spawn(move || work(&socket, node, &rounds[node], stop)))
            .collect();
        let go_on = || {
            let before: Vec<u64> =
                rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            await_that("all clients to go on", || {
                assert!(!workers.iter().any(|worker| worker.is_finished()), "a client failed");
                rounds
                    .iter()
                    .zip(&before)
                    .all(|(count, before)| count.load(Ordering::Relaxed) >= before + 4)
            });
        };
        go_on();
        as_new(cluster.plan_mut());
        for shard in 0..2 {
            assert_eq!(cluster.shards[shard].take().unwrap().terminate(), 0);
            cluster.restart_shard(shard);
            (0..STORES).for_each(|node| cluster.await_sessions(node));
            go_on();
        }
        for node in 0..STORES {
            assert_eq!(cluster.store(node).terminate(), 0);
            let log = cluster.store(node).log();
            assert!(!log.contains("the drain has failed"), "{log}");
            cluster.restart_store(node);
            go_on();
            let versions = protocols(&cluster);
            let new =
                versions.iter().filter(|version| **version == Version::NEWEST.number()).count();
            assert!(
                new >= 2 * (node + 1),
                "the upgraded stores speak the new version: {versions:?}"
            );
        }
        drop(stop_clients);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(protocols(&cluster), [Version::NEWEST.number(); 2 * STORES]);
    assert!(kept.len() > STORES);
    for (number, (id, seed, size)) in kept.iter().enumerate() {
        let got = cluster.client(number % STORES).get(id, TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(*seed, *size)[..], "{id} survived");
    }
}

#[test]
fn a_new_store_works_in_an_old_cluster_and_an_old_one_in_a_new_cluster() {
    for make in [[as_old, as_new], [as_new, as_old]] {
        let [most, one] = make;
        let mut plan = Plan { nodes: STORES, shards: 2, ..Plan::default() };
        most(&mut plan);
        let mut cluster = Cluster::start(plan);
        one(cluster.plan_mut());
        cluster.kill_store(0);
        cluster.restart_store(0);
        for node in 0..STORES {
            put_array(&cluster.client(node), &source(node), 1 << node);
        }
        for node in 0..STORES {
            reduce(&cluster.client(node), &format!("sum-{node}"));
        }
        cluster.assert_serves();
        assert!(protocols(&cluster).iter().any(|version| *version <= Version::OLDEST.number()));
    }
}
