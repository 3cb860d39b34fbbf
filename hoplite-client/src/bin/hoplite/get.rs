//! `hoplite get`: an object becomes a file, while it arrives.

mod destination;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use hoplite_client::{Client, ObjectId};

use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::Signals;
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
    /// The file to write; it appears, or is replaced, when it is complete [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let Some(path) = arguments.output else {
        return copy(&client, store, &arguments.id, &mut std::io::stdout().lock()).await;
    };
    let mut destination =
        Destination::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    // With an ordinary end by a signal, the half-written file would stay.
    let mut signals = Signals::listen()?;
    tokio::select! {
        result = copy(&client, store, &arguments.id, &mut destination) => result?,
        () = signals.received() => anyhow::bail!("interrupted"),
    }
    destination.complete().with_context(|| format!("cannot write {}", path.display()))
}

async fn copy(
    client: &Client,
    store: &StoreArguments,
    id: &ObjectId,
    destination: &mut impl Write,
) -> anyhow::Result<()> {
    let mut reader = client.get_reader(id, store.timeout).await?;
    let bar = progress::of_transfer("get", reader.size_bytes());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = reader.read(&mut piece, store.timeout).await?;
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
