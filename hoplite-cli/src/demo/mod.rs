mod input;
mod reduction;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::future::{join_all, try_join_all};
use hoplite_client::{Client, ObjectId};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tokio::process::Command;
use tokio::time::sleep;

use crate::arguments::parse_size;
use crate::cluster::{Cluster, ClusterOptions, NodeProcess, Pages, with_cluster};
use crate::output::size;
use crate::progress;
use crate::verbs::stat;
use input::{Digest, Input};

const ID: &str = "demo/input";
const SPARE_BYTES: u64 = 4 * reduction::ARRAY_BYTES;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "Examples:
  hoplite demo
  hoplite demo --nodes 8 --file dataset.tar

Starts a cluster, puts the file on the first node, gets it on all others at once with one process each, compares the
results, and says how fast it was and who served whom. Then puts an array on each node, adds them up in the network, and
compares the sum.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of stores
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: u32,
    /// File to share [default: programs and libraries of this machine, joined]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Size of the assembled file if no file is given
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    size: u64,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let place = tempfile::Builder::new().prefix("hoplite-demo-").tempdir();
    let place = place.context("cannot create a temporary directory")?;
    let input = match &arguments.file {
        Some(file) => Input::read(file)?,
        None => Input::collect(&place.path().join("input"), arguments.size)?,
    };
    say(&format!("input: {}, {}", input.description, size(input.size_bytes)))?;
    let options = ClusterOptions {
        nodes: arguments.nodes,
        shards: 1,
        directory: None,
        memory_bytes: input.size_bytes + SPARE_BYTES,
        labels: Vec::new(),
        first_memory_bytes: None,
        pages: Pages::AllAtStart,
        dashboard: false,
    };
    with_cluster(options, async |cluster| {
        share(cluster, &input, place.path()).await?;
        reduction::reduce(cluster).await
    })
    .await
}

async fn share(cluster: &Cluster, input: &Input, place: &Path) -> anyhow::Result<()> {
    say(&format!(
        "cluster: {} nodes and a directory, each a process of its own",
        cluster.nodes.len()
    ))?;
    let [origin, receivers @ ..] = cluster.nodes.as_slice() else {
        anyhow::bail!("a cluster without nodes")
    };

    let started = Instant::now();
    command(origin, &["put", ID])?.arg(&input.path).status_ok("put").await?;
    say(&format!("put on {}: {}", origin.name, rate(input.size_bytes, started.elapsed())))?;

    let sent_before = Client::connect(&origin.socket).await?.status().await?.sent_bytes;
    let started = Instant::now();
    let outputs = get_everywhere(receivers, input.size_bytes, place).await?;
    let elapsed = started.elapsed();
    let total_bytes = input.size_bytes * receivers.len() as u64;
    say(&format!(
        "get on all {} others at once, each into a file: together {}",
        receivers.len(),
        rate(total_bytes, elapsed)
    ))?;

    for (node, output) in receivers.iter().zip(outputs) {
        let digest = tokio::task::spawn_blocking(move || Digest::of_file(&output)).await??;
        ensure!(digest == input.digest, "what {} received is not what was put", node.name);
    }
    say(&format!("compared: all {} files have the hash {} (XXH3)", receivers.len(), input.digest))?;

    let client = Client::connect(&origin.socket).await?;
    let sent_bytes = client.status().await?.sent_bytes.saturating_sub(sent_before);
    say(&format!(
        "{} sent {}, {:.2} times the object; the receivers got the rest from each other:",
        origin.name,
        size(sent_bytes),
        sent_bytes as f64 / input.size_bytes.max(1) as f64
    ))?;
    let report = stat::Report::new(&ObjectId::new(ID)?, client.describe(ID).await?);
    stat::print_grants(&mut io::stdout().lock(), &report.grants)?;
    Ok(())
}

async fn get_everywhere(
    nodes: &[NodeProcess],
    size_bytes: u64,
    place: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let mut watches = Vec::new();
    for node in nodes {
        watches.push(Watch::new(node, progress::among(&bars, &node.name, size_bytes)).await?);
    }
    let gets = nodes.iter().map(async |node| {
        let output = place.join(&node.name);
        let started = Instant::now();
        command(node, &["get", ID, "-o"])?.arg(&output).status_ok("get").await?;
        if !io::stderr().is_terminal() {
            say(&format!("get on {}: {}", node.name, rate(size_bytes, started.elapsed())))?;
        }
        anyhow::Ok(output)
    });
    tokio::select! {
        outputs = try_join_all(gets) => {
            let _ = bars.clear();
            outputs
        }
        _ = join_all(watches.iter().map(Watch::run)) => {
            anyhow::bail!("the stores do not report their progress")
        }
    }
}

struct Watch {
    client: Client,
    bar: ProgressBar,
    before_bytes: u64,
}

impl Watch {
    async fn new(node: &NodeProcess, bar: ProgressBar) -> anyhow::Result<Self> {
        let client = Client::connect(&node.socket).await?;
        let before_bytes = client.status().await?.received_bytes;
        Ok(Self { client, bar, before_bytes })
    }

    async fn run(&self) -> anyhow::Result<()> {
        loop {
            let received_bytes = self.client.status().await?.received_bytes;
            self.bar.set_position(received_bytes.saturating_sub(self.before_bytes));
            sleep(LOOK_INTERVAL).await;
        }
    }
}

struct AtNode(Command);

fn command(node: &NodeProcess, arguments: &[&str]) -> anyhow::Result<AtNode> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.arg("--socket").arg(&node.socket).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    Ok(AtNode(command))
}

impl AtNode {
    fn arg(mut self, argument: &Path) -> Self {
        self.0.arg(argument);
        self
    }

    async fn status_ok(mut self, what: &str) -> anyhow::Result<()> {
        let output = self.0.output().await.with_context(|| format!("cannot start a {what}"))?;
        ensure!(
            output.status.success(),
            "{what} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn rate(bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    format!("{} in {seconds:.3} s, {:.2} GB/s", size(bytes), bytes as f64 / seconds.max(1e-9) / 1e9)
}
