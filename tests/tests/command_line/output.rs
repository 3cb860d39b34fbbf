use super::*;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn each_verb_prints_json() {
    let up = Up::start(1, 1);
    let (input, output) = (up.path("in"), up.path("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    fs::write(input, 1.5_f32.to_le_bytes()).unwrap();
    let put = up.json(0, &["put", "x", input, "--dtype", "float32", "--shape", "1", "--json"]);
    assert_eq!(
        (&put["id"], &put["id_hex"], &put["size_bytes"]),
        (&"x".into(), &"78".into(), &4.into())
    );
    let get = up.json(0, &["get", "x", "-o", output, "--json"]);
    assert_eq!((&get["size_bytes"], &get["output"]), (&4.into(), &output.into()));
    assert_eq!(fs::read(output).unwrap(), 1.5_f32.to_le_bytes());
    let total = up.json(0, &["allreduce", "t", "x", "--rank", "0", "-o", output, "--json"]);
    assert_eq!((&total["id"], &total["size_bytes"]), (&"t".into(), &4.into()));
    let waited =
        up.hoplite(0, &["wait", "x", "y", "--timeout", "50ms", "--json"]).output().unwrap();
    assert!(failure(&waited).contains("not ready: y"));
    let waited: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!(
        (&waited["ready"][0]["id"], &waited["missing"][0]["id"]),
        (&"x".into(), &"y".into())
    );
    let met = up.json(0, &["barrier", "b", "--rank", "0", "--participants", "1", "--json"]);
    assert_eq!((&met["id"], &met["participants"]), (&"b".into(), &1.into()));
    let deleted = up.json(0, &["delete", "x", "x", "z", "--json"]);
    assert_eq!((&deleted["ids"], &deleted["deleted"]), (&2.into(), &1.into()));
    let usage = up.hoplite(0, &["get", "t", "-o", "-", "--json"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(text(&usage.stderr).contains("--json needs a file"), "{usage:?}");

    let certs = up.path("certs");
    let made = up.json(0, &["certs", certs.to_str().unwrap(), "node", "--json"]);
    assert_eq!(made[1]["names"][0], "node");
    assert!(Path::new(made[1]["key"].as_str().unwrap()).exists());
}

#[test]
fn up_prints_its_nodes_as_json() {
    let place = tempfile::tempdir().unwrap();
    let mut command = up(&place.path().join("cluster"), 2, 1);
    let mut daemon = Daemon::start("up", command.arg("--json"));
    let report: Value = serde_json::from_str(&daemon.first_line).unwrap();
    assert_eq!(report["directory"].as_array().unwrap().len(), 1);
    let dashboard = report["dashboard"].as_str().unwrap();
    assert!(std::net::TcpStream::connect(dashboard).is_ok(), "{report}");
    let socket = report["nodes"][1]["socket"].as_str().unwrap();
    let status = hoplite(&["--socket", socket, "status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["node"], report["nodes"][1]["node"]);
    assert_eq!(daemon.terminate(), 0);
}

fn in_terminal(up: &Up, line: &str) -> (i32, String) {
    let line = format!("{} {line}", program("hoplite").display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command
        .env("HOPLITE_SOCKET", up.socket(0))
        .env_remove("HOPLITE_TIMEOUT")
        .env_remove("NO_COLOR");
    let output = command.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_terminal_gets_text_and_colours_but_no_other_bytes() {
    let up = Up::start(1, 1);
    assert!(up.put(0, "text", "grüße\n".as_bytes(), &[]).status.success());
    assert!(up.put(0, "bytes", b"\x00\x1b[2J", &[]).status.success());
    let (code, shown) = in_terminal(&up, "get text");
    assert!(code == 0 && shown.contains("grüße"), "{shown:?}");
    let (code, shown) = in_terminal(&up, "get bytes");
    assert!(code == 1 && shown.contains("-o -") && !shown.contains("\x1b[2J"), "{shown:?}");
    assert!(shown.contains("\x1b[31m"), "the name of the program is red: {shown:?}");
    let (code, shown) = in_terminal(&up, "get bytes -o -");
    assert!(code == 0 && shown.contains("\x1b[2J"), "{shown:?}");
    assert_eq!(up.succeed(0, &["get", "bytes"]), b"\x00\x1b[2J", "a pipe takes all bytes");
    let (_, shown) = in_terminal(&up, "ls");
    assert!(shown.contains("\x1b[1mID\x1b[0m"), "titles are bold: {shown:?}");
    assert!(!text(&up.succeed(0, &["ls"])).contains('\x1b'), "a pipe gets no colours");
}

#[test]
fn shells_read_the_completions_and_man_the_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = hoplite(&["completion", shell]).output().unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("allreduce"), "{shell}");
    }
    let completing = "source <($0 completion bash); COMP_WORDS=(hoplite allr); COMP_CWORD=1; \
        _hoplite hoplite allr hoplite; echo ${COMPREPLY[0]}";
    let output =
        Command::new("bash").arg("-c").arg(completing).arg(program("hoplite")).output().unwrap();
    assert_eq!(text(&output.stdout), "allreduce\n", "{output:?}");
    let place = tempfile::tempdir().unwrap();
    assert!(hoplite(&["man"]).arg(place.path().join("man1")).status().unwrap().success());
    let pages = names(&place.path().join("man1"));
    for page in ["hoplite.1", "hoplite-put.1", "hoplite-topology-order.1"] {
        assert!(pages.iter().any(|name| name == page), "{page} in {pages:?}");
    }
    let page = fs::read_to_string(place.path().join("man1/hoplite-put.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH hoplite-put 1"), "{page}");
    let blocked = hoplite(&["man", "/proc/no"]).output().unwrap();
    assert!(failure(&blocked).contains("cannot write manual pages into /proc/no"));
}
