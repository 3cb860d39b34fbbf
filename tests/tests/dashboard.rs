#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use hoplite_client::{AllreduceOptions, Dtype, Metadata, PutOptions, ReduceOptions};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, run_to_end};
use hoplite_tests::contents::bytes;

const TOKEN: &str = "a token of these tests";
const PATHS: [&str; 23] = [
    "/",
    "/app.js",
    "/dom.js",
    "/prefixes.js",
    "/tree.js",
    "/views.js",
    "/chart.js",
    "/node.js",
    "/reduces.js",
    "/api/overview",
    "/api/nodes",
    "/api/objects",
    "/api/object?id=78",
    "/api/transfers",
    "/api/reduces",
    "/api/reduce?id=78",
    "/api/links",
    "/api/events",
    "/api/history",
    "/api/node?name=node-0",
    "/api/recent",
    "/api/prefixes",
    "/nothing",
];

fn cluster(more: &[&str]) -> Cluster {
    let mut plan = Plan::open();
    plan.shard_arguments
        .extend(["--dashboard", "0"].iter().chain(more).map(|&argument| argument.to_owned()));
    Cluster::start(plan)
}

fn address(cluster: &Cluster) -> SocketAddr {
    cluster.shards[0].as_ref().unwrap().addresses().dashboard.unwrap()
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n").as_bytes())
}

fn post(address: SocketAddr, path: &str, headers: &str, form: &str) -> String {
    let length = form.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n{headers}\r\n{form}"
    );
    exchange(address, request.as_bytes())
}

fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no status: {answer}"))
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn json(answer: &str) -> serde_json::Value {
    assert_eq!(status(answer), 200, "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn with_token() -> (Cluster, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let arguments = ["--dashboard", "0", "--token-file", file.to_str().unwrap()];
    let shard_arguments = arguments.map(str::to_owned).to_vec();
    (Cluster::start(Plan { nodes: 0, shard_arguments, ..Plan::default() }), place)
}

#[test]
fn without_the_token_no_page_is_shown() {
    let (cluster, _place) = with_token();
    let address = address(&cluster);
    let forged = format!("Cookie: hoplite_{}={}\r\n", address.port(), "00".repeat(32));
    for headers in ["", "Cookie: hoplite_0=x\r\n", &forged, "Authorization: Bearer 00\r\n"] {
        for path in PATHS {
            let answer = get(address, path, headers);
            if path.starts_with("/api") {
                assert_eq!(status(&answer), 401, "{path}: {answer}");
            } else {
                assert_eq!(
                    (status(&answer), header(&answer, "location")),
                    (303, Some("/login")),
                    "{path}: {answer}"
                );
            }
        }
    }
    for form in ["", "token=", "token=another+token+of+the+tests", "tokem=x", "token=%zz", "\0\0"] {
        let answer = post(address, "/login", "", form);
        assert_eq!(
            (status(&answer), header(&answer, "set-cookie")),
            (403, None),
            "{form}: {answer}"
        );
    }
    let long = post(address, "/login", "", &format!("token={}", "x".repeat(64 << 10)));
    assert!(long.is_empty() || status(&long) == 413, "{long}");
    let foreign =
        post(address, "/login", "Sec-Fetch-Site: cross-site\r\n", &format!("token={TOKEN}"));
    assert_eq!(status(&foreign), 403);

    let answer = post(address, "/login", "", "token=a+token%20of+these+tests");
    assert_eq!((status(&answer), header(&answer, "location")), (303, Some("/")), "{answer}");
    let cookie = header(&answer, "set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && !cookie.contains("token"),
        "{cookie}"
    );
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    for path in PATHS {
        let expected = if path == "/nothing" { 404 } else { 200 };
        assert_eq!(status(&get(address, path, &cookie)), expected, "{path}");
    }
    let events = json(&get(address, "/api/events", &cookie)).to_string();
    assert!(events.contains("wrong token at the dashboard") && !events.contains(TOKEN), "{events}");
    let shard = cluster.shards[0].as_ref().unwrap();
    shard.await_log("wrong token");
    assert!(!shard.log().contains(TOKEN), "{}", shard.log());
    assert_eq!(status(&post(address, "/logout", &cookie, "")), 303);
    assert_eq!(status(&get(address, "/api/overview", &cookie)), 401);
}

#[test]
fn the_dashboard_shows_the_cluster_and_changes_nothing() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let client = cluster.client(0);
    let evil = "<script>alert(1)</script>&\"'";
    client.put(evil, &bytes(1, 100)).unwrap();
    client.put("large", &bytes(2, 1 << 20)).unwrap();
    cluster.client(1).get("large", TIME_LIMIT).unwrap();
    let nodes = || json(&get(address, "/api/nodes", ""));
    await_that("nodes that tell", || {
        nodes()["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["load"]["capacity_bytes"] == 64 << 20)
    });
    assert_eq!(
        (&nodes()["nodes"][1]["node"], nodes()["more"].as_bool()),
        (&"node-1".into(), Some(false))
    );
    let page = json(&get(address, "/api/objects?limit=1", ""));
    assert_eq!(page["objects"][0]["id"], evil);
    let next = page["next"].as_str().unwrap();
    let tree = || json(&get(address, "/api/object?id=6c61726765", ""));
    await_that("the end of the transfer", || {
        let tree = tree();
        tree["object"]["complete"] == 2 && tree["grants"][0]["outcome"] == "complete"
    });
    let rest = json(&get(address, &format!("/api/objects?after={next}"), ""));
    assert_eq!(
        (&rest["objects"][0]["id"], &rest["objects"][0]["complete"]),
        (&"large".into(), &2.into())
    );
    assert!(rest["next"].is_null());
    assert_eq!(tree()["grants"][0]["sender"], "node-0");
    await_that("the sessions", || {
        let overview = json(&get(address, "/api/overview", ""));
        overview["connected"] == 2
            && overview["objects"] == 2
            && overview["shards"][0]["sessions"] == 2
    });

    let answer = get(address, "/api/objects", "");
    assert_eq!(header(&answer, "content-type"), Some("application/json"), "{answer}");
    for path in ["/", "/api/objects", "/app.js", "/nothing"] {
        let answer = get(address, path, "");
        let policy = header(&answer, "content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'")
                && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(header(&answer, "x-content-type-options"), Some("nosniff"));
    }
    assert!(
        !get(address, "/", "").contains("//cdn") && !get(address, "/", "").contains("http"),
        "nothing from elsewhere"
    );
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"] {
        let request = format!(
            "{method} /api/objects HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n"
        );
        assert!(matches!(status(&exchange(address, request.as_bytes())), 400 | 405), "{method}");
    }
}

#[test]
fn a_full_store_is_an_event() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let client = cluster.client(0);
    client.put("kept", &bytes(4, 50 << 20)).unwrap();
    let events = || -> Vec<String> {
        get(address, "/api/overview", "");
        let events = json(&get(address, "/api/events", ""))["events"].take();
        let troubles = events.as_array().unwrap().iter().filter(|event| event["kind"] == "trouble");
        troubles.map(|event| format!("{}: {}", event["node"], event["text"])).collect()
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.client(0).put("waits", &bytes(5, 32 << 20)));
        await_that("the event", || {
            events()
                .iter()
                .any(|event| event.starts_with("\"node-0\"") && event.contains("store is full"))
        });
        let overview = json(&get(address, "/api/overview", ""));
        let problem = &overview["problems"][0];
        assert_eq!(
            (&problem["severity"], &problem["places"][0]["node"]),
            (&"critical".into(), &"node-0".into())
        );
        assert!(problem["cure"].as_str().unwrap().contains("hoplite ls"), "{overview}");
        client.delete(&["kept"], TIME_LIMIT).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(
        events().iter().filter(|event| event.contains("store is full")).count(),
        1,
        "{:?}",
        events()
    );
}

#[test]
fn a_node_has_a_page_and_a_past() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let (writer, reader) = (cluster.client(0), cluster.client(1));
    writer.put("large", &bytes(2, 1 << 20)).unwrap();
    let held = reader.get("large", TIME_LIMIT).unwrap();
    assert!(reader.get("nothing", Duration::from_millis(1)).is_err());
    let page = || json(&get(address, "/api/node?name=node-1", ""));
    await_that("the clients and the log", || {
        let page = page();
        let client = &page["clients"][0];
        let log = page["log"].as_array().is_some_and(|log| !log.is_empty());
        client["references"] == 1 && client["bytes"].as_u64() >= Some(1 << 20) && log
    });
    let page = page();
    assert!(page["clients"][0]["name"].as_str().unwrap().contains("process"), "{page}");
    assert!(
        page["clients"][0]["held_bytes"].as_u64() >= Some(1 << 20),
        "only the reference keeps it: {page}"
    );
    let transfer = &page["transfers"][0];
    assert_eq!(
        (&transfer["sender"], &transfer["outcome"]),
        (&"node-0".into(), &"complete".into()),
        "{page}"
    );
    assert!(transfer["took_ms"].is_u64() && transfer["is_running"] == false, "{page}");
    drop(held);
    let nobody = json(&get(address, "/api/node?name=nobody", ""));
    assert!(nobody["node"].is_null() && nobody["clients"].is_null(), "{nobody}");

    let recent = json(&get(address, "/api/recent", ""));
    assert_eq!(
        (&recent["objects"][0]["id"], &recent["objects"][0]["grants"]),
        (&"large".into(), &1.into())
    );
    let history = |query: &str| json(&get(address, &format!("/api/history?{query}"), ""));
    await_that("the past of the node", || {
        let _ = reader.get("large", TIME_LIMIT);
        let known = history("node=node-1");
        let points = known["points"].as_array().unwrap();
        points.iter().any(|point| point[3].as_f64() > Some(0.0) && point[2].as_f64() > Some(0.0))
    });
    let last = history("")["last"].as_u64().unwrap();
    assert!(
        history(&format!("after={last}"))["points"].as_array().unwrap().len() <= 1,
        "only news"
    );
    assert!(history("node=nobody")["points"].as_array().unwrap().is_empty());
}

fn past(address: SocketAddr, target: &str, count: usize) -> serde_json::Value {
    let key: String = target.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut schedule = serde_json::Value::Null;
    await_that("the steps", || {
        let answer = json(&get(address, &format!("/api/reduce?id={key}"), ""));
        schedule = answer["schedules"][0].clone();
        schedule["rows"].as_array().is_some_and(|rows| rows.len() == count)
    });
    schedule
}

#[test]
fn past_reduces_and_collectives_show_who_sent_what_to_whom() {
    const SIZE: usize = 2 << 20;
    let mut plan = Plan { nodes: 4, ..Plan::open() };
    plan.shard_arguments.extend(["--dashboard", "0"].map(str::to_owned));
    plan.store_arguments
        .extend(["--link-bandwidth=100MiB", "--link-latency=100us"].map(str::to_owned));
    let cluster = Cluster::start(plan);
    let address = address(&cluster);
    let metadata =
        Metadata { dtype: Dtype::U8, shape: Some(vec![SIZE as u64]), ..Metadata::default() };
    let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    let names = [1, 2, 3].map(|node| format!("array-{node}"));
    let sources = || names.iter().map(String::as_str);
    thread::scope(|scope| {
        let mut unfinished = [1, 2, 3].map(|node| {
            let client = cluster.client(node);
            let mut writer = client.create(&names[node - 1], SIZE as u64, options()).unwrap();
            writer.write(&bytes(6, SIZE / 2)).unwrap();
            writer
        });
        let reduce = scope
            .spawn(|| cluster.client(0).reduce_with("target", sources(), ReduceOptions::default()));
        await_that("the last combination", || {
            cluster.client(0).status().unwrap().combinations == 1
        });
        for writer in &mut unfinished {
            writer.write(&bytes(7, SIZE / 2)).unwrap();
        }
        unfinished.into_iter().for_each(|writer| writer.seal().unwrap());
        reduce.join().unwrap().unwrap();
    });
    let reduce = past(address, "target", 3);
    assert!(reduce["plan"].as_str().unwrap().starts_with("chain, "), "{reduce}");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let steps = reduce["rows"].as_array().unwrap();
    let hop = |step: &&serde_json::Value| step["hop"] == true;
    let senders = |step: &serde_json::Value| step["senders"].as_array().unwrap().clone();
    let all: Vec<String> = steps.iter().flat_map(senders).map(|sender| text(&sender)).collect();
    assert_eq!(steps.iter().filter(hop).count(), 2, "{reduce}");
    for step in steps {
        let node = text(&step["node"]);
        assert_eq!(step["hop"] == true, node != "node-0", "{reduce}");
        assert_eq!(all.contains(&node), node != "node-0", "a hop sends to the next one: {reduce}");
        assert!(step["complete"] == true && step["size_bytes"] == SIZE, "{reduce}");
    }

    thread::scope(|scope| {
        for rank in 0..3 {
            let (cluster, names) = (&cluster, &names);
            scope.spawn(move || {
                let client = cluster.client(rank + 1);
                client.allreduce("all", names, rank, AllreduceOptions::default()).unwrap()
            });
        }
    });
    let allreduce = past(address, "all", 3);
    assert_eq!(allreduce["plan"], "allreduce: ring of 3");
    let list = json(&get(address, "/api/reduces", ""));
    let targets: Vec<&serde_json::Value> =
        list["past"].as_array().unwrap().iter().map(|reduce| &reduce["target"]).collect();
    assert_eq!(targets, ["all", "target"], "the latest comes first: {list}");
}

#[test]
fn an_answer_that_has_not_changed_is_not_sent_again() {
    let cluster = cluster(&[]);
    let address = address(&cluster);
    let first = get(address, "/api/objects", "");
    let tag = header(&first, "etag").unwrap();
    let again = get(address, "/api/objects", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((status(&again), again.split_once("\r\n\r\n").unwrap().1), (304, ""), "{again}");
    cluster.client(0).put("x", b"y").unwrap();
    await_that("the object", || {
        status(&get(address, "/api/objects", &format!("If-None-Match: {tag}\r\n"))) == 200
    });
}

#[test]
fn invalid_requests_are_refused() {
    let mut cluster = cluster(&[]);
    let address = address(&cluster);
    for path in [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/app.js/../../Cargo.toml",
        "//etc/passwd",
        "/api/object?id=../..",
        "/api/objects?after=xyz",
        "/api/objects?size=-1",
        "/api/links?group=%ff",
        "/api/nodes?after=%ff",
        "/api/object",
        "/api/node",
        "/api/node?name=%ff",
        "/api/history?node=",
        "/style.css/",
    ] {
        let answer = get(address, path, "");
        assert_eq!(status(&answer), 404, "{path}: {answer}");
        assert!(!answer.contains("root:"), "{answer}");
    }
    let large = format!("X: {}\r\n", "x".repeat(64 << 10));
    let many = "A: b\r\n".repeat(1000);
    for headers in [&large, &many] {
        let answer = get(address, "/", headers);
        assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    }
    for garbage in [
        &bytes(3, 10_000)[..],
        b"\0\0\0\0",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = exchange(address, garbage);
        assert!(answer.is_empty() || status(&answer) >= 400, "{answer}");
    }
    refuses_foreign_hosts(address, "/api/objects");
    for host in ["localhost", "localhost:7402", "127.0.0.1", "[::1]:7402"] {
        let request = format!("GET /api/objects HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(status(&exchange(address, request.as_bytes())), 200, "{host}");
    }
    cluster.assert_serves();
}

fn refuses_foreign_hosts(address: SocketAddr, path: &str) {
    for host in ["evil.example", "evil.example:80", "localhost.evil.example", ""] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = exchange(address, request.as_bytes());
        assert!(matches!(status(&answer), 400 | 421), "{host}: {answer}");
        assert!(!answer.contains("objects\":") && !answer.contains("hoplite_"), "{host}: {answer}");
    }
}

#[test]
fn http_ports_refuse_the_host_name_of_another_site() {
    let (closed, _place) = with_token();
    refuses_foreign_hosts(address(&closed), "/login");
    let arguments =
        ["--dashboard", "0", "--metrics", "0", "--http-hosts", "shard.example,Other.Example"];
    let mut plan = Plan { nodes: 1, ..Plan::open() };
    plan.shard_arguments.extend(arguments.map(str::to_owned));
    plan.store_arguments.extend(["--metrics", "0"].map(str::to_owned));
    let open = Cluster::start(plan);
    let [shard, store] =
        [&open.shards[0], &open.stores[0]].map(|daemon| daemon.as_ref().unwrap().addresses());
    for (address, path) in [
        (shard.dashboard, "/"),
        (shard.dashboard, "/api/overview"),
        (shard.metrics, "/metrics"),
        (store.metrics, "/metrics"),
        (store.metrics, "/readyz"),
    ] {
        let address = address.unwrap();
        refuses_foreign_hosts(address, path);
        assert_eq!(status(&get(address, path, "")), 200, "{path}");
    }
    for (host, expected) in
        [("shard.example:7402", 200), ("other.example", 200), ("third.example", 421)]
    {
        let request = format!("GET /api/overview HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(
            status(&exchange(shard.dashboard.unwrap(), request.as_bytes())),
            expected,
            "{host}"
        );
    }
}

#[test]
fn tokens_cannot_be_tried_fast_and_the_owner_still_gets_in() {
    let (cluster, _place) = with_token();
    let address = address(&cluster);
    let answer = post(address, "/login", "", &format!("token={TOKEN}"));
    let known = answer.lines().find(|line| line.contains("set-cookie: hoplite_known=")).unwrap();
    let known = known.trim_start_matches("set-cookie: ").split(';').next().unwrap();
    let known = format!("Cookie: {known}\r\n");
    let answers: Vec<u16> = (0..100)
        .map(|_| status(&post(address, "/login", "", "token=a+wrong+token+of+these")))
        .collect();
    assert!(answers.iter().all(|status| matches!(status, 403 | 429)), "{answers:?}");
    let looked_at = answers.iter().filter(|status| **status == 403).count();
    assert!((1..50).contains(&looked_at), "{answers:?}");
    assert_eq!(status(&post(address, "/login", &known, &format!("token={TOKEN}"))), 303);
    let form = format!("token={TOKEN}");
    await_that("everybody else gets in after a while", || {
        status(&post(address, "/login", "", &form)) == 303
    });
    let slowed = post(address, "/login", "", "token=a+wrong+token+of+these");
    assert!(matches!(status(&slowed), 403 | 429));
    assert!(status(&slowed) == 403 || header(&slowed, "retry-after").is_some(), "{slowed}");
}

#[test]
fn slow_or_many_connections_block_no_user() {
    let mut cluster = cluster(&[]);
    let address = address(&cluster);
    let slow = |number: usize| {
        let mut stream = TcpStream::connect(address).unwrap();
        let request_bytes: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nSlow: ",
            _ => {
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\ntoken="
            }
        };
        let _ = stream.write_all(request_bytes);
        stream
    };
    await_that("an answer that does not wait for the slow ones", || {
        let _held: Vec<TcpStream> = (0..500).map(slow).collect();
        let began = Instant::now();
        assert_eq!(status(&get(address, "/api/overview", "")), 200);
        began.elapsed() < Duration::from_secs(5)
    });
    cluster.assert_serves();
}

#[test]
fn the_dashboard_listens_only_where_daemons_may() {
    let refused = |daemon: &str, arguments: &[&str]| {
        let mut command = Command::new(program(daemon));
        run_to_end(command.args(["--listen", "127.0.0.1:0"]).args(arguments))
    };
    for daemon in ["hoplite-directory", "hoplite-store"] {
        let (code, errors) = refused(daemon, &["--dashboard", "0.0.0.0:0"]);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains("--token-file") && errors.contains("--insecure"), "{errors}");
    }
    let (code, errors) =
        refused("hoplite-store", &["--directory", "127.0.0.1:1", "--dashboard", "0"]);
    assert!(code == 2 && errors.contains("hoplite-directory itself"), "{code}: {errors}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, errors) = refused("hoplite-directory", &["--dashboard", &address]);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains(&address) && errors.contains("dashboard"), "{errors}");
}
