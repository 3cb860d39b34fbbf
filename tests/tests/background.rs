#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::HashSet;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{await_that, program};
use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("hoplite").join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program("hoplite"));
        for (variable, _) in
            std::env::vars().filter(|(variable, _)| variable.starts_with("HOPLITE_"))
        {
            command.env_remove(variable);
        }
        command.arg("--socket").arg(self.path("store.sock"));
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        output_of(self.command().args(arguments))
    }

    fn pid(&self) -> String {
        std::fs::read_to_string(self.path("store.pid")).unwrap().trim().to_owned()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.run(&["stop", "--force", "--wait", "10s"]);
    }
}

fn output_of(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code().unwrap_or(-1), text)
}

fn is_alive(pid: &str) -> bool {
    let state =
        std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_store_that_starts_and_stops_is_described_as_json() {
    let home = Home::new();
    let (code, text) = home.run(&["start", "--memory", "16MiB", "--json", "--", "--metrics", "0"]);
    assert_eq!(code, 0, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["process"].to_string(), home.pid());
    assert!(report["metrics"].as_str().unwrap().starts_with("127.0.0.1:"), "{text}");
    assert!(TcpStream::connect(report["dashboard"].as_str().unwrap()).is_ok());
    let login = std::fs::read_to_string(report["login"].as_str().unwrap()).unwrap();
    assert!(login.trim().len() > 32, "the secret of the user is the login");
    let (_, text) = home.run(&["stop", "--json"]);
    let stopped: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(stopped["process"], report["process"]);
    let (_, text) = home.run(&["stop", "--json"]);
    assert!(text.contains("\"process\": null"), "{text}");
}

#[test]
fn a_store_without_access_rules_has_a_dashboard_only_if_a_user_wants_one() {
    let home = Home::new();
    for (flags, has_dashboard) in [
        (&["--insecure"][..], false),
        (&["--insecure", "--directory-listen", "127.0.0.1:0"], false),
        (&["--insecure", "--dashboard", "0"], true),
        (&["--insecure=false"], true),
    ] {
        let (code, text) =
            home.run(&[&["start", "--memory", "16MiB", "--json", "--"], flags].concat());
        assert_eq!(code, 0, "{text}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["dashboard"].is_string(), has_dashboard, "{flags:?}: {text}");
        assert_eq!(home.run(&["stop"]).0, 0);
    }
}

#[test]
fn a_store_starts_serves_and_stops() {
    let home = Home::new();
    assert_eq!(home.run(&["stop"]).0, 0, "there is nothing to stop");
    let (code, text) = home.run(&["start", "--memory", "16MiB", "--", "--metrics", "0"]);
    assert_eq!(code, 0, "{text}");
    let pid = home.pid();
    assert!(text.contains(&pid) && text.contains("metrics") && is_alive(&pid), "{text}");
    assert!(text.contains("\ndashboard  http://127.0.0.1:"), "{text}");
    assert_eq!(home.run(&["status"]).0, 0);

    let (code, text) = home.run(&["start", "--memory", "16MiB"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("runs already") && text.contains(&pid), "{text}");
    assert!(is_alive(&pid), "the one that runs is left alone");

    let (code, text) = home.run(&["stop"]);
    assert_eq!(code, 0, "{text}");
    await_that("the end of the store", || !is_alive(&pid));
    for name in ["store.pid", "store.sock"] {
        assert!(!home.path(name).exists(), "{name}");
    }
    assert!(std::fs::read_to_string(home.path("store.log")).unwrap().contains("stopped"));
}

/// Repeats a start that must fail, with a growing time limit. Returns the output.
fn refused_start(home: &Home, start: &[&str], reason: &str) -> String {
    let mut wait = Duration::from_millis(300);
    loop {
        let limit = format!("{}ms", wait.as_millis());
        let (code, text) = home.run(&[start, &["--wait", &limit]].concat());
        assert_eq!(code, 1, "{text}");
        if text.contains(reason) {
            return text;
        }
        assert!(text.contains("was not ready within") && wait < TIME_LIMIT, "{text}");
        wait *= 2;
    }
}

fn a_cluster_of_three(flags: &[&str], refusal: &str) {
    let homes = [Home::new(), Home::new(), Home::new()];
    let first = [
        "start", "--port", "0", "--memory", "16MiB", "--node-id", "first", "--", "--dashboard", "0",
    ];
    let (code, text) = homes[0].run(&[&first, flags].concat());
    assert_eq!(code, 0, "{text}");
    let line =
        |name| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let dashboard = line("dashboard");
    let place = dashboard.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap();
    assert!(TcpStream::connect(place).is_ok());
    let port = line("directory").rsplit_once(':').unwrap().1.to_owned();
    let address = format!("localhost:{port}");
    let other = ["start", "--address", &address, "--memory", "16MiB"];
    if !flags.is_empty() {
        refused_start(&homes[2], &other, refusal);
    }
    for home in &homes[1..] {
        let (code, text) = home.run(&[&other[..], &["--"], flags].concat());
        assert_eq!(code, 0, "{text}");
    }
    let file = homes[0].0.path().join("file");
    std::fs::write(&file, b"contents").unwrap();
    assert_eq!(output_of(homes[0].command().args(["put", "x"]).arg(&file)).0, 0);
    for home in &homes[1..] {
        let copy = home.0.path().join("copy");
        assert_eq!(output_of(home.command().args(["get", "x", "-o"]).arg(&copy)).0, 0);
        assert_eq!(std::fs::read(copy).unwrap(), b"contents");
    }
}

#[test]
fn other_nodes_join_the_first() {
    a_cluster_of_three(&[], "");
}

#[test]
fn nodes_with_the_token_join_and_no_others() {
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    std::fs::write(&token, "a secret of the tests").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    a_cluster_of_three(&["--token-file", token.to_str().unwrap()], "permission denied");
}

#[test]
fn nodes_with_certificates_join_and_no_others() {
    let place = tempfile::tempdir().unwrap();
    let made = place.path().join("certs");
    let mut certs = Command::new(program("hoplite"));
    assert_eq!(output_of(certs.arg("certs").arg(&made).arg("n,localhost,127.0.0.1")).0, 0);
    let [cert, key, ca] =
        ["n.pem", "n-key.pem", "ca.pem"].map(|file| made.join(file).display().to_string());
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    a_cluster_of_three(&flags, "the other side speaks TLS");
}

#[test]
fn a_store_with_the_only_directory_drains_last_or_by_force() {
    let homes = [Home::new(), Home::new()];
    let first = ["start", "--head", "--memory", "16MiB", "--node-id", "head", "--json", "--"];
    let (code, text) = homes[0].run(&[&first[..], &["--directory-listen", "127.0.0.1:0"]].concat());
    assert_eq!(code, 0, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let address = report["directory"].as_str().unwrap();
    let second = ["start", "--address", address, "--memory", "16MiB", "--node-id", "second"];
    let (code, text) = homes[1].run(&second);
    assert_eq!(code, 0, "{text}");
    let refused: [(usize, &[&str]); 3] =
        [(0, &["drain"]), (0, &["stop", "--drain", "10s"]), (1, &["drain", "head"])];
    for (home, command) in refused {
        let (code, text) = homes[home].run(command);
        assert_eq!(code, 1, "{command:?}: {text}");
        assert!(text.contains("runs the directory of 1 other store"), "{command:?}: {text}");
    }
    assert_eq!(homes[1].run(&["drain", "head", "--force"]).0, 0);
    let (head, second) = (homes[0].pid(), homes[1].pid());
    await_that("the end of the head", || !is_alive(&head));
    assert!(is_alive(&second));
}

#[test]
fn stores_that_start_at_the_same_time_have_a_dashboard_each() {
    let starts: Vec<_> = std::iter::repeat_with(|| {
        let home = Home::new();
        let mut start = home.command();
        start
            .args(["start", "--memory", "16MiB", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let start = start.spawn().unwrap();
        (home, start)
    })
    .take(4)
    .collect();
    let mut ports = HashSet::new();
    let mut homes = Vec::new();
    for (home, start) in starts {
        homes.push(home);
        let Output { status, stdout, stderr } = start.wait_with_output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let report: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
        assert!(ports.insert(report["dashboard"].as_str().unwrap().to_owned()), "{report}");
    }
}

#[test]
fn a_store_without_a_pid_file_is_stopped() {
    let home = Home::new();
    std::fs::create_dir(home.path("")).unwrap();
    let mut start = home.command();
    start.args(["start", "--memory", "16MiB"]);
    let words = std::iter::once(start.get_program()).chain(start.get_args());
    let script = "mount -t tmpfs -o size=64k,mode=700 full \"$PLACE\" || exit 77
        dd if=/dev/zero of=\"$PLACE/ballast\" bs=4k 2> /dev/null
        \"$@\"; code=$?; ls \"$PLACE\"; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args(words).env("PLACE", home.path(""));
    let (code, text) = output_of(&mut command);
    if code == 77 || text.contains("unshare failed") {
        return eprintln!("skipped: needs root, for a full disk of its own");
    }
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("store.pid: No space left"), "{text}");
    assert!(
        !text.contains("store.sock") && !text.contains("store.pid\n") && text.contains("store.log"),
        "{text}"
    );
}

#[test]
fn a_store_that_dies_at_once_says_why_and_leaves_nothing() {
    let home = Home::new();
    let began = Instant::now();
    for (flags, word, expected) in [
        (vec!["--", "--spil-dir", "/s"], "error: unexpected argument '--spil-dir' found; tip: ", 2),
        (vec!["--memory", "16MiB", "--", "--node-id", "a b"], "not a valid name", 2),
        (vec!["--host", "192.0.2.1", "--", "--insecure"], "192.0.2.1", 1),
    ] {
        let (code, text) = home.run(&[&["start", "--wait", "300s"], &flags[..]].concat());
        assert_eq!(code, expected, "{text}");
        assert!(text.contains(word) && text.contains("ended with"), "{flags:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!home.path("store.pid").exists());
    }
    assert!(began.elapsed() < TIME_LIMIT, "nothing is waited for");
    let start = ["start", "--address", "127.0.0.1:1", "--memory", "16MiB"];
    let text = refused_start(&home, &start, "cannot reach");
    assert!(text.contains("was not ready within"), "{text}");
    assert!(!home.path("store.pid").exists() && !home.path("store.sock").exists());
}

#[test]
fn the_doctor_reports_problems_quickly() {
    let home = Home::new();
    let (code, text) = home.run(&["start", "--memory", "16MiB"]);
    assert_eq!(code, 0, "{text}");
    let timed = |command: &mut Command| {
        let began = Instant::now();
        let (code, text) = output_of(command);
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it takes a second or two, on a machine that is not busy"
        );
        eprintln!("{text}");
        (code, text)
    };
    await_that("a good verdict", || {
        let (code, text) = timed(home.command().arg("doctor"));
        code == 0 && text.contains("runs, with all its shards") && text.contains("all of version")
    });

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let token = home.0.path().join("token");
    std::fs::write(&token, b"secret").unwrap();
    let shards = format!("localhost:1,{address}");
    let mut text = String::new();
    await_that("three bad verdicts", || {
        let mut doctor = home.command();
        doctor.args(["doctor", "--json", "--listen", &address, "--directory", &shards]);
        let (code, said) = timed(doctor.arg("--token-file").arg(&token));
        assert_eq!(code, 1, "{said}");
        text = said;
        text.contains("hoplite: 3 of ") && text.contains("is reached at")
    });
    let (json, _) = text.rsplit_once("hoplite: ").unwrap();
    let findings: serde_json::Value = serde_json::from_str(json).unwrap();
    let verdict = |what: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what} is not in {findings}"))["verdict"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(verdict(&format!("listen {address}")), "bad");
    assert_eq!(verdict("directory localhost:1"), "bad");
    assert_eq!(
        verdict(&format!("directory {address}")),
        "unknown",
        "it is reached, and the token is unusable"
    );
    assert_eq!(verdict("token"), "bad", "everybody may read it");
}
