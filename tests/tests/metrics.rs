#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hoplite_client::{AllreduceOptions, Client, Dtype, Metadata, PutOptions, ReduceOp};
use hoplite_core::Error as ObjectError;
use hoplite_core::topology::probe::survey::SurveyOptions;
use hoplite_core::topology::probe::{MAX_PROBES, Probes};
use hoplite_proto::v1;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{
    Cluster, Daemon, Plan, await_that, directory, program, refusal, run_to_end,
};
use hoplite_tests::contents::bytes;
use hoplite_tests::http::get;
use tokio::sync::mpsc;

const TABLE: [&str; 2] =
    ["<!-- The table is what daemons export: tests/tests/metrics.rs -->\n", "<!-- end -->\n"];

fn cluster() -> Cluster {
    let metrics = vec!["--metrics".to_owned(), "0".to_owned()];
    Cluster::start(Plan {
        store_arguments: metrics.clone(),
        shard_arguments: metrics,
        ..Plan::default()
    })
}

fn address(daemon: &Option<Daemon>) -> SocketAddr {
    daemon.as_ref().unwrap().addresses().metrics.unwrap()
}

fn text(daemon: &Option<Daemon>) -> String {
    let (status, text) = get(address(daemon), "/metrics");
    assert_eq!(status, 200, "{text}");
    text
}

fn value(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{series} is not in {text}")).parse().unwrap()
}

fn work(cluster: &Cluster) {
    let (first, second) = (cluster.client(0), cluster.client(1));
    let metadata = Metadata { dtype: Dtype::F32, shape: Some(vec![25_000]), ..Metadata::default() };
    let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    let zeros = vec![0; 100_000];
    first.put_with("a", &zeros, options()).unwrap();
    second.put_with("b", &zeros, options()).unwrap();
    second.put("small", &bytes(1, 100)).unwrap();
    second.get("a", TIME_LIMIT).unwrap();
    first.reduce("sum", ["a", "b"], ReduceOp::Sum, TIME_LIMIT).unwrap();
    assert!(matches!(refusal(first.get("none", Duration::ZERO)), ObjectError::Timeout { .. }));
    assert_eq!(first.wait(["a"], 1, TIME_LIMIT).unwrap(), [0]);
    assert_eq!(first.delete(["b"], TIME_LIMIT).unwrap(), 1);
}

#[test]
fn a_call_that_is_cancelled_is_no_longer_open() {
    let cluster = cluster();
    let open = || value(&text(&cluster.stores[0]), "hoplite_store_open_calls");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(cluster.socket(0))).unwrap();
    runtime.block_on(async {
        let mut get = std::pin::pin!(client.get("none", TIME_LIMIT));
        tokio::select! {
            biased;
            _ = &mut get => panic!("there is no such object"),
            () = async { while open() < 1.0 { tokio::task::yield_now().await } } => {}
        }
    });
    runtime.block_on(client.put("some", &bytes(1, 100))).unwrap();
    await_that("the call to be forgotten", || open() == 0.0);
}

#[test]
fn work_of_daemons_is_counted() {
    let cluster = cluster();
    work(&cluster);
    let (first, second) = (text(&cluster.stores[0]), text(&cluster.stores[1]));
    let operation = |text: &str, what: &str, name: &str| {
        value(text, &format!("hoplite_store_operation_{what}{{operation=\"{name}\"}}"))
    };
    for (name, number) in
        [("put", 1.0), ("reduce", 1.0), ("wait", 1.0), ("delete", 1.0), ("get", 0.0)]
    {
        assert_eq!(operation(&first, "seconds_count", name), number, "{name}");
    }
    assert_eq!(operation(&first, "bytes_total", "put"), 100_000.0);
    assert_eq!(operation(&second, "seconds_count", "put"), 2.0);
    assert_eq!(operation(&second, "bytes_total", "put"), 100_100.0);
    assert_eq!(operation(&second, "bytes_total", "get"), 100_000.0);
    let timeout = "hoplite_store_operation_failures_total{error=\"timeout\",operation=\"get\"}";
    assert_eq!(value(&first, timeout), 1.0);
    assert_eq!(
        value(&second, "hoplite_store_transfer_bytes_total{direction=\"received\"}"),
        100_000.0
    );
    assert!(value(&first, "hoplite_store_transfer_bytes_total{direction=\"sent\"}") >= 100_000.0);
    assert_eq!(value(&second, "hoplite_store_pull_seconds_count{outcome=\"complete\"}"), 1.0);
    assert_eq!(value(&second, "hoplite_store_pulled_bytes_total{peer=\"node-0\"}"), 100_000.0);
    assert_eq!(value(&second, "hoplite_store_pulled_bytes_total{peer=\"(others)\"}"), 0.0);
    assert_eq!(value(&second, "hoplite_store_grants_total{reason=\"only-candidate\"}"), 1.0);
    assert!(value(&first, "hoplite_store_combined_bytes_total") >= 100_000.0);
    assert_eq!(
        value(&first, "hoplite_store_memory_bytes{state=\"capacity\"}"),
        f64::from(64 << 20)
    );
    assert!(value(&first, "hoplite_store_memory_bytes{state=\"pinned\"}") >= 100_000.0);
    assert_eq!(value(&first, "hoplite_store_open_calls"), 0.0);
    let mut shard = String::new();
    await_that("both sessions", || {
        shard = text(&cluster.shards[0]);
        value(&shard, "hoplite_directory_nodes{state=\"connected\"}") == 2.0
    });
    assert!(value(&shard, "hoplite_directory_sessions_opened_total") >= 2.0);
    assert!(value(&shard, "hoplite_directory_received_messages_total{kind=\"publish\"}") >= 4.0);
    assert!(value(&shard, "hoplite_directory_objects") >= 3.0);
    assert_eq!(value(&shard, "hoplite_ready"), 1.0);
}

#[test]
fn collectives_are_counted_where_they_are_coordinated_and_at_their_members() {
    let cluster = cluster();
    cluster.put_zeros(0, "a");
    cluster.put_zeros(1, "b");
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let client = cluster.client(rank);
            let options =
                AllreduceOptions { op: ReduceOp::Sum, timeout: TIME_LIMIT, ..Default::default() };
            scope.spawn(move || client.allreduce("sum", ["a", "b"], rank, options).unwrap());
        }
    });
    let exchanged = |node: usize| {
        let text = text(&cluster.stores[node]);
        value(&text, "hoplite_store_exchange_seconds_count{collective=\"allreduce\"}")
    };
    await_that("the ends of the exchanges", || exchanged(0) == 1.0 && exchanged(1) == 1.0);
    let [first, second] = [0, 1].map(|node| text(&cluster.stores[node]));
    let operation = |text: &str, name: &str| {
        value(text, &format!("hoplite_store_operation_seconds_count{{operation=\"{name}\"}}"))
    };
    assert_eq!([operation(&first, "allreduce"), operation(&second, "allreduce")], [1.0, 0.0]);
    assert!(operation(&second, "join") >= 1.0);
    let bytes = "hoplite_store_exchange_bytes_total{collective=\"allreduce\"}";
    assert_eq!([value(&first, bytes), value(&second, bytes)], [f64::from(4 << 20); 2]);
    let failures = "hoplite_store_exchange_failures_total{collective=\"allreduce\"}";
    assert_eq!([value(&first, failures), value(&second, failures)], [0.0; 2]);
}

#[test]
fn a_put_that_waits_for_space_is_visible() {
    let cluster = cluster();
    let client = cluster.client(0);
    client.put("large", &bytes(1, 40 << 20)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.client(0).put("second", &bytes(2, 40 << 20)));
        await_that("a put that waits", || {
            value(&text(&cluster.stores[0]), "hoplite_store_waiting_for_room") == 1.0
        });
        client.delete(["large"], TIME_LIMIT).unwrap();
        waiting.join().unwrap().unwrap();
    });
    let text = text(&cluster.stores[0]);
    assert_eq!(value(&text, "hoplite_store_waiting_for_room"), 0.0);
    assert_eq!(value(&text, "hoplite_store_room_wait_seconds_count"), 1.0);
}

fn place(cluster: &Cluster, version: u64) {
    let node = |number: u32| v1::measured_places::Node {
        node: format!("node-{number}"),
        groups: vec![0, 0, 1 + number, 0],
    };
    let nodes = vec![node(0), node(1)];
    let places = v1::MeasuredPlaces { version, nodes, uplinks_permille: vec![0, 0, 250, 0] };
    let address = &cluster.shard_addresses[0];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = async { directory(address).place(places).await };
    assert!(runtime.block_on(place).unwrap().into_inner().counts);
}

#[test]
fn measured_places_are_seen_at_the_shard_and_at_the_stores() {
    let cluster = cluster();
    let of = |daemon, name: &str| value(&text(daemon), name);
    let shard = |name: &str| of(&cluster.shards[0], &format!("hoplite_directory_{name}"));
    let store =
        |node: usize, name: &str| of(&cluster.stores[node], &format!("hoplite_store_{name}"));
    let rack = "uplink_permille{level=\"rack\"}";
    assert_eq!([shard("places_version"), store(0, "places_version"), store(0, rack)], [0.0; 3]);
    place(&cluster, 5);
    await_that("the stores to hear of it", || {
        (0..2).all(|node| store(node, "places_version") == 5.0)
    });
    assert_eq!(shard("places_version"), 5.0);
    assert_eq!([shard("placed_nodes"), shard("measured_groups")], [2.0, 2.0]);
    assert_eq!([shard(rack), store(0, rack), store(1, rack)], [250.0; 3]);
    let zone = "uplink_permille{level=\"zone\"}";
    assert_eq!([shard(zone), store(0, zone)], [0.0; 2]);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as f64;
    let probed = probe(&cluster, &["--apply", "--probes", "5"]).status().unwrap();
    assert!(probed.success());
    assert!(shard("places_version") >= before, "its age can be told");
    await_that("the stores to hear of it", || {
        (0..2).all(|node| store(node, "places_version") == shard("places_version"))
    });
    let names = ["placed_nodes", "measured_groups", rack];
    assert_eq!(names.map(shard), [0.0; 3]);
    assert_eq!(store(1, rack), 0.0);
}

fn probe(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hoplite"));
    command.args(["topology", "probe"]).args(arguments).env("HOPLITE_SOCKET", cluster.socket(0));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn probes_are_counted_where_they_are_coordinated() {
    let cluster = cluster();
    let seen = |node: usize, name: &str| {
        value(&text(&cluster.stores[node]), &format!("hoplite_store_{name}"))
    };
    let results = |node: usize| {
        ["complete", "failed", "cancelled"]
            .map(|result| seen(node, &format!("probes_total{{result=\"{result}\"}}")))
    };
    let last = || ["last_probe_timestamp_seconds", "last_probe_seconds"].map(|name| seen(0, name));
    assert_eq!((results(0), last()), ([0.0; 3], [0.0; 2]));
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as f64;
    assert!(probe(&cluster, &["--probes", "5"]).status().unwrap().success());
    assert_eq!(results(0), [1.0, 0.0, 0.0]);
    let [ended, seconds] = last();
    assert!(ended >= before && seconds > 0.0, "{ended} {seconds}");
    let nodes = ["measured", "left-out"]
        .map(|state| seen(0, &format!("last_probe_nodes{{state=\"{state}\"}}")));
    assert_eq!(nodes, [2.0, 0.0]);
    assert!(!probe(&cluster, &["--nodes", "node-1"]).status().unwrap().success());
    assert_eq!(results(0), [1.0, 1.0, 0.0], "one node has no links");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(cluster.socket(0))).unwrap();
    runtime.block_on(async {
        let (says, mut said) = mpsc::unbounded_channel();
        let options =
            SurveyOptions { probes: Probes::Count(MAX_PROBES), ..SurveyOptions::default() };
        let long =
            client.probe(Vec::new(), options, move |progress| says.send(progress.steps).unwrap());
        tokio::select! {
            _ = long => panic!("it takes longer to send so many echoes"),
            () = async { while said.recv().await.unwrap() == 0 {} } => {}
        }
    });
    await_that("the probe to end", || results(0)[2] == 1.0);
    assert_eq!(results(1), [0.0; 3], "it only took part");
}

#[test]
fn probes_follow_the_sessions() {
    let mut cluster = cluster();
    let store = address(&cluster.stores[0]);
    assert_eq!(get(store, "/healthz"), (200, "ok\n".to_owned()));
    await_that("a store that is ready", || get(store, "/readyz") == (200, "ready\n".to_owned()));
    let series = "hoplite_store_session_losses_total";
    let losses = || value(&get(store, "/metrics").1, series);
    let before = losses();
    cluster.kill_shard(0);
    await_that("a store that is not ready", || get(store, "/readyz").0 == 503);
    let (_, why) = get(store, "/readyz");
    assert!(why.contains(&cluster.shard_addresses[0]), "{why}");
    assert_eq!(get(store, "/healthz").0, 200, "it lives nevertheless");
    assert!(losses() > before);
    cluster.restart_shard(0);
    await_that("a store that is ready", || get(store, "/readyz").0 == 200);
}

#[test]
fn a_port_in_use_ends_the_daemon_with_a_clear_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for daemon in ["hoplite-store", "hoplite-directory"] {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(program(daemon));
        command.env("HOPLITE_METRICS", address.to_string()).env("HOPLITE_LISTEN", "127.0.0.1:0");
        command.env("HOPLITE_SOCKET", place.path().join("s")).env("HOPLITE_MEMORY", "16MiB");
        let (code, errors) = run_to_end(&mut command);
        assert_eq!(code, 1, "{errors}");
        let expected = format!("cannot listen on {address} for metrics");
        assert!(errors.contains(&expected) && errors.contains("in use"), "{errors}");
    }
}

#[test]
fn garbage_on_the_port_does_not_disturb_the_store() {
    let mut cluster = cluster();
    let metrics = address(&cluster.stores[0]);
    let held: Vec<_> = (0..100).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    for (number, mut stream) in held.iter().enumerate() {
        let _ = stream.write_all(&bytes(number as u64, 1000));
    }
    cluster.assert_serves();
    drop(held);
    assert_eq!(get(metrics, "/healthz").0, 200);
}

fn certificate(place: &Path) -> Vec<String> {
    let mut command = Command::new(program("hoplite"));
    let (code, text) = run_to_end(
        command.arg("certs").arg(place).args(["n,127.0.0.1", "--days", "30", "--force"]),
    );
    assert_eq!(code, 0, "{text}");
    let file = |name: &str| place.join(name).display().to_string();
    let flags = [("--tls-cert", "n.pem"), ("--tls-key", "n-key.pem"), ("--tls-ca", "ca.pem")];
    flags.into_iter().flat_map(|(flag, name)| [flag.to_owned(), file(name)]).collect()
}

#[test]
fn daemons_export_and_update_the_expiry_of_their_certificate() {
    const NAME: &str = "hoplite_tls_certificate_expiry_timestamp_seconds";
    let days_left = |daemon: &Option<Daemon>| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        (value(&text(daemon), NAME) - now) / 86_400.0
    };
    let place = tempfile::tempdir().unwrap();
    let flags = [&["--metrics", "0"].map(str::to_owned)[..], &certificate(place.path())].concat();
    let cluster = Cluster::start(Plan {
        nodes: 1,
        shards: 1,
        store_arguments: flags.clone(),
        shard_arguments: flags,
        ..Plan::default()
    });
    let daemons = [&cluster.stores[0], &cluster.shards[0]];
    for daemon in daemons {
        assert!((29.0..30.1).contains(&days_left(daemon)), "{}", days_left(daemon));
    }
    let mut command = Command::new(program("hoplite"));
    let shorter = ["n,127.0.0.1", "--days", "3", "--force"];
    let (code, text) = run_to_end(command.arg("certs").arg(place.path()).args(shorter));
    assert_eq!(code, 0, "{text}");
    for daemon in daemons {
        await_that("the new certificate counts", || days_left(daemon) < 3.1);
    }
    let without = self::cluster();
    assert!(!self::text(&without.stores[0]).contains(NAME), "only with TLS");
}

fn rows(texts: &[String]) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    for text in texts {
        let (mut help, mut kind) = (BTreeMap::new(), BTreeMap::new());
        let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in text.lines() {
            if let Some((name, words)) =
                line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
            {
                help.insert(name, words);
            } else if let Some((name, word)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                kind.insert(name, word);
            } else if let Some((series, _)) = line.rsplit_once(' ') {
                let (name, pairs) = series.split_once('{').unwrap_or((series, ""));
                let suffixes = ["_bucket", "_sum", "_count"];
                let family = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
                let family =
                    family.into_iter().find(|family| kind.contains_key(family)).unwrap_or(name);
                let names = pairs.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0));
                labels.entry(family).or_default().extend(names.filter(|name| *name != "le"));
            }
        }
        for (name, kind) in kind {
            let labels: Vec<_> = labels[name].iter().map(|label| format!("`{label}`")).collect();
            let row = format!("| `{name}` | {kind} | {} | {} |\n", labels.join(", "), help[name]);
            rows.insert(name.to_owned(), row);
        }
    }
    rows
}

#[test]
fn the_page_lists_all_that_is_exported_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let flags = certificate(place.path());
    let metrics = ["--metrics", "0"].map(str::to_owned);
    let flags = [&metrics[..], &flags].concat();
    let cluster = Cluster::start(Plan {
        store_arguments: flags.clone(),
        shard_arguments: flags,
        ..Plan::default()
    });
    work(&cluster);
    let rows = rows(&[text(&cluster.stores[0]), text(&cluster.shards[0])]);
    let table: String = rows.into_values().collect();
    let table = format!("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(TABLE[0]).unwrap();
    let (written, after) = rest.split_once(TABLE[1]).unwrap();
    if std::env::var_os("HOPLITE_WRITE_DOCS").is_some() {
        let page = format!("{before}{}{table}{}{after}", TABLE[0], TABLE[1]);
        return std::fs::write(path, page).unwrap();
    }
    assert!(
        written == table,
        "docs/reference/metrics.md is not what daemons export; HOPLITE_WRITE_DOCS=1 writes it:\n{table}"
    );
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let cluster = cluster();
    work(&cluster);
    for daemon in [&cluster.stores[0], &cluster.shards[0]] {
        let mut command = Command::new("promtool");
        command
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let Ok(mut promtool) = command.spawn() else {
            return eprintln!(
                "promtool is not installed (Debian: prometheus): its check is skipped"
            );
        };
        promtool.stdin.take().unwrap().write_all(text(daemon).as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{complaints}");
    }
}
