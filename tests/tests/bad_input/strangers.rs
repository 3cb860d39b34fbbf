//! Crowds of anonymous peers, and half-open handshakes, on every port.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use hoplite_proto::directory::Preface;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that, program};
use hoplite_tests::http::get;
use hoplite_tests::raw::{Kind, data_frame_claiming};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::TIME_LIMIT;

const CROWD: usize = 10_000;
/// Maximum memory of 1,024 half-open connections of gRPC with buffers of 34 KiB.
const MAX_GROWTH_BYTES: u64 = 64 << 20;
/// Maximum memory of 64 visitors with windows of 64 KiB, and buffers of HTTP/2.
const MAX_SHOUTED_BYTES: u64 = 32 << 20;
/// Maximum memory of 256 handshakes of TLS.
const MAX_GROWTH_BY_TLS_BYTES: u64 = 32 << 20;
/// Longest wait for the end of a handshake, which must end after five seconds.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(60);

struct Port {
    name: &'static str,
    address: SocketAddr,
    places: usize,
    beginning: Vec<u8>,
    counter: &'static str,
    metrics: SocketAddr,
}

fn cluster(place: &tempfile::TempDir) -> Cluster {
    let token = place.path().join("token");
    fs::write(&token, "a secret of the tests\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let arguments = |more: &[&str]| -> Vec<String> {
        let common = ["--token-file", token.to_str().unwrap(), "--metrics", "0"];
        common.iter().chain(more).map(|&argument| argument.to_owned()).collect()
    };
    Cluster::start(Plan {
        nodes: 2,
        store_arguments: arguments(&[]),
        shard_arguments: arguments(&["--dashboard", "0"]),
        ..Plan::default()
    })
}

fn ports(cluster: &Cluster) -> [Port; 4] {
    let [store, shard] =
        [&cluster.stores[0], &cluster.shards[0]].map(|daemon| daemon.as_ref().unwrap());
    let [of_store, of_shard] = [store, shard].map(|daemon| daemon.addresses().metrics.unwrap());
    [
        Port {
            name: "data plane",
            address: cluster.data_address(0).parse().unwrap(),
            places: 256,
            beginning: data_frame_claiming(Kind::Hello as u8, 1, 1000, b""),
            counter: "hoplite_store_malformed_connections_total",
            metrics: of_store,
        },
        Port {
            name: "control plane",
            address: cluster.shard_addresses[0].parse().unwrap(),
            places: 1024,
            beginning: [&Preface::Grpc.bytes()[..], &1000_u32.to_le_bytes()].concat(),
            counter: "hoplite_directory_refused_connections_total",
            metrics: of_shard,
        },
        Port {
            name: "metrics",
            address: of_store,
            places: 32,
            beginning: b"GET /metrics HTTP/1.1\r\nSlow: ".to_vec(),
            counter: "hoplite_http_refused_connections_total{port=\"metrics\"}",
            metrics: of_store,
        },
        Port {
            name: "dashboard",
            address: shard.addresses().dashboard.unwrap(),
            places: 32,
            beginning:
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\ntoken="
                    .to_vec(),
            counter: "hoplite_http_refused_connections_total{port=\"dashboard\"}",
            metrics: of_shard,
        },
    ]
}

fn await_end(mut stream: &TcpStream, patience: Duration) -> usize {
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut transferred = Vec::new();
    match stream.read_to_end(&mut transferred) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the connection lives on")
        }
        _ => transferred.len(),
    }
}

fn crowd(port: &Port) -> VecDeque<TcpStream> {
    let mut waiting = VecDeque::new();
    for number in 0..CROWD {
        let mut stream = TcpStream::connect(port.address).unwrap();
        if number % 2 == 1 {
            let _ = stream.write_all(&port.beginning);
        }
        waiting.push_back(stream);
        if waiting.len() > port.places + 100 {
            await_end(&waiting.pop_front().unwrap(), TIME_LIMIT);
        }
    }
    assert_eq!(get(port.metrics, "/healthz").0, 200);
    waiting
}

fn counted(port: &Port) -> f64 {
    let (_, text) = get(port.metrics, "/metrics");
    let found = text.lines().find_map(|line| line.strip_prefix(port.counter)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{} is not in {text}", port.counter)).parse().unwrap()
}

fn private_bytes(daemon: &Option<Daemon>) -> u64 {
    let status =
        fs::read_to_string(format!("/proc/{}/status", daemon.as_ref().unwrap().pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

fn open_files(daemon: &Option<Daemon>) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.as_ref().unwrap().pid())).unwrap().count()
}

#[test]
fn ten_thousand_strangers_at_each_port_block_no_member() {
    let place = tempfile::tempdir().unwrap();
    let mut cluster = cluster(&place);
    cluster.assert_serves();
    for port in ports(&cluster) {
        let began = Instant::now();
        let before = [&cluster.stores[0], &cluster.shards[0]].map(private_bytes);
        drop(crowd(&port));
        cluster.assert_serves();
        for (daemon, before) in [&cluster.stores[0], &cluster.shards[0]].into_iter().zip(before) {
            let growth = private_bytes(daemon).saturating_sub(before);
            assert!(growth < MAX_GROWTH_BYTES, "{}: {growth} bytes more", port.name);
            assert!(
                open_files(daemon) < 2 * port.places + 200,
                "{}: {} files",
                port.name,
                open_files(daemon)
            );
        }
        let counted = counted(&port);
        assert!(counted >= (CROWD - port.places - 100) as f64, "{}: {counted} counted", port.name);
        eprintln!("{}: {CROWD} in {:.1} s", port.name, began.elapsed().as_secs_f64());
    }
}

#[test]
fn a_handshake_that_stays_half_open_ends() {
    let place = tempfile::tempdir().unwrap();
    let mut cluster = cluster(&place);
    let ports = ports(&cluster);
    thread::scope(|scope| {
        for port in &ports {
            scope.spawn(|| {
                let mut silent = TcpStream::connect(port.address).unwrap();
                silent.write_all(&port.beginning).unwrap();
                let mut slow = TcpStream::connect(port.address).unwrap();
                slow.write_all(&port.beginning).unwrap();
                let began = Instant::now();
                while slow.write_all(b"x").is_ok() {
                    assert!(
                        began.elapsed() < HANDSHAKE_LIMIT,
                        "the slow one is still at the {}",
                        port.name
                    );
                    thread::sleep(Duration::from_millis(100));
                }
                await_end(&silent, HANDSHAKE_LIMIT.saturating_sub(began.elapsed()));
            });
        }
    });
    cluster.assert_serves();
}

async fn shout(address: SocketAddr) -> usize {
    const CONNECTIONS: usize = 16;
    const CALLS: usize = 32;
    let service = "x".repeat(4 << 20);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(TIME_LIMIT);
        let channel = endpoint.connect().await.unwrap();
        for _ in 0..CALLS {
            let mut client = HealthClient::new(channel.clone());
            let request = HealthCheckRequest { service: service.clone() };
            calls.spawn(async move { client.check(request).await.is_ok() });
        }
    }
    let mut answered = 0;
    while let Some(call) = calls.join_next().await {
        answered += usize::from(call.unwrap());
    }
    answered
}

#[test]
fn requests_of_visitors_are_not_buffered() {
    let place = tempfile::tempdir().unwrap();
    let mut cluster = cluster(&place);
    let address: SocketAddr = cluster.shard_addresses[0].parse().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let before = private_bytes(&cluster.shards[0]);
    let peak = thread::scope(|scope| {
        let shouting = scope.spawn(|| runtime.block_on(shout(address)));
        let mut peak = 0;
        while !shouting.is_finished() {
            peak = peak.max(private_bytes(&cluster.shards[0]).saturating_sub(before));
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(shouting.join().unwrap(), 0, "no such call is answered");
        peak
    });
    assert!(peak < MAX_SHOUTED_BYTES, "the directory grew by {peak} bytes");
    let healthy = runtime.block_on(async {
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(TIME_LIMIT);
        let channel = endpoint.connect().await.unwrap();
        HealthClient::new(channel).check(HealthCheckRequest::default()).await
    });
    assert!(healthy.is_ok(), "{healthy:?}");
    cluster.assert_serves();
}

#[test]
fn a_visitor_that_sends_and_never_reads_is_disconnected() {
    let place = tempfile::tempdir().unwrap();
    let mut cluster = cluster(&place);
    let mut visitor = TcpStream::connect(&cluster.shard_addresses[0]).unwrap();
    visitor.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    // SETTINGS, then PING frames (RFC 9113, sections 6.5 and 6.7).
    visitor.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\0a number".repeat(4096);
    let (began, mut transferred, mut is_stuck) = (Instant::now(), 0, false);
    loop {
        match visitor.write(&pings[transferred % pings.len()..]) {
            Ok(bytes) => transferred += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                is_stuck = true
            }
            Err(_) => break,
        }
        assert!(began.elapsed() < HANDSHAKE_LIMIT, "the visitor is still there");
    }
    assert!(is_stuck, "the shard has answered {transferred} bytes of pings to nobody");
    cluster.assert_serves();
    assert_eq!(cluster.shards[0].as_mut().unwrap().terminate(), 0);
}

/// Makes the first message of TLS 1.3 (RFC 8446, section 4.1.2).
fn hello_of_tls() -> Vec<u8> {
    let share = [&[0, 0x33, 0, 38, 0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
    let extensions = [
        &[0x00, 0x2b, 0, 3, 2, 3, 4][..],      // supported_versions: TLS 1.3
        &[0x00, 0x0a, 0, 4, 0, 2, 0, 29],      // supported_groups: x25519
        &[0x00, 0x0d, 0, 6, 0, 4, 4, 3, 8, 4], // signature_algorithms
        &[&[0x00, 0x10, 0, 15, 0, 13, 12][..], b"hoplite-data"].concat(), // ALPN
        &share,                                // key_share
    ]
    .concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut handshake = vec![1, 0];
    handshake.extend((body.len() as u16).to_be_bytes());
    handshake.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend((handshake.len() as u16).to_be_bytes());
    record.extend(handshake);
    record
}

#[test]
fn ten_thousand_handshakes_of_tls_cost_a_store_little() {
    let place = tempfile::tempdir().unwrap();
    let certs = place.path().join("certs");
    let made = Command::new(program("hoplite"))
        .arg("certs")
        .arg(&certs)
        .arg("n,127.0.0.1")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let flags = [("--tls-cert", "n.pem"), ("--tls-key", "n-key.pem"), ("--tls-ca", "ca.pem")];
    let flags = flags
        .map(|(flag, file)| [flag.to_owned(), certs.join(file).display().to_string()])
        .concat();
    let metrics = ["--metrics", "0"].map(str::to_owned);
    let store_arguments = [&flags[..], &metrics].concat();
    let mut cluster = Cluster::start(Plan {
        nodes: 2,
        store_arguments,
        shard_arguments: flags,
        ..Plan::default()
    });
    cluster.assert_serves();
    let mut greeted = TcpStream::connect(cluster.data_address(0)).unwrap();
    greeted.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    greeted.write_all(&hello_of_tls()).unwrap();
    let mut answer = [0; 6];
    greeted.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[5]), (22, 2), "the store goes on with the handshake");
    drop(greeted);

    let store = cluster.stores[0].as_ref().unwrap();
    let port = Port {
        name: "data plane with TLS",
        address: cluster.data_address(0).parse().unwrap(),
        places: 256,
        beginning: hello_of_tls(),
        counter: "hoplite_store_malformed_connections_total",
        metrics: store.addresses().metrics.unwrap(),
    };
    let files_before = open_files(&cluster.stores[0]);
    let before = private_bytes(&cluster.stores[0]);
    let waiting = crowd(&port);
    let at_the_peak = private_bytes(&cluster.stores[0]).saturating_sub(before);
    drop(waiting);
    await_that("all of them are gone", || open_files(&cluster.stores[0]) <= files_before + 8);
    let afterwards = private_bytes(&cluster.stores[0]).saturating_sub(before);
    eprintln!("{}: {at_the_peak} bytes more at the peak, {afterwards} afterwards", port.name);
    assert!(at_the_peak < MAX_GROWTH_BY_TLS_BYTES, "{at_the_peak} bytes more at the peak");
    assert!(afterwards < MAX_GROWTH_BY_TLS_BYTES, "{afterwards} bytes more afterwards");
    assert!(counted(&port) >= (CROWD - port.places - 100) as f64);
    cluster.assert_serves();
}
