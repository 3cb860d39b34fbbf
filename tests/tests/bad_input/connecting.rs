use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{ConnectFailure, ConnectOptions, Error};
use hoplite_tests::cluster::{Cluster, program, run_to_end};

use super::TIME_LIMIT;

const NOBODY: u32 = 65534;
const SHORT: Duration = Duration::from_millis(200);

fn failure(path: &Path, timeout: Duration) -> ConnectFailure {
    let options = ConnectOptions { socket: path.to_owned(), timeout, ..ConnectOptions::default() };
    match Client::connect_with(options) {
        Err(Error::Connect { path: named, kind }) => {
            assert_eq!(named, path);
            kind
        }
        other => panic!("connected, or failed otherwise: {other:?}"),
    }
}

fn complaint(path: &Path) -> String {
    let (code, text) =
        run_to_end(Command::new(program("hoplite")).arg("--socket").arg(path).arg("status"));
    assert_eq!(code, 1);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

#[test]
fn a_path_without_a_store_is_described() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);

    assert!(matches!(failure(&path("missing"), SHORT), ConnectFailure::NoSuchSocket));
    let missing = complaint(&path("missing"));
    assert!(
        missing.contains("no such socket: `hoplite start` starts a store, and HOPLITE_SOCKET"),
        "{missing}"
    );

    fs::write(path("file"), "text").unwrap();
    assert!(matches!(failure(&path("file"), SHORT), ConnectFailure::NotASocket));
    assert!(matches!(failure(directory.path(), SHORT), ConnectFailure::NotASocket));
    assert!(complaint(&path("file")).contains("not a socket"));

    drop(UnixListener::bind(path("left over")).unwrap());
    assert!(matches!(failure(&path("left over"), SHORT), ConnectFailure::NotListening));
    assert!(
        complaint(&path("left over")).contains("no daemon listens on this socket: `hoplite start`")
    );

    let silent = UnixListener::bind(path("silent")).unwrap();
    assert!(matches!(failure(&path("silent"), SHORT), ConnectFailure::TimedOut { .. }));
    drop(silent);

    let long = path(&"x".repeat(120));
    assert!(matches!(failure(&long, SHORT), ConnectFailure::PathTooLong));
    complaint(&long);
}

#[test]
fn another_listener_is_not_mistaken_for_a_store() {
    let directory = tempfile::tempdir().unwrap();
    for (name, greeting) in [
        ("mute", &b""[..]),
        ("garbage", &[0xff; 64]),
        ("short", &[9, 0, 0, 0, 1]),
        ("text", b"220 ready\r\n"),
    ] {
        let path = directory.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let answering = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(greeting);
        });
        let failure = failure(&path, TIME_LIMIT);
        let is_expected = match name {
            "mute" => matches!(failure, ConnectFailure::ClosedEarly),
            _ => matches!(failure, ConnectFailure::NotAStore),
        };
        assert!(is_expected, "{name}: {failure}");
        answering.join().unwrap();
    }
}

#[test]
fn a_socket_of_another_user_is_refused_by_name() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let mut cluster = Cluster::of(1);
    fs::set_permissions(cluster.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let metadata = fs::metadata(cluster.socket(0)).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o660, 0));
    let command_line = cluster.directory().join("hoplite");
    assert!(
        Command::new("cp").arg(program("hoplite")).arg(&command_line).status().unwrap().success()
    );
    let mut command = Command::new(&command_line);
    command.arg("--socket").arg(cluster.socket(0)).arg("status").uid(NOBODY).gid(NOBODY);
    let (code, text) = run_to_end(&mut command);
    assert_eq!(code, 1, "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("permission denied; the socket belongs to user 0"), "{text}");
    cluster.assert_serves();
}
