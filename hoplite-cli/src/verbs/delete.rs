//! `hoplite delete`.

use std::io::{self, Write};

use hoplite_client::ObjectId;
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::output;

const EXAMPLES: &str = "Examples:
  hoplite delete weights/7
  hoplite delete weights/5 weights/6

It is no error if there is no such object; a note on standard error says so.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Ids of the objects
    #[arg(value_parser = id_parser(), required = true)]
    ids: Vec<ObjectId>,
    /// Print the number of deleted objects as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    ids: usize,
    /// The number of ids that named an object.
    deleted: usize,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let Arguments { mut ids, json } = arguments;
    ids.sort();
    ids.dedup();
    let given = ids.len();
    let deleted =
        client.delete(&ids, store.call_timeout()).await.map_err(|error| store.explain(error, &ids))?;
    if json {
        output::json(&mut io::stdout().lock(), &Report { ids: given, deleted })?;
    } else if deleted < given {
        let _ = writeln!(io::stderr(), "hoplite: {} of {given} ids named no object", given - deleted);
    }
    Ok(())
}
