use std::io::{self, Write};

use anyhow::bail;
use clap::error::ErrorKind;
use hoplite_client::{Client, ObjectId};
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;

const EXAMPLES: &str = "Examples:
  hoplite wait gradient/0 gradient/1 gradient/2            all three
  hoplite --timeout 1min wait a b c --num 2                any two

Prints the ids that are ready, one per line, even if they are fewer than asked for (exit code 1).";

const MAX_NAMED: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Ids of the objects
    #[arg(value_parser = id_parser(), required = true)]
    ids: Vec<ObjectId>,
    /// Number of objects to wait for [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    num: Option<u32>,
    /// Print JSON instead of a list
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    ready: Vec<Id>,
    missing: Vec<Id>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { ids, num, json } = arguments;
    let count = match num {
        Some(num) => usize::try_from(num)?,
        None => ids.len(),
    };
    if count > ids.len() {
        let message = format!("cannot wait for {count} of {} objects", ids.len());
        return Err(clap::Error::raw(ErrorKind::ValueValidation, message).into());
    }
    let waiting = progress::of_wait("wait");
    let ready = unless_interrupted(async {
        let client = store.connect().await?;
        if store.timeout().is_zero() {
            return Ok(available(&client, &ids).await?);
        }
        client.wait(&ids, count, store.timeout()).await.map_err(|error| store.explain(error, &ids))
    })
    .await?;
    drop(waiting);
    let missing: Vec<&ObjectId> = ids
        .iter()
        .enumerate()
        .filter(|(index, _)| !ready.contains(index))
        .map(|(_, id)| id)
        .collect();
    let mut stdout = io::stdout().lock();
    if json {
        let found = ready.iter().filter_map(|index| ids.get(*index)).map(Id::new).collect();
        let missing = missing.iter().copied().map(Id::new).collect();
        output::json(&mut stdout, &Report { ready: found, missing })?;
    } else {
        for id in ready.iter().filter_map(|index| ids.get(*index)) {
            writeln!(stdout, "{}", id.readable())?;
        }
        stdout.flush()?;
    }
    if ready.len() < count {
        let missing: Vec<_> = missing.iter().map(|id| id.readable()).collect();
        let more = missing.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        bail!(
            "{} of {count} objects were ready within {}; not ready: {}{more}",
            ready.len(),
            humantime::format_duration(store.given_timeout()),
            missing[..missing.len().min(MAX_NAMED)].join(", ")
        );
    }
    Ok(())
}

pub(crate) async fn available(
    client: &Client,
    ids: &[ObjectId],
) -> hoplite_client::Result<Vec<usize>> {
    let mut available = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        if client.contains(id).await? {
            available.push(index);
        }
    }
    Ok(available)
}
