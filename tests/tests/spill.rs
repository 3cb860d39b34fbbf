#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hoplite_client::PutOptions;
use hoplite_client::blocking::Client;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Dtype, Error as ObjectError, Metadata};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that, refusal, run_to_end};
use hoplite_tests::contents::bytes;
use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};
use tempfile::TempDir;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) struct Spilling {
    pub(crate) cluster: Cluster,
    pub(crate) place: TempDir,
    second: TempDir,
}

impl Spilling {
    fn start(arguments: &[&str]) -> Self {
        Self::start_as(arguments, false, "16MiB")
    }

    pub(crate) fn start_as(arguments: &[&str], both_spill: bool, memory_of_second: &str) -> Self {
        let (place, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let memory_of = [(1, memory_of_second.to_owned())].into();
        let plan = Plan { nodes: 0, memory: "16MiB".to_owned(), memory_of, ..Plan::default() };
        let cluster = Cluster::start(plan);
        let mut spilling = Self { cluster, place, second };
        spilling.start_store(arguments);
        let mut command = spilling.cluster.store_command(1);
        if both_spill {
            command.arg("--spill-dir").arg(spilling.second.path());
        }
        spilling.cluster.stores.push(Some(Daemon::start("node-1", &mut command)));
        spilling.cluster.await_sessions(1);
        spilling
    }

    pub(crate) fn start_store(&mut self, arguments: &[&str]) {
        let mut command = self.cluster.store_command(0);
        command.arg("--spill-dir").arg(self.place.path()).args(arguments);
        let daemon = Daemon::start("node-0", &mut command);
        match self.cluster.stores.first_mut() {
            Some(store) => *store = Some(daemon),
            None => self.cluster.stores.push(Some(daemon)),
        }
        self.cluster.await_sessions(0);
    }

    pub(crate) fn put_all(&self, objects: &[(String, usize)]) {
        let client = self.cluster.client(0);
        for (number, (id, size)) in objects.iter().enumerate() {
            client.put(id, &bytes(number as u64, *size)).unwrap();
        }
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        spill_files(self.place.path())
    }
}

pub(crate) fn spill_files(place: &Path) -> Vec<PathBuf> {
    let entries = runs(place).into_iter().flat_map(|run| fs::read_dir(run).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "spill")).collect()
}

pub(crate) fn runs(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

pub(crate) fn objects(count: usize) -> Vec<(String, usize)> {
    (0..count).map(|number| (format!("x{number}"), MIB)).collect()
}

#[test]
fn three_times_the_memory_of_objects_can_be_put_and_read_from_any_node() {
    let mut spilling = Spilling::start(&[]);
    let mut objects: Vec<(String, usize)> = [1, 1000, 20_000, 70_000, 3 * MIB + 7]
        .iter()
        .map(|size| (format!("size{size}"), *size))
        .collect();
    objects.extend((0..200).map(|number| (format!("small{number}"), 30_000 + number)));
    objects.extend((0..40).map(|number| (format!("large{number}"), MIB + number)));
    spilling.put_all(&objects);
    let status = spilling.cluster.client(0).status().unwrap();
    assert!(status.spill.bytes > 20 * MIB as u64, "{:?}", status.spill);
    assert_eq!(status.copies, objects.len() as u64);
    assert!(
        status.spill.files < status.spill.spilled_objects / 2,
        "small objects share files: {:?}",
        status.spill
    );
    for file in spilling.files() {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
    for node in [0, 1] {
        let client = spilling.cluster.client(node);
        for (number, (id, size)) in objects.iter().enumerate() {
            let got = client.get(id, TIME_LIMIT).unwrap();
            assert!(got[..] == bytes(number as u64, *size)[..], "{id} at node {node}");
        }
    }
    let status = spilling.cluster.client(0).status().unwrap();
    assert!(status.spill.loaded_bytes > 20 * MIB as u64, "{:?}", status.spill);
    assert_eq!(status.spill.failures, 0);
    let ids = objects.iter().map(|(id, _)| id.as_str());
    assert_eq!(spilling.cluster.client(1).delete(ids, TIME_LIMIT).unwrap(), objects.len());
    await_that("no spill file", || spilling.files().is_empty());
    spilling.cluster.await_empty(0);
    spilling.cluster.assert_serves();
    assert_eq!(spilling.cluster.store(0).terminate(), 0);
    assert!(runs(spilling.place.path()).is_empty(), "the store leaves no directory");
}

#[test]
fn two_full_stores_get_spilled_objects_from_each_other() {
    let mut spilling = Spilling::start_as(&[], true, "16MiB");
    let names = |node: usize| (0..36).map(move |number| format!("n{node}-{number}"));
    let clients = [spilling.cluster.client(0), spilling.cluster.client(1)];
    thread::scope(|scope| {
        for (node, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for (number, name) in names(node).enumerate() {
                    client.put(name, &bytes(number as u64, MIB)).unwrap();
                }
            });
        }
    });
    let hold = |node: usize| {
        let newest = names(node).skip(23).map(|name| clients[node].get(name, TIME_LIMIT).unwrap());
        newest.collect::<Vec<_>>()
    };
    let held = [hold(0), hold(1)];
    let started = Instant::now();
    thread::scope(|scope| {
        for (node, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for (number, name) in names(1 - node).enumerate() {
                    let got = client.get(&name, TIME_LIMIT).unwrap();
                    assert!(got[..] == bytes(number as u64, MIB)[..], "{name}");
                }
            });
        }
    });
    assert!(started.elapsed() < TIME_LIMIT, "no get waited for its timeout");
    for client in &clients {
        let status = client.status().unwrap();
        assert!(status.spill.objects > 10 && status.spill.failures == 0, "{:?}", status.spill);
    }
    drop(held);
    spilling.cluster.assert_serves();
}

#[test]
fn a_reduce_of_more_spilled_bytes_than_memory_streams_them() {
    let mut spilling = Spilling::start(&[]);
    let names: Vec<String> = (0..40).map(|number| format!("x{number}")).collect();
    let metadata =
        Metadata { dtype: Dtype::I32, shape: Some(vec![MIB as u64 / 4]), ..Metadata::default() };
    let client = spilling.cluster.client(0);
    for (number, name) in names.iter().enumerate() {
        let contents = i32::try_from(number).unwrap().to_le_bytes().repeat(MIB / 4);
        let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
        client.put_with(name, &contents, options).unwrap();
    }
    let loaded = client.status().unwrap().spill.loaded_objects;
    let sum = (0..40).sum::<i32>().to_le_bytes().repeat(MIB / 4);
    for node in [1, 0] {
        let reader = spilling.cluster.client(node);
        let target = format!("sum{node}");
        reader.reduce(&target, &names, ReduceOp::Sum, TIME_LIMIT).unwrap();
        assert!(reader.get(&target, TIME_LIMIT).unwrap()[..] == sum[..], "{target}");
    }
    let status = client.status().unwrap();
    assert!(status.spill.loaded_objects - loaded < 10, "{:?}", status.spill);
    assert_eq!(status.spill.failures, 0);
    spilling.cluster.assert_serves();
}

#[test]
fn other_nodes_get_no_bytes_of_a_damaged_file() {
    let mut spilling = Spilling::start(&[]);
    let objects = objects(32);
    spilling.put_all(&objects);
    for path in spilling.files() {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(b"damaged", 5000).unwrap();
    }
    let client = spilling.cluster.client(1);
    let mut lost = 0;
    for (number, (id, size)) in objects.iter().enumerate() {
        match client.get(id, TIME_LIMIT) {
            Ok(got) => assert!(got[..] == bytes(number as u64, *size)[..], "{id}"),
            error => {
                let error = refusal(error);
                assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0);
    assert_eq!(spilling.cluster.client(0).status().unwrap().spill.failures, lost);
    spilling.cluster.assert_serves();
}

#[test]
fn several_directories_get_files_in_turn_and_one_that_fails_is_left_out() {
    let other = tempfile::tempdir().unwrap();
    let path = other.path().to_str().unwrap();
    let mut spilling = Spilling::start(&["--spill-dir", path]);
    let objects = objects(40);
    spilling.put_all(&objects[..30]);
    let files_of_other = || fs::read_dir(&runs(other.path())[0]).unwrap().count();
    assert!(!spilling.files().is_empty() && files_of_other() > 0);
    let run = runs(other.path()).remove(0);
    let moved = other.path().join("moved");
    fs::rename(&run, &moved).unwrap();
    fs::write(&run, "").unwrap();
    let client = spilling.cluster.client(0);
    for (number, (id, size)) in objects.iter().enumerate().skip(30) {
        client.put(id, &bytes(number as u64, *size)).unwrap();
    }
    let status = client.status().unwrap();
    let troubles = status.troubles.lines().join("");
    assert!(troubles.contains(path), "{troubles}");
    assert!(!troubles.contains(spilling.place.path().to_str().unwrap()), "{troubles}");
    fs::remove_file(&run).unwrap();
    fs::rename(&moved, &run).unwrap();
    for (number, (id, size)) in objects.iter().enumerate() {
        let got = client.get(id, TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(number as u64, *size)[..], "{id}");
    }
    spilling.cluster.assert_serves();
    assert_eq!(spilling.cluster.store(0).terminate(), 0);
    assert!(runs(spilling.place.path()).is_empty() && runs(other.path()).is_empty());
}

#[test]
fn a_file_with_few_objects_left_is_copied_to_a_smaller_one() {
    let mut spilling = Spilling::start(&[]);
    let small: Vec<_> = (0..800).map(|number| (format!("x{number}"), 50_000 + number)).collect();
    spilling.put_all(&small);
    let before = spilling.files();
    let client = spilling.cluster.client(0);
    let is_kept = |number: usize| number.is_multiple_of(5);
    let deleted =
        (0..small.len()).filter(|number| !is_kept(*number)).map(|number| &small[number].0);
    client.delete(deleted, TIME_LIMIT).unwrap();
    let kept: u64 = small.iter().step_by(5).map(|(_, size)| *size as u64).sum();
    let file_bytes = || {
        spilling
            .files()
            .iter()
            .map(|path| fs::metadata(path).map_or(0, |found| found.len()))
            .sum::<u64>()
    };
    await_that("little waste", || {
        file_bytes() < 2 * kept && !before.iter().any(|path| path.exists())
    });
    for (number, (id, size)) in small.iter().enumerate().step_by(5) {
        let got = client.get(id, TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(number as u64, *size)[..], "{id}");
    }
    assert_eq!(client.status().unwrap().spill.failures, 0);
    spilling.cluster.assert_serves();
}

#[test]
fn the_files_of_a_killed_store_are_removed_when_the_next_one_starts() {
    let mut spilling = Spilling::start(&[]);
    spilling.put_all(&objects(24));
    await_that("spill files", || !spilling.files().is_empty());
    let left = runs(spilling.place.path());
    spilling.cluster.kill_store(0);
    assert_eq!(runs(spilling.place.path()), left);
    let foreign = spilling.place.path().join("mine");
    fs::create_dir(&foreign).unwrap();
    spilling.start_store(&[]);
    let now = runs(spilling.place.path());
    assert!(now.contains(&foreign) && now.len() == 2 && !now.contains(&left[0]), "{now:?}");
    spilling.cluster.assert_serves();
}

/// Puts objects until a refusal contains `reason`. Returns the number of objects and the refusal.
fn fill(client: &Client, reason: &str) -> (u64, String) {
    let (mut kept, mut late) = (0, 0);
    loop {
        assert!(kept < 1000, "the store is never full");
        let options = PutOptions { timeout: Duration::from_secs(3), ..PutOptions::default() };
        match client.put_with(format!("x{kept}"), &bytes(kept, MIB), options) {
            Ok(()) => kept += 1,
            Err(error) => {
                let error = refusal::<()>(Err(error));
                let text = error.to_string();
                assert!(matches!(error, ObjectError::StoreFull { .. }), "{text}");
                if text.contains(reason) {
                    return (kept, text);
                }
                late += 1;
                assert!(late < 5, "{text}");
            }
        }
    }
}

#[test]
fn a_full_disk_is_a_typed_error_and_objects_stay() {
    let mut spilling = Spilling::start(&[]);
    let pid = Pid::from_raw(i32::try_from(spilling.cluster.store(0).pid()).unwrap());
    let limit = |bytes| Rlimit { current: bytes, maximum: None };
    prlimit(pid, Resource::Fsize, limit(Some(4096))).unwrap();
    let client = spilling.cluster.client(0);
    let (kept, text) = fill(&client, "spilling to");
    assert!(text.contains("File too large"), "{text}");
    await_that("no part of a file is left", || spilling.files().is_empty());
    let status = client.status().unwrap();
    assert!(
        status.spill.failures > 0 && status.troubles.lines().join("").contains("File too large")
    );
    for number in 0..kept {
        let got = client.get(format!("x{number}"), TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(number, MIB)[..], "{number}");
    }
    prlimit(pid, Resource::Fsize, limit(None)).unwrap();
    client.put("more", &bytes(7, 4 * MIB)).unwrap();
    spilling.cluster.assert_serves();
}

#[test]
fn the_limit_of_spill_files_is_kept_and_named() {
    let mut spilling = Spilling::start(&["--spill-limit", "8MiB"]);
    let client = spilling.cluster.client(0);
    let (kept, text) = fill(&client, "limit of 8388608 bytes");
    assert!(kept >= 20, "{kept} objects fit into memory and files: {text}");
    let sizes: u64 = spilling.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(sizes <= 8 << 20, "{sizes}");
    spilling.cluster.client(0).delete(["x0", "x1", "x2"], TIME_LIMIT).unwrap();
    spilling.cluster.assert_serves();
}

#[test]
fn damaged_and_missing_files_are_typed_errors() {
    let mut spilling = Spilling::start(&[]);
    spilling.put_all(&objects(40));
    let files = spilling.files();
    assert!(files.len() >= 3, "{files:?}");
    for (number, path) in files.iter().enumerate() {
        let file = fs::File::options().write(true).open(path).unwrap();
        match number % 3 {
            0 => file.write_all_at(b"damaged", 5000).unwrap(),
            1 => file.set_len(5000).unwrap(),
            _ => fs::remove_file(path).unwrap(),
        }
    }
    let client = spilling.cluster.client(0);
    let mut reasons = String::new();
    for (number, (id, size)) in objects(40).iter().enumerate() {
        match client.get(id, TIME_LIMIT) {
            Ok(got) => assert!(got[..] == bytes(number as u64, *size)[..], "{id}"),
            error => match refusal(error) {
                ObjectError::SpillFailed { id: of, reason } => {
                    assert_eq!(of.as_bytes(), id.as_bytes());
                    reasons.push_str(&reason);
                    let again = refusal(client.get(id, TIME_LIMIT));
                    assert!(matches!(again, ObjectError::ObjectLost { .. }), "{again}");
                }
                error => panic!("{id}: {error}"),
            },
        }
    }
    for reason in ["checksum", "truncated", "gone"] {
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }
    spilling.cluster.assert_serves();
}

#[test]
fn directories_that_cannot_be_used_are_refused_at_the_start() {
    let mut spilling = Spilling::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    fs::write(path("file"), "").unwrap();
    fs::create_dir(path("other")).unwrap();
    for (name, mode) in [("open", 0o777), ("group", 0o775), ("sticky", 0o1777)] {
        fs::create_dir(path(name)).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let refused = |directories: &[&Path], reason: &str| {
        let mut command = spilling.cluster.store_command(2);
        for directory in directories {
            command.arg("--spill-dir").arg(directory);
        }
        let (code, log) = run_to_end(&mut command);
        assert!(code != 0 && log.contains(reason), "{reason}: {log}");
    };
    refused(&[&path("missing")], "does not exist");
    refused(&[&path("file")], "is not a directory");
    refused(&[spilling.place.path()], "is in use by another store");
    refused(&[place.path(), &place.path().join(".")], "is named more than once");
    refused(&[&path("open")], "other users may write to the spill directory");
    refused(&[&path("group")], "(mode 775): run chmod go-w, or set the sticky bit");
    refused(&[&path("sticky"), &path("missing")], "missing does not exist");
    refused(&[Path::new("/proc")], "cannot use the spill directory /proc");
    if geteuid().is_root() {
        chown(path("other"), Some(12345), None).unwrap();
        refused(&[&path("other")], "belongs to user 12345");
    }
    let mut command = spilling.cluster.store_command(2);
    let (code, log) = run_to_end(command.args(["--spill-limit", "1GiB"]));
    assert!(code != 0 && log.contains("--spill-limit needs a --spill-dir"), "{log}");
    spilling.cluster.assert_serves();
}
