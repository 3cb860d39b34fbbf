//! `hoplite ls`.

use std::io::{self, Write};

use hoplite_client::{Client, LocationState, Locations, Metadata, Page, Retention};
use serde::Serialize;

use crate::arguments::StoreArguments;
use crate::output::{self, Alignment, Table};

/// Objects per page, so that long listings need little memory here and in the daemons.
const PAGE_OBJECTS: usize = 1000;

const EXAMPLES: &str = "Examples:
  hoplite ls
  hoplite ls weights/ --json

Columns: COMPLETE and PARTIAL count the nodes that have all or some of the bytes; PINNED names those whose copy is never
evicted.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// List only ids with this prefix
    prefix: Option<std::ffi::OsString>,
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let prefix = arguments.prefix.unwrap_or_default();
    let prefix = prefix.as_encoded_bytes();
    let mut stdout = io::stdout().lock();
    if arguments.json {
        json(&client, prefix, &mut stdout).await
    } else {
        table(&client, prefix, &mut stdout).await
    }
}

/// Passes all pages to `each`, one after another.
async fn pages(
    client: &Client,
    prefix: &[u8],
    mut each: impl FnMut(&[Locations]) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut after = Vec::new();
    loop {
        let Page { objects, next } = client.list(prefix, &after, PAGE_OBJECTS).await?;
        each(&objects)?;
        match next {
            Some(last) => after = last.as_bytes().to_vec(),
            None => return Ok(()),
        }
    }
}

async fn table(client: &Client, prefix: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new([
        ("ID", Alignment::Left),
        ("SIZE", Alignment::Right),
        ("TYPE", Alignment::Left),
        ("COMPLETE", Alignment::Right),
        ("PARTIAL", Alignment::Right),
        ("PINNED", Alignment::Left),
    ]);
    pages(client, prefix, |objects| {
        for entry in objects.iter().map(Entry::new) {
            table.row([
                entry.id,
                entry.size_bytes.map_or_else(|| "?".to_owned(), output::size),
                entry.array_type,
                entry.complete.to_string(),
                entry.partial.to_string(),
                if entry.lost { "(lost)".to_owned() } else { entry.pinned.join(",") },
            ]);
        }
        table.print(out)
    })
    .await
}

async fn json(client: &Client, prefix: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
    let mut separator = "[\n  ";
    pages(client, prefix, |objects| {
        for entry in objects.iter().map(Entry::new) {
            write!(out, "{separator}")?;
            serde_json::to_writer(&mut *out, &entry).map_err(io::Error::from)?;
            separator = ",\n  ";
        }
        Ok(())
    })
    .await?;
    writeln!(out, "{}", if separator.starts_with('[') { "[]" } else { "\n]" })?;
    Ok(out.flush()?)
}

/// One listed object.
#[derive(Debug, Serialize)]
struct Entry {
    id: String,
    id_hex: String,
    size_bytes: Option<u64>,
    dtype: Option<&'static str>,
    shape: Option<Vec<u64>>,
    #[serde(skip)]
    array_type: String,
    complete: usize,
    partial: usize,
    pinned: Vec<String>,
    inline: bool,
    lost: bool,
}

impl Entry {
    fn new(locations: &Locations) -> Self {
        let object = locations.object.as_ref();
        let metadata = object.map_or_else(Metadata::default, |object| object.metadata.clone());
        let all = &locations.locations;
        let complete = all.iter().filter(|location| location.state == LocationState::Complete).count();
        let pinned = all.iter().filter(|location| location.retention == Retention::Pinned);
        Self {
            id: locations.id.readable(),
            id_hex: output::hexadecimal(locations.id.as_bytes()),
            size_bytes: object.map(|object| object.size_bytes),
            dtype: object.map(|object| object.metadata.dtype.name()),
            array_type: output::array_type(&metadata),
            shape: metadata.shape,
            complete,
            partial: all.len() - complete,
            pinned: pinned.map(|location| location.node.to_string()).collect(),
            inline: object.is_some_and(|object| object.inline),
            lost: object.is_some_and(|object| object.lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_client::{Location, NodeId, ObjectId, ObjectSummary, PutId};
    use hoplite_core::topology::place::EVERYWHERE;

    use super::*;

    #[test]
    fn copies_are_counted() {
        let location = |node, state, retention| Location {
            node: NodeId::new(node).unwrap(),
            data_address: "127.0.0.1:1".parse().unwrap(),
            state,
            retention,
            pulling_from: None,
            path: EVERYWHERE,
            slow_peers: Vec::new(),
        };
        let entry = Entry::new(&Locations {
            id: ObjectId::new("x").unwrap(),
            object: Some(ObjectSummary {
                put: PutId(1),
                size_bytes: 5,
                metadata: Metadata::default(),
                inline: false,
                lost: false,
            }),
            locations: vec![
                location("a", LocationState::Complete, Retention::Pinned),
                location("b", LocationState::Complete, Retention::Evictable),
                location("c", LocationState::Partial, Retention::Evictable),
            ],
        });
        assert_eq!((entry.complete, entry.partial, entry.size_bytes), (2, 1, Some(5)));
        assert_eq!(entry.pinned, ["a"]);
        assert_eq!(entry.id_hex, "78");
    }
}
