use std::io::{self, Write};
use std::time::Duration;

use anyhow::{bail, ensure};
use hoplite_client::{Client, DrainReport, DrainState, Error, Unmoved};
use hoplite_core::shard::Obstacle;
use hoplite_core::text::escape;
use serde::Serialize;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::arguments::StoreArguments;
use crate::cluster::Running;
use crate::output::{self, Id};
use crate::progress;

/// Longest wait for the end of a drained store, whose memory may take long to free.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const END_POLL: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "Examples:
  hoplite drain
  hoplite drain node-7
  hoplite --socket /run/hoplite/store.sock --timeout 10min drain

The store refuses new objects, and serves reads until it stops. If an object cannot be moved, the command lists it, fails, and the
store goes on as before.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Store to drain, by its name or its address for other stores [default: the store of this
    /// machine]
    node: Option<String>,
    /// Drain the store even if it runs the directory that other stores use
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    state: &'static str,
    moved_objects: u64,
    moved_bytes: u64,
    held_objects: u64,
    short_objects: u64,
    left_objects: u64,
    left_bytes: u64,
    open_calls: u64,
    unmoved: Vec<Object>,
}

#[derive(Debug, Serialize)]
struct Object {
    #[serde(flatten)]
    id: Id,
    size_bytes: u64,
    reason: String,
}

impl From<&DrainReport> for Report {
    fn from(report: &DrainReport) -> Self {
        let object = |object: &Unmoved| Object {
            id: Id::new(&object.id),
            size_bytes: object.size_bytes,
            reason: reason(object.obstacle),
        };
        Self {
            state: match report.state {
                DrainState::None => "none",
                DrainState::Draining => "draining",
                DrainState::Drained => "drained",
                DrainState::Failed => "failed",
            },
            moved_objects: report.moved_objects,
            moved_bytes: report.moved_bytes,
            held_objects: report.held_objects,
            short_objects: report.short_objects,
            left_objects: report.left_objects,
            left_bytes: report.left_bytes,
            open_calls: report.open_calls,
            unmoved: report.unmoved.iter().map(object).collect(),
        }
    }
}

fn reason(obstacle: Option<Obstacle>) -> String {
    obstacle.map_or_else(|| "the time is over".to_owned(), |obstacle| obstacle.to_string())
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let node = arguments.node.as_deref();
    let remote = node.filter(|node| client.node().as_str() != *node);
    let process = Running::behind(&store.socket());
    let report = drain(&client, node, store.timeout(), arguments.force).await?;
    let has_ended = match remote {
        _ if report.state != DrainState::Drained => true,
        Some(node) => timeout(END_TIMEOUT, leaves(&client, node, arguments.force)).await.is_ok(),
        None => ends(&client, process).await?,
    };
    if arguments.json {
        output::json(&mut io::stdout().lock(), &Report::from(&report))?;
    }
    conclude(&report, arguments.json)?;
    ensure!(has_ended, "the store is drained, and has not ended within {END_TIMEOUT:?}");
    Ok(())
}

/// Waits until the directory no longer lists the store `node` as connected, or with `force`, ends.
async fn leaves(client: &Client, node: &str, force: bool) {
    loop {
        match client.directory_status().await {
            Ok(status) => {
                let mut connected = status.nodes.iter().filter(|other| other.connected);
                if connected.all(|other| other.node != node && other.data_address != node) {
                    return;
                }
            }
            Err(Error::Object(hoplite_core::Error::Unavailable { .. })) if force => return,
            Err(_) => {}
        }
        sleep(END_POLL).await;
    }
}

/// Returns `true` once the local store (if its process is invisible, the connection) has ended, and
/// `false` after [`END_TIMEOUT`].
async fn ends(client: &Client, process: Option<Running>) -> anyhow::Result<bool> {
    if let Some(process) = process {
        return Ok(spawn_blocking(move || process.ends_within(END_TIMEOUT)).await??);
    }
    let disconnected = async {
        while client.is_connected() {
            sleep(END_POLL).await;
        }
    };
    Ok(timeout(END_TIMEOUT, disconnected).await.is_ok())
}

pub(crate) async fn drain(
    client: &Client,
    node: Option<&str>,
    within: Duration,
    force: bool,
) -> anyhow::Result<DrainReport> {
    if !force {
        check_directory(client, node).await?;
    }
    let bar = progress::of_steps("drain");
    let show = |report: &DrainReport| {
        bar.set_length(report.moved_bytes + report.left_bytes);
        bar.set_position(report.moved_bytes);
    };
    let report = match node {
        Some(node) => client.drain_node(node, within, show).await,
        None => client.drain(within, show).await,
    };
    bar.finish_and_clear();
    Ok(report?)
}

async fn check_directory(client: &Client, node: Option<&str>) -> anyhow::Result<()> {
    if !client.drain_progress(node).await?.serves_directory {
        return Ok(());
    }
    let nodes = client.directory_status().await?.nodes;
    let connected = nodes.iter().filter(|node| node.connected).count() as u64;
    let others = connected.saturating_sub(1);
    if others > 0 {
        let others = output::count(others, "other store");
        bail!(
            "the store runs the directory of {others}, and ends it: drain it last, or use --force"
        );
    }
    Ok(())
}

/// Prints the result unless printed as JSON. Fails if some objects were not moved.
pub(crate) fn conclude(report: &DrainReport, is_printed: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if !is_printed {
        let objects = |count| output::count(count, "object");
        let moved = output::size(report.moved_bytes);
        writeln!(out, "moved {}, {moved}", objects(report.moved_objects))?;
        if report.held_objects > 0 {
            writeln!(out, "{} already at other stores", objects(report.held_objects))?;
        }
        if report.short_objects > 0 {
            let short = objects(report.short_objects);
            writeln!(out, "{short} with fewer copies than wanted: there are too few other stores")?;
        }
        for Unmoved { id, size_bytes, obstacle } in &report.unmoved {
            let (id, size) = (escape(&id.readable()), output::size(*size_bytes));
            writeln!(out, "not moved: {id}, {size}: {}", reason(*obstacle))?;
        }
    }
    if report.state == DrainState::Failed {
        let (left, size) =
            (output::count(report.left_objects, "object"), output::size(report.left_bytes));
        bail!("not moved: {left}, {size}");
    }
    Ok(())
}
