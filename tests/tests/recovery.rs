//! Stores that recover the objects in the spill files of a killed store.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_core::Error as ObjectError;
use hoplite_daemon::launch;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Daemon, await_that, program, refusal, run_to_end};
use hoplite_tests::contents::bytes;

use crate::spill::{MIB, Spilling, objects, runs, spill_files};

const RECOVER: &[&str] = &["--recover"];
const COUNT: usize = 32;
/// The length of the last frame of a spill file's index.
const END_BYTES: u64 = 21;

/// Returns false for a file that the store has just removed.
fn has_index(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let length = file.metadata().unwrap().len();
    length > END_BYTES
        && file.read_exact_at(&mut magic, length - END_BYTES).is_ok()
        && magic == *b"HLOG"
}

fn settle(client: &Client, place: &Path) {
    await_that("complete spill files", || {
        let (files, status) = (spill_files(place), client.status().unwrap().spill);
        files.len() as u64 == status.files && files.iter().all(|path| has_index(path))
    });
}

impl Spilling {
    fn with_objects(arguments: &[&str]) -> Self {
        let spilling = Self::start_as(arguments, false, "96MiB");
        spilling.put_all(&objects(COUNT));
        spilling.settle();
        spilling
    }

    fn settle(&self) {
        settle(&self.cluster.client(0), self.place.path());
    }

    fn kill(&mut self) {
        self.cluster.kill_store(0);
    }

    fn recover(&mut self) -> u64 {
        self.start_store(RECOVER);
        self.cluster.client(0).status().unwrap().spill.recovered_objects
    }

    fn await_listed(&self, count: u64) -> BTreeMap<String, Vec<u8>> {
        let client = self.cluster.client(1);
        let mut found = BTreeMap::new();
        await_that(&format!("{count} objects"), || {
            found.clear();
            for (id, _) in objects(COUNT) {
                if let Ok(got) = client.get(&id, Duration::from_millis(200)) {
                    found.insert(id, got[..].to_vec());
                }
            }
            found.len() as u64 == count
        });
        found
    }

    fn log(&self) -> String {
        self.cluster.stores[0].as_ref().unwrap().log()
    }
}

fn contents(id: &str) -> Vec<u8> {
    bytes(id[1..].parse().unwrap(), MIB)
}

fn assert_contents(found: &BTreeMap<String, Vec<u8>>) {
    for (id, got) in found {
        assert!(*got == contents(id), "{id}");
    }
}

#[test]
fn a_killed_store_returns_with_each_byte_of_its_files_again_and_again() {
    let mut spilling = Spilling::with_objects(RECOVER);
    let away = spilling.cluster.client(0).status().unwrap().spill.objects;
    for round in 0..2 {
        spilling.kill();
        let recovered = spilling.recover();
        assert!(recovered >= away && away > 10, "round {round}: {recovered} of {away}");
        let found = spilling.await_listed(recovered);
        assert_contents(&found);
        for id in found.keys() {
            let got = spilling.cluster.client(0).get(id, TIME_LIMIT).unwrap();
            assert!(got[..] == contents(id)[..], "{id} at its store");
        }
        let status = spilling.cluster.client(0).status().unwrap().spill;
        assert_eq!((status.unrecovered_objects, status.failures), (0, 0));
        assert_eq!(runs(spilling.place.path()).len(), 1, "the old directory is gone");
    }
    spilling.cluster.assert_serves();
    assert_eq!(spilling.cluster.store(0).terminate(), 0);
    assert!(runs(spilling.place.path()).is_empty(), "a store that stops removes the files");
}

#[test]
fn a_store_of_another_name_takes_the_files_over() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.kill();
    let mut command = spilling.cluster.store_command(2);
    command.arg("--spill-dir").arg(spilling.place.path()).args(RECOVER);
    spilling.cluster.stores.push(Some(Daemon::start("node-2", &mut command)));
    let recovered = spilling.cluster.client(2).status().unwrap().spill.recovered_objects;
    assert!(recovered > 10, "{recovered}");
    assert_contents(&spilling.await_listed(recovered));
}

#[test]
fn deleted_objects_stay_deleted() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.cluster.client(1).delete(["x0", "x1"], TIME_LIMIT).unwrap();
    spilling.settle();
    spilling.kill();
    spilling.cluster.client(1).delete(["x2"], TIME_LIMIT).unwrap();
    let recovered = spilling.recover();
    let found = spilling.await_listed(recovered - 1);
    assert!(["x0", "x1", "x2"].iter().all(|id| !found.contains_key(*id)), "{:?}", found.keys());
    spilling.cluster.store(0).await_log("it was deleted");
    assert_eq!(spilling.cluster.client(0).status().unwrap().spill.unrecovered_objects, 1);
    spilling.settle();
    spilling.kill();
    spilling.cluster.restart_shard(0);
    let again = spilling.recover();
    assert_eq!(again, recovered - 1);
    let found = spilling.await_listed(again);
    assert!(["x0", "x1", "x2"].iter().all(|id| !found.contains_key(*id)), "{:?}", found.keys());
    assert_contents(&found);
}

#[test]
fn a_newer_put_wins() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.kill();
    let client = spilling.cluster.client(1);
    let error = refusal(client.get("x3", TIME_LIMIT));
    assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    client.put("x3", &bytes(1000, MIB + 1)).unwrap();
    let recovered = spilling.recover();
    let found = spilling.await_listed(recovered);
    assert!(found["x3"] == bytes(1000, MIB + 1), "the newer put");
    spilling.cluster.store(0).await_log("lists the newer put");
    spilling.settle();
    spilling.kill();
    spilling.cluster.restart_shard(0);
    spilling.recover();
    let found = spilling.await_listed(recovered);
    assert!(found["x3"] == bytes(1000, MIB + 1), "the newer put");
}

#[test]
fn damaged_and_incomplete_files_are_dropped_with_their_reason() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.kill();
    let (mut files, begun): (Vec<_>, Vec<_>) =
        spilling.files().into_iter().partition(|path| has_index(path));
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    let open = |path: &Path| fs::File::options().write(true).open(path).unwrap();
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    open(&files[0]).set_len(length(&files[0]) - 1).unwrap();
    open(&files[1]).set_len(length(&files[1]) / 2).unwrap();
    open(&files[2]).write_all_at(b"x", 140).unwrap();
    open(&files[3]).write_all_at(b"damaged", 5000).unwrap();
    fs::write(files[0].with_file_name("foreign.spill"), "x").unwrap();
    let recovered = spilling.recover();
    let found = spilling.await_listed(recovered - 1);
    assert_contents(&found);
    spilling.cluster.store(0).await_log("dropped_files=");
    let log = spilling.log();
    for reason in ["a frame of the index", "it is incomplete", "the header of a record"] {
        assert!(log.contains(reason), "{reason}: {log}");
    }
    assert!(log.contains(&format!("dropped_files={}", begun.len() + 4)), "{begun:?} {log}");
    await_that("the failed read", || {
        spilling.cluster.client(0).status().unwrap().spill.failures > 0
    });
    spilling.cluster.assert_serves();
}

#[test]
fn a_store_with_its_own_directory_recovers_its_objects_but_none_that_was_deleted() {
    let (home, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let socket = home.path().join("store.sock");
    let start = || {
        let mut command = Command::new(program("hoplite-store"));
        command
            .args(["--memory", "16MiB", "--recover", "--print-addresses", "--socket"])
            .arg(&socket);
        Daemon::start("alone", command.arg("--spill-dir").arg(place.path()))
    };
    let store = start();
    let client = Client::connect(&socket).unwrap();
    for (number, (id, size)) in (0..).zip(objects(COUNT)) {
        client.put(&id, &bytes(number, size)).unwrap();
    }
    client.delete(["x1"], TIME_LIMIT).unwrap();
    settle(&client, place.path());
    drop(store);
    let _store = start();
    let client = Client::connect(&socket).unwrap();
    let recovered = client.status().unwrap().spill.recovered_objects;
    let got = client.get("x0", TIME_LIMIT).unwrap();
    assert!(got[..] == contents("x0")[..]);
    let mut found = BTreeSet::new();
    await_that("each recovered object", || {
        for (id, _) in objects(COUNT) {
            if let Ok(got) = client.get(&id, Duration::from_millis(100)) {
                assert!(got[..] == contents(&id)[..], "{id}");
                found.insert(id);
            }
        }
        found.len() as u64 == recovered
    });
    assert!(recovered > 10 && !found.contains("x1"), "{found:?}");
}

#[test]
fn the_files_outlive_a_start_that_a_shard_refuses() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.kill();
    let socket = spilling.place.path().join("other.sock");
    let shards = &spilling.cluster.shard_addresses;
    let other = launch::Store { node: "node-0", socket: &socket, memory: "16MiB", shards };
    let other = Daemon::start("other", &mut other.command());
    let client = Client::connect(&socket).unwrap();
    await_that("a session", || client.status().unwrap().shards[0].connected);
    let mut command = spilling.cluster.store_command(0);
    command.arg("--spill-dir").arg(spilling.place.path()).args(RECOVER);
    let (code, log) = run_to_end(&mut command);
    assert!(code != 0 && log.contains("is in use"), "{log}");
    drop(other);
    let recovered = spilling.recover();
    assert!(recovered > 10, "{recovered}");
    assert_contents(&spilling.await_listed(recovered));
}

#[test]
fn without_the_flag_no_object_is_recovered() {
    let mut spilling = Spilling::with_objects(RECOVER);
    spilling.kill();
    spilling.start_store(&[]);
    assert_eq!(spilling.cluster.client(0).status().unwrap().spill.recovered_objects, 0);
    assert!(spilling.files().is_empty());
    spilling.await_listed(0);
    spilling.put_all(&objects(COUNT));
    await_that("spilled objects", || {
        spilling.cluster.client(0).status().unwrap().spill.objects > 10
    });
    spilling.kill();
    assert_eq!(spilling.recover(), 0);
    assert!(spilling.files().is_empty());
}
