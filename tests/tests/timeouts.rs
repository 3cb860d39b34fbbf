//! Default timeout of the Rust clients and the command line. Python:
//! `python/tests/test_timeouts.py`.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hoplite_tests::cluster::{Cluster, program};

fn worker(socket: &Path, timeout: &str, line: &str) -> Output {
    let mut command = Command::new(program("hoplite-test-worker"));
    command.arg(socket).env("HOPLITE_TIMEOUT", timeout);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = writeln!(child.stdin.take().unwrap(), "{line}");
    child.wait_with_output().unwrap()
}

fn command_line(socket: &Path, timeout: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hoplite"));
    command.args(arguments).env("HOPLITE_SOCKET", socket).env("HOPLITE_TIMEOUT", timeout);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_environment_sets_the_default_of_all_interfaces() {
    let cluster = Cluster::of(1);
    let socket = cluster.socket(0);
    for timeout in ["250ms", "0.25"] {
        for line in ["reduce-default sum never", "reduce-default-async sum never"] {
            let output_text = text(&worker(&socket, timeout, line).stdout);
            assert!(output_text.starts_with("reduce timed out after "), "{line}: {output_text}");
        }
        let output = command_line(&socket, timeout, &["get", "never"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("get of never timed out after 250ms"),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_wrong_variable_is_an_error_that_names_it() {
    let cluster = Cluster::of(1);
    let socket = cluster.socket(0);
    for output in [
        worker(&socket, "soon", "put x 1"),
        command_line(&socket, "soon", &["ls"]).output().unwrap(),
    ] {
        assert_eq!(output.status.code(), Some(1));
        let output_text = text(&output.stderr);
        assert!(
            output_text.contains("HOPLITE_TIMEOUT")
                && output_text.contains("\"soon\" is not a timeout"),
            "{output_text}"
        );
    }
    assert_eq!(text(&worker(&socket, "", "put x 1").stdout), "done\n");
    assert!(command_line(&socket, "", &["get", "x"]).output().unwrap().status.success());
}

#[test]
fn a_long_wait_prints_the_missing_objects_once() {
    let cluster = Cluster::of(1);
    cluster.client(0).put("here", b"1").unwrap();
    let mut get = command_line(&cluster.socket(0), "5min", &["wait", "here", "late"]);
    let mut child = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "hoplite: wait of here has waited 10s and goes on: missing: late\n");
    cluster.client(0).put("late", b"1").unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str(), rest.as_str()),
        (Some(0), "here\nlate\n", "")
    );
}
