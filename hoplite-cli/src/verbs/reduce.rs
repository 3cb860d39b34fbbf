use std::io::{self, Write};
use std::slice;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use hoplite_client::{Client, ObjectId, ReduceOp, ReduceOptions, ReduceOrder};
use hoplite_core::{Error as ObjectError, Operation};
use serde::Serialize;

use super::wait::available;
use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;

const EXAMPLES: &str = "Examples:
  hoplite put gradient/0 gradient.raw --dtype f32          on each node its own
  hoplite reduce sum gradient/0 gradient/1 gradient/2      on any node: all three
  hoplite --timeout 1min reduce best a b c --op max --num 2    the first two to become ready

The sources need not exist yet. They must have the same element type (see hoplite put --dtype), shape and size. Prints the
ids that were reduced, one per line, in the order in which they joined. Integers wrap around; f16 and bf16 are rounded after
every operation; sums and products of floats may differ by rounding from run to run, unless --deterministic is given.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the object to create; readable while it grows
    #[arg(value_parser = id_parser())]
    target: ObjectId,
    /// Ids of the objects to reduce
    #[arg(value_parser = id_parser(), required = true)]
    sources: Vec<ObjectId>,
    /// Operation on two elements
    #[arg(long, value_parser = op_parser(), default_value_t = ReduceOp::Sum)]
    op: ReduceOp,
    /// Reduce only the first NUM objects to become ready [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    num: Option<u32>,
    /// Combine in the given order, so that every run has the same bits
    #[arg(long)]
    deterministic: bool,
    /// Keep this number of copies of the result, each on another node; 1 to 64 [default: --replicas
    /// of the store]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    replicas: Option<u8>,
    /// Print JSON instead of a list
    #[arg(long)]
    json: bool,
}

pub(super) fn op_parser() -> impl TypedValueParser<Value = ReduceOp> {
    PossibleValuesParser::new(ReduceOp::ALL.iter().map(|op| op.name()))
        .try_map(|name| name.parse::<ReduceOp>())
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    target: Id,
    /// Ids of the reduced sources, in the order of joining.
    reduced: Vec<Id>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { target, sources, op, num, deterministic, replicas, json } = arguments;
    let num_objects = num.map(usize::try_from).transpose()?;
    if let Some(count) = num_objects
        && count > sources.len()
    {
        let message = format!("cannot reduce {count} of {} objects", sources.len());
        return Err(clap::Error::raw(ErrorKind::ValueValidation, message).into());
    }
    let mut options = ReduceOptions {
        op,
        num_objects,
        order: if deterministic { ReduceOrder::Fixed } else { ReduceOrder::Any },
        replicas: replicas.unwrap_or(0),
        ..ReduceOptions::default()
    };
    let waiting = progress::of_wait("reduce");
    let reduced = unless_interrupted(async {
        let client = store.connect().await?;
        options.timeout = store.call_timeout();
        let reduce = reduce(&client, store, &target, &sources, options);
        reduce.await.map_err(|error| store.explain(error, slice::from_ref(&target)))
    })
    .await?;
    drop(waiting);
    let mut stdout = io::stdout().lock();
    if json {
        let report =
            Report { target: Id::new(&target), reduced: reduced.iter().map(Id::new).collect() };
        output::json(&mut stdout, &report)?;
    } else {
        for id in &reduced {
            writeln!(stdout, "{}", id.readable())?;
        }
        stdout.flush()?;
    }
    Ok(())
}

async fn reduce(
    client: &Client,
    store: &StoreArguments,
    target: &ObjectId,
    sources: &[ObjectId],
    options: ReduceOptions,
) -> hoplite_client::Result<Vec<ObjectId>> {
    let count = options.num_objects.unwrap_or(sources.len());
    // With `--timeout 0`, the sources must exist; the reduce gets `call_timeout`.
    if store.timeout().is_zero() && available(client, sources).await?.len() < count {
        return Err(ObjectError::timeout(Operation::Reduce, Duration::ZERO).into());
    }
    client.reduce_with(target, sources, options).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parse(line: &str) -> Arguments {
        match crate::Arguments::try_parse_from(line.split(' ')).unwrap().command {
            crate::Command::Reduce(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reduce_is_a_sum_of_all_unless_it_is_told_otherwise() {
        let plain = parse("hoplite reduce t a b");
        assert_eq!(
            (plain.op, plain.num, plain.deterministic, plain.json),
            (ReduceOp::Sum, None, false, false)
        );
        assert_eq!(plain.target.as_bytes(), b"t");
        assert_eq!(plain.sources.len(), 2);
        let other = parse("hoplite reduce t a b --op prod --num 1 --deterministic --json");
        assert_eq!(
            (other.op, other.num, other.deterministic, other.json),
            (ReduceOp::Prod, Some(1), true, true)
        );
    }

    #[test]
    fn json_names_the_target_and_what_was_reduced() {
        let id = |text| Id::new(&ObjectId::new(text).unwrap());
        let report = Report { target: id("t"), reduced: vec![id("b"), id("a")] };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["id"], &json["id_hex"]), (&"t".into(), &"74".into()));
        assert_eq!(json["reduced"][0]["id"], "b");
        assert_eq!(json["reduced"][1]["id_hex"], "61");
    }
}
