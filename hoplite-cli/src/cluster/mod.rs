mod background;
mod daemon;
mod own_directory;
mod signals;
mod workplace;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use futures::future::{join_all, select_all, try_join_all};
use hoplite_daemon::{Addresses, launch};
use tokio::time::timeout;

pub(crate) use background::{Background, Running};
pub(crate) use daemon::{Daemon, Ended, last_words};
pub(crate) use signals::{Interrupted, Signals, unless_interrupted};
use workplace::Workplace;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Small, because all stores share one machine.
pub(crate) const DEFAULT_MEMORY: &str = "256MiB";

#[derive(Debug, Clone)]
pub(crate) struct ClusterOptions {
    pub(crate) nodes: u32,
    pub(crate) shards: u32,
    /// Directory of the sockets; `None` for a temporary directory.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) memory_bytes: u64,
    /// Memory of the first store; `None` for `memory_bytes`.
    pub(crate) first_memory_bytes: Option<u64>,
    pub(crate) labels: Vec<LabelInTurn>,
    pub(crate) pages: Pages,
    pub(crate) dashboard: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct LabelInTurn {
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Touched before the cluster counts as started, so that measurements find mapped pages.
    AllAtStart,
    /// Touched on first use, so that a cluster for development takes little memory.
    OnUse,
}

#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) directory: PathBuf,
    pub(crate) nodes: Vec<NodeProcess>,
    pub(crate) shards: Vec<String>,
    pub(crate) dashboard: Option<SocketAddr>,
    pub(crate) shard_pids: Vec<u32>,
}

#[derive(Debug, Clone)]
pub(crate) struct NodeProcess {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    pub(crate) pid: u32,
}

/// Starts a cluster, runs `body`, and always stops the cluster. Call this on the main thread: the
/// daemons end with their starting thread.
///
/// # Errors
/// A failed start; [`Interrupted`]; [`AllStopped`]; a daemon's failure; or the error of `body`.
pub(crate) async fn with_cluster<T>(
    options: ClusterOptions,
    body: impl AsyncFnOnce(&Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut signals = Signals::listen()?;
    let mut daemons = Daemons::new(&options)?;
    let outcome = tokio::select! {
        outcome = async {
            let cluster = daemons.start(&options).await?;
            tokio::select! {
                outcome = body(&cluster) => outcome,
                ended = daemons.first_failure() => Err(ended),
            }
        } => outcome,
        () = signals.received() => Err(Interrupted.into()),
    };
    tokio::select! {
        () = daemons.stop() => {}
        () = signals.received() => {}
    }
    if outcome.as_ref().is_err_and(|error| !is_orderly(error)) {
        daemons.workplace.keep_logs();
    }
    outcome
}

#[derive(Debug, thiserror::Error)]
#[error("all stores have stopped")]
pub(crate) struct AllStopped;

pub(crate) fn is_orderly(error: &anyhow::Error) -> bool {
    error.is::<Interrupted>() || error.is::<AllStopped>()
}

#[derive(Debug)]
struct Daemons {
    stores: Vec<Daemon>,
    shards: Vec<Daemon>,
    // Dropped last, because the daemons use its files.
    workplace: Workplace,
}

impl Daemons {
    fn new(options: &ClusterOptions) -> anyhow::Result<Self> {
        let shards = (0..options.shards).map(shard_name);
        let names = shards.chain((0..options.nodes).map(node_name)).collect();
        let workplace = Workplace::create(options.directory.as_deref(), names)?;
        Ok(Self { stores: Vec::new(), shards: Vec::new(), workplace })
    }

    async fn start(&mut self, options: &ClusterOptions) -> anyhow::Result<Cluster> {
        match timeout(START_TIMEOUT, self.start_all(options)).await {
            Ok(result) => result,
            Err(_) => anyhow::bail!("the cluster did not start within {START_TIMEOUT:?}"),
        }
    }

    async fn start_all(&mut self, options: &ClusterOptions) -> anyhow::Result<Cluster> {
        for shard in 0..options.shards {
            let mut command = launch::shard("127.0.0.1:0");
            if options.dashboard && shard == 0 {
                command.args(["--dashboard", "0"]);
            }
            self.shards.push(self.spawn(&shard_name(shard), command)?);
        }
        let (mut shards, mut dashboard) = (Vec::new(), None);
        for addresses in self.shards_listen().await? {
            dashboard = dashboard.or(addresses.dashboard);
            shards.push(addresses.directory.context("a shard has no address")?.to_string());
        }
        for node in 0..options.nodes {
            let memory_bytes =
                options.first_memory_bytes.filter(|_| node == 0).unwrap_or(options.memory_bytes);
            self.stores.push(self.spawn_store(node, &shards, memory_bytes, options)?);
        }
        let mut nodes = Vec::new();
        let addresses = self.stores_ready().await?;
        for (daemon, addresses) in self.stores.iter().zip(addresses) {
            nodes.push(NodeProcess {
                name: daemon.name().to_owned(),
                socket: addresses.socket.context("a store has no socket")?,
                pid: daemon.pid()?,
            });
        }
        let shard_pids = self.shards.iter().map(Daemon::pid).collect::<anyhow::Result<_>>()?;
        Ok(Cluster {
            directory: self.workplace.path().to_owned(),
            nodes,
            shards,
            dashboard,
            shard_pids,
        })
    }

    async fn shards_listen(&mut self) -> anyhow::Result<Vec<Addresses>> {
        try_join_all(self.shards.iter_mut().map(Daemon::addresses)).await
    }

    /// Waits until all stores have reached all shards, or a shard ends.
    async fn stores_ready(&mut self) -> anyhow::Result<Vec<Addresses>> {
        let Self { stores, shards, .. } = self;
        let ready = stores.iter_mut().map(async |store| {
            let addresses = store.addresses().await?;
            store.ready().await?;
            Ok(addresses)
        });
        tokio::select! {
            ready = try_join_all(ready) => ready,
            (ended, status) = first_end(shards.iter_mut()) => Err(shards[ended].has_ended(status)),
        }
    }

    fn spawn_store(
        &self,
        node: u32,
        shards: &[String],
        memory_bytes: u64,
        options: &ClusterOptions,
    ) -> anyhow::Result<Daemon> {
        let name = node_name(node);
        let (socket, memory) = (self.workplace.socket(&name), memory_bytes.to_string());
        let mut command =
            launch::Store { node: &name, socket: &socket, memory: &memory, shards }.command();
        if options.pages == Pages::OnUse {
            command.arg("--no-prefault");
        }
        for LabelInTurn { key, values } in &options.labels {
            let value = &values[node as usize % values.len()];
            command.arg("--labels").arg(format!("{key}={value}"));
        }
        self.spawn(&name, command)
    }

    fn spawn(&self, name: &str, mut command: Command) -> anyhow::Result<Daemon> {
        // Only this process receives Ctrl-C, and stops the daemons in order.
        launch::bind_to_this_process(&mut command);
        Daemon::spawn(name, command, self.workplace.log(name))
    }

    /// Waits for the first failure of a daemon. A store that ends with status 0, as after a drain,
    /// is only reported and removed.
    async fn first_failure(&mut self) -> anyhow::Error {
        loop {
            let stores = self.stores.len();
            let (ended, status) = first_end(self.stores.iter_mut().chain(&mut self.shards)).await;
            let Some(store) = self.stores.get(ended) else {
                return self.shards[ended - stores].has_ended(status);
            };
            if !status.success() {
                return store.has_ended(status);
            }
            let stopped = self.stores.remove(ended);
            if self.stores.is_empty() {
                return AllStopped.into();
            }
            let _ =
                writeln!(io::stderr(), "{} has stopped; the other stores go on", stopped.name());
        }
    }

    /// Stops the stores first, because a stopping store sends messages to the directory.
    async fn stop(&mut self) {
        join_all(self.stores.iter_mut().map(Daemon::stop)).await;
        join_all(self.shards.iter_mut().map(Daemon::stop)).await;
    }
}

/// Waits until one of the `daemons`, which must not be empty, ends. Returns its position.
async fn first_end<'d>(daemons: impl Iterator<Item = &'d mut Daemon>) -> (usize, ExitStatus) {
    let (status, ended, _) = select_all(daemons.map(|daemon| Box::pin(daemon.ended()))).await;
    (ended, status)
}

fn node_name(node: u32) -> String {
    format!("node-{node}")
}

fn shard_name(shard: u32) -> String {
    format!("directory-{shard}")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn program(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(std::process::Stdio::piped());
        command
    }

    async fn start_of(shard: &str, stores: [&str; 2]) -> anyhow::Result<Vec<Addresses>> {
        let options = ClusterOptions {
            nodes: 2,
            shards: 1,
            directory: None,
            memory_bytes: 0,
            first_memory_bytes: None,
            labels: Vec::new(),
            pages: Pages::OnUse,
            dashboard: false,
        };
        let mut daemons = Daemons::new(&options)?;
        daemons.shards.push(daemons.spawn("directory-0", program(shard))?);
        for (number, store) in stores.into_iter().enumerate() {
            daemons.stores.push(daemons.spawn(&node_name(number as u32), program(store))?);
        }
        daemons.shards_listen().await?;
        let ready = daemons.stores_ready().await;
        daemons.stop().await;
        ready
    }

    #[tokio::test]
    async fn a_daemon_that_dies_during_the_start_is_noticed_at_once() {
        const LISTENS: &str = "echo '{}'; exec sleep 60";
        const READY: &str = "echo '{}'; echo ready; exec sleep 60";
        const DIES: &str = "echo '{}'; echo starting >&2; echo 'the disk is on fire' >&2; exit 3";
        assert_eq!(start_of(LISTENS, [READY, READY]).await.unwrap().len(), 2);
        for (shard, stores, name) in [
            (LISTENS, [LISTENS, DIES], "node-1"),
            (LISTENS, [DIES, LISTENS], "node-0"),
            (DIES, [LISTENS, LISTENS], "directory-0"),
            (LISTENS, [READY, "echo no >&2; exit 1"], "node-1"),
        ] {
            let began = Instant::now();
            let error = start_of(shard, stores).await.unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
            assert!(
                !stores.contains(&DIES) || error.ends_with("starting; the disk is on fire"),
                "{error}"
            );
            assert!(began.elapsed() < START_TIMEOUT / 2, "the others are not waited for");
        }
    }
}
