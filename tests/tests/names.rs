#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use hoplite_client::blocking::Client;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Daemon, await_that, program};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;
use tempfile::TempDir;

const ADDRESSES: [&str; 4] = ["10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"];
const MAKE: &str = "mount --bind \"$HOSTS\" /etc/hosts && ip link set lo up &&
for address in $ADDRESSES; do ip address add $address/32 dev lo || exit 1; done";

/// A network without a name server; its `/etc/hosts` can change.
struct Network {
    place: TempDir,
    holder: Daemon,
}

impl Network {
    #[expect(clippy::print_stderr, reason = "who runs the tests is told that some were skipped")]
    fn new() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let hosts = place.path().join("hosts");
        fs::write(&hosts, "").unwrap();
        let in_new = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--mount", "sh", "-c", script]);
            command.env("HOSTS", &hosts).env("ADDRESSES", ADDRESSES.join(" "));
            command
        };
        let tried = in_new(&format!("nsenter --version && {MAKE}")).output();
        if !tried.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: needs root, for a network of its own, and ip and nsenter");
            return None;
        }
        let mut command = in_new(&format!("{MAKE} && echo made && exec sleep infinity"));
        let holder = Daemon::start("network", &mut command);
        Some(Self { place, holder })
    }

    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--mount", "--target", &self.holder.pid().to_string(), "--"])
            .arg(program);
        command
    }

    fn name(&self, name: &str, address: &str) {
        // In place: the file is mounted.
        fs::write(self.place.path().join("hosts"), format!("{address} {name}\n")).unwrap();
    }

    fn remove(&self, address: &str) {
        let mut command = self.command("ip".into());
        let status =
            command.args(["address", "del", &format!("{address}/32"), "dev", "lo"]).status();
        assert!(status.unwrap().success());
    }

    fn shard(&self, address: &str, security: &[String]) -> Daemon {
        let mut command = self.command(program("hoplite-directory"));
        command.args(["--print-addresses", "--listen", &format!("{address}:7401")]).args(security);
        Daemon::start(&format!("shard at {address}"), &mut command)
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.place.path().join(format!("node-{node}.sock"))
    }

    fn store(&self, node: usize, listen: &str, directory: &str, more: &[String]) -> Daemon {
        let mut command = self.command(program("hoplite-store"));
        command.args([
            "--print-addresses",
            "--memory",
            "32MiB",
            "--no-prefault",
            "--listen",
            listen,
        ]);
        command.args(["--node-id", &format!("node-{node}"), "--directory", directory]).args(more);
        command.arg("--socket").arg(self.socket(node));
        Daemon::start(&format!("node-{node}"), &mut command)
    }

    fn client(&self, node: usize) -> Client {
        Client::connect(self.socket(node)).unwrap()
    }

    fn assert_serves(&self, id: &str) {
        let expected = bytes(id.len() as u64, 100_000);
        self.client(0).put(id, &expected).unwrap();
        assert!(self.client(1).get(id, TIME_LIMIT).unwrap()[..] == expected[..]);
    }
}

fn insecure() -> Vec<String> {
    vec!["--insecure".to_owned()]
}

fn certificates(network: &Network) -> Vec<String> {
    let place = network.place.path().join("certs");
    let names = format!("n,shard.test,127.0.0.1,{}", ADDRESSES.join(","));
    let output =
        Command::new(program("hoplite")).arg("certs").arg(&place).arg(names).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let files = [("--tls-cert", "n.pem"), ("--tls-key", "n-key.pem"), ("--tls-ca", "ca.pem")];
    let path = |file| place.join(file).display().to_string();
    files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), path(file)]).collect()
}

fn a_shard_moves(network: &Network, security: &[String]) {
    network.name("shard.test", ADDRESSES[0]);
    let shard = network.shard(ADDRESSES[0], security);
    let _stores =
        [0, 1].map(|node| network.store(node, "127.0.0.1:0", "shard.test:7401", security));
    network.assert_serves("at home");
    network.client(0).put("before", &bytes(7, 100_000)).unwrap();

    drop(shard);
    network.name("shard.test", ADDRESSES[1]);
    let shard = network.shard(ADDRESSES[1], security);
    assert!(network.client(1).get("before", TIME_LIMIT).unwrap()[..] == bytes(7, 100_000)[..]);
    network.assert_serves("elsewhere");

    network.client(0).put("then", &bytes(8, 100_000)).unwrap();
    shard.signal(Signal::STOP);
    network.name("shard.test", ADDRESSES[2]);
    let _shard = network.shard(ADDRESSES[2], security);
    assert!(network.client(1).get("then", TIME_LIMIT).unwrap()[..] == bytes(8, 100_000)[..]);
    network.assert_serves("at last");
}

#[test]
fn a_shard_that_moves_is_found_by_its_name() {
    if let Some(network) = Network::new() {
        a_shard_moves(&network, &insecure());
    }
}

#[test]
fn a_shard_that_moves_is_found_by_its_name_over_tls() {
    if let Some(network) = Network::new() {
        a_shard_moves(&network, &certificates(&network));
    }
}

#[test]
fn a_store_that_moves_is_found_by_its_name() {
    let Some(network) = Network::new() else { return };
    let directory = format!("{}:7401", ADDRESSES[0]);
    network.name("store.test", ADDRESSES[1]);
    let mut shard = network.shard(ADDRESSES[0], &insecure());
    let mut more = insecure();
    more.extend(["--advertise".to_owned(), "store.test:7402".to_owned()]);
    let _stores = [
        network.store(0, "0.0.0.0:7402", &directory, &more),
        network.store(1, &format!("{}:0", ADDRESSES[0]), &directory, &insecure()),
    ];
    network.assert_serves("at home");
    network.client(0).put("x", &bytes(9, 100_000)).unwrap();
    let is_at = |address: &str| {
        let address = format!("{address}:7402").parse().unwrap();
        let Ok(description) = network.client(1).describe("x") else { return false };
        description.locations.locations.iter().any(|copy| copy.data_address == address)
    };
    await_that("the directory to know of the object", || is_at(ADDRESSES[1]));

    let restart = |shard: Daemon| {
        drop(shard);
        network.shard(ADDRESSES[0], &insecure())
    };
    network.name("store.test", ADDRESSES[2]);
    network.remove(ADDRESSES[1]);
    shard = restart(shard);
    await_that("the directory to hear of the move", || is_at(ADDRESSES[2]));
    assert!(network.client(1).get("x", TIME_LIMIT).unwrap()[..] == bytes(9, 100_000)[..]);
    network.assert_serves("elsewhere");
    let status = network.client(0).status().unwrap();
    assert_eq!(status.data_address, format!("{}:7402", ADDRESSES[2]));

    network.name("other.test", ADDRESSES[3]);
    let _shard = restart(shard);
    await_that("the directory to be told again", || is_at(ADDRESSES[2]));
    network.assert_serves("without a name");
}
