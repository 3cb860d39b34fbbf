//! Real daemons on loopback, as child processes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_client::{ConnectFailure, Dtype, Error, Metadata, PutOptions};
use hoplite_daemon::{Addresses, Security, launch};
use hoplite_net::Route;
use hoplite_net::opening::Caller;
use hoplite_proto::v1::directory_client::DirectoryClient;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tonic::transport::{Channel, Endpoint};

use crate::TIME_LIMIT;
use crate::contents::bytes;

pub fn program(name: &str) -> PathBuf {
    let path = launch::program(name);
    assert!(path.is_absolute(), "{name} is missing: run `cargo build --workspace --bins` first");
    path
}

/// A child process, killed on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    name: String,
    log: Arc<Mutex<String>>,
    pub first_line: String,
}

impl Daemon {
    pub fn start(name: &str, command: &mut Command) -> Self {
        let mut daemon = Self::spawn(name, command);
        let said = lines(daemon.child.stdout.take().expect("stdout is piped"));
        daemon.first_line = said.recv_timeout(TIME_LIMIT).unwrap_or_default();
        if daemon.first_line.is_empty() {
            let code = daemon.exit_code();
            panic!("{name} ended before it was ready ({code}): {}", daemon.log());
        }
        daemon
    }

    pub fn spawn(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let errors = child.stderr.take().expect("stderr is piped");
        let prefix = name.to_owned();
        let log = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&log);
        #[expect(
            clippy::print_stderr,
            reason = "the output of a test is where its daemons' logs belong"
        )]
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                eprintln!("[{prefix}] {line}");
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        Self { child, name: name.to_owned(), log, first_line: String::new() }
    }

    pub fn addresses(&self) -> Addresses {
        serde_json::from_str(&self.first_line).expect("a daemon prints JSON")
    }

    /// The log, which may lag: see [`Self::await_log`].
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn await_log(&self, text: &str) {
        await_that(&format!("{text:?} in the log of {}", self.name), || self.log().contains(text));
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// After `STOP`, waits until all threads have stopped.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("process ids are positive"))
            .expect("it has one");
        kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
        if signal == Signal::STOP {
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("the daemon stops");
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn terminate(&mut self) -> i32 {
        self.signal(Signal::TERM);
        self.exit_code()
    }

    /// Returns `true` if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits for the exit code; -1 stands for a signal.
    pub fn exit_code(&mut self) -> i32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status.code().unwrap_or(-1);
            }
            assert!(started.elapsed() < TIME_LIMIT, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads lines in a thread, so that waits have a limit.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

pub fn run_to_end(command: &mut Command) -> (i32, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut errors = child.stderr.take().expect("stderr is piped");
    let log = Arc::default();
    let mut daemon = Daemon { child, name: format!("{command:?}"), log, first_line: String::new() };
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let code = daemon.exit_code();
    (code, reading.join().expect("the output is read"))
}

#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    pub fn start(socket: &Path) -> Self {
        let mut child = Command::new(program("hoplite-test-worker"))
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let commands = child.stdin.take().expect("stdin is piped");
        let answers = lines(child.stdout.take().expect("stdout is piped"));
        Self { child, commands, answers }
    }

    pub fn send_command(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the worker listens");
    }

    pub fn answer(&mut self) -> String {
        self.answers.recv_timeout(TIME_LIMIT).expect("the worker answers")
    }

    pub fn succeed(&mut self, command: &str) {
        self.send_command(command);
        assert_eq!(self.answer(), "done", "{command}");
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub nodes: usize,
    pub shards: usize,
    pub memory: String,
    pub memory_of: BTreeMap<usize, String>,
    pub store_arguments: Vec<String>,
    pub shard_arguments: Vec<String>,
    pub advertised: Vec<String>,
    /// Environment of all daemons, beside the test's.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Folder of the daemons; `None` for this workspace's.
    pub programs: Option<PathBuf>,
}

impl Plan {
    pub fn open() -> Self {
        let insecure = vec!["--insecure".to_owned()];
        Self { store_arguments: insecure.clone(), shard_arguments: insecure, ..Self::default() }
    }
}

pub fn directory(address: &str) -> DirectoryClient<Channel> {
    let credentials = Security::from_environment().credentials().expect("this user has a secret");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("it is an address");
    let endpoint = endpoint.timeout(TIME_LIMIT);
    DirectoryClient::new(credentials.channel(&endpoint, Caller::default(), Route::Network))
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 2,
            shards: 1,
            memory: "64MiB".to_owned(),
            memory_of: BTreeMap::new(),
            store_arguments: Vec::new(),
            shard_arguments: Vec::new(),
            advertised: Vec::new(),
            environment: Vec::new(),
            programs: None,
        }
    }
}

/// Binds a socket to a free port without listening, to keep the port for a shard.
fn keep_port() -> (TcpSocket, String) {
    let bound = TcpSocket::new_v4().and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?.to_string();
        Ok((socket, address))
    });
    bound.expect("a port is free")
}

#[derive(Debug)]
pub struct Cluster {
    directory: TempDir,
    plan: Plan,
    pub shards: Vec<Option<Daemon>>,
    pub shard_addresses: Vec<String>,
    pub stores: Vec<Option<Daemon>>,
    ports: Vec<TcpSocket>,
}

impl Cluster {
    pub fn start(plan: Plan) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (ports, shard_addresses) = (0..plan.shards).map(|_| keep_port()).unzip();
        let mut cluster =
            Self { directory, plan, shards: vec![], shard_addresses, stores: vec![], ports };
        for shard in 0..cluster.plan.shards {
            let daemon = cluster.spawn_shard(shard);
            cluster.shards.push(Some(daemon));
        }
        for node in 0..cluster.plan.nodes {
            let daemon = cluster.spawn_store(node);
            cluster.stores.push(Some(daemon));
        }
        for node in 0..cluster.plan.nodes {
            cluster.await_sessions(node);
        }
        cluster
    }

    pub fn of(nodes: usize) -> Self {
        Self::start(Plan { nodes, ..Plan::default() })
    }

    pub fn open(nodes: usize) -> Self {
        Self::start(Plan { nodes, ..Plan::open() })
    }

    fn spawn_shard(&self, shard: usize) -> Daemon {
        let mut command = launch::shard(&self.shard_addresses[shard]);
        command.args(&self.plan.shard_arguments);
        Daemon::start(&format!("shard-{shard}"), &mut self.placed(command))
    }

    fn spawn_store(&self, node: usize) -> Daemon {
        let mut command = self.store_command(node);
        Daemon::start(&format!("node-{node}"), &mut command)
    }

    pub fn store_command(&self, node: usize) -> Command {
        let mut command = launch::Store {
            node: &format!("node-{node}"),
            socket: &self.socket(node),
            memory: self.plan.memory_of.get(&node).unwrap_or(&self.plan.memory),
            shards: &self.shard_addresses,
        }
        .command();
        command.args(&self.plan.store_arguments);
        if let Some(address) = self.plan.advertised.get(node) {
            command.args(["--advertise", address]);
        }
        self.placed(command)
    }

    fn placed(&self, mut command: Command) -> Command {
        command.envs(self.plan.environment.iter().copied());
        let Some(folder) = &self.plan.programs else { return command };
        let name = Path::new(command.get_program()).file_name().expect("a program has a name");
        let mut placed = Command::new(folder.join(name));
        placed.args(command.get_args());
        for (variable, value) in command.get_envs() {
            match value {
                Some(value) => placed.env(variable, value),
                None => placed.env_remove(variable),
            };
        }
        placed
    }

    pub const fn plan_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn socket(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("node-{node}.sock"))
    }

    pub fn data_address(&self, node: usize) -> String {
        let store = self.stores[node].as_ref().expect("the store runs");
        store.addresses().data.expect("it has a data plane").to_string()
    }

    /// Connects to a store, and repeats attempts that time out.
    pub fn client(&self, node: usize) -> Client {
        let started = Instant::now();
        loop {
            match Client::connect(self.socket(node)) {
                Err(Error::Connect { kind: ConnectFailure::TimedOut { .. }, .. })
                    if started.elapsed() < TIME_LIMIT => {}
                connected => return connected.expect("the store accepts clients"),
            }
        }
    }

    /// Puts 4 MiB of zero floats, too many to be reduced at one node.
    pub fn put_zeros(&self, node: usize, id: &str) {
        let metadata =
            Metadata { dtype: Dtype::F32, shape: Some(vec![1 << 20]), ..Metadata::default() };
        let options = PutOptions { metadata, ..PutOptions::default() };
        self.client(node)
            .put_with(id, &vec![0; 4 << 20], options)
            .expect("there is room, and no such object");
    }

    pub fn store(&mut self, node: usize) -> &mut Daemon {
        self.stores[node].as_mut().expect("the store runs")
    }

    /// Checks that all daemons live and serve an object.
    pub fn assert_serves(&mut self) {
        static ROUND: AtomicU64 = AtomicU64::new(0);
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let id = format!("round-{round}");
        let expected = bytes(round, 100_000);
        let running: Vec<usize> =
            (0..self.stores.len()).filter(|&node| self.stores[node].is_some()).collect();
        let first = self.client(running[0]);
        first.put(&id, &expected).expect("a put is served");
        for &node in &running {
            let got = self.client(node).get(&id, TIME_LIMIT).expect("a get is served");
            assert!(got[..] == expected[..], "node {node} has the right bytes");
        }
        assert_eq!(first.delete([&id], TIME_LIMIT).expect("a delete is served"), 1);
        for daemon in self.stores.iter_mut().chain(&mut self.shards).flatten() {
            assert!(daemon.is_running(), "{} has ended", daemon.name);
        }
    }

    pub fn senders(&self, node: usize, id: &str) -> BTreeMap<usize, usize> {
        let number = |name: &str| name.strip_prefix("node-")?.parse().ok();
        let description = retry("describe", || self.client(node).describe(id));
        let pulls = description.locations.locations.iter();
        pulls
            .filter_map(|pull| {
                Some((number(pull.node.as_str())?, number(pull.pulling_from.as_ref()?.as_str())?))
            })
            .collect()
    }

    pub fn await_empty(&self, node: usize) {
        let client = self.client(node);
        await_that("all memory back", || {
            let status = client.status().expect("a store tells its status");
            status.copies == 0 && status.free_bytes == status.capacity_bytes
        });
    }

    pub fn kill_store(&mut self, node: usize) {
        self.stores[node] = None;
    }

    pub fn restart_store(&mut self, node: usize) {
        self.stores[node] = None;
        let daemon = self.spawn_store(node);
        self.stores[node] = Some(daemon);
        self.await_sessions(node);
    }

    pub fn kill_shard(&mut self, shard: usize) {
        self.shards[shard] = None;
    }

    pub fn restart_shard(&mut self, shard: usize) {
        self.shards[shard] = None;
        let daemon = self.spawn_shard(shard);
        self.shards[shard] = Some(daemon);
    }

    /// Starts a shard that no store knows yet. Returns its number.
    pub fn start_shard(&mut self) -> usize {
        let (port, address) = keep_port();
        self.ports.push(port);
        self.shard_addresses.push(address);
        let shard = self.shards.len();
        let daemon = self.spawn_shard(shard);
        self.shards.push(Some(daemon));
        shard
    }

    pub fn await_sessions(&self, node: usize) {
        let client = self.client(node);
        await_that("sessions with the directory", || {
            let status = client.status().expect("a store tells its status");
            let expected = self.shards.iter().filter(|shard| shard.is_some()).count();
            status.shards.iter().filter(|shard| shard.connected).count() >= expected
        });
    }

    pub fn await_lost_sessions(&self, node: usize) {
        let client = self.client(node);
        await_that("the end of sessions with the directory", || {
            let status = client.status().expect("a store tells its status");
            let running = self.shards.iter().filter(|shard| shard.is_some()).count();
            status.shards.iter().filter(|shard| shard.connected).count() <= running
        });
    }
}

pub fn refusal<T>(result: hoplite_client::Result<T>) -> hoplite_core::Error {
    match result {
        Err(Error::Object(error)) => error,
        Err(error) => panic!("failed, and not as it should: {error}"),
        Ok(_) => panic!("did not fail"),
    }
}

/// Repeats a call that fails with retryable errors.
pub fn retry<T>(what: &str, mut call: impl FnMut() -> Result<T, Error>) -> T {
    let started = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => assert!(error.is_retryable(), "{what}: {error}"),
        }
        assert!(started.elapsed() < TIME_LIMIT, "{what} fails for too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Repeats a check until it succeeds.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIME_LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
