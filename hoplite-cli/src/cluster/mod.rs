//! A cluster of real daemons on this machine, for as long as somebody needs it.
//!
//! * [`with_cluster`]: starts one, does something with it, and takes it down in any case.
//! * [`daemon`]: one process.
//! * [`workplace`]: the directory with the sockets and the logs.
//! * [`signals`]: being asked to end.

mod daemon;
mod signals;
mod workplace;

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use futures::future::{join_all, select_all};
use hoplite_daemon::launch;
use tokio::time::timeout;

use daemon::Daemon;
pub(crate) use signals::{Interrupted, Signals, unless_interrupted};
use workplace::Workplace;

/// How long a cluster may take to come up. Sixteen stores on two busy cores take a few seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The memory of a store unless said otherwise: little, since all of them are on one machine.
pub(crate) const DEFAULT_MEMORY: &str = "256MiB";

/// What cluster to start.
#[derive(Debug, Clone)]
pub(crate) struct ClusterOptions {
    /// How many stores.
    pub(crate) nodes: u32,
    /// How many directory shards.
    pub(crate) shards: u32,
    /// Where the sockets and logs go; `None` for a temporary directory.
    pub(crate) directory: Option<PathBuf>,
    /// The arena of each store.
    pub(crate) memory_bytes: u64,
    /// The arena of the first store, if it is to be another.
    pub(crate) first_memory_bytes: Option<u64>,
    /// Whether the arenas' pages are all there when the cluster is.
    pub(crate) pages: Pages,
}

/// When the pages of the arenas are first touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Before the cluster counts as started: for measurements.
    AllAtStart,
    /// When they are used: a cluster for development takes no memory that it does not need.
    OnUse,
}

/// A cluster that runs.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) directory: PathBuf,
    pub(crate) nodes: Vec<NodeProcess>,
    /// The addresses of the directory's shards.
    pub(crate) shards: Vec<String>,
}

/// One store of it.
#[derive(Debug, Clone)]
pub(crate) struct NodeProcess {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    pub(crate) pid: u32,
}

/// Starts a cluster, runs `body`, and takes the cluster down, whatever happens.
///
/// Must be called from the main thread: the daemons end with the thread that started them.
///
/// # Errors
/// What keeps the cluster from starting; [`Interrupted`]; the end of a daemon; or the error of `body`.
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
                (name, status) = daemons.first_end() => {
                    Err(daemon::ended(&name, status, &daemons.workplace.log(&name)))
                }
            }
        } => outcome,
        () = signals.received() => Err(Interrupted.into()),
    };
    // A second signal ends the taking down at once; dropping the daemons kills them.
    tokio::select! {
        () = daemons.stop() => {}
        () = signals.received() => {}
    }
    if outcome.as_ref().is_err_and(|error| !error.is::<Interrupted>()) {
        daemons.workplace.keep_logs();
    }
    outcome
}

/// All processes of a cluster. Dropping it kills what still runs.
#[derive(Debug)]
struct Daemons {
    stores: Vec<Daemon>,
    shards: Vec<Daemon>,
    // Dropped last: its files are in use until then.
    workplace: Workplace,
}

impl Daemons {
    fn new(options: &ClusterOptions) -> anyhow::Result<Self> {
        let shards = (0..options.shards).map(shard_name);
        let names = shards.chain((0..options.nodes).map(node_name)).collect();
        let workplace = Workplace::create(options.directory.as_deref(), names)?;
        Ok(Self { stores: Vec::new(), shards: Vec::new(), workplace })
    }

    /// Returns when every store is ready.
    async fn start(&mut self, options: &ClusterOptions) -> anyhow::Result<Cluster> {
        match timeout(START_TIMEOUT, self.start_all(options)).await {
            Ok(result) => result,
            Err(_) => anyhow::bail!("the cluster did not start within {START_TIMEOUT:?}"),
        }
    }

    async fn start_all(&mut self, options: &ClusterOptions) -> anyhow::Result<Cluster> {
        for shard in 0..options.shards {
            self.shards.push(self.spawn(&shard_name(shard), launch::shard("127.0.0.1:0"))?);
        }
        let mut shards = Vec::new();
        for daemon in &mut self.shards {
            let addresses = daemon.addresses(&self.workplace).await?;
            shards.push(addresses.directory.context("a shard has no address")?.to_string());
        }
        for node in 0..options.nodes {
            let memory_bytes =
                options.first_memory_bytes.filter(|_| node == 0).unwrap_or(options.memory_bytes);
            self.stores.push(self.spawn_store(&node_name(node), &shards, memory_bytes, options.pages)?);
        }
        let mut nodes = Vec::new();
        for daemon in &mut self.stores {
            let addresses = daemon.addresses(&self.workplace).await?;
            nodes.push(NodeProcess {
                name: daemon.name().to_owned(),
                socket: addresses.socket.context("a store has no socket")?,
                pid: daemon.pid()?,
            });
        }
        for daemon in &mut self.stores {
            daemon.ready(&self.workplace).await?;
        }
        Ok(Cluster { directory: self.workplace.path().to_owned(), nodes, shards })
    }

    fn spawn_store(
        &self,
        name: &str,
        shards: &[String],
        memory_bytes: u64,
        pages: Pages,
    ) -> anyhow::Result<Daemon> {
        let (socket, memory) = (self.workplace.socket(name), memory_bytes.to_string());
        let mut command = launch::Store { node: name, socket: &socket, memory: &memory, shards }.command();
        if pages == Pages::OnUse {
            command.arg("--no-prefault");
        }
        self.spawn(name, command)
    }

    fn spawn(&self, name: &str, command: Command) -> anyhow::Result<Daemon> {
        Daemon::spawn(name, command, &self.workplace.log(name))
    }

    /// Waits until any of them ends.
    async fn first_end(&mut self) -> (String, ExitStatus) {
        let ends = self.stores.iter_mut().chain(&mut self.shards).map(|daemon| {
            Box::pin(async {
                let status = daemon.ended().await;
                (daemon.name().to_owned(), status)
            })
        });
        select_all(ends).await.0
    }

    /// Ends all of them: the stores first, so that they can say goodbye to the directory.
    async fn stop(&mut self) {
        join_all(self.stores.iter_mut().map(Daemon::stop)).await;
        join_all(self.shards.iter_mut().map(Daemon::stop)).await;
    }
}

fn node_name(node: u32) -> String {
    format!("node-{node}")
}

fn shard_name(shard: u32) -> String {
    format!("directory-{shard}")
}
