//! Daemons that cannot start exit with code 1 and a reason.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use hoplite_tests::cluster::{Cluster, Daemon, Plan, program, run_to_end};
use hoplite_tests::http::get;

fn store(socket: &Path) -> Command {
    let mut command = Command::new(program("hoplite-store"));
    command
        .args([
            "--log",
            "error",
            "--memory",
            "1MiB",
            "--no-prefault",
            "--print-addresses",
            "--socket",
        ])
        .arg(socket);
    command
}

fn reason(command: &mut Command) -> String {
    let (code, text) = run_to_end(command);
    assert_eq!(code, 1, "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn a_place_where_no_socket_can_be_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    let missing = Path::new("/proc/no-such-directory/store.sock");
    let long = directory.path().join("x".repeat(120));
    for (socket, why) in [
        (file.as_path(), "not a socket"),
        (&file.join("store.sock"), "Not a directory"),
        (missing, "No such file"),
        (&long, "File name too long"),
    ] {
        let line = reason(&mut store(socket));
        assert!(line.contains(&socket.display().to_string()) && line.contains(why), "{line}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"text");
}

#[test]
fn a_full_or_read_only_file_system_is_named() {
    let may_mount =
        Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !may_mount {
        eprintln!("skipped: file systems cannot be mounted here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    for (options, why) in [("nr_inodes=1", "No space left"), ("ro", "Read-only file system")] {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o $OPTIONS none $PLACE && exec \"$@\"";
        command
            .args(["-m", "sh", "-c", script, "sh"])
            .env("OPTIONS", options)
            .env("PLACE", directory.path());
        let inner = store(&socket);
        command.arg(inner.get_program()).args(inner.get_args());
        let line = reason(&mut command);
        assert!(line.contains(&socket.display().to_string()) && line.contains(why), "{line}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut shard = Command::new(program("hoplite-directory"));
    for command in [
        store(&socket).args(["--listen", &address]),
        store(&socket).args(["--directory-listen", &address]),
        shard.args(["--log", "error", "--listen", &address]),
    ] {
        let line = reason(command);
        assert!(line.contains(&address) && line.contains("in use"), "{line}");
        assert!(!socket.exists(), "a daemon that could not start leaves nothing");
    }
}

#[test]
fn invalid_settings_are_usage_errors() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    for arguments in [
        &["--listen", "0.0.0.0:0"][..],
        &["--memory", "much"],
        &["--node-id", "a b"],
        &["--max-clients", "0"],
        &["--labels", "rack"],
        &["--log", "info,hoplite_store=loud"],
        &["--no-such-flag"],
        &["--config", "/no/such/file"],
        &["--directory", "a:1", "--directory-listen", "127.0.0.1:0"],
        &["--huge-pages=much"],
        &["--huge-pages", "--arena-file", "/dev/shm/no-such-file"],
        &["--arena-file", "/proc/no-such-file"],
    ] {
        let (code, text) = run_to_end(
            Command::new(program("hoplite-store")).arg("--socket").arg(&socket).args(arguments),
        );
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(!text.is_empty());
    }
    for arguments in [["--listen", "0.0.0.0:0"], ["--log", "info,hoplite_directory=loud"]] {
        let (code, text) = run_to_end(Command::new(program("hoplite-directory")).args(arguments));
        assert_eq!(code, 2, "{text}");
    }
    let line = reason(store(&socket).args(["--directory", "not an address"]));
    assert!(line.contains("not an address"), "{line}");
}

#[test]
fn a_second_store_on_the_same_socket_is_refused() {
    let mut cluster = Cluster::of(1);
    let line = reason(&mut store(&cluster.socket(0)));
    assert!(line.contains("another daemon listens on"), "{line}");
    assert!(line.contains(&cluster.socket(0).display().to_string()), "{line}");
    cluster.assert_serves();
}

#[test]
fn a_full_log_disk_does_not_stop_the_daemons() {
    let directory = tempfile::tempdir().unwrap();
    for (program_name, format) in
        [("hoplite-store", "text"), ("hoplite-store", "json"), ("hoplite-directory", "text")]
    {
        let socket = directory.path().join("store.sock");
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 2>/dev/full", "sh"]).arg(program(program_name));
        command.args([
            "--log",
            "debug",
            "--log-format",
            format,
            "--metrics",
            "0",
            "--print-addresses",
        ]);
        let is_store = program_name == "hoplite-store";
        if is_store {
            command.args(["--memory", "1MiB", "--no-prefault", "--socket"]).arg(&socket);
        } else {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut daemon = Daemon::start(program_name, &mut command);
        let metrics = daemon.addresses().metrics.unwrap();
        if is_store {
            let client = hoplite_client::blocking::Client::connect(&socket).unwrap();
            client.put("object", b"bytes").unwrap();
            assert_eq!(&client.get("object", super::TIME_LIMIT).unwrap()[..], b"bytes");
        }
        let (status, text) = get(metrics, "/metrics");
        assert_eq!(status, 200, "{text}");
        let lost = text.lines().find_map(|line| line.strip_prefix("hoplite_lost_log_lines_total "));
        assert!(lost.unwrap().parse::<u64>().unwrap() > 0, "{text}");
        assert_eq!(daemon.terminate(), 0, "{program_name} ends as always");
    }
}

#[test]
fn two_stores_share_a_host_without_any_port() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemons: Vec<Daemon> = ["one", "two"]
        .iter()
        .map(|name| Daemon::start(name, &mut store(&directory.path().join(name))))
        .collect();
    for name in ["one", "two"] {
        let client =
            hoplite_client::blocking::Client::connect(directory.path().join(name)).unwrap();
        client.put("object", name.as_bytes()).expect("these are two clusters");
        assert_eq!(&client.get("object", super::TIME_LIMIT).unwrap()[..], name.as_bytes());
    }
    for daemon in &mut daemons {
        assert_eq!(daemon.terminate(), 0);
    }
}

#[test]
fn a_second_node_of_the_same_name_gives_up() {
    let mut cluster = Cluster::of(2);
    let socket = cluster.directory().join("second.sock");
    let mut command = store(&socket);
    command.args(["--node-id", "node-0", "--directory", &cluster.shard_addresses[0]]);
    let line = reason(&mut command);
    assert!(line.contains("node id node-0 is in use"), "{line}");
    assert!(!socket.exists());
    cluster.assert_serves();
}

#[test]
fn a_store_of_another_cluster_is_refused() {
    let mut cluster = Cluster::start(Plan::default());
    let socket = cluster.directory().join("other.sock");
    let mut command = store(&socket);
    command.args(["--cluster", "other", "--directory", &cluster.shard_addresses[0]]);
    let line = reason(&mut command);
    assert!(line.contains("belongs to cluster \"hoplite\", and this side to \"other\""), "{line}");
    cluster.assert_serves();
}

#[test]
fn a_store_that_spells_the_shards_differently_is_refused_with_both_lists() {
    let mut cluster = Cluster::start(Plan { shards: 2, ..Plan::default() });
    let socket = cluster.directory().join("other.sock");
    let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
    let names: Vec<String> = cluster.shard_addresses.clone();
    let aliases = [names[1].clone(), format!("localhost:{}", port(&names[0]))];
    let mut command = store(&socket);
    command.args(["--node-id", "other", "--directory", &aliases.join(",")]);
    let line = reason(&mut command);
    let listed = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        format!("[{}]", names.join(", "))
    };
    assert!(line.contains(&listed(&names)) && line.contains(&listed(&aliases)), "{line}");
    cluster.assert_serves();
}

#[test]
fn a_single_shard_may_be_spelled_in_any_way() {
    let cluster = Cluster::start(Plan::default());
    let socket = cluster.directory().join("other.sock");
    let port = cluster.shard_addresses[0].rsplit_once(':').unwrap().1.to_owned();
    let mut command = store(&socket);
    command.args(["--node-id", "other", "--directory", &format!("localhost:{port}")]);
    let mut daemon = Daemon::start("other", &mut command);
    let other = hoplite_client::blocking::Client::connect(&socket).unwrap();
    cluster.client(0).put("object", b"bytes").unwrap();
    assert_eq!(&other.get("object", super::TIME_LIMIT).unwrap()[..], b"bytes");
    drop(other);
    assert_eq!(daemon.terminate(), 0);
}
