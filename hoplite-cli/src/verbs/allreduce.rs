use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use anyhow::Context;
use hoplite_client::{AllreduceOptions, Client, ObjectId, ReduceOp, ReduceOrder};
use hoplite_core::{Error as ObjectError, Operation};

use super::barrier::check_rank;
use super::get::destination::{self, Destination, Standard};
use super::get::{Report, check_json};
use super::reduce::op_parser;
use super::wait::available;
use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;

const EXAMPLES: &str = "Examples:
  hoplite put gradient/0 gradient.raw --dtype f32                          on each node its own
  hoplite allreduce total gradient/0 gradient/1 --rank 0 -o total.raw      on the node of gradient/0
  hoplite allreduce total gradient/0 gradient/1 --rank 1 -o total.raw      on that of gradient/1

Each participant names the same sources in the same order, and as its rank the index of its own source, from 0. The sources need
not exist yet, and participants come in any order. The object that is made stays until it is deleted: give each round an id of
its own. On types and arithmetic see hoplite reduce --help; hoplite stat TARGET says how it is done.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the object to create, the same for all participants
    #[arg(value_parser = id_parser())]
    target: ObjectId,
    /// Ids of the objects to reduce, one of each participant
    #[arg(value_parser = id_parser(), required = true)]
    sources: Vec<ObjectId>,
    /// Rank of this participant, from 0
    #[arg(long, value_name = "K")]
    rank: usize,
    /// Operation on two elements
    #[arg(long, value_parser = op_parser(), default_value_t = ReduceOp::Sum)]
    op: ReduceOp,
    /// Combine in the given order, so that every run has the same bits
    #[arg(long)]
    deterministic: bool,
    /// File to write, replaced when complete; - for standard output [default: standard output, for
    /// a pipe, a file or text]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the target's id, its size and the file as JSON when the file is complete
    #[arg(long, requires = "output")]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { target, sources, rank, op, deterministic, output, json } = arguments;
    check_rank(rank, sources.len())?;
    let file = destination::file(output.as_deref());
    check_json(json, file)?;
    let order = if deterministic { ReduceOrder::Fixed } else { ReduceOrder::Any };
    let destination =
        file.map(Destination::create).transpose().with_context(|| cannot_write(file))?;
    let waiting = progress::of_wait("allreduce");
    let made = unless_interrupted(async {
        let client = store.connect().await?;
        let options = AllreduceOptions { op, order, timeout: store.call_timeout() };
        let made = allreduce(&client, store, &target, &sources, rank, options).await;
        made.map_err(|error| store.explain(error, slice::from_ref(&target)))
    })
    .await?;
    drop(waiting);
    let written = match destination {
        Some(mut destination) => destination.write_all(&made).and_then(|()| destination.complete()),
        None => {
            let mut stdout = Standard::open(output.as_deref());
            stdout.write_all(&made).and_then(|()| stdout.flush())
        }
    };
    written.with_context(|| cannot_write(file))?;
    if let Some(output) = file.filter(|_| json) {
        let report = Report { id: Id::new(&target), size_bytes: made.len() as u64, output };
        output::json(&mut io::stdout().lock(), &report)?;
    }
    Ok(())
}

async fn allreduce(
    client: &Client,
    store: &StoreArguments,
    target: &ObjectId,
    sources: &[ObjectId],
    rank: usize,
    options: AllreduceOptions,
) -> hoplite_client::Result<Vec<u8>> {
    if store.timeout().is_zero() && available(client, sources).await?.len() < sources.len() {
        return Err(ObjectError::timeout(Operation::Allreduce, Duration::ZERO).into());
    }
    client.allreduce(target, sources, rank, options).await
}

fn cannot_write(output: Option<&Path>) -> String {
    let name = output.map_or_else(|| "standard output".into(), Path::to_string_lossy);
    format!("cannot write {name}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn an_allreduce_is_a_sum_unless_it_is_told_otherwise() {
        let parse =
            |line: &str| match crate::Arguments::try_parse_from(line.split(' ')).unwrap().command {
                crate::Command::Allreduce(arguments) => arguments,
                other => panic!("{other:?}"),
            };
        let plain = parse("hoplite allreduce t a b --rank 1");
        assert_eq!((plain.op, plain.rank, plain.deterministic), (ReduceOp::Sum, 1, false));
        assert_eq!((plain.target.as_bytes(), plain.sources.len()), (&b"t"[..], 2));
        let other = parse("hoplite allreduce t a --rank 0 --op max --deterministic -o file");
        assert_eq!((other.op, other.deterministic), (ReduceOp::Max, true));
        assert_eq!(other.output, Some(PathBuf::from("file")));
    }
}
