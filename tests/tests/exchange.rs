//! All-to-all and barrier among real nodes, which join in any order.
#![expect(clippy::unwrap_used, reason = "these are tests, and so are the functions that they share")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{Error, PutOptions, Result};
use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal};
use hoplite_tests::contents::{bytes, seed};

/// How long what should succeed may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for those who never come: long enough for all the others, who are there.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Nothing, what is in the directory, and what is not.
const SIZES: [usize; 5] = [0, 1, 1000, 70_001, 300_001];

fn cluster(nodes: usize) -> Cluster {
    let store_arguments = vec!["--no-prefault".to_owned()];
    Cluster::start(Plan { nodes, memory: "24MiB".to_owned(), store_arguments, ..Plan::default() })
}

/// The ranks of so many participants in an order that depends on the seed.
fn shuffled(seed: u64, participants: usize) -> Vec<usize> {
    let keys = bytes(seed, participants);
    let mut ranks: Vec<usize> = (0..participants).collect();
    ranks.sort_by_key(|rank| keys[*rank]);
    ranks
}

/// What one rank has for another one.
fn part(from: usize, to: usize) -> Vec<u8> {
    bytes((100 * from + to) as u64, SIZES[(from + 2 * to) % SIZES.len()])
}

fn parts(from: usize, participants: usize) -> Vec<Vec<u8>> {
    (0..participants).map(|to| part(from, to)).collect()
}

fn within(timeout: Duration) -> PutOptions {
    PutOptions { timeout, ..PutOptions::default() }
}

/// Exchanges parts by views or copies; returns what each of the others has given.
fn exchange(client: &Client, participants: usize, rank: usize, timeout: Duration) -> Result<Vec<Vec<u8>>> {
    let parts = parts(rank, participants);
    if rank.is_multiple_of(2) {
        let views = client.all_to_all("m", &parts, rank, within(timeout))?;
        return Ok(views.iter().map(|view| view.to_vec()).collect());
    }
    let mut out = vec![0; participants * SIZES.iter().max().unwrap()];
    let lengths = client.all_to_all_into("m", &parts, rank, &mut out, within(timeout))?;
    let mut rest = &out[..];
    Ok(lengths.into_iter().map(|length| rest.split_off(..length).unwrap().to_vec()).collect())
}

fn assert_exchanged(rank: usize, participants: usize, given: Result<Vec<Vec<u8>>>) {
    let given = given.unwrap();
    assert_eq!(given.len(), participants);
    for (from, given) in given.iter().enumerate() {
        assert!(*given == part(from, rank), "from {from} to {rank} of {participants}");
    }
}

fn ids(cluster: &Cluster) -> Vec<String> {
    let page = cluster.client(0).list("", "", 1000).unwrap();
    page.objects.iter().map(|object| object.id.to_string()).collect()
}

fn missing<T>(result: Result<T>) -> Vec<usize> {
    match result.err().expect("it must fail") {
        Error::RanksMissing { ranks, .. } => ranks,
        other => panic!("another error: {other}"),
    }
}

fn assert_nothing_left(cluster: &mut Cluster) {
    assert_eq!(ids(cluster), <[&str; 0]>::default());
    for node in 0..cluster.stores.len() {
        cluster.await_empty(node);
    }
    cluster.assert_serves();
}

#[test]
fn everybody_gets_what_everybody_has_for_it() {
    let seed = seed();
    let nodes = 8;
    let mut cluster = cluster(nodes);
    // With ten, two ranks are on one node; and a name serves again when all have returned.
    for participants in [1, 2, 5, 8, 10] {
        scope(|scope| {
            let calls: Vec<_> = shuffled(seed ^ participants as u64, participants)
                .into_iter()
                .map(|rank| {
                    let client = cluster.client(rank % nodes);
                    (rank, scope.spawn(move || exchange(&client, participants, rank, PATIENCE)))
                })
                .collect();
            for (rank, call) in calls {
                assert_exchanged(rank, participants, call.join().unwrap());
            }
        });
        assert_eq!(ids(&cluster), <[&str; 0]>::default(), "after {participants}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_late_rank_delays_only_its_own_pairs() {
    let mut cluster = cluster(3);
    scope(|scope| {
        let call = |rank: usize| {
            let client = cluster.client(rank);
            scope.spawn(move || exchange(&client, 3, rank, PATIENCE))
        };
        let early = [call(0), call(1)];
        await_that("only parts for the late one", || ids(&cluster) == ["m/0/2", "m/1/2"]);
        assert!(early.iter().all(|call| !call.is_finished()));
        assert_exchanged(2, 3, call(2).join().unwrap());
        for (rank, call) in early.into_iter().enumerate() {
            assert_exchanged(rank, 3, call.join().unwrap());
        }
    });
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_rank_that_never_comes_to_an_exchange_is_named() {
    let mut cluster = cluster(3);
    scope(|scope| {
        let call = |rank: usize| {
            let client = cluster.client(rank);
            scope.spawn(move || exchange(&client, 3, rank, IN_VAIN))
        };
        for call in [call(0), call(1)] {
            assert_eq!(missing(call.join().unwrap()), [2]);
        }
    });
    assert_eq!(ids(&cluster), ["m/0/2", "m/1/2"]);
    // The name is not free before these are deleted.
    let client = cluster.client(0);
    let error = refusal(client.all_to_all("m", &[b"a", b"b", b"c"], 0, within(PATIENCE)));
    assert!(matches!(&error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"m/0/2"), "{error}");
    // What this call has put beside it may not be listed yet.
    let left = ["m/0/0", "m/0/1", "m/0/2", "m/1/2"];
    assert!(client.delete(left, PATIENCE).unwrap() >= 2);
    assert_nothing_left(&mut cluster);
}

#[test]
fn nobody_passes_a_barrier_before_all_have_called() {
    let seed = seed();
    let nodes = 8;
    let mut cluster = cluster(nodes);
    for participants in [1, 2, 5, 8, 10] {
        let name = format!("b-{participants}");
        let mut order = shuffled(seed ^ participants as u64, participants);
        let last = order.pop().unwrap();
        let called = AtomicUsize::new(0);
        scope(|scope| {
            let call = |rank: usize| {
                let (client, name, called) = (cluster.client(rank % nodes), &name, &called);
                scope.spawn(move || {
                    called.fetch_add(1, Ordering::SeqCst);
                    client.barrier(name, participants, rank, PATIENCE).unwrap();
                    assert_eq!(called.load(Ordering::SeqCst), participants);
                })
            };
            let early: Vec<_> = order.iter().map(|rank| call(*rank)).collect();
            let all_but_one = |id: &String| id.starts_with(&format!("{name}/"));
            await_that("all but one", || {
                ids(&cluster).iter().filter(|id| all_but_one(id)).count() == participants - 1
            });
            assert!(early.iter().all(|call| !call.is_finished()));
            for call in early.into_iter().chain([call(last)]) {
                call.join().unwrap();
            }
        });
        assert_eq!(ids(&cluster), [&*name], "the objects of the ranks are gone");
        assert_eq!(cluster.client(0).delete([&name], PATIENCE).unwrap(), 1);
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn ranks_that_never_come_to_a_barrier_are_named() {
    let mut cluster = cluster(2);
    let meet = |ranks: &[usize], timeout: Duration| {
        scope(|scope| {
            let call = |rank: &usize| {
                let (client, rank) = (cluster.client(*rank % 2), *rank);
                scope.spawn(move || client.barrier("b", 4, rank, timeout))
            };
            let calls: Vec<_> = ranks.iter().map(call).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    assert_eq!(meet(&[3], IN_VAIN / 4).into_iter().map(missing).collect::<Vec<_>>(), [[0, 1, 2]]);
    assert_eq!(meet(&[0, 1], IN_VAIN).into_iter().map(missing).collect::<Vec<_>>(), [[2], [2]]);
    // They can call again. Those whose first call counts may find that all have met.
    let is_used =
        |error: &ObjectError| matches!(error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"b");
    for (rank, met) in meet(&[0, 1, 2, 3], PATIENCE).into_iter().enumerate() {
        let is_over = matches!(&met, Err(Error::Object(error)) if is_used(error));
        assert!(met.is_ok() || is_over && [1, 3].contains(&rank), "{rank}: {met:?}");
    }
    // But nobody can once more, before the name is free.
    for error in meet(&[0, 1, 2, 3], PATIENCE).into_iter().map(refusal) {
        assert!(is_used(&error), "{error}");
    }
    assert_eq!(ids(&cluster), ["b"]);
    cluster.client(1).delete(["b"], PATIENCE).unwrap();
    meet(&[0, 1, 2, 3], PATIENCE).into_iter().for_each(Result::unwrap);
    cluster.client(1).delete(["b"], PATIENCE).unwrap();
    assert_nothing_left(&mut cluster);
}
