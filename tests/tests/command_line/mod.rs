#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod output;
mod up;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hoplite_client::{PutOptions, blocking};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Daemon, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

struct Up {
    daemon: Daemon,
    place: TempDir,
}

impl Up {
    fn start(nodes: usize, shards: usize) -> Self {
        Self::start_with(nodes, shards, &[])
    }

    fn start_with(nodes: usize, shards: usize, arguments: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = up(&place.path().join("cluster"), nodes, shards);
        let daemon = Daemon::start("up", command.args(arguments));
        assert_eq!(daemon.first_line, "ready");
        Self { daemon, place }
    }

    fn cluster(&self) -> PathBuf {
        self.place.path().join("cluster")
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.cluster().join(format!("node-{node}.sock"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn hoplite(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = hoplite(arguments);
        command.env("HOPLITE_SOCKET", self.socket(node));
        command
    }

    fn succeed(&self, node: usize, arguments: &[&str]) -> Vec<u8> {
        let output = self.hoplite(node, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    }

    fn fail(&self, node: usize, arguments: &[&str]) -> String {
        failure(&self.hoplite(node, arguments).output().unwrap())
    }

    fn put(&self, node: usize, id: &str, bytes: &[u8], arguments: &[&str]) -> Output {
        let mut command = self.hoplite(node, &["put", id, "-"]);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(bytes);
        child.wait_with_output().unwrap()
    }

    fn json(&self, node: usize, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.succeed(node, arguments)).unwrap()
    }
}

fn hoplite(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hoplite"));
    command.args(arguments).env_remove("HOPLITE_SOCKET").env_remove("HOPLITE_TIMEOUT");
    command
}

fn up(directory: &Path, nodes: usize, shards: usize) -> Command {
    let mut command = hoplite(&["up", "--memory", "32MiB", "--dir"]);
    command.arg(directory).args(["--nodes", &nodes.to_string(), "--shards", &shards.to_string()]);
    command
}

fn failure(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < TIME_LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index * 31 % 251).unwrap()).collect()
}

#[test]
fn stat_shows_the_effect_of_labels() {
    let up = Up::start_with(4, 1, &["--labels", "rack=0,1"]);
    assert!(up.put(0, "x", &vec![7; 1 << 20], &[]).status.success());
    for (node, grant) in
        [(1, ["node-1", "node-0", "first-of-group"]), (2, ["node-2", "node-0", "closest"])]
    {
        up.succeed(node, &["get", "x"]);
        let stat = String::from_utf8(up.succeed(0, &["stat", "x"])).unwrap();
        let is_said = |line: &str| line.split_whitespace().skip(2).take(3).eq(grant);
        assert!(stat.lines().any(is_said), "{grant:?} in {stat}");
    }
    let mut nodes = Value::Null;
    eventually("all stores report the object", || {
        nodes = up.json(3, &["nodes", "--json"]);
        let loads = nodes.as_array().unwrap().iter().map(|node| &node["load"]);
        let pinned = loads.filter_map(|load| load["pinned_bytes"].as_u64());
        pinned.collect::<Vec<_>>() == [(1 << 20) + 64, 0, 0, 0]
    });
    assert_eq!(nodes[1]["labels"]["rack"], "1", "{nodes}");
    assert_eq!(nodes[1]["connected"], true, "{nodes}");
    let table = String::from_utf8(up.succeed(0, &["nodes"])).unwrap();
    assert!(table.lines().count() == 5 && table.contains("rack=0"), "{table}");
}

#[test]
fn objects_pass_from_node_to_node() {
    let up = Up::start(2, 2);
    for (id, length) in [("empty", 0), ("small", 6), ("inline", 65_535), ("large", 5_000_001)] {
        let bytes = pattern(length);
        let (from, to) = (up.path("from"), up.path("to"));
        fs::write(&from, &bytes).unwrap();
        up.succeed(0, &["put", id, from.to_str().unwrap()]);
        assert_eq!(up.succeed(1, &["get", id]), bytes, "{id}");
        up.succeed(1, &["get", id, "-o", to.to_str().unwrap()]);
        assert_eq!(fs::read(&to).unwrap(), bytes, "{id}");
        assert_eq!(up.succeed(1, &["get", id, "-o", "-"]), bytes, "{id}");
        assert!(up.put(1, id, &bytes, &[]).status.success(), "{id}");
    }
    let listed = up.json(1, &["ls", "--json"]);
    let ids: Vec<_> =
        listed.as_array().unwrap().iter().map(|object| object["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["empty", "inline", "large", "small"]);
    assert_eq!(listed[2]["size_bytes"], 5_000_001);
    assert_eq!(listed[2]["complete"], 2);
    assert_eq!(listed[2]["pinned"], serde_json::json!(["node-0"]));
    assert_eq!(
        (&listed[2]["creator"], &listed[3]["creator"]),
        (&"node-0".into(), &"node-0".into())
    );
    let got_ms = listed[2]["unused_ms"].as_u64().unwrap();
    assert!(got_ms <= listed[2]["age_ms"].as_u64().unwrap(), "{listed}");
    let by_size = up.json(1, &["ls", "--sort", "size", "--limit", "2", "--json"]);
    assert_eq!((by_size.as_array().unwrap().len(), &by_size[0]["id"]), (2, &"large".into()));
    assert_eq!(up.json(1, &["ls", "--limit", "1", "--json"])[0]["id"], "empty");
    assert_eq!(up.json(0, &["ls", "sm", "--json"]).as_array().unwrap().len(), 1);
    assert_eq!(up.json(0, &["ls", "x", "--json"]), serde_json::json!([]));

    up.succeed(1, &["delete", "large", "small", "unknown"]);
    assert!(up.fail(0, &["--timeout", "100ms", "get", "large"]).contains("timed out"));
    assert_eq!(up.json(0, &["ls", "--json"]).as_array().unwrap().len(), 2);
}

#[test]
fn stat_and_status_show_the_location_of_objects() {
    let up = Up::start(2, 1);
    let bytes = pattern(400_000);
    assert!(
        up.put(0, "array", &bytes, &["--dtype", "f32", "--shape", "100,1000"]).status.success()
    );
    up.succeed(1, &["get", "array", "-o", "/dev/null"]);
    eventually("the end of the transfer", || {
        let (stat, status) =
            (up.json(0, &["stat", "array", "--json"]), up.json(0, &["status", "--json"]));
        stat["grants"][0]["outcome"] == "complete" && status["transfers"]["sent_bytes"] == 400_000
    });
    let stat = up.json(0, &["stat", "array", "--json"]);
    assert_eq!(stat["object"]["dtype"], "f32");
    assert_eq!(stat["object"]["creator"], "node-0");
    assert_eq!(stat["object"]["shape"], serde_json::json!([100, 1000]));
    assert_eq!(stat["locations"][0]["node"], "node-0");
    assert_eq!(stat["locations"][1]["retention"], "evictable");
    assert_eq!(stat["grants"][0]["receiver"], "node-1");
    assert_eq!(stat["grants"][0]["sender"], "node-0");
    let status = up.json(0, &["status", "--json"]);
    assert_eq!(status["node"], "node-0");
    eventually("the session", || {
        up.json(0, &["status", "--json"])["shards"][0]["connected"] == true
    });
    assert_eq!(status["reduces"]["coordinated"], 0);
    for arguments in [&["stat", "array"][..], &["status"], &["ls"]] {
        let text = String::from_utf8(up.succeed(1, arguments)).unwrap();
        assert!(text.contains("node-0") || text.contains("node-1"), "{text}");
    }
    assert!(up.fail(1, &["stat", "unknown"]).contains("unknown"));
}

#[test]
fn wait_prints_ready_objects() {
    let up = Up::start(1, 1);
    assert!(up.put(0, "b", b"1", &[]).status.success());
    assert_eq!(up.succeed(0, &["wait", "a", "b", "--num", "1"]), b"b\n");
    let output = up.hoplite(0, &["wait", "a", "b", "--timeout", "50ms"]).output().unwrap();
    assert_eq!(output.stdout, b"b\n");
    assert!(failure(&output).contains("1 of 2"));
    let mut waiting = up.hoplite(0, &["wait", "a", "b"]).stdout(Stdio::piped()).spawn().unwrap();
    assert!(up.put(0, "a", b"2", &[]).status.success());
    let mut text = String::new();
    waiting.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a\nb\n");
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn arrays_of_several_nodes_are_reduced() {
    let up = Up::start(3, 1);
    let array = |factor: u16| -> Vec<u8> {
        (0..50_000_u16)
            .flat_map(|index| (f32::from(index) * f32::from(factor)).to_le_bytes())
            .collect()
    };
    let put = |node, id, factor| {
        let output = up.put(node, id, &array(factor), &["--dtype", "f32", "--shape", "50,1000"]);
        assert!(output.status.success(), "{output:?}");
    };
    put(1, "b", 2);
    let mut reduce =
        up.hoplite(0, &["reduce", "sum", "a", "b", "c"]).stdout(Stdio::piped()).spawn().unwrap();
    put(2, "c", 3);
    put(0, "a", 1);
    let mut text = String::new();
    reduce.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(reduce.wait().unwrap().success());
    let mut joined: Vec<_> = text.lines().collect();
    joined.sort_unstable();
    assert_eq!(joined, ["a", "b", "c"]);
    assert_eq!(up.succeed(1, &["get", "sum"]), array(6));
    assert_eq!(
        up.json(2, &["stat", "sum", "--json"])["object"]["shape"],
        serde_json::json!([50, 1000])
    );

    let largest = ["reduce", "largest", "a", "never", "c", "--op", "max", "--num", "2", "--json"];
    let report = up.json(2, &largest);
    assert_eq!(report["id"], "largest");
    assert_eq!(report["reduced"].as_array().unwrap().len(), 2);
    assert_eq!(up.succeed(1, &["get", "largest"]), array(3));
    let in_order =
        up.succeed(1, &["reduce", "fixed", "c", "a", "b", "--deterministic", "--timeout", "0"]);
    assert_eq!(in_order, b"c\na\nb\n");
}

#[test]
fn an_impossible_reduce_prints_the_reason() {
    let up = Up::start(1, 1);
    for (id, dtype) in [("a", "f32"), ("b", "i32"), ("opaque", "opaque")] {
        assert!(up.put(0, id, &pattern(400), &["--dtype", dtype]).status.success());
    }
    assert!(up.put(0, "longer", &pattern(404), &["--dtype", "f32"]).status.success());
    for (arguments, why) in [
        (&["reduce", "t", "a", "a"][..], "object a is named more than once"),
        (&["reduce", "a", "b", "a"], "object a is named more than once"),
        (&["reduce", "t", "a", "b"], "object b cannot be reduced"),
        (&["reduce", "t", "a", "longer"], "object longer cannot be reduced"),
        (&["reduce", "t", "opaque"], "object opaque cannot be reduced"),
        (&["reduce", "a", "longer"], "object a already exists"),
        (&["reduce", "t", "a", "never", "--timeout", "100ms"], "reduce of t timed out after 100ms"),
        (&["reduce", "t", "a", "never", "--timeout", "0"], "reduce of t timed out after 0s"),
    ] {
        let line = up.fail(0, arguments);
        assert!(line.contains(why), "{arguments:?}: {line}");
    }
    let ids = up.json(0, &["ls", "--json"]).as_array().unwrap().len();
    assert_eq!(ids, 4, "nothing is left of what could not be made");
}

#[test]
fn all_participants_get_the_reduction_of_all_arrays() {
    let up = Up::start(3, 1);
    let array = |factor: u16| -> Vec<u8> {
        (0..50_000_u16)
            .flat_map(|index| (f32::from(index) * f32::from(factor)).to_le_bytes())
            .collect()
    };
    let put = |node, id, factor| {
        assert!(up.put(node, id, &array(factor), &["--dtype", "f32"]).status.success())
    };
    let call = |rank: usize, output: &[&str]| {
        let number = rank.to_string();
        let arguments =
            [&["allreduce", "sum", "a", "b", "c", "--rank", &number][..], output].concat();
        up.hoplite(rank, &arguments).stdout(Stdio::piped()).spawn().unwrap()
    };
    let file = up.path("sum");
    let first = call(1, &[]);
    put(0, "a", 1);
    let second = call(0, &[]);
    put(2, "c", 3);
    let third = call(2, &["-o", file.to_str().unwrap()]);
    put(1, "b", 2);
    for call in [first, second] {
        let output = call.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == array(6), "{:?}", output.status);
    }
    let output = third.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(fs::read(&file).unwrap(), array(6));
    assert_eq!(up.succeed(2, &["get", "sum"]), array(6));

    let largest = [
        "allreduce",
        "largest",
        "b",
        "--rank",
        "0",
        "--op",
        "max",
        "--deterministic",
        "--timeout",
        "0",
    ];
    assert_eq!(up.succeed(1, &largest), array(2));
}

#[test]
fn an_impossible_allreduce_prints_the_reason_and_leaves_no_file() {
    let up = Up::start(1, 1);
    assert!(up.put(0, "a", &pattern(400), &["--dtype", "f32"]).status.success());
    fs::create_dir(up.path("files")).unwrap();
    let file = up.path("files/sum");
    let file = file.to_str().unwrap();
    for (arguments, why) in [
        (&["t", "a", "a"][..], "object a is named more than once"),
        (&["t", "a", "never", "--timeout", "100ms"], "allreduce of t timed out after 100ms"),
        (&["t", "a", "never", "--timeout", "0"], "allreduce of t timed out after 0s"),
    ] {
        let line = up.fail(0, &[&["allreduce", "--rank", "0", "-o", file][..], arguments].concat());
        assert!(line.contains(why), "{arguments:?}: {line}");
    }
    assert!(names(&up.path("files")).is_empty());
    let nowhere =
        up.fail(0, &["allreduce", "t", "a", "--rank", "0", "-o", "/no/such/directory/file"]);
    assert!(nowhere.contains("cannot write /no/such/directory/file"), "{nowhere}");
}

#[test]
fn a_barrier_holds_until_all_participants_arrive() {
    let up = Up::start(2, 1);
    let arguments = |rank: usize| {
        ["barrier", "ready", "--participants", "4", "--rank"]
            .map(str::to_owned)
            .into_iter()
            .chain([rank.to_string()])
    };
    let call = |rank: usize| {
        let mut command = up.hoplite(rank % 2, &[]);
        command.args(arguments(rank)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let missing = up
        .fail(1, &["barrier", "ready", "--participants", "4", "--rank", "3", "--timeout", "200ms"]);
    assert!(missing.contains("in vain for ranks 0, 1, 2"), "{missing}");
    let mut early = [0, 1, 3].map(call);
    let waits = ["wait", "ready/0", "ready/1", "ready/3"];
    up.succeed(0, &waits);
    assert!(
        early.iter_mut().all(|call| call.try_wait().unwrap().is_none()),
        "one of four has not come"
    );
    for call in early.into_iter().chain([call(2)]) {
        let output = call.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let again = up.fail(0, &["barrier", "ready", "--participants", "4", "--rank", "0"]);
    assert!(again.contains("already exists"), "{again}");
}

#[test]
fn a_timeout_of_zero_returns_available_objects() {
    let up = Up::start(2, 1);
    let bytes = pattern(5_000_001);
    assert!(up.put(0, "large", &bytes, &["--timeout", "0s"]).status.success());
    assert_eq!(
        up.succeed(1, &["wait", "nope", "large", "--num", "1", "--timeout", "0"]),
        b"large\n"
    );
    assert_eq!(up.succeed(1, &["get", "large", "--timeout", "0"]), bytes);
    let nope = up.fail(1, &["get", "nope", "--timeout", "0s"]);
    assert!(nope.starts_with("hoplite: get of nope timed out after 0s"), "{nope}");
    assert!(up.fail(1, &["wait", "nope", "--timeout", "0s"]).contains("0 of 1"));
    up.succeed(1, &["ls", "--timeout", "0"]);
    up.succeed(1, &["delete", "large", "--timeout", "0"]);
    let nope = up.fail(1, &["get", "nope", "--timeout", "50ms"]);
    assert_eq!(nope, "hoplite: get of nope timed out after 50ms: no store offers object nope\n");
}

#[test]
fn an_endless_input_cannot_be_put() {
    let up = Up::start(1, 1);
    assert!(up.fail(0, &["put", "endless", "/dev/zero"]).contains("larger than the limit"));
    let endless = ["put", "endless", "/dev/zero", "--socket", "/no/such/socket"];
    assert!(up.fail(0, &endless).contains("/no/such/socket"));
    assert_eq!(up.json(0, &["ls", "--json"]), serde_json::json!([]));
}

#[test]
fn a_signal_ends_waits_and_puts_in_one_line() {
    let up = Up::start(1, 1);
    let client = blocking::Client::connect(up.socket(0)).unwrap();
    let _writer = client.create("taken", 1, PutOptions::default()).unwrap();
    let file = up.path("file");
    fs::write(&file, b"1").unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["wait", "never"][..], &["put", "silent", "-"], &["put", "taken", file]] {
        for signal in [Signal::INT, Signal::TERM] {
            let mut command = up.hoplite(0, arguments);
            let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let stdin = child.stdin.take();
            eventually("it listens to signals", || catches(child.id(), Signal::HUP));
            kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal)
                .unwrap();
            assert_eq!(
                failure(&child.wait_with_output().unwrap()),
                "hoplite: interrupted\n",
                "{arguments:?}"
            );
            drop(stdin);
        }
    }
    assert_eq!(up.json(0, &["ls", "silent", "--json"]), serde_json::json!([]));
}

#[test]
fn ids_are_shown_as_they_were_given() {
    let up = Up::start(1, 1);
    let (id, long) = ("gewichte/\u{e4}\u{6771}", "x".repeat(255));
    for id in [id, &long] {
        assert!(up.put(0, id, b"1", &[]).status.success());
    }
    let text = |arguments: &[&str]| String::from_utf8(up.succeed(0, arguments)).unwrap();
    assert_eq!(text(&["wait", id]), format!("{id}\n"));
    assert!(text(&["stat", id]).contains(id));
    let listed = text(&["ls"]);
    let line = listed.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(line.len() < 120, "{listed}");
    assert!(listed.contains(&long), "{listed}");
}

#[test]
fn failures_are_one_line_and_usage_errors_are_2() {
    let up = Up::start(1, 1);
    assert!(up.put(0, "x", b"one", &[]).status.success());
    assert!(failure(&up.put(0, "x", b"other", &[])).contains("already exists"));
    assert!(failure(&up.put(0, "y", b"12345", &["--dtype", "f32"])).contains("f32"));
    assert!(failure(&up.put(0, "y", &pattern(33 << 20), &[])).contains("larger than"));
    assert!(up.fail(0, &["put", "y", "/no/such/file"]).contains("/no/such/file"));
    assert!(
        up.fail(0, &["get", "x", "-o", "/no/such/directory/file"]).contains("/no/such/directory")
    );
    assert!(up.fail(0, &["get", "x", "--socket", "/no/such/socket"]).contains("/no/such/socket"));

    let long = "x".repeat(256);
    for arguments in [
        &["get"][..],
        &["get", ""],
        &["get", &long],
        &["fly"],
        &["wait", "a", "--num", "2"],
        &["put", "x", "-", "--dtype", "f31"],
        &["reduce", "t", "a", "--num", "2"],
        &["reduce", "t", "a", "--op", "mean"],
        &["allreduce", "t", "a", "b", "--rank", "2"],
        &["barrier", "x", "--rank", "4", "--participants", "4"],
        &["up", "--nodes", "0"],
    ] {
        let output = up.hoplite(0, arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !text.contains("--socket"),
            "the usage names only flags of the command line: {text}"
        );
    }
}

#[test]
fn a_get_that_cannot_end_leaves_no_file() {
    let up = Up::start(2, 1);
    let bytes = pattern(1 << 20);
    let outputs = up.path("outputs");
    fs::create_dir(&outputs).unwrap();
    let start_get = |id: &str| {
        let client = blocking::Client::connect(up.socket(0)).unwrap();
        let mut writer = client.create(id, 2 << 20, PutOptions::default()).unwrap();
        writer.write(&bytes).unwrap();
        let output = outputs.join(id);
        let get =
            up.hoplite(1, &["get", id, "-o"]).arg(&output).stderr(Stdio::piped()).spawn().unwrap();
        eventually("half of it is written", || {
            let names = names(&outputs);
            names
                .first()
                .is_some_and(|name| fs::metadata(outputs.join(name)).unwrap().len() == 1 << 20)
        });
        assert!(!output.exists());
        (writer, get)
    };

    let (writer, get) = start_get("abandoned");
    drop(writer);
    assert!(failure(&get.wait_with_output().unwrap()).contains("lost"));
    assert_eq!(names(&outputs), Vec::<String>::new());

    let (mut writer, get) = start_get("interrupted");
    let pid = Pid::from_raw(i32::try_from(get.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(failure(&get.wait_with_output().unwrap()).contains("interrupted"));
    assert_eq!(names(&outputs), Vec::<String>::new());

    writer.write(&bytes).unwrap();
    writer.seal().unwrap();
    assert_eq!(up.succeed(1, &["get", "interrupted"]), [bytes.clone(), bytes.clone()].concat());
}

#[test]
fn a_closed_output_ends_a_get_quietly() {
    let up = Up::start(1, 1);
    assert!(up.put(0, "x", &pattern(8 << 20), &[]).status.success());
    let mut get = up.hoplite(0, &["get", "x"]);
    let mut get = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 10];
    get.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = get.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn up_leaves_nothing_behind() {
    let mut up = Up::start(2, 2);
    let children = children(up.daemon.pid());
    assert_eq!(children.len(), 4);
    assert_eq!(names(&up.cluster()), ["logs", "node-0.sock", "node-1.sock"]);
    assert_eq!(up.daemon.terminate(), 0);
    assert!(!up.cluster().exists());
    assert!(children.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn up_ends_with_a_daemon_and_names_it() {
    let place = tempfile::tempdir().unwrap();
    let mut up = Daemon::start("up", &mut up(place.path(), 2, 1));
    assert_eq!(up.first_line, "ready");
    let children = children(up.pid());
    let victim = children.iter().find(|pid| arguments_of(**pid).contains("node-1.sock")).unwrap();
    kill_process(Pid::from_raw(*victim).unwrap(), Signal::KILL).unwrap();
    assert_eq!(up.exit_code(), 1);
    up.await_log("node-1 ended with signal: 9");
    assert!(children.iter().all(|pid| !is_alive(*pid)));
    assert_eq!(names(place.path()), ["logs"]);
    assert_eq!(names(&place.path().join("logs")), ["directory-0.log", "node-0.log", "node-1.log"]);
}

#[test]
fn the_daemons_of_up_end_with_it_even_if_it_is_killed() {
    let mut up = Up::start(2, 1);
    let children = children(up.daemon.pid());
    assert_eq!(children.len(), 3);
    up.daemon.kill();
    eventually("the daemons end", || children.iter().all(|pid| !is_alive(*pid)));
    let again = Daemon::start("up", &mut self::up(&up.cluster(), 2, 1));
    assert_eq!(again.first_line, "ready");
}

#[test]
fn benchmarks_report_what_they_measured() {
    let bench = |arguments: &[&str]| -> Value {
        let output = hoplite(&["bench", "--json"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let local = [
        "local", "--size", "1MiB", "--samples", "100", "--cold-samples", "3", "--repetitions", "2",
    ];
    let local = bench(&local);
    let objects = bench(&["objects", "--thousands", "1"]);
    let p2p = bench(&["p2p", "--size", "1MiB", "--samples", "100", "--repetitions", "2"]);
    let broadcast =
        bench(&["broadcast", "--size", "1MiB", "--receivers", "2", "--repetitions", "2"]);
    let reduce = bench(&["reduce", "--size", "1MiB", "--nodes", "2,3", "--repetitions", "2"]);
    let kernels = bench(&["kernels", "--size", "64KiB", "--dtype", "f32", "--repetitions", "2"]);
    let directory = ["--objects", "100", "--copies", "120", "--receivers", "4", "--gets", "500"];
    let directory = bench(&[&["directory"][..], &directory].concat());
    let figures = directory["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 8, "{directory}");
    assert!(figures.iter().all(|figure| figure["value"].as_f64().unwrap() > 0.0), "{directory}");
    for (report, count) in
        [(&local, 13), (&objects, 6), (&p2p, 4), (&broadcast, 3), (&reduce, 14), (&kernels, 6)]
    {
        let measurements = report["measurements"].as_array().unwrap();
        assert_eq!(measurements.len(), count, "{report}");
        for measurement in measurements {
            assert!(measurement["median_s"].as_f64().unwrap() > 0.0, "{measurement}");
        }
    }
    let measurement = &broadcast["measurements"][0]["broadcast"];
    assert_eq!(measurement["receivers_s"].as_array().unwrap().len(), 2);
    assert!(measurement["origin_sent_objects"].as_f64().unwrap() >= 1.0);
    let traffic = &reduce["measurements"][0]["traffic"];
    assert!(traffic["received_objects"].as_f64().unwrap() >= 1.0, "{reduce}");
}

#[test]
fn the_demo_shares_a_file_and_adds_up_arrays() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, pattern(3_000_000)).unwrap();
    let mut demo = hoplite(&["demo", "--nodes", "3", "--file"]);
    let output = demo.arg(&file).env("TMPDIR", place.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("compared: all 2 files have the hash"), "{text}");
    assert!(text.contains("compared: it is the sum that this program computes"), "{text}");
    assert_eq!(names(place.path()), ["file"]);
}

fn children(pid: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn arguments_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap()
}

fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    caught & (1 << (signal.as_raw() - 1)) != 0
}

fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
