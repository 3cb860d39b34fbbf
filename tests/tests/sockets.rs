//! Local sockets in directories of other users, with long paths, or removed.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{ConnectFailure, ConnectOptions, Distrust, Error};
use hoplite_tests::cluster::{Cluster, Daemon, await_that, program, run_to_end};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;

const TIME_LIMIT: Duration = Duration::from_secs(30);

const STRANGER: u32 = 4_000_001;
const COLLEAGUE: u32 = 4_000_002;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn connect(socket: &Path, daemon_user: Option<&str>) -> Result<Client, ConnectFailure> {
    let daemon_user = daemon_user.map(str::to_owned);
    let options =
        ConnectOptions { socket: socket.to_owned(), daemon_user, ..ConnectOptions::default() };
    Client::connect_with(options).map_err(|error| match error {
        Error::Connect { kind, .. } => kind,
        other => panic!("{other}"),
    })
}

/// Copies a program to a place that other users can reach.
fn copy_of(name: &str, directory: &Path) -> PathBuf {
    let copy = directory.join(name);
    assert!(Command::new("cp").arg(program(name)).arg(&copy).status().unwrap().success());
    copy
}

#[test]
fn a_store_of_another_user_is_refused_unless_that_user_is_configured() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    set_mode(place.path(), 0o755);
    let directory = place.path().join("theirs");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(STRANGER), Some(STRANGER)).unwrap();
    let socket = directory.join("store.sock");
    let mut command = Command::new(copy_of("hoplite-store", place.path()));
    command.args([
        "--memory",
        "8MiB",
        "--no-prefault",
        "--print-addresses",
        "--socket-mode",
        "666",
        "--socket",
    ]);
    command.arg(&socket).uid(STRANGER).gid(STRANGER).current_dir("/");
    let _store = Daemon::start("theirs", &mut command);

    let refused = connect(&socket, None).unwrap_err();
    assert!(
        matches!(&refused, ConnectFailure::UntrustedPlace(Distrust::Owner { path, owner: STRANGER }) if *path == directory),
        "{refused}"
    );
    let status = |user: u32, daemon_user: &str| {
        let mut command = Command::new(copy_of("hoplite", place.path()));
        command.arg("--socket").arg(&socket).arg("status").uid(user).gid(user).current_dir("/");
        run_to_end(command.env("HOPLITE_DAEMON_USER", daemon_user))
    };
    let (code, text) = status(0, "");
    assert_eq!((code, text.lines().count()), (1, 1), "{text}");
    assert!(
        text.contains(&format!("{} belongs to user {STRANGER}", directory.display())),
        "{text}"
    );
    assert!(text.contains(&format!("HOPLITE_DAEMON_USER={STRANGER}")), "{text}");
    let (code, text) = status(0, "no such name here");
    assert!(code == 1 && text.contains("no user \"no such name here\""), "{text}");

    for user in [0, COLLEAGUE] {
        let (code, text) = status(user, &STRANGER.to_string());
        assert_eq!(code, 0, "{text}");
    }
    connect(&socket, Some(&STRANGER.to_string())).unwrap().put("x", b"1").unwrap();

    chown(&directory, Some(0), Some(0)).unwrap();
    let refused = connect(&socket, None).unwrap_err();
    assert!(matches!(refused, ConnectFailure::UntrustedDaemon { user: STRANGER }), "{refused}");
    connect(&socket, Some(&STRANGER.to_string())).unwrap();
}

#[test]
fn a_client_in_another_pid_namespace_is_served() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make a PID namespace");
        return;
    }
    let cluster = Cluster::of(1);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program("hoplite"));
    let (code, text) = run_to_end(command.arg("--socket").arg(cluster.socket(0)).arg("status"));
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_directory_that_others_may_write_to_is_refused_by_the_store_and_by_clients() {
    let cluster = Cluster::of(1);
    set_mode(cluster.directory(), 0o777);
    let refused = connect(&cluster.socket(0), None).unwrap_err();
    assert!(
        matches!(&refused, ConnectFailure::UntrustedPlace(Distrust::Writable { path, mode: 0o777, .. }) if path == cluster.directory()),
        "{refused}"
    );
    let (code, text) = run_to_end(
        Command::new(program("hoplite-store"))
            .args(["--memory", "8MiB", "--no-prefault", "--socket"])
            .arg(cluster.directory().join("another.sock")),
    );
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("other users may write to"), "{text}");
    let (code, text) = run_to_end(
        Command::new(program("hoplite"))
            .args(["up", "--nodes", "1", "--dir"])
            .arg(cluster.directory()),
    );
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("other users may write to"), "{text}");
    set_mode(cluster.directory(), 0o1777);
    connect(&cluster.socket(0), None).unwrap();
}

#[test]
fn a_local_cluster_enters_no_link_and_no_directory_of_another_user() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let refusal = |directory: &Path| {
        let mut command = Command::new(program("hoplite"));
        let (code, text) = run_to_end(
            command.args(["up", "--nodes", "1", "--memory", "8MiB", "--dir"]).arg(directory),
        );
        assert_eq!(code, 1, "{text}");
        text
    };
    fs::create_dir(path("elsewhere")).unwrap();
    symlink(path("elsewhere"), path("link")).unwrap();
    assert!(refusal(&path("link")).contains("is a symbolic link"));
    assert_eq!(fs::read_dir(path("elsewhere")).unwrap().count(), 0);
    if rustix::process::geteuid().is_root() {
        chown(path("elsewhere"), Some(STRANGER), None).unwrap();
        let text = refusal(&path("elsewhere"));
        assert!(text.contains(&format!("belongs to user {STRANGER}")), "{text}");
    }
}

#[test]
fn the_path_of_a_socket_may_have_any_length() {
    let place = tempfile::tempdir().unwrap();
    let long = place.path().join("job-1234567.node-a012.cluster.example.org".repeat(4));
    fs::create_dir(&long).unwrap();
    let mut command = Command::new(program("hoplite"));
    command.args(["up", "--nodes", "2", "--memory", "16MiB"]).env("TMPDIR", &long);
    let mut up = Daemon::start("up", &mut command);
    assert_eq!(up.first_line, "ready");
    let made = fs::read_dir(&long).unwrap().next().unwrap().unwrap().path();
    let socket = |node: usize| made.join(format!("node-{node}.sock"));
    let contents = bytes(1, 1 << 20);
    let client = Client::connect(socket(0)).unwrap();
    client.put("x", &contents).unwrap();
    assert!(Client::connect(socket(1)).unwrap().get("x", TIME_LIMIT).unwrap()[..] == contents[..]);
    let (code, text) = run_to_end(
        Command::new(program("hoplite"))
            .arg("--socket")
            .arg(socket(1))
            .args(["get", "x", "-o"])
            .arg(long.join("copy")),
    );
    assert_eq!(code, 0, "{text}");
    let (code, text) = run_to_end(
        Command::new(program("hoplite"))
            .current_dir(&made)
            .args(["--socket", "node-0.sock", "status"]),
    );
    assert_eq!(code, 0, "{text}");
    drop(client);
    up.signal(Signal::INT);
    assert_eq!(up.exit_code(), 0);
    assert!(!made.exists());
}

#[test]
fn a_store_whose_socket_is_removed_makes_it_again_and_its_clients_go_on() {
    let mut cluster = Cluster::of(1);
    let socket = cluster.socket(0);
    let (writer, reader) = (cluster.client(0), cluster.client(0));
    let large = bytes(2, 100_000);
    writer.put("before", &large).unwrap();
    reader.get("before", TIME_LIMIT).unwrap();
    fs::remove_file(&socket).unwrap();
    reader.put("after", &large).unwrap();
    assert!(writer.get("after", TIME_LIMIT).unwrap()[..] == large[..]);
    await_that("a socket again", || Client::connect(&socket).is_ok());
    assert!(Client::connect(&socket).unwrap().get("after", TIME_LIMIT).unwrap()[..] == large[..]);
    cluster.store(0).await_log("the socket's file was removed; created it again");
    let (code, text) = run_to_end(&mut cluster.store_command(0));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("another daemon listens"), "{text}");
    assert_eq!(cluster.store(0).terminate(), 0);
    assert!(!socket.exists(), "the new file is removed at the end");
}
