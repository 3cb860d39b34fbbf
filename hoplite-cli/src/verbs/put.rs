use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Context, ensure};
use hoplite_client::{Client, Confirmation, Dtype, Metadata, ObjectId, PutOptions, Replicas};
use hoplite_core::Error as ObjectError;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::arguments::{LifetimeArguments, Shape, StoreArguments, id_parser, parse_shape};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;

/// Bytes per read: few, so that receivers start early.
const PIECE_BYTES: usize = 1 << 20;

const EXAMPLES: &str = "Examples:
  hoplite put weights/7 weights.bin
  hoplite put gradient gradient.raw --dtype f32 --shape 1024,1024
  tar c dataset | hoplite put dataset -
  hoplite put weights/7 weights.bin --json
  hoplite put checkpoint checkpoint.pt --replicas 2
  hoplite put batch/17 batch.bin --ttl 10min

Receivers start as soon as the first bytes are there. Standard input, pipes and devices are read to their end first. To put the same bytes again is no error.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the object: 1 to 255 bytes
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// File to read; - for standard input
    file: PathBuf,
    /// Element type: opaque, f16, bf16, f32, f64, i8 to i64, u8 to u64, bool; or numpy's name, such
    /// as float32
    #[arg(long, value_parser = |text: &str| text.parse::<Dtype>(), default_value_t = Dtype::Opaque)]
    dtype: Dtype,
    /// Shape in elements, row-major, such as 1024,1024
    #[arg(long, value_parser = parse_shape, value_name = "EXTENTS")]
    shape: Option<Shape>,
    /// Keep this number of copies, each on another node; 1 to 64 [default: --replicas of the store]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    replicas: Option<u8>,
    /// Return when this number of copies exists [default: all of --replicas]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    confirm: Option<u8>,
    /// Put only if both directory shards of the id accept it
    #[arg(long, value_name = "SHARDS")]
    if_absent: Option<Shards>,
    #[command(flatten)]
    lifetime: LifetimeArguments,
    /// Print the id and the size of the object as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shards {
    /// Both directory shards of the id
    Quorum,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    id: Id,
    size_bytes: u64,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { id, file, dtype, shape, replicas, confirm, if_absent, lifetime, json } =
        arguments;
    let lifetime = lifetime.lifetime()?;
    let quorum = if_absent.is_some();
    let replicas =
        Replicas { wanted: replicas.unwrap_or(0), awaited: confirm.unwrap_or(0), quorum };
    let shape = shape.map(|Shape(extents)| extents);
    let metadata = Metadata { dtype, shape, replicas, lifetime, ..Metadata::default() };
    let size_bytes = unless_interrupted(async {
        let client = store.connect().await?;
        let (timeout, confirm) = (store.call_timeout(), Confirmation::Confirmed);
        let options = PutOptions { metadata, timeout, confirm };
        let limit_bytes = client.status().await?.capacity_bytes;
        let path = file.clone();
        // A pipe may block for any time.
        let put = match spawn_blocking(move || Source::open(&path, limit_bytes)).await?? {
            Source::File { mut file, size_bytes } => {
                put(&client, &id, &mut file, size_bytes, options).await
            }
            Source::Bytes(bytes) => {
                let size_bytes = bytes.len() as u64;
                put(&client, &id, &mut bytes.as_slice(), size_bytes, options).await
            }
            Source::TooLarge { read_bytes: size_bytes } => {
                Err(ObjectError::ObjectTooLarge { id: id.clone(), size_bytes, limit_bytes }.into())
            }
        };
        put.map_err(|error| match error.downcast() {
            Ok(error) => store.explain(error, slice::from_ref(&id)),
            Err(error) => error,
        })
        .with_context(|| format!("cannot put {}", file.display()))
    })
    .await?;
    if json {
        output::json(&mut io::stdout().lock(), &Report { id: Id::new(&id), size_bytes })?;
    }
    Ok(())
}

/// Input of a put, which needs the size first.
#[derive(Debug)]
enum Source {
    File {
        file: File,
        size_bytes: u64,
    },
    Bytes(Vec<u8>),
    /// More bytes than the store's memory; the rest was not read.
    TooLarge {
        read_bytes: u64,
    },
}

impl Source {
    /// Opens the file. A pipe, or another file without a size, is read up to one byte beyond
    /// `limit_bytes`.
    fn open(path: &Path, limit_bytes: u64) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Self::read(io::stdin().lock(), limit_bytes)
                .context("cannot read standard input");
        }
        let read = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(read)?;
        let metadata = file.metadata().with_context(read)?;
        if metadata.is_file() && metadata.len() > 0 {
            return Ok(Self::File { file, size_bytes: metadata.len() });
        }
        Self::read(file, limit_bytes).with_context(read)
    }

    fn read(source: impl Read, limit_bytes: u64) -> io::Result<Self> {
        let mut bytes = Vec::new();
        source.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        let read_bytes = bytes.len() as u64;
        Ok(if read_bytes > limit_bytes {
            Self::TooLarge { read_bytes }
        } else {
            Self::Bytes(bytes)
        })
    }
}

async fn put(
    client: &Client,
    id: &ObjectId,
    source: &mut impl Read,
    size_bytes: u64,
    options: PutOptions,
) -> anyhow::Result<u64> {
    let mut writer = client.create(id, size_bytes, options).await?;
    let bar = progress::of_transfer("put", size_bytes);
    let mut piece = vec![0; PIECE_BYTES];
    let mut source = source.take(size_bytes);
    loop {
        let length = match source.read(&mut piece) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            break;
        }
        writer.write(&piece[..length])?;
        bar.inc(length as u64);
        // Lets the connection's task notice that the store is gone.
        tokio::task::yield_now().await;
    }
    ensure!(writer.written_bytes() == size_bytes, "the file became shorter while it was read");
    bar.finish_and_clear();
    writer.seal().await?;
    Ok(size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_streamed_and_other_things_read_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        let open = |path: &Path| Source::open(path, 4);
        assert!(matches!(open(&path).unwrap(), Source::File { size_bytes: 5, .. }));
        assert!(
            matches!(open(Path::new("/dev/null")).unwrap(), Source::Bytes(bytes) if bytes.is_empty())
        );
        assert!(open(directory.path()).is_err());
        assert!(open(&directory.path().join("missing")).is_err());
        let limits = Path::new("/proc/self/limits");
        assert!(
            matches!(Source::open(limits, 1 << 20).unwrap(), Source::Bytes(bytes) if !bytes.is_empty())
        );
    }

    #[test]
    fn what_has_no_end_is_read_until_it_is_too_large() {
        let endless = |limit| Source::open(Path::new("/dev/zero"), limit).unwrap();
        assert!(
            matches!(endless(1 << 20), Source::TooLarge { read_bytes } if read_bytes == (1 << 20) + 1)
        );
        assert!(
            matches!(Source::read(&b"12345"[..], 5).unwrap(), Source::Bytes(bytes) if bytes == b"12345")
        );
    }
}
