use std::io::{self, Write};

use hoplite_client::{DeleteOptions, DeleteWait, Deletion, ObjectId};
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::output;

const EXAMPLES: &str = "Examples:
  hoplite delete weights/7
  hoplite delete weights/5 weights/6
  hoplite delete weights/7 --wait all --timeout 60s

It is no error if there is no such object; a note on standard error says so.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Ids of the objects
    #[arg(value_parser = id_parser(), required = true)]
    ids: Vec<ObjectId>,
    /// Also wait for nodes that are lost and may still have a copy
    #[arg(long, value_name = "NODES")]
    wait: Option<Nodes>,
    /// Print the number of deleted objects as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Nodes {
    /// The nodes that the directory can reach
    Reachable,
    /// All nodes that may have a copy
    All,
}

#[derive(Debug, Serialize)]
struct Report {
    ids: usize,
    deleted: usize,
    absent: Vec<String>,
    absent_count: u64,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let Arguments { mut ids, wait, json } = arguments;
    ids.sort();
    ids.dedup();
    let given = ids.len();
    let wait = match wait {
        None | Some(Nodes::Reachable) => DeleteWait::Reachable,
        Some(Nodes::All) => DeleteWait::All,
    };
    let options = DeleteOptions { timeout: store.call_timeout(), wait };
    let deletion =
        client.delete_with(&ids, options).await.map_err(|error| store.explain(error, &ids))?;
    let Deletion { count: deleted, absent, absent_count } = deletion;
    let absent: Vec<String> = absent.iter().map(ToString::to_string).collect();
    if json {
        let report = Report { ids: given, deleted, absent, absent_count };
        return Ok(output::json(&mut io::stdout().lock(), &report)?);
    }
    if deleted < given {
        let _ =
            writeln!(io::stderr(), "hoplite: {} of {given} ids named no object", given - deleted);
    }
    if !absent.is_empty() {
        let names = absent.join(", ");
        let _ = writeln!(
            io::stderr(),
            "hoplite: {absent_count} lost nodes may have a copy until they return: {names}"
        );
    }
    Ok(())
}
