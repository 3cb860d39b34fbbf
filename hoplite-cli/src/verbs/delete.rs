//! `hoplite delete`.

use std::io::{self, Write};

use hoplite_client::ObjectId;

use crate::arguments::{StoreArguments, id_parser};

const EXAMPLES: &str = "Examples:
  hoplite delete weights/7
  hoplite delete weights/5 weights/6

It is no error if there is no such object; a note on standard error says so.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The ids of the objects
    #[arg(value_parser = id_parser(), required = true)]
    ids: Vec<ObjectId>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let mut ids = arguments.ids;
    ids.sort();
    ids.dedup();
    let given = ids.len();
    let deleted =
        client.delete(&ids, store.call_timeout()).await.map_err(|error| store.explain(error, &ids))?;
    if deleted < given {
        let _ = writeln!(io::stderr(), "hoplite: {} of {given} ids named no object", given - deleted);
    }
    Ok(())
}
