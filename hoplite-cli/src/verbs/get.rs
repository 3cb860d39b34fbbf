pub(super) mod destination;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use anyhow::Context;
use clap::error::ErrorKind;
use hoplite_client::{Client, GetOptions, ObjectId, ObjectReader};
use hoplite_core::{Error as ObjectError, Operation};
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;
use destination::{Destination, Standard};

const PIECE_BYTES: usize = 4 << 20;

const EXAMPLES: &str = "Examples:
  hoplite get weights/7 -o weights.bin
  hoplite get dataset | tar x
  hoplite --timeout 5min get result -o result.bin    waits until somebody has put it";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the object
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// File to write, replaced when complete; - for standard output [default: standard output, for
    /// a pipe, a file or text]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the id, the size and the file as JSON when the file is complete
    #[arg(long, requires = "output")]
    json: bool,
    /// Accept a copy in the store while no directory shard confirms that the object still exists,
    /// and warn about it
    #[arg(long)]
    allow_stale: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Report<'f> {
    #[serde(flatten)]
    pub(super) id: Id,
    pub(super) size_bytes: u64,
    pub(super) output: &'f Path,
}

pub(super) fn check_json(json: bool, file: Option<&Path>) -> Result<(), clap::Error> {
    if json && file.is_none() {
        let message = "--json needs a file: the object itself goes to standard output";
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
    }
    Ok(())
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { id, output, json, allow_stale } = arguments;
    let Some(path) = destination::file(output.as_deref()) else {
        check_json(json, None)?;
        let client = store.connect().await?;
        let mut destination = Standard::open(output.as_deref());
        return copy(&client, store, &id, allow_stale, &mut destination).await.map(drop);
    };
    let client = store.connect().await?;
    let mut destination =
        Destination::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    // A signal's default action would leave an incomplete file.
    let size_bytes =
        unless_interrupted(copy(&client, store, &id, allow_stale, &mut destination)).await?;
    destination.complete().with_context(|| format!("cannot write {}", path.display()))?;
    if json {
        let report = Report { id: Id::new(&id), size_bytes, output: path };
        output::json(&mut io::stdout().lock(), &report)?;
    }
    Ok(())
}

async fn copy(
    client: &Client,
    store: &StoreArguments,
    id: &ObjectId,
    allow_stale: bool,
    destination: &mut impl Write,
) -> anyhow::Result<u64> {
    let explain = |error| store.explain(error, slice::from_ref(id));
    let waiting = progress::of_wait("get");
    let mut reader = open(client, store, id, allow_stale).await.map_err(explain)?;
    drop(waiting);
    if reader.is_stale() {
        let id = id.readable();
        let _ = writeln!(
            io::stderr(),
            "hoplite: {id} may be deleted or replaced: no shard confirmed that it still exists"
        );
    }
    let size_bytes = reader.size_bytes();
    let bar = progress::of_transfer("get", size_bytes);
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
    Ok(size_bytes)
}

async fn open(
    client: &Client,
    store: &StoreArguments,
    id: &ObjectId,
    allow_stale: bool,
) -> hoplite_client::Result<ObjectReader> {
    let options = GetOptions { timeout: store.timeout(), allow_stale };
    if allow_stale
        && store.timeout().is_zero()
        && let Ok(reader) = client.get_reader_with(id, options).await
    {
        return Ok(reader);
    }
    // With `--timeout 0`, the object must exist; its transfer gets `call_timeout`.
    if store.timeout().is_zero() && !client.locate(id, Duration::ZERO).await?.is_available() {
        return Err(ObjectError::timeout(Operation::Get, Duration::ZERO).into());
    }
    client.get_reader_with(id, GetOptions { timeout: store.call_timeout(), ..options }).await
}
