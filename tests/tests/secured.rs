//! Clusters with tokens or certificates, and strangers on each of their ports.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, SystemTime};

use hoplite_core::Error as ObjectError;
use hoplite_core::error::Missing;
use hoplite_core::quota::{QuotaLimits, QuotaSubject};
use hoplite_net::{Authority, IssuedCertificate};
use hoplite_proto::{PROTOCOL_VERSION, v1};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that, program, refusal, run_to_end};
use hoplite_tests::http::get;
use hoplite_tests::raw::{Kind, RawPeer, hello};

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn arguments(flags: &[(&str, &Path)]) -> Vec<String> {
    flags.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]).collect()
}

fn secured(flags: &[(&str, &Path)]) -> Cluster {
    Cluster::start(Plan {
        nodes: 2,
        shards: 2,
        store_arguments: arguments(flags),
        shard_arguments: arguments(flags),
        ..Plan::default()
    })
}

fn refusal_of_a_store(cluster: &Cluster, without: usize, with: &[(&str, &Path)]) -> String {
    let member = cluster.store_command(7);
    let kept: Vec<_> = member.get_args().take(member.get_args().count() - without).collect();
    let mut command = Command::new(member.get_program());
    command.args(kept).args(arguments(with));
    let (code, text) = run_to_end(&mut command);
    assert_eq!(code, 1, "{text}");
    text
}

#[test]
fn a_stranger_without_the_token_can_do_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (token, other) = (place.path().join("token"), place.path().join("other"));
    write_private(&token, "a secret of the tests\n");
    write_private(&other, "another secret of the tests\n");
    let mut cluster = secured(&[("--token-file", &token)]);
    cluster.assert_serves();
    cluster.client(0).put("x", b"not for strangers").unwrap();

    let text = refusal_of_a_store(&cluster, 2, &[]);
    assert!(text.contains("permission denied") && text.contains("another token"), "{text}");
    let text = refusal_of_a_store(&cluster, 2, &[("--token-file", &other)]);
    assert!(text.contains("permission denied") && text.contains("another token"), "{text}");

    let pull =
        v1::Pull { id: b"x".as_slice().into(), put: 1, size_bytes: 17, ..v1::Pull::default() };
    for challenge in [0, 32] {
        let mut peer = RawPeer::connect(&cluster.data_address(0));
        let greeting = v1::DataHello {
            challenge: vec![7; challenge].into(),
            ..hello("hoplite", PROTOCOL_VERSION)
        };
        peer.send(Kind::Hello, &greeting);
        peer.send(Kind::Pull, &pull);
        assert_eq!(peer.receive().map(|(kind, _)| kind), Some(Kind::Hello as u8));
        assert_eq!(peer.receive(), None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for address in &cluster.shard_addresses {
        runtime.block_on(async {
            let uri = format!("http://{address}");
            let mut client = v1::directory_client::DirectoryClient::connect(uri).await.unwrap();
            let status = client.list(v1::ListRequest::default()).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::PermissionDenied);
        });
    }
    cluster.assert_serves();
    for daemon in cluster.stores.iter().chain(&cluster.shards).flatten() {
        assert!(!daemon.log().contains("secret"), "nothing of the token is logged");
    }
}

#[test]
fn a_token_refused_after_a_restart_is_logged_and_reported_to_clients() {
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    write_private(&token, "the first secret of the tests\n");
    let flags = arguments(&[("--token-file", &token)]);
    let plan = Plan {
        nodes: 1,
        store_arguments: flags.clone(),
        shard_arguments: flags,
        ..Plan::default()
    };
    let mut cluster = Cluster::start(plan);
    cluster.client(0).put("x", b"before").unwrap();

    cluster.kill_shard(0);
    write_private(&token, "the second secret of the tests\n");
    cluster.restart_shard(0);
    let client = cluster.client(0);
    await_that("the refusal", || {
        let shards = client.status().unwrap().troubles.shards;
        shards.iter().any(|shard| matches!(shard.error, ObjectError::PermissionDenied { .. }))
    });
    let error = refusal(client.get("none", Duration::from_millis(100)));
    let ObjectError::Timeout { missing: Some(missing), .. } = &error else { panic!("{error}") };
    let Missing::Shard { address, reason } = &**missing else { panic!("{error}") };
    assert_eq!(*address, cluster.shard_addresses[0]);
    assert!(matches!(**reason, ObjectError::PermissionDenied { .. }), "{error}");
    let is_warning = |line: &str| line.contains("WARN") && line.contains("refuses this store");
    await_that("the line in the log", || cluster.store(0).log().lines().any(is_warning));
}

#[test]
fn the_default_is_closed_to_other_users() {
    let mut cluster = Cluster::of(2);
    cluster.client(0).put("x", b"not for strangers").unwrap();
    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send(Kind::Hello, &hello("hoplite", PROTOCOL_VERSION));
    assert_eq!(peer.receive().map(|(kind, _)| kind), Some(Kind::Hello as u8));
    assert_eq!(peer.receive(), None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = format!("http://{}", cluster.shard_addresses[0]);
        let mut client = v1::directory_client::DirectoryClient::connect(uri).await.unwrap();
        let status = client.list(v1::ListRequest::default()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::PermissionDenied);
    });
    let home = tempfile::tempdir().unwrap();
    let mut other = cluster.store_command(2);
    other.env("XDG_CONFIG_HOME", home.path());
    let (code, text) = run_to_end(&mut other);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("another token"), "{text}");
    cluster.store(0).await_log("programs with the secret of this user");
    cluster.assert_serves();
}

#[test]
fn a_store_without_peers_opens_no_port() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("store.sock");
    let mut command = Command::new(program("hoplite-store"));
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("HOPLITE_")) {
        command.env_remove(variable);
    }
    command.args(["--memory", "16MiB", "--print-addresses", "--socket"]).arg(&socket);
    command
        .env("XDG_CONFIG_HOME", "/proc/nowhere")
        .env("HOPLITE_TOKEN_FILE", "")
        .env("HOPLITE_LISTEN", "");
    let daemon = Daemon::start("alone", &mut command);
    let addresses = daemon.addresses();
    assert_eq!((addresses.data, addresses.directory), (None, None));
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let inodes: Vec<String> = sockets
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    for table in ["/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"] {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let own = table
            .lines()
            .filter_map(|line| line.split_whitespace().nth(9))
            .find(|inode| inodes.iter().any(|own| own == inode));
        assert_eq!(own, None, "{table}");
    }
    let client = hoplite_client::blocking::Client::connect(&socket).unwrap();
    client.put("x", b"bytes").unwrap();
    assert_eq!(client.get("x", TIME_LIMIT).unwrap().to_vec(), b"bytes");
}

#[test]
fn an_unusable_secret_names_the_setting() {
    let mut command = hoplite_daemon::launch::shard("127.0.0.1:0");
    command.env("XDG_CONFIG_HOME", "/proc/nowhere");
    let (code, text) = run_to_end(&mut command);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("XDG_CONFIG_HOME") && text.contains("--token-file"), "{text}");
}

fn certificates(directory: &Path, name: &str) -> [PathBuf; 3] {
    let output =
        Command::new(program("hoplite")).arg("certs").arg(directory).arg(name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ["n.pem", "n-key.pem", "ca.pem"].map(|file| directory.join(file))
}

#[test]
fn a_stranger_without_a_certificate_can_do_nothing() {
    let place = tempfile::tempdir().unwrap();
    let [cert, key, ca] = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let flags = [("--tls-cert", &*cert), ("--tls-key", &key), ("--tls-ca", &ca)];
    let mut cluster = secured(&flags);
    cluster.assert_serves();

    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send(Kind::Hello, &hello("hoplite", PROTOCOL_VERSION));
    peer.await_close();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = format!("http://{}", cluster.shard_addresses[0]);
        let asked = async {
            let mut client = v1::directory_client::DirectoryClient::connect(uri).await.ok()?;
            client.list(v1::ListRequest::default()).await.ok()
        };
        assert!(asked.await.is_none());
    });
    cluster.assert_serves();
}

#[test]
fn tls_on_one_side_only_is_logged() {
    let place = tempfile::tempdir().unwrap();
    let [cert, key, ca] = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let flags = arguments(&[("--tls-cert", &cert), ("--tls-key", &key), ("--tls-ca", &ca)]);
    for (of_shard, of_store, says) in [
        (
            flags.clone(),
            Vec::new(),
            "perhaps the other side speaks TLS; this one does not without --tls-cert",
        ),
        (Vec::new(), flags, "this side speaks TLS and the other one does not"),
    ] {
        let plan = Plan { nodes: 0, shards: 1, shard_arguments: of_shard, ..Plan::default() };
        let cluster = Cluster::start(plan);
        let mut store = Daemon::spawn("lonely", cluster.store_command(0).args(of_store));
        store.await_log(says);
        store.kill();
    }
}

fn hello_of_tls_1_2() -> Vec<u8> {
    let extensions = [
        &[0x00, 0x0a, 0, 4, 0, 2, 0, 23][..], // supported_groups: secp256r1
        &[0x00, 0x0b, 0, 2, 1, 0],            // ec_point_formats: uncompressed
        &[0x00, 0x0d, 0, 6, 0, 4, 4, 3, 8, 4], // signature_algorithms
        &[0x00, 0x17, 0, 0],                  // extended_master_secret
        &[0xff, 0x01, 0, 1, 0],               // renegotiation_info
    ]
    .concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
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
fn tls_1_2_is_refused_on_every_port() {
    let place = tempfile::tempdir().unwrap();
    let [cert, key, ca] = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let flags = arguments(&[("--tls-cert", &cert), ("--tls-key", &key), ("--tls-ca", &ca)]);
    let dashboard = ["--dashboard", "0"].map(str::to_owned);
    let mut cluster = Cluster::start(Plan {
        nodes: 1,
        shards: 1,
        store_arguments: flags.clone(),
        shard_arguments: [dashboard.to_vec(), flags].concat(),
        ..Plan::default()
    });
    let page = cluster.shards[0].as_ref().unwrap().addresses().dashboard.unwrap();
    for address in [cluster.data_address(0), cluster.shard_addresses[0].clone(), page.to_string()] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.write_all(&hello_of_tls_1_2()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
    }
    cluster.assert_serves();
}

#[test]
fn a_store_and_a_shard_count_the_handshakes_that_fail() {
    let place = tempfile::tempdir().unwrap();
    let ours = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let theirs = certificates(&place.path().join("theirs"), "n,127.0.0.1");
    let of_shard = ["n.pem", "n-key.pem", "ca.pem"].map(|file| place.path().join(file));
    let show = |files: &[PathBuf; 3]| {
        for (file, to) in files.iter().zip(&of_shard) {
            fs::copy(file, to).unwrap();
        }
    };
    let flags = |[cert, key, ca]: &[PathBuf; 3]| {
        arguments(&[("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)])
    };
    show(&ours);
    let metrics = ["--metrics", "0"].map(str::to_owned);
    let mut cluster = Cluster::start(Plan {
        nodes: 1,
        shards: 1,
        store_arguments: [metrics.to_vec(), flags(&ours)].concat(),
        shard_arguments: [metrics.to_vec(), flags(&of_shard)].concat(),
        ..Plan::default()
    });
    let count = |daemon: &Option<Daemon>, series: &str| {
        let (_, text) = get(daemon.as_ref().unwrap().addresses().metrics.unwrap(), "/metrics");
        let count =
            text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).unwrap();
        count.parse::<u64>().unwrap()
    };
    let failures = "hoplite_store_session_failures_total{error=\"tls\"}";
    assert_eq!(count(&cluster.stores[0], failures), 0);
    let refused = "hoplite_directory_refused_connections_total";
    assert_eq!(count(&cluster.shards[0], refused), 0);
    cluster.kill_shard(0);
    show(&theirs);
    cluster.restart_shard(0);
    await_that("a handshake that fails", || count(&cluster.stores[0], failures) > 0);
    await_that("the shard has counted it", || count(&cluster.shards[0], refused) > 0);
    cluster.shards[0].as_ref().unwrap().await_log("a TLS handshake of the control plane failed");
    cluster.kill_shard(0);
    show(&ours);
    cluster.restart_shard(0);
    cluster.await_sessions(0);
}

fn install(
    [cert, key, ca]: &[PathBuf; 3],
    issued: &IssuedCertificate,
    authority: &Authority,
    mode_of_key: u32,
) {
    for (path, text, mode) in
        [(cert, &issued.cert, 0o644), (key, &issued.key, mode_of_key), (ca, &authority.cert, 0o644)]
    {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&new, path).unwrap();
    }
}

fn with_certificate([cert, key, ca]: &[PathBuf; 3]) -> Vec<String> {
    let flags = arguments(&[("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)]);
    [flags, ["--metrics", "0"].map(str::to_owned).to_vec()].concat()
}

#[test]
fn certificates_are_replaced_while_sessions_run() {
    let place = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let authority = Authority::new(now - day..now + 100 * day).unwrap();
    let issue =
        |days| authority.issue(&["127.0.0.1".to_owned()], now - day..now + days * day).unwrap();
    let files = ["cert.pem", "key.pem", "ca.pem"].map(|file| place.path().join(file));
    install(&files, &issue(10), &authority, 0o600);
    let mut cluster = Cluster::start(Plan {
        nodes: 2,
        shards: 1,
        store_arguments: with_certificate(&files),
        shard_arguments: with_certificate(&files),
        ..Plan::default()
    });
    cluster.assert_serves();
    let expiry = |daemon: &Daemon| -> u64 {
        let (_, text) = get(daemon.addresses().metrics.unwrap(), "/metrics");
        let series = "hoplite_tls_certificate_expiry_timestamp_seconds ";
        let found = text.lines().find_map(|line| line.strip_prefix(series)).unwrap();
        found.parse::<f64>().unwrap() as u64
    };
    let daemons = |cluster: &Cluster, of_all: &dyn Fn(&Daemon) -> bool| {
        cluster.stores.iter().chain(&cluster.shards).flatten().all(of_all)
    };
    let old = expiry(cluster.shards[0].as_ref().unwrap());

    install(&files, &issue(20), &authority, 0o644);
    await_that("each daemon refuses the key", || {
        daemons(&cluster, &|daemon| expiry(daemon) == old && daemon.log().contains("chmod 600"))
    });
    cluster.assert_serves();
    fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).unwrap();
    await_that("each daemon takes the new certificate over", || {
        daemons(&cluster, &|daemon| expiry(daemon) > old + 9 * day.as_secs())
    });
    cluster.assert_serves();
    cluster.stores.iter().chain(&cluster.shards).flatten().for_each(|daemon| {
        daemon.await_log("took over new certificates");
    });
    assert!(!daemons(&cluster, &|daemon| daemon.log().contains("lost the directory shard")));
}

#[test]
fn a_certificate_that_expires_while_a_store_runs_is_named() {
    let place = tempfile::tempdir().unwrap();
    let start = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let authority = Authority::new(start - day..start + 100 * day).unwrap();
    let issue = |until| authority.issue(&["127.0.0.1".to_owned()], start - day..until).unwrap();
    let files = |name: &str| {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        ["cert.pem", "key.pem", "ca.pem"].map(|file| folder.join(file))
    };
    let (of_store, of_shard) = (files("store"), files("shard"));
    for files in [&of_store, &of_shard] {
        install(files, &issue(start + 10 * day), &authority, 0o600);
    }
    let mut cluster = Cluster::start(Plan {
        nodes: 1,
        shards: 1,
        store_arguments: with_certificate(&of_store),
        shard_arguments: with_certificate(&of_shard),
        ..Plan::default()
    });
    // Reading the metrics rereads the files. Each try doubles the lifetime.
    let takes_over = |store: &Daemon| {
        get(store.addresses().metrics.unwrap(), "/metrics");
        store.log().contains("took over new certificates")
    };
    let expires = (3..9).find_map(|exponent| {
        let lifetime = Duration::from_secs(1 << exponent);
        let expires = SystemTime::now() + lifetime;
        install(&of_store, &issue(expires), &authority, 0o600);
        while SystemTime::now() < expires {
            if takes_over(cluster.store(0)) {
                return Some(expires);
            }
            thread::sleep(Duration::from_millis(50));
        }
        None
    });
    let expires = expires.expect("the store takes over a certificate before its end");
    await_that("the end of the certificate", || {
        SystemTime::now() > expires + Duration::from_secs(1)
    });

    cluster.kill_shard(0);
    cluster.restart_shard(0);
    let client = cluster.client(0);
    let says = "the peer does not accept the certificate of this daemon: it has expired";
    await_that("the cause in the status", || {
        let shards = client.status().unwrap().troubles.shards;
        shards.iter().any(|shard| shard.error.to_string().contains(says))
    });
    let error = refusal(client.get("none", Duration::from_millis(100)));
    let ObjectError::Timeout { missing: Some(missing), .. } = &error else { panic!("{error}") };
    assert!(
        matches!(**missing, Missing::Shard { .. }) && missing.to_string().contains(says),
        "{error}"
    );
    cluster.store(0).await_log(says);
    install(&of_store, &issue(start + 10 * day), &authority, 0o600);
    cluster.await_sessions(0);
    cluster.assert_serves();
}

#[test]
fn a_certificate_that_peers_would_refuse_is_explained_at_the_start() {
    let place = tempfile::tempdir().unwrap();
    let [cert, key, ca, ca_key] =
        ["n.pem", "n-key.pem", "ca.pem", "ca-key.pem"].map(|file| place.path().join(file));
    let day = Duration::from_secs(24 * 3600);
    let validity = SystemTime::now() - day..SystemTime::now() + day;
    let authority = Authority::new(validity.clone()).unwrap();
    // `hoplite certs` would add loopback to the names.
    let issued = authority.issue(&["localhost".to_owned()], validity).unwrap();
    install(&[cert.clone(), key.clone(), ca.clone()], &issued, &authority, 0o600);
    write_private(&ca_key, &authority.key);
    let start = |daemon: &str, flags: &[(&str, &Path)], more: &[&str]| {
        let mut command = Command::new(program(daemon));
        run_to_end(command.args(["--listen", "127.0.0.1:0"]).args(arguments(flags)).args(more))
    };
    let named = [("--tls-cert", &*cert), ("--tls-key", &key), ("--tls-ca", &ca)];
    let socket = place.path().join("store.sock");
    let store =
        ["--directory", "127.0.0.1:1", "--memory", "1MiB", "--socket", socket.to_str().unwrap()];
    for more in [&["--advertise", "localhost:7400"][..], &[]] {
        let (code, text) = start("hoplite-store", &named, &[&store[..], more].concat());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("is not for 127.0.0.1") && text.contains("--tls-name"), "{text}");
    }
    let shard =
        Cluster::start(Plan { nodes: 0, shard_arguments: arguments(&named), ..Plan::default() });
    let log = shard.shards[0].as_ref().unwrap();
    log.await_log("stores that connect to this shard by its address refuse it");
    assert!(log.log().contains("is not for 127.0.0.1"), "{}", log.log());
    let of_authority = [("--tls-cert", &*ca), ("--tls-key", &ca_key), ("--tls-ca", &ca)];
    for (daemon, more) in [("hoplite-store", &store[..]), ("hoplite-directory", &[])] {
        let (code, text) = start(daemon, &of_authority, more);
        assert_eq!(code, 2, "{text}");
        assert!(
            text.contains("is that of an authority") && !text.contains("CaUsedAsEndEntity"),
            "{text}"
        );
    }
}

#[test]
fn a_byte_order_mark_in_front_of_a_token_is_worth_a_warning() {
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    write_private(&token, "\u{feff}a secret of the tests\n");
    let shard_arguments = arguments(&[("--token-file", &token)]);
    let cluster = Cluster::start(Plan { nodes: 0, shard_arguments, ..Plan::default() });
    let shard = cluster.shards[0].as_ref().unwrap();
    shard.await_log("begins with a byte-order mark");
    assert!(!shard.log().contains("secret"), "{}", shard.log());
}

fn as_user(user: u32, socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(socket).args(["--timeout", "10s"]).args(arguments).current_dir("/");
    command.uid(user).gid(user).output().unwrap()
}

#[test]
fn users_are_distinguished_on_the_local_socket() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run programs as other users");
        return;
    }
    let rules =
        ["--socket-mode", "666", "--allow-users", "4000001", "--read-only-users", "4000002"];
    let cluster = Cluster::start(Plan {
        nodes: 1,
        store_arguments: rules.map(str::to_owned).to_vec(),
        ..Plan::default()
    });
    fs::set_permissions(cluster.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = cluster.socket(0);
    if as_user(4_000_001, &socket, &["--version"]).status.code().is_none() {
        eprintln!("skipped: other users cannot run the programs where they were built");
        return;
    }
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let put = as_user(4_000_001, &socket, &["put", "x", "/proc/self/cmdline"]);
    assert!(put.status.success(), "{}", text(&put));
    let read = as_user(4_000_002, &socket, &["get", "x"]);
    assert!(read.status.success(), "{}", text(&read));
    for change in [&["put", "y", "/proc/self/cmdline"][..], &["delete", "x"], &["reduce", "z", "x"]]
    {
        let refused = as_user(4_000_002, &socket, change);
        assert_eq!(refused.status.code(), Some(1), "{change:?}");
        assert!(text(&refused).contains("may only read"), "{}", text(&refused));
    }
    let stranger = as_user(4_000_003, &socket, &["get", "x"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(text(&stranger).contains("this user may not use the store"), "{}", text(&stranger));
    for command in [
        &["drain"][..],
        &["drain", "node-0"],
        &["topology", "probe", "--apply"],
        &["quota", "set", "--prefix", "x", "--objects", "1"],
        &["quota", "remove", "--prefix", "x"],
    ] {
        let refused = as_user(4_000_001, &socket, command);
        assert_eq!(refused.status.code(), Some(1), "{command:?}");
        assert!(
            text(&refused).contains("only root and the user of the store"),
            "{}",
            text(&refused)
        );
    }
    for reader in [4_000_001, 4_000_002] {
        assert!(as_user(reader, &socket, &["quota"]).status.success());
    }
    let (limits, user) =
        (Some(QuotaLimits { objects: Some(0), ..QuotaLimits::default() }), 4_000_001);
    let quota = cluster.client(0).set_quota(QuotaSubject::User(user), limits).unwrap();
    assert_eq!(quota.used.objects, 1, "the object of this user");
    let over = as_user(user, &socket, &["put", "y", "/proc/self/cmdline"]);
    assert_eq!(over.status.code(), Some(1));
    assert!(
        text(&over).contains("the quota of user 4000001 is exceeded: 1 of 0 objects used"),
        "{}",
        text(&over)
    );
    cluster.client(0).put("y", b"of another user").unwrap();
    assert!(as_user(4_000_001, &socket, &["delete", "x"]).status.success());
}
