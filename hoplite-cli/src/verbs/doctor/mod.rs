//! `hoplite doctor`: finds problems of this machine that would stop or slow Hoplite.
//!
//! Each check is read-only, tests one thing and prints one line. Slow checks run concurrently; all
//! findings appear within two seconds.

mod credentials;
mod directory;

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use console::{Color, Style};
use futures::future::join_all;
use hoplite_client::{Client, ConnectOptions, NodeStatus};
use hoplite_core::load::MIN_INTERVAL;
use hoplite_core::problem::{Place, Problem};
use hoplite_daemon::{MemoryLimits, Security, launch};
use hoplite_net::descriptor_limit;
use hoplite_proto::directory::decode_problems;
use hoplite_proto::v1::StatusReply;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::status::keys_differ;
use crate::arguments::StoreArguments;
use crate::output::{self, Alignment, Table};

const NETWORK_TIMEOUT: Duration = Duration::from_secs(1);
const FILES_TIMEOUT: Duration = Duration::from_millis(400);
const FEW_DESCRIPTORS: u64 = 4096;
/// A smaller MTU usually belongs to a slower tunnel.
const ETHERNET_MTU: u64 = 1500;
const LITTLE_MEMORY: u64 = 512 << 20;
const STORE_PERCENT: u64 = 30;
const LITTLE_SHARED_MEMORY: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Shards of the directory that this host will use: tests if they answer
    #[arg(long, env = "HOPLITE_DIRECTORY", value_name = "HOST:PORT,...", value_delimiter = ',')]
    directory: Vec<String>,
    /// Address on which a daemon will listen: tests if it is free
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// Addresses that a store on this host will advertise: tests if its certificate is valid for
    /// them
    #[arg(long, env = "HOPLITE_ADVERTISE", value_name = "HOST:PORT,...", value_delimiter = ',')]
    advertise: Vec<String>,
    #[command(flatten)]
    security: Security,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    Good,
    Doubtful,
    Bad,
    Unknown,
}

impl Health {
    const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Doubtful => "doubtful",
            Self::Bad => "BAD",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    verdict: Health,
    says: String,
}

fn finding(what: impl Into<String>, verdict: Health, says: impl Into<String>) -> Finding {
    Finding { what: what.into(), verdict, says: says.into() }
}

#[derive(Debug, thiserror::Error)]
#[error("{} of {} checks found something that will not work", bad, all)]
struct Ill {
    bad: usize,
    all: usize,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { directory, listen, advertise, security, json } = arguments;
    let (judged, places) = (security.clone(), listen.clone());
    let secured = async {
        let Some((found, credentials)) =
            within(FILES_TIMEOUT, move || credentials::examine(&judged)).await
        else {
            let says = "reading the token and certificate files takes too long: is their disk unavailable?";
            return (vec![finding("credentials", Health::Bad, says)], Vec::new());
        };
        let mut found = found;
        let tls = credentials.as_ref().and_then(|credentials| credentials.tls.clone());
        let places = async {
            let Some(tls) = tls else { return Some(Vec::new()) };
            within(NETWORK_TIMEOUT, move || credentials::reached_at(&tls, &advertise, &places))
                .await
        };
        let shards =
            directory.iter().map(|address| directory::shard(address, credentials.as_ref()));
        let (places, shards) = tokio::join!(places, join_all(shards));
        found.extend(places.unwrap_or_else(|| {
            vec![finding(
                "certificate",
                Health::Unknown,
                "a name server takes too long to resolve the advertised name",
            )]
        }));
        (found, shards)
    };
    let listen = join_all(listen.iter().map(|address| port(*address, &security)));
    let (versions, listen, (secured, shards), running) =
        tokio::join!(within(NETWORK_TIMEOUT, versions), listen, secured, running(store));
    let mut findings = vec![versions.unwrap_or_else(|| {
        finding("programs", Health::Bad, "a daemon takes longer than a second to print its version")
    })];
    let limits = MemoryLimits::read();
    findings.extend([memory(&limits), shared_memory(&limits), descriptors()]);
    findings.extend(listen);
    findings.extend(shards);
    findings.extend(running);
    findings.extend(interfaces(Path::new("/sys/class/net")));
    findings.push(clock());
    findings.extend(secured);
    print(&findings, json)?;
    let bad = findings.iter().filter(|finding| finding.verdict == Health::Bad).count();
    if bad > 0 { Err(Ill { bad, all: findings.len() }.into()) } else { Ok(()) }
}

/// Runs `check` in a thread. Returns `None` after `limit`; the thread continues.
async fn within<T: Send + 'static>(
    limit: Duration,
    check: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || drop(tell.send(check())));
    timeout(limit, told).await.ok()?.ok()
}

fn print(findings: &[Finding], json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        output::json(&mut out, &findings)?;
        return Ok(());
    }
    let mut table = Table::new([
        ("CHECK", Alignment::Left),
        ("VERDICT", Alignment::Left),
        ("FOUND", Alignment::Left),
    ])
    .styled(style);
    for Finding { what, verdict, says } in findings {
        table.row([what.clone(), verdict.name().to_owned(), says.clone()]);
    }
    table.print(&mut out)?;
    out.flush()?;
    Ok(())
}

fn style(column: usize, cell: &str) -> Style {
    let verdicts = [Health::Good, Health::Doubtful, Health::Bad];
    let verdict = verdicts.into_iter().find(|verdict| column == 1 && verdict.name() == cell);
    match verdict {
        Some(Health::Good) => output::coloured(Color::Green),
        Some(Health::Doubtful) => output::coloured(Color::Yellow),
        Some(Health::Bad) => output::coloured(Color::Red),
        Some(Health::Unknown) | None => Style::new(),
    }
}

fn versions() -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let others = ["hoplite-store", "hoplite-directory"].map(|name| {
        let output = Command::new(launch::program(name)).arg("--version").output();
        let version = output.ok().filter(|output| output.status.success());
        let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
        (name, version.and_then(|text| Some(text.split_whitespace().nth(1)?.to_owned())))
    });
    let mut wrong = others.iter().filter(|(_, version)| version.as_deref() != Some(own));
    match wrong.next() {
        None => finding("programs", Health::Good, format!("all of version {own}")),
        Some((name, None)) => finding("programs", Health::Bad, format!("{name} is not found")),
        Some((name, Some(version))) => finding(
            "programs",
            Health::Bad,
            format!("{name} has version {version}, and this is {own}: they may be incompatible"),
        ),
    }
}

fn memory(limits: &MemoryLimits) -> Finding {
    let may_bytes = limits.available_bytes();
    let free_bytes = meminfo("MemAvailable").unwrap_or(may_bytes).min(may_bytes);
    let cause = if limits.address_space_bytes == Some(may_bytes) {
        " (ulimit -v)"
    } else if limits.control_group_bytes == Some(may_bytes) {
        " (control group)"
    } else {
        ""
    };
    let says = format!(
        "{} usable{cause}, {} available now",
        output::size(may_bytes),
        output::size(free_bytes)
    );
    if free_bytes < LITTLE_MEMORY {
        return finding("memory", Health::Bad, format!("{says}: too little for a store"));
    }
    if free_bytes < limits.share_for_arena(STORE_PERCENT) {
        let says = format!("{says}: less than the 30% that a store takes by default (--memory)");
        return finding("memory", Health::Doubtful, says);
    }
    finding("memory", Health::Good, says)
}

fn meminfo(key: &str) -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn shared_memory(limits: &MemoryLimits) -> Finding {
    if let Some(limit) = limits.file_size_bytes
        && limit < limits.available_bytes() / 100 * STORE_PERCENT
    {
        let verdict = if limit < LITTLE_SHARED_MEMORY { Health::Bad } else { Health::Doubtful };
        let says =
            format!("at most {}: the limit on file sizes (ulimit -f) applies", output::size(limit));
        return finding("shared memory", verdict, says);
    }
    let made = rustix::fs::memfd_create("hoplite-doctor", rustix::fs::MemfdFlags::CLOEXEC)
        .and_then(|memory| rustix::fs::ftruncate(&memory, 1 << 20));
    if let Err(error) = made {
        return finding("shared memory", Health::Bad, format!("none can be made: {error}"));
    }
    let strict =
        fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    if strict {
        let says = "vm.overcommit_memory is 2: the arena counts as used from the start, and may be refused";
        return finding("shared memory", Health::Doubtful, says);
    }
    finding("shared memory", Health::Good, "can be made")
}

/// Checks the hard limit on file descriptors: daemons raise their limit to it.
fn descriptors() -> Finding {
    let most = descriptor_limit();
    if most < FEW_DESCRIPTORS {
        let says = format!("{most} may be open: too few for many clients; `ulimit -Hn 65536`");
        return finding("file descriptors", Health::Doubtful, says);
    }
    finding("file descriptors", Health::Good, format!("{most} may be open"))
}

async fn port(address: SocketAddr, security: &Security) -> Finding {
    let what = format!("listen {address}");
    if let Err(error) = security.check(address) {
        return finding(what, Health::Bad, error.to_string());
    }
    match TcpListener::bind(address).await {
        Ok(_) => finding(what, Health::Good, "free"),
        Err(error) => finding(what, Health::Bad, error.to_string()),
    }
}

async fn running(store: &StoreArguments) -> Vec<Finding> {
    let socket = store.socket();
    if !socket.exists() {
        return vec![finding(
            "store",
            Health::Unknown,
            format!("none listens at {}", socket.display()),
        )];
    }
    let options = ConnectOptions {
        socket: socket.clone(),
        timeout: NETWORK_TIMEOUT,
        ..ConnectOptions::default()
    };
    let status = async {
        let client = Client::connect_with(options).await?;
        let status = client.status().await?;
        Ok::<_, hoplite_client::Error>((client, status))
    };
    let (client, status) = match timeout(NETWORK_TIMEOUT, status).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return vec![finding("store", Health::Bad, error.to_string())],
        Err(_) => return vec![finding("store", Health::Bad, "does not answer within a second")],
    };
    let mut findings = cluster(&client, &status).await;
    findings.insert(0, judge(&status));
    findings
}

/// Returns the cluster's problems that this store's status lacks.
async fn cluster(client: &Client, status: &NodeStatus) -> Vec<Finding> {
    let mut reply = StatusReply::default();
    let queries = async {
        loop {
            reply = client.directory_status().await?;
            if reply.nodes.iter().all(|node| !node.connected || node.load.is_some()) {
                return Ok::<_, hoplite_client::Error>(());
            }
            sleep(MIN_INTERVAL).await;
        }
    };
    // After the time limit, uses the last answer.
    let _ = timeout(NETWORK_TIMEOUT, queries).await;
    let own = status.problems();
    let is_own =
        |place: &Place| place.node.as_ref().is_some_and(|name| name.as_str() == status.node);
    let is_known = |problem: &Problem| {
        problem.places.iter().all(is_own) && own.iter().any(|(kind, _)| *kind == problem.kind)
    };
    let problems = decode_problems(reply.problems).into_iter().filter(|problem| !is_known(problem));
    let told = problems.map(|problem| {
        let places = problem.places.iter().map(|Place { node, text, .. }| match node {
            Some(node) => format!("{node}: {text}"),
            None => text.clone(),
        });
        let places = places.collect::<Vec<_>>().join("; ");
        let says = format!(
            "{} ({places}). {} {}",
            problem.title(),
            problem.kind.cause(),
            problem.kind.cure()
        );
        finding("cluster", Health::Doubtful, says)
    });
    told.collect()
}

fn judge(status: &NodeStatus) -> Finding {
    let away: Vec<_> = status
        .shards
        .iter()
        .filter(|shard| !shard.connected)
        .map(|shard| shard.address.as_str())
        .collect();
    if status.version != env!("CARGO_PKG_VERSION") {
        let says = format!("{} runs version {}: restart it", status.node, status.version);
        return finding("store", Health::Doubtful, says);
    }
    let mut connected = status.shards.iter().filter(|shard| shard.connected);
    let differ = connected.find_map(|shard| keys_differ(&shard.place_keys));
    if let (true, Some(says)) = (away.is_empty(), differ) {
        return finding("store", Health::Doubtful, format!("{} runs, but {says}", status.node));
    }
    let troubles = status.problems();
    if !troubles.is_empty() {
        let texts =
            troubles.iter().map(|(kind, lines)| format!("{}. {}", lines.join("; "), kind.cure()));
        let texts = texts.collect::<Vec<_>>().join(" ");
        let verdict = match away.len() {
            all if all > 0 && all == status.shards.len() => Health::Bad,
            _ => Health::Doubtful,
        };
        return finding("store", verdict, format!("{}: {texts}", status.node));
    }
    match away.len() {
        0 => finding("store", Health::Good, format!("{} runs, with all its shards", status.node)),
        all if all == status.shards.len() => finding(
            "store",
            Health::Bad,
            format!("{} has no session with {}", status.node, away.join(", ")),
        ),
        _ => finding(
            "store",
            Health::Doubtful,
            format!("{} has no session with {}", status.node, away.join(", ")),
        ),
    }
}

fn interfaces(place: &Path) -> Vec<Finding> {
    let Ok(entries) = fs::read_dir(place) else {
        return vec![finding("network", Health::Unknown, "the interfaces cannot be listed")];
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(mtu) = read("mtu").trim().parse::<u64>() else { continue };
        if name == "lo" || read("operstate").trim() == "down" {
            continue;
        }
        let what = format!("MTU {name}");
        found.push(if mtu < ETHERNET_MTU {
            finding(
                what,
                Health::Doubtful,
                format!("{mtu} bytes, less than Ethernet's {ETHERNET_MTU}: a tunnel"),
            )
        } else {
            finding(what, Health::Good, format!("{mtu} bytes"))
        });
    }
    found.sort_by(|one, other| one.what.cmp(&other.what));
    found
}

fn clock() -> Finding {
    let kept =
        ["/run/systemd/timesync/synchronized", "/run/chrony", "/run/ntpd.pid", "/run/openntpd"];
    match kept.iter().find(|path| Path::new(path).exists()) {
        Some(path) => finding("clock", Health::Good, format!("synchronised ({path})")),
        None => finding(
            "clock",
            Health::Unknown,
            "no time daemon was found: certificates need a correct clock",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_are_tried() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let open = Security::default();
        assert_eq!(port(address, &open).await.verdict, Health::Bad);
        drop(taken);
        assert_eq!(port(address, &open).await.verdict, Health::Good);
        let everywhere = "0.0.0.0:0".parse().unwrap();
        let refused = port(everywhere, &open).await;
        assert!(
            refused.verdict == Health::Bad && refused.says.contains("--token-file"),
            "{refused:?}"
        );
        let meant = Security { insecure: Some(true), ..Security::default() };
        assert_eq!(port(everywhere, &meant).await.verdict, Health::Good);
    }

    #[tokio::test]
    async fn what_takes_too_long_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(300), || 7).await, Some(7));
        let (_hold, never) = std::sync::mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(10), move || never.recv()).await, None);
    }

    #[test]
    fn a_small_mtu_is_told() {
        let place = tempfile::tempdir().unwrap();
        for (name, mtu, state) in [
            ("eth0", "9000", "up"),
            ("wg0", "1420", "unknown"),
            ("lo", "65536", "unknown"),
            ("eth1", "99", "down"),
        ] {
            let directory = place.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("mtu"), mtu).unwrap();
            fs::write(directory.join("operstate"), state).unwrap();
        }
        let found = interfaces(place.path());
        let found: Vec<_> =
            found.iter().map(|finding| (finding.what.as_str(), finding.verdict)).collect();
        assert_eq!(found, [("MTU eth0", Health::Good), ("MTU wg0", Health::Doubtful)]);
    }

    #[test]
    fn this_machine_can_run_a_store() {
        assert_ne!(shared_memory(&MemoryLimits::read()).verdict, Health::Bad);
        assert!(meminfo("MemAvailable").unwrap() > 1 << 20);
        assert!(meminfo("Nothing").is_none());
    }
}
