#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hoplite_tests::cluster::{Cluster, Plan, await_that, program};

/// Longest run of `hoplite doctor`, which needs 2 s on an idle machine.
const LONGEST: Duration = Duration::from_secs(60);

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn arguments(flags: &[(&str, &Path)]) -> Vec<String> {
    flags.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]).collect()
}

/// Repeats the doctor until its finding is `verdict`, with a text that contains `says`.
#[track_caller]
fn assert_says(address: &str, flags: &[String], verdict: &str, says: &str) {
    let is_found =
        || doctor(address, flags).is_some_and(|found| found.0 == verdict && found.1.contains(says));
    await_that(&format!("{verdict} with {says:?} about {address}"), is_found);
}

/// Returns the directory's verdict and text; `None` if the credentials took too long.
fn doctor(address: &str, flags: &[String]) -> Option<(String, String)> {
    let mut command = Command::new(program("hoplite"));
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("HOPLITE_")) {
        command.env_remove(variable);
    }
    let began = Instant::now();
    let output =
        command.args(["doctor", "--json", "--directory", address]).args(flags).output().unwrap();
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let what = format!("directory {address}");
    let findings = findings.as_array().unwrap();
    let is_bad = findings.iter().any(|finding| finding["verdict"] == "bad");
    assert_eq!(output.status.success(), !is_bad, "{findings:?}");
    let found = findings.iter().find(|finding| finding["what"] == what.as_str())?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    Some((text("verdict"), text("says")))
}

fn shard(flags: &[String]) -> Cluster {
    Cluster::start(Plan { nodes: 0, shards: 1, shard_arguments: flags.to_vec(), ..Plan::default() })
}

fn certificates(directory: &Path, names: &str) -> Vec<String> {
    let output =
        Command::new(program("hoplite")).arg("certs").arg(directory).arg(names).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [cert, key, ca]: [PathBuf; 3] =
        ["n.pem", "n-key.pem", "ca.pem"].map(|file| directory.join(file));
    arguments(&[("--tls-cert", &cert), ("--tls-key", &key), ("--tls-ca", &ca)])
}

#[test]
fn the_doctor_asks_a_directory_with_the_token_that_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (token, other) = (place.path().join("token"), place.path().join("other"));
    write_private(&token, "a secret of the tests\n");
    write_private(&other, "another secret of the tests\n");
    let token = arguments(&[("--token-file", &token)]);
    let cluster = shard(&token);
    let address = &cluster.shard_addresses[0];
    assert_says(address, &token, "good", "answers, for cluster");
    let other = arguments(&[("--token-file", &other)]);
    assert_says(address, &other, "bad", "has another token than this program");
    assert_says(address, &[], "bad", "name the token of the directory");
    let tls = certificates(&place.path().join("ours"), "n,127.0.0.1");
    assert_says(address, &tls, "bad", "does not speak TLS, but this host has certificates");
}

#[test]
fn the_doctor_tells_which_side_speaks_tls_and_whose_certificate_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let ours = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let theirs = certificates(&place.path().join("theirs"), "n,127.0.0.1");
    let cluster = shard(&ours);
    let address = &cluster.shard_addresses[0];
    assert_says(address, &ours, "good", "answers, for cluster");
    assert_says(address, &[], "bad", "speaks TLS, but this host has no certificates");
    assert_says(address, &theirs, "bad", "does not come from the authority");
    let both = place.path().join("both.pem");
    let read = |file: &str| fs::read_to_string(place.path().join(file)).unwrap();
    fs::write(&both, read("theirs/ca.pem") + &read("ours/ca.pem")).unwrap();
    let [mut mixed, last] = [theirs, vec![both.display().to_string()]];
    mixed.splice(5.., last);
    assert_says(address, &mixed, "bad", "refuses the certificate of this host");
}

#[test]
fn the_doctor_distinguishes_a_closed_port_from_a_silent_one() {
    let place = tempfile::tempdir().unwrap();
    let tls = certificates(&place.path().join("ours"), "n,127.0.0.1");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for flags in [&[][..], &tls] {
        assert_says(&address, flags, "bad", "but does not answer in time");
        assert_says("127.0.0.1:1", flags, "bad", "cannot be reached: Connection refused");
    }
}
