//! `hoplite stat`.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, ensure};
use hoplite_client::{Dtype, Metadata, ObjectId, v1};
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::output::{self, Alignment, Table};

const EXAMPLES: &str = "Examples:
  hoplite stat weights/7
  hoplite stat weights/7 --json

GRANTS are the latest decisions of the directory: which node was told to fetch the object from which, and why.
What a reduce made says how, if asked on the node that reduced it: the schedule that was chosen, what it was expected to
take with the links as they were measured, and what it took.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The id of the object
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let description = client.describe(&arguments.id).await?;
    let report = Report::new(&arguments.id, description)?;
    ensure!(report.object.is_some(), "there is no object {}", output::id_text(&arguments.id));
    let mut stdout = io::stdout().lock();
    if arguments.json {
        output::json(&mut stdout, &report)?;
    } else {
        report.print(&mut stdout)?;
    }
    Ok(())
}

/// All that the directory knows of one object.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    id: String,
    id_hex: String,
    shard: String,
    pub(crate) object: Option<Object>,
    locations: Vec<Location>,
    pub(crate) grants: Vec<Grant>,
    waiting_receivers: u32,
    reduce: Option<Reduce>,
}

/// How the object was reduced.
#[derive(Debug, Serialize)]
struct Reduce {
    op: String,
    reduced: u64,
    sources: u64,
    hops: u64,
    plan: String,
    bytes_per_second: u64,
    latency_us: u64,
    elapsed_us: u64,
    mendings: u32,
    restarts: u32,
}

impl Reduce {
    fn new(record: v1::ReduceRecord) -> Self {
        let v1::ReduceRecord {
            op,
            reduced,
            sources,
            hops,
            plan,
            bytes_per_second,
            latency_us,
            elapsed_us,
            mendings,
            restarts,
        } = record;
        Self {
            op,
            reduced,
            sources,
            hops,
            plan,
            bytes_per_second,
            latency_us,
            elapsed_us,
            mendings,
            restarts,
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { op, reduced, sources, hops, plan, .. } = self;
        writeln!(out, "reduced    {op} of {reduced} of {sources} sources over {hops} hops")?;
        writeln!(out, "plan       {plan}")?;
        let elapsed = Duration::from_micros(self.elapsed_us);
        let latency = Duration::from_micros(self.latency_us);
        writeln!(
            out,
            "took       {elapsed:.1?}; links taken for {}/s and {latency:.1?}",
            output::size(self.bytes_per_second)
        )?;
        if self.mendings > 0 {
            writeln!(out, "mended     {} times, {} times from the beginning", self.mendings, self.restarts)?;
        }
        Ok(())
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Object {
    put: String,
    size_bytes: u64,
    dtype: &'static str,
    shape: Option<Vec<u64>>,
    #[serde(skip)]
    array_type: String,
    inline: bool,
    lost: bool,
}

#[derive(Debug, Serialize)]
struct Location {
    node: String,
    data_address: String,
    state: &'static str,
    retention: &'static str,
    pulling_from: Option<String>,
}

/// Who was told to fetch it from whom.
#[derive(Debug, Serialize)]
pub(crate) struct Grant {
    pub(crate) receiver: String,
    pub(crate) sender: String,
    pub(crate) reason: String,
    /// Microseconds since the shard started.
    at_us: u64,
    /// `None` while the pull runs.
    pub(crate) outcome: Option<String>,
}

impl Report {
    pub(crate) fn new(id: &ObjectId, description: v1::response::Description) -> anyhow::Result<Self> {
        let object = description.object.context("the store sent a description of nothing")?;
        let locations = object.locations.unwrap_or_default();
        Ok(Self {
            id: output::id_text(id),
            id_hex: output::hexadecimal(id.as_bytes()),
            shard: description.shard,
            object: locations.object.map(Object::new),
            locations: locations.locations.into_iter().map(Location::new).collect(),
            grants: object.grants.into_iter().map(Grant::new).collect(),
            waiting_receivers: object.waiting_receivers,
            reduce: description.reduce.map(Reduce::new),
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(object) = &self.object {
            writeln!(out, "id         {}", self.id)?;
            writeln!(out, "size       {} ({} bytes)", output::size(object.size_bytes), object.size_bytes)?;
            writeln!(out, "type       {}", object.array_type)?;
            writeln!(out, "put        {}", object.put)?;
            writeln!(
                out,
                "directory  {}{}",
                self.shard,
                if object.inline { ", which has the bytes too" } else { "" }
            )?;
            if object.lost {
                writeln!(out, "lost       no copy of it is left")?;
            }
        }
        if let Some(reduce) = &self.reduce {
            reduce.print(out)?;
        }
        if self.waiting_receivers > 0 {
            writeln!(out, "waiting    {} receivers", self.waiting_receivers)?;
        }
        writeln!(out)?;
        self.print_locations(out)?;
        if !self.grants.is_empty() {
            writeln!(out)?;
            print_grants(out, &self.grants)?;
        }
        Ok(())
    }

    fn print_locations(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new(
            ["LOCATION", "STATE", "RETENTION", "FROM", "ADDRESS"].map(|title| (title, Alignment::Left)),
        );
        for location in &self.locations {
            table.row([
                location.node.clone(),
                location.state.to_owned(),
                location.retention.to_owned(),
                location.pulling_from.clone().unwrap_or_else(|| "-".to_owned()),
                location.data_address.clone(),
            ]);
        }
        table.print(out)
    }
}

/// The table of who served whom, with times since the first of `grants`.
pub(crate) fn print_grants(out: &mut impl Write, grants: &[Grant]) -> io::Result<()> {
    let mut table = Table::new([
        ("GRANTS", Alignment::Left),
        ("RECEIVER", Alignment::Left),
        ("SENDER", Alignment::Left),
        ("REASON", Alignment::Left),
        ("OUTCOME", Alignment::Left),
    ]);
    let first = grants.first().map_or(0, |grant| grant.at_us);
    for grant in grants {
        let after = Duration::from_micros(grant.at_us.saturating_sub(first));
        table.row([
            format!("+{:.3} s", after.as_secs_f64()),
            grant.receiver.clone(),
            grant.sender.clone(),
            grant.reason.clone(),
            grant.outcome.clone().unwrap_or_else(|| "(running)".to_owned()),
        ]);
    }
    table.print(out)
}

impl Object {
    fn new(object: v1::ObjectSummary) -> Self {
        let metadata = object.metadata.unwrap_or_default();
        let dtype = v1::Dtype::try_from(metadata.dtype).map_or(Dtype::Opaque, known_dtype);
        let shape = metadata.shape.map(|shape| shape.extents);
        let array_type = output::array_type(&Metadata { dtype, shape: shape.clone(), ..Metadata::default() });
        Self {
            put: format!("{:016x}", object.put),
            size_bytes: object.size_bytes,
            dtype: dtype.name(),
            shape,
            array_type,
            inline: object.inline,
            lost: object.lost,
        }
    }
}

/// The element type of the same name on the wire.
fn known_dtype(dtype: v1::Dtype) -> Dtype {
    let name = dtype.as_str_name().trim_start_matches("DTYPE_").to_ascii_lowercase();
    name.parse().unwrap_or_default()
}

impl Location {
    fn new(location: v1::Location) -> Self {
        let state = match location.state() {
            v1::LocationState::Unspecified => "unknown",
            v1::LocationState::Producing => "producing",
            v1::LocationState::Partial => "partial",
            v1::LocationState::Complete => "complete",
        };
        let retention = match location.retention() {
            v1::Retention::Unspecified => "unknown",
            v1::Retention::Pinned => "pinned",
            v1::Retention::Evictable => "evictable",
        };
        let pulling_from = Some(location.pulling_from).filter(|node| !node.is_empty());
        Self { node: location.node, data_address: location.data_address, state, retention, pulling_from }
    }
}

impl Grant {
    fn new(grant: v1::GrantRecord) -> Self {
        Self {
            receiver: grant.receiver,
            sender: grant.sender,
            reason: grant.reason,
            at_us: grant.at_us,
            outcome: Some(grant.outcome).filter(|outcome| !outcome.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_have_their_names() {
        for dtype in Dtype::ALL {
            let wire = v1::Dtype::from_str_name(&format!("DTYPE_{}", dtype.name().to_ascii_uppercase()));
            assert_eq!(known_dtype(wire.unwrap()), *dtype);
        }
    }

    #[test]
    fn what_is_empty_on_the_wire_is_absent() {
        let location = v1::Location { node: "a".to_owned(), ..v1::Location::default() };
        assert_eq!(Location::new(location).pulling_from, None);
        let running = v1::GrantRecord { reason: "Closest".to_owned(), ..v1::GrantRecord::default() };
        assert_eq!(Grant::new(running).outcome, None);
    }
}
