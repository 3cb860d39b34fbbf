use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hoplite_client::{Client, DirectoryShard, DirectoryShards, ShardChange};
use hoplite_core::text::escape;
use serde::Serialize;

use crate::arguments::StoreArguments;
use crate::output::{self, Alignment, Table};
use crate::progress;

const EXAMPLES: &str = "Examples:
  hoplite shards
  hoplite shards add 10.0.0.4:7401
  hoplite shards remove 10.0.0.1:7401
  hoplite shards replace 10.0.0.1:7401 10.0.0.4:7401

First start the new shard with hoplite-directory. The stores learn the new list while they run, and no call fails. Afterwards, stop
the removed shard, and change --directory of the stores. A majority of the shards must accept a change; with
--force, one of them is enough. Only root and the user of the store may change the list.";

const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    change: Option<Change>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Add a shard that has just been started
    Add {
        /// Address of the shard, spelled as the stores reach it
        address: String,
        #[command(flatten)]
        options: Options,
    },
    /// Remove a shard, which may be dead
    Remove {
        /// Address of the shard, as in the list
        address: String,
        #[command(flatten)]
        options: Options,
    },
    /// Add a shard, and then remove another one
    Replace {
        /// Address of the shard to remove, as in the list
        old: String,
        /// Address of the new shard, spelled as the stores reach it
        new: String,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Options {
    /// Change the list without a majority of the shards: only if the missing ones are gone for good
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    version: u64,
    settled: bool,
    shards: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    address: String,
    reachable: bool,
    version: Option<u64>,
    stores: Option<u64>,
    outdated_stores: Option<u64>,
    filling: Option<bool>,
    error: Option<String>,
}

impl From<&DirectoryShards> for Report {
    fn from(shards: &DirectoryShards) -> Self {
        Self {
            version: shards.version,
            settled: shards.are_settled(),
            shards: shards.shards.iter().map(Row::from).collect(),
        }
    }
}

impl From<&DirectoryShard> for Row {
    fn from(shard: &DirectoryShard) -> Self {
        let state = shard.state.as_ref().ok();
        Self {
            address: shard.address.clone(),
            reachable: state.is_some(),
            version: state.map(|state| state.version),
            stores: state.map(|state| state.stores),
            outdated_stores: state.map(|state| state.outdated),
            filling: state.map(|state| state.is_filling),
            error: shard.state.as_ref().err().map(ToString::to_string),
        }
    }
}

impl Row {
    fn state(&self) -> String {
        match (&self.error, self.outdated_stores, self.filling) {
            (Some(error), ..) => escape(error),
            (None, Some(outdated), _) if outdated > 0 => {
                format!("{} to follow", output::count(outdated, "store"))
            }
            (None, _, Some(true)) => "learns the objects".to_owned(),
            (None, ..) => "ready".to_owned(),
        }
    }
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let within = store.timeout();
    let (shards, json) = match arguments.change {
        None => (client.shards().await?, arguments.json),
        Some(Change::Add { address, options }) => {
            (change(&client, ShardChange::Add(address), options.force, within).await?, options.json)
        }
        Some(Change::Remove { address, options }) => (
            change(&client, ShardChange::Remove(address), options.force, within).await?,
            options.json,
        ),
        Some(Change::Replace { old, new, options }) => {
            if !client.shards().await?.shards.iter().any(|shard| shard.address == old) {
                bail!("{} is no shard of the directory", escape(&old));
            }
            change(&client, ShardChange::Add(new), options.force, within).await?;
            let removed =
                change(&client, ShardChange::Remove(old.clone()), options.force, within).await;
            let still = || format!("the new shard was added, and {} is still listed", escape(&old));
            (removed.with_context(still)?, options.json)
        }
    };
    let mut out = io::stdout().lock();
    let report = Report::from(&shards);
    if json { Ok(output::json(&mut out, &report)?) } else { Ok(print(&mut out, &report)?) }
}

/// Adds or removes a shard, and waits until all stores use the new list.
async fn change(
    client: &Client,
    change: ShardChange,
    force: bool,
    within: Duration,
) -> anyhow::Result<DirectoryShards> {
    let begun = Instant::now();
    let waiting = progress::of_wait("shards");
    let new = match &change {
        ShardChange::Add(address) => Some(address.clone()),
        ShardChange::Remove(_) => None,
    };
    let mut shards = client.change_shards(change, force).await?;
    while !shards.are_settled() || new.as_ref().is_some_and(|new| !shards.answers(new)) {
        if begun.elapsed() > within {
            let version = shards.version;
            bail!(
                "the list has changed (version {version}), but not all stores have reached each shard in time: see hoplite shards"
            );
        }
        tokio::time::sleep(POLL).await;
        shards = client.shards().await?;
    }
    drop(waiting);
    Ok(shards)
}

fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut table = Table::new([
        ("SHARD", Alignment::Left),
        ("STORES", Alignment::Right),
        ("LIST", Alignment::Right),
        ("STATE", Alignment::Left),
    ]);
    let number =
        |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for row in &report.shards {
        table.row([escape(&row.address), number(row.stores), number(row.version), row.state()]);
    }
    table.print(out)
}
