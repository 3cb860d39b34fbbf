use std::cmp::Reverse;
use std::io::{self, Write};
use std::time::Duration;

use hoplite_client::{Client, LocationState, Locations, Metadata, Page, Retention};
use serde::Serialize;

use super::lifetime::Lifetime;
use crate::arguments::StoreArguments;
use crate::output::{self, Alignment, Table};

/// Limits a page's memory, here and in the daemons.
const PAGE_OBJECTS: usize = 1000;

const EXAMPLES: &str = "Examples:
  hoplite ls
  hoplite ls weights/ --json
  hoplite ls --sort size --limit 10

Columns: COMPLETE and PARTIAL count the nodes that have all or some of the bytes. AGE and CREATOR: when, and by which node,
the object was published first, as far as the directory knows. UNUSED: the time since a node last got the object from
another node. PINNED names the nodes whose copy is never evicted. LIFETIME has the owner and the time to live of the put.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// List only ids with this prefix
    prefix: Option<std::ffi::OsString>,
    /// Sort by this, the largest, newest or latest first; without it, by id
    #[arg(long, value_name = "KEY")]
    sort: Option<Sort>,
    /// List only the first N objects
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    Size,
    Age,
    Used,
    Creator,
    Copies,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let mut stdout = io::stdout().lock();
    if arguments.json {
        json(&client, &arguments, &mut stdout).await
    } else {
        table(&client, &arguments, &mut stdout).await
    }
}

/// Calls `each` with pages in the order of ids, or once with the sorted objects.
async fn parts(
    client: &Client,
    arguments: &Arguments,
    mut each: impl FnMut(Vec<Entry>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let prefix = arguments.prefix.as_ref().map_or(&b""[..], |prefix| prefix.as_encoded_bytes());
    let mut left = arguments.limit.unwrap_or(usize::MAX);
    let (mut sorted, mut after) = (Vec::new(), Vec::new());
    while left > 0 {
        let Page { objects, next } = client.list(prefix, &after, PAGE_OBJECTS).await?;
        let entries = objects.iter().map(Entry::new);
        match arguments.sort {
            None => {
                let part: Vec<Entry> = entries.take(left).collect();
                left -= part.len();
                each(part)?;
            }
            Some(key) => {
                sorted.extend(entries);
                // Sorts at the end, and earlier only to limit memory.
                if next.is_none() || sorted.len() / 2 > left {
                    sort(&mut sorted, key);
                    sorted.truncate(left);
                }
            }
        }
        let Some(last) = next else { break };
        after = last.as_bytes().to_vec();
    }
    Ok(each(sorted)?)
}

/// Keeps objects with the same key in id order.
fn sort(entries: &mut [Entry], key: Sort) {
    match key {
        Sort::Size => entries.sort_by_key(|entry| Reverse(entry.size_bytes)),
        Sort::Age => entries.sort_by_key(|entry| entry.age_ms.unwrap_or(u64::MAX)),
        Sort::Used => entries.sort_by_key(|entry| entry.unused_ms.unwrap_or(u64::MAX)),
        Sort::Creator => entries.sort_by(|one, other| one.creator.cmp(&other.creator)),
        Sort::Copies => entries.sort_by_key(|entry| Reverse(entry.complete)),
    }
}

async fn table(client: &Client, arguments: &Arguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new([
        ("ID", Alignment::Left),
        ("SIZE", Alignment::Right),
        ("TYPE", Alignment::Left),
        ("COMPLETE", Alignment::Right),
        ("PARTIAL", Alignment::Right),
        ("AGE", Alignment::Right),
        ("UNUSED", Alignment::Right),
        ("CREATOR", Alignment::Left),
        ("PINNED", Alignment::Left),
        ("LIFETIME", Alignment::Left),
    ]);
    let age = |millis: Option<u64>| {
        millis.map_or_else(|| "-".to_owned(), |millis| output::age(Duration::from_millis(millis)))
    };
    parts(client, arguments, |entries| {
        for entry in entries {
            table.row([
                entry.id,
                entry.size_bytes.map_or_else(|| "?".to_owned(), output::size),
                entry.array_type,
                entry.complete.to_string(),
                entry.partial.to_string(),
                age(entry.age_ms),
                age(entry.unused_ms),
                entry.creator.unwrap_or_else(|| "-".to_owned()),
                if entry.lost { "(lost)".to_owned() } else { entry.pinned.join(",") },
                entry.lifetime.as_ref().map_or_else(String::new, Lifetime::cell),
            ]);
        }
        table.print(out)
    })
    .await
}

async fn json(client: &Client, arguments: &Arguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mut separator = "[\n  ";
    parts(client, arguments, |entries| {
        for entry in entries {
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
    creator: Option<String>,
    age_ms: Option<u64>,
    /// Time since the object's last transfer between nodes.
    unused_ms: Option<u64>,
    pinned: Vec<String>,
    inline: bool,
    lost: bool,
    lifetime: Option<Lifetime>,
}

impl Entry {
    fn new(locations: &Locations) -> Self {
        let object = locations.object.as_ref();
        let metadata = object.map_or_else(Metadata::default, |object| object.metadata.clone());
        let origin = object.and_then(|object| object.origin.as_ref());
        let all = &locations.locations;
        let complete =
            all.iter().filter(|location| location.state == LocationState::Complete).count();
        let pinned = all.iter().filter(|location| location.retention == Retention::Pinned);
        Self {
            id: locations.id.readable(),
            id_hex: output::hexadecimal(locations.id.as_bytes()),
            size_bytes: object.map(|object| object.size_bytes),
            dtype: object.map(|object| object.metadata.dtype.name()),
            array_type: output::array_type(&metadata),
            lifetime: metadata.lifetime.as_deref().map(|lifetime| Lifetime::new(lifetime, None)),
            shape: metadata.shape,
            complete,
            partial: all.len() - complete,
            creator: origin.map(|origin| origin.creator.to_string()),
            age_ms: origin.map(|origin| millis(origin.age)),
            unused_ms: origin.and_then(|origin| origin.unused).map(millis),
            pinned: pinned.map(|location| location.node.to_string()).collect(),
            inline: object.is_some_and(|object| object.inline),
            lost: object.is_some_and(|object| object.lost),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use hoplite_client::{Location, NodeId, ObjectId, ObjectSummary, Origin, PutId};
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
                origin: Some(Origin {
                    creator: NodeId::new("a").unwrap(),
                    age: Duration::from_secs(60),
                    unused: None,
                }),
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
        assert_eq!(
            (entry.creator.as_deref(), entry.age_ms, entry.unused_ms),
            (Some("a"), Some(60_000), None)
        );
    }

    #[test]
    fn objects_are_sorted_by_each_key() {
        let entry = |id: &str, size, seconds: Option<u64>| {
            let (id, locations) = (ObjectId::try_from(id).unwrap(), Vec::new());
            let mut entry = Entry::new(&Locations { id, object: None, locations });
            entry.size_bytes = size;
            entry.age_ms = seconds;
            entry
        };
        let mut entries = vec![
            entry("a", None, Some(7)),
            entry("b", Some(1), Some(3)),
            entry("c", Some(2), None),
        ];
        let ids =
            |entries: &[Entry]| entries.iter().map(|entry| entry.id.clone()).collect::<String>();
        sort(&mut entries, Sort::Size);
        assert_eq!(ids(&entries), "cba");
        sort(&mut entries, Sort::Age);
        assert_eq!(ids(&entries), "bac");
        sort(&mut entries, Sort::Copies);
        assert_eq!(ids(&entries), "bac", "the order is stable");
    }
}
