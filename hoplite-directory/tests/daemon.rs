//! The binary's flags, exit codes and signals.
#![expect(clippy::unwrap_used, reason = "the functions around the tests are tests too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hoplite_daemon::{Addresses, READY};
use rustix::process::{Pid, Signal, kill_process};

const TIME_LIMIT: Duration = Duration::from_secs(300);

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hoplite-directory"));
    command.arg("--print-addresses");
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("HOPLITE_")) {
        command.env_remove(variable);
    }
    command
}

fn refused(command: &mut Command) -> (Option<i32>, String) {
    let mut refused =
        Killed(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (code, errors) = refused.end();
    let mut said = String::new();
    refused.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.is_empty(), "standard output is empty");
    (code, errors)
}

struct Killed(Child);

impl Killed {
    fn end(&mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < TIME_LIMIT, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut errors = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Daemon {
    process: Killed,
    address: SocketAddr,
}

impl Daemon {
    fn start(command: &mut Command) -> Self {
        let mut process =
            Killed(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let addresses: Addresses = serde_json::from_str(&line).unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), READY);
        Self { address: addresses.directory.unwrap(), process }
    }

    fn stop(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
        self.process.end()
    }
}

#[test]
fn the_daemon_serves_until_either_signal_and_exits_with_zero() {
    for signal in [Signal::TERM, Signal::INT] {
        let daemon = Daemon::start(command().args(["--listen", "127.0.0.1:0"]));
        assert_ne!(daemon.address.port(), 0);
        let connection = TcpStream::connect(daemon.address).unwrap();
        let (code, log) = daemon.stop(signal);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("serving") && log.contains("stopped"), "{log}");
        drop(connection);
    }
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "listen = \"127.0.0.1:1\"\ncluster = \"from-file\"\nlog = \"info\"").unwrap();
    let mut command = command();
    command.args(["--listen", "127.0.0.1:0"]).env("HOPLITE_LISTEN", "127.0.0.1:2");
    command.env("HOPLITE_CONFIG", file.path());
    let (_, log) = Daemon::start(&mut command).stop(Signal::TERM);
    assert!(log.contains("from-file"), "{log}");
    command.env("HOPLITE_CLUSTER", "from-environment");
    let (_, log) = Daemon::start(&mut command).stop(Signal::TERM);
    assert!(!log.contains("from-file") && log.contains("from-environment"), "{log}");
}

#[test]
fn a_port_in_use_is_a_one_line_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, text) = refused(command().args(["--listen", &address]));
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(&address), "{text}");
}

#[test]
fn usage_errors_exit_with_two() {
    let (code, text) = refused(command().args(["--listen", "0.0.0.0:0"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("--insecure") && text.contains("--token-file"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "lissten = \"127.0.0.1:1\"").unwrap();
    let (code, text) = refused(command().arg("--config").arg(file.path()));
    assert_eq!(code, Some(2));
    assert!(text.contains("lissten"), "{text}");

    for arguments in [
        ["--listen", "nowhere"],
        ["--node-grace", "soon"],
        ["--max-objects", "-1"],
        ["--cluster", "a b"],
    ] {
        let (code, text) = refused(command().args(arguments));
        assert_eq!(code, Some(2), "{text}");
    }
}

#[test]
fn an_insecure_bind_is_possible_with_a_flag() {
    let daemon = Daemon::start(command().args(["--listen", "0.0.0.0:0", "--insecure"]));
    assert_eq!(daemon.stop(Signal::TERM).0, Some(0));
}

#[test]
fn help_and_version_are_there() {
    let help = String::from_utf8(command().arg("--help").output().unwrap().stdout).unwrap();
    for flag in [
        "--listen",
        "--cluster",
        "--insecure",
        "--node-grace",
        "--tombstone-ttl",
        "--max-objects",
        "--log",
    ] {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
    let version = command().arg("--version").output().unwrap();
    assert!(String::from_utf8(version.stdout).unwrap().contains(env!("CARGO_PKG_VERSION")));
}
