//! `hoplite get`: an object becomes a file, while it arrives.

pub(super) mod destination;

use std::io::Write;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use anyhow::Context;
use hoplite_client::{Client, ObjectId, ObjectReader};
use hoplite_core::{Error as ObjectError, Operation};

use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::progress;
use destination::Destination;

/// How much is written at once; what arrives between two writes is written together.
const PIECE_BYTES: usize = 4 << 20;

const EXAMPLES: &str = "Examples:
  hoplite get weights/7 -o weights.bin
  hoplite get dataset | tar x
  hoplite --timeout 5min get result -o result.bin    waits until somebody has put it";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The id of the object
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// The file to write; it appears, or is replaced, when it is complete; - for standard output [default: -]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let Some(path) = destination::file(arguments.output) else {
        return copy(&client, store, &arguments.id, &mut std::io::stdout().lock()).await;
    };
    let mut destination =
        Destination::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    // With an ordinary end by a signal, the half-written file would stay.
    unless_interrupted(copy(&client, store, &arguments.id, &mut destination)).await?;
    destination.complete().with_context(|| format!("cannot write {}", path.display()))
}

async fn copy(
    client: &Client,
    store: &StoreArguments,
    id: &ObjectId,
    destination: &mut impl Write,
) -> anyhow::Result<()> {
    let explain = |error| store.explain(error, slice::from_ref(id));
    let mut reader = open(client, store, id).await.map_err(explain)?;
    let bar = progress::of_transfer("get", reader.size_bytes());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = reader.read(&mut piece, store.call_timeout()).await.map_err(explain)?;
        if length == 0 {
            break;
        }
        destination.write_all(&piece[..length]).context("cannot write")?;
        bar.inc(length as u64);
        tokio::task::yield_now().await;
    }
    destination.flush().context("cannot write")?;
    bar.finish_and_clear();
    Ok(())
}

async fn open(
    client: &Client,
    store: &StoreArguments,
    id: &ObjectId,
) -> hoplite_client::Result<ObjectReader> {
    // With a timeout of zero it must be somewhere already; then it gets the time that it takes to come.
    if store.timeout().is_zero() && !client.locate(id, Duration::ZERO).await?.is_available() {
        return Err(ObjectError::timeout(Operation::Get, Duration::ZERO).into());
    }
    client.get_reader(id, store.call_timeout()).await
}
