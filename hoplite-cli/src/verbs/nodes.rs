use std::collections::BTreeMap;
use std::io;

use anyhow::Result;
use hoplite_core::load as core;
use hoplite_proto::directory::decode_load;
use hoplite_proto::report::LoadNumbers;
use hoplite_proto::v1::LoadReport;
use hoplite_proto::v1::load_report::Rail;
use hoplite_proto::v1::status_reply::Node;
use serde::Serialize;

use crate::arguments::StoreArguments;
use crate::output::{self, Alignment, Table};

const EXAMPLES: &str = "Examples:
  hoplite nodes
  hoplite nodes --json

The list comes from the first shard that answers. A node without a session there is away. Stores report their loads \
every few seconds. PINNED counts the bytes that are never evicted; RECEIVING and SENDING are bytes per second. In JSON, \
gets, failures, sent_bytes and received_bytes count from the start of the store, and rails are its network cards, if it \
has several.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> Result<()> {
    let directory = store.connect().await?.directory_status().await?;
    let entries = directory.nodes.into_iter().map(Entry::new);
    let mut entries = entries.collect::<Result<Vec<_>>>()?;
    entries.sort_by(|one, other| one.node.cmp(&other.node));
    let mut stdout = io::stdout().lock();
    if arguments.json {
        return Ok(output::json(&mut stdout, &entries)?);
    }
    let right = |title| (title, Alignment::Right);
    let mut table = Table::new([
        ("NODE", Alignment::Left),
        ("ADDRESS", Alignment::Left),
        ("STATE", Alignment::Left),
        right("IN USE"),
        right("MEMORY"),
        right("PINNED"),
        right("COPIES"),
        right("CLIENTS"),
        right("RECEIVING"),
        right("SENDING"),
        ("LABELS", Alignment::Left),
    ]);
    for entry in entries {
        table.row(entry.row());
    }
    Ok(table.print(&mut stdout)?)
}

#[derive(Debug, Serialize)]
struct Entry {
    node: String,
    data_address: String,
    connected: bool,
    protocol: u32,
    labels: BTreeMap<String, String>,
    load: Option<Load>,
}

#[derive(Debug, Serialize)]
struct Load {
    #[serde(flatten)]
    numbers: LoadNumbers,
    rails: Vec<Rail>,
    problems: Vec<String>,
}

impl Entry {
    fn new(node: Node) -> Result<Self> {
        let Node { node, data_address, connected, protocol, labels, load } = node;
        let (labels, load) = (labels.into_iter().collect(), load.map(Load::new).transpose()?);
        Ok(Self { node, data_address, connected, protocol, labels, load })
    }

    fn row(self) -> [String; 11] {
        let load = |cell: fn(&core::Load) -> String| match &self.load {
            Some(load) => cell(&load.numbers.0),
            None => "-".to_owned(),
        };
        let loads = [
            load(|load| output::size(load.used_bytes())),
            load(|load| output::size(load.capacity_bytes)),
            load(|load| output::size(load.pinned_bytes)),
            load(|load| load.copies.to_string()),
            load(|load| load.clients.to_string()),
            load(|load| output::size(load.receive_rate)),
            load(|load| output::size(load.send_rate)),
        ];
        let state = if self.connected { "connected" } else { "away" };
        let labels: Vec<String> =
            self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let [used, memory, pinned, copies, clients, receiving, sending] = loads;
        [
            self.node,
            self.data_address,
            state.to_owned(),
            used,
            memory,
            pinned,
            copies,
            clients,
            receiving,
            sending,
            labels.join(","),
        ]
    }
}

impl Load {
    fn new(report: LoadReport) -> Result<Self> {
        let (rails, problems) = (report.rails.clone(), report.troubles.clone());
        Ok(Self { numbers: LoadNumbers(decode_load(report)?.into()), rails, problems })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_load_has_dashes() {
        let labels = [("zone".to_owned(), "b".to_owned()), ("rack".to_owned(), "7".to_owned())];
        let node = Node {
            node: "n1".to_owned(),
            data_address: "10.0.0.1:7400".to_owned(),
            labels: labels.into(),
            ..Node::default()
        };
        let mut cells = vec!["n1", "10.0.0.1:7400", "away"];
        cells.extend(["-"; 7]);
        cells.push("rack=7,zone=b");
        assert_eq!(Entry::new(node.clone()).unwrap().row().to_vec(), cells);
        let load =
            LoadReport { capacity_bytes: 4 << 20, free_bytes: 1 << 20, ..LoadReport::default() };
        let entry = Entry::new(Node { connected: true, load: Some(load), ..node }).unwrap();
        let json = serde_json::to_value(&entry.load).unwrap();
        assert_eq!((&json["used_bytes"], &json["gets"]), (&(3 << 20).into(), &0.into()));
        assert_eq!(entry.row()[2..5], ["connected", "3.0 MiB", "4.0 MiB"]);
    }
}
