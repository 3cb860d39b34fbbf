//! `hoplite put`: a file becomes an object.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use hoplite_client::{Client, Confirmation, Dtype, Metadata, ObjectId, PutOptions};

use crate::arguments::{Shape, StoreArguments, id_parser, parse_shape};
use crate::progress;

/// How much is read at once: the file stays ahead of the disk, and receivers start after the first piece.
const PIECE_BYTES: usize = 1 << 20;

const EXAMPLES: &str = "Examples:
  hoplite put weights/7 weights.bin
  hoplite put gradient gradient.raw --dtype f32 --shape 1024,1024
  tar c dataset | hoplite put dataset -

Receivers start as soon as the first bytes are there. To put the same bytes again is no error.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The id of the object: 1 to 255 bytes
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// The file to read; - for standard input, which is read to its end first
    file: PathBuf,
    /// The element type: opaque, f16, bf16, f32, f64, i8 to i64, u8 to u64, bool
    #[arg(long, value_parser = |text: &str| text.parse::<Dtype>(), default_value_t = Dtype::Opaque)]
    dtype: Dtype,
    /// The shape, in elements, row-major, such as 1024,1024
    #[arg(long, value_parser = parse_shape, value_name = "EXTENTS")]
    shape: Option<Shape>,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let options = PutOptions {
        metadata: Metadata {
            dtype: arguments.dtype,
            shape: arguments.shape.map(|Shape(extents)| extents),
            ..Metadata::default()
        },
        timeout: store.timeout,
        confirm: Confirmation::Confirmed,
    };
    let source = Source::open(&arguments.file)?;
    let client = store.connect().await?;
    match source {
        Source::Bytes(bytes) => {
            let size_bytes = bytes.len() as u64;
            put(&client, &arguments.id, &mut bytes.as_slice(), size_bytes, options).await
        }
        Source::File { mut file, size_bytes } => {
            put(&client, &arguments.id, &mut file, size_bytes, options).await
        }
    }
    .with_context(|| format!("cannot put {}", arguments.file.display()))
}

/// What is put: how many bytes it is must be known at the start.
enum Source {
    File { file: File, size_bytes: u64 },
    Bytes(Vec<u8>),
}

impl Source {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        if path == Path::new("-") {
            io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
            return Ok(Self::Bytes(bytes));
        }
        let read = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(read)?;
        let metadata = file.metadata().with_context(read)?;
        if metadata.is_file() {
            return Ok(Self::File { file, size_bytes: metadata.len() });
        }
        file.read_to_end(&mut bytes).with_context(read)?;
        Ok(Self::Bytes(bytes))
    }
}

async fn put(
    client: &Client,
    id: &ObjectId,
    source: &mut impl Read,
    size_bytes: u64,
    options: PutOptions,
) -> anyhow::Result<()> {
    let mut writer = client.create(id, size_bytes, options).await?;
    let bar = progress::of_transfer("put", size_bytes);
    let mut piece = vec![0; PIECE_BYTES];
    // What is appended to the file meanwhile does not belong to the object any more.
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
        // The connection gets its turn: the store may say that it is over.
        tokio::task::yield_now().await;
    }
    ensure!(writer.written_bytes() == size_bytes, "the file became shorter while it was read");
    bar.finish_and_clear();
    Ok(writer.seal().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_streamed_and_other_things_read_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert!(matches!(Source::open(&path).unwrap(), Source::File { size_bytes: 5, .. }));
        assert!(
            matches!(Source::open(Path::new("/dev/null")).unwrap(), Source::Bytes(bytes) if bytes.is_empty())
        );
        assert!(Source::open(directory.path()).is_err());
        assert!(Source::open(&directory.path().join("missing")).is_err());
    }
}
