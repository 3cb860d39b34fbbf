use std::io::{self, Write};
use std::time::Duration;

use anyhow::ensure;
use hoplite_client::{
    Description, LocationState, MemberPosition, ObjectId, ObjectSummary, ReduceRecord, Retention,
};
use hoplite_core::text::escape;
use serde::Serialize;

use super::lifetime::Lifetime;
use crate::arguments::{StoreArguments, id_parser};
use crate::output::{self, Alignment, Table};

const EXAMPLES: &str = "Examples:
  hoplite stat weights/7
  hoplite stat weights/7 --json

GRANTS are the latest decisions of the directory: which node was told to fetch the object from which, and why.
What a reduce makes, or has made, says how: the schedule that was chosen, what it was expected to take with the links as they
were measured, and what it took. What an allreduce makes also says how far each node is that has a source, for which sources
rank 0's node waits, and why nodes do not make it together, if they do not. Nodes that know of it are asked, for a second at
most.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the object
    #[arg(value_parser = id_parser())]
    id: ObjectId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let description = client.describe(&arguments.id).await?;
    let report = Report::new(&arguments.id, description);
    let is_known =
        report.object.is_some() || report.reduce.as_ref().is_some_and(Reduce::lacks_object);
    ensure!(is_known, "there is no object {}", arguments.id.readable());
    let mut stdout = io::stdout().lock();
    if arguments.json {
        output::json(&mut stdout, &report)?;
    } else {
        report.print(&mut stdout)?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    id: String,
    id_hex: String,
    shard: String,
    pub(crate) object: Option<Object>,
    pinned_copies: usize,
    locations: Vec<Location>,
    pub(crate) grants: Vec<Grant>,
    waiting_receivers: u32,
    reduce: Option<Reduce>,
    lifetime: Option<Lifetime>,
}

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
    is_running: bool,
    position: Option<Position>,
    positions: Vec<Position>,
}

#[derive(Debug, Serialize)]
struct Position {
    member: u32,
    members: u32,
    stage: String,
    final_bytes: u64,
    size_bytes: u64,
    node: String,
}

impl Position {
    fn new(position: MemberPosition) -> Self {
        let MemberPosition { member, members, stage, final_bytes, size_bytes, node } = position;
        Self { member, members, stage, final_bytes, size_bytes, node }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { member, members, stage, final_bytes, size_bytes, node } = self;
        let last = members.saturating_sub(1);
        let (done, whole) = (output::size(*final_bytes), output::size(*size_bytes));
        let (stage, node) = (escape(stage), escape(node));
        if !node.is_empty() {
            return writeln!(
                out,
                "member     {member} at {node} {stage}; {done} of {whole} are final there"
            );
        }
        writeln!(
            out,
            "member     {member} of 0 to {last} {stage}; {done} of {whole} are final here"
        )
    }
}

impl Reduce {
    fn lacks_object(&self) -> bool {
        let has_failed = |position: &Position| position.final_bytes < position.size_bytes;
        self.is_running || self.position.as_ref().is_some_and(has_failed)
    }

    fn new(record: ReduceRecord) -> Self {
        Self {
            op: record.op,
            reduced: record.reduced,
            sources: record.sources,
            hops: record.hops,
            plan: record.plan,
            bytes_per_second: record.bytes_per_second,
            latency_us: micros(record.latency),
            elapsed_us: micros(record.elapsed),
            mendings: record.mendings,
            restarts: record.restarts,
            is_running: record.is_running,
            position: record.position.map(Position::new),
            positions: record.positions.into_iter().map(Position::new).collect(),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { op, reduced, sources, hops, plan, .. } = self;
        let label = if self.is_running { "reduces" } else { "reduced" };
        writeln!(out, "{label:<10} {op} of {reduced} of {sources} sources over {hops} hops")?;
        writeln!(out, "plan       {}", escape(plan))?;
        let elapsed = Duration::from_micros(self.elapsed_us);
        let latency = Duration::from_micros(self.latency_us);
        if let Some(position) = &self.position {
            position.print(out)?;
        }
        let own = self.position.as_ref().map(|position| position.member);
        for other in self.positions.iter().filter(|other| Some(other.member) != own) {
            other.print(out)?;
        }
        let (label, so_far) = if self.is_running { ("goes on", ", so far") } else { ("took", "") };
        write!(out, "{label:<10} {elapsed:.1?}{so_far}")?;
        if self.bytes_per_second > 0 {
            let rate = output::size(self.bytes_per_second);
            write!(out, "; links taken for {rate}/s and {latency:.1?}")?;
        }
        writeln!(out)?;
        if self.mendings > 0 {
            writeln!(
                out,
                "repaired   {} times, {} times from the beginning",
                self.mendings, self.restarts
            )?;
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
    collective: Option<String>,
    replicas: usize,
    creator: Option<String>,
    age_ms: Option<u64>,
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

#[derive(Debug, Serialize)]
pub(crate) struct Grant {
    pub(crate) receiver: String,
    pub(crate) sender: String,
    pub(crate) reason: String,
    /// Microseconds since the shard's start.
    at_us: u64,
    pub(crate) outcome: Option<String>,
}

impl Report {
    pub(crate) fn new(id: &ObjectId, description: Description) -> Self {
        let Description { shard, locations, grants, waiting_receivers, reduce, lifetime } =
            description;
        let metadata = locations.object.as_ref().map(|object| &object.metadata);
        let set = metadata.and_then(|metadata| metadata.lifetime.as_deref());
        Self {
            lifetime: set.map(|set| Lifetime::new(set, lifetime)),
            id: id.readable(),
            id_hex: output::hexadecimal(id.as_bytes()),
            shard,
            pinned_copies: locations.pinned_copies(),
            object: locations.object.map(Object::new),
            locations: locations.locations.into_iter().map(Location::new).collect(),
            grants: grants.into_iter().map(Grant::new).collect(),
            waiting_receivers,
            reduce: reduce.map(Reduce::new),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(object) = &self.object {
            writeln!(out, "id         {}", self.id)?;
            writeln!(
                out,
                "size       {} ({} bytes)",
                output::size(object.size_bytes),
                object.size_bytes
            )?;
            writeln!(out, "type       {}", object.array_type)?;
            writeln!(out, "put        {}", object.put)?;
            writeln!(
                out,
                "directory  {}{}",
                self.shard,
                if object.inline { ", which has the bytes too" } else { "" }
            )?;
            if let (Some(creator), Some(age)) = (&object.creator, object.age_ms) {
                writeln!(
                    out,
                    "created    by {creator}, {} ago",
                    output::age(Duration::from_millis(age))
                )?;
            }
            if object.replicas > 1 {
                writeln!(out, "replicas   {} of {}", self.pinned_copies, object.replicas)?;
            }
            if let Some(lifetime) = &self.lifetime {
                lifetime.print(out)?;
            }
            if object.lost {
                writeln!(out, "lost       no copy of it is left")?;
            }
        }
        if self.object.is_none() {
            writeln!(out, "id         {}", self.id)?;
            let yet = if self.reduce.as_ref().is_some_and(|reduce| reduce.is_running) {
                " yet"
            } else {
                ""
            };
            writeln!(out, "directory  {}, which knows no such object{yet}", self.shard)?;
        }
        if let Some(reduce) = &self.reduce {
            reduce.print(out)?;
        } else if let Some(collective) =
            self.object.as_ref().and_then(|object| object.collective.as_ref())
        {
            writeln!(out, "collective {collective}; no queried store remembers how it was made")?;
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
            ["LOCATION", "STATE", "RETENTION", "FROM", "ADDRESS"]
                .map(|title| (title, Alignment::Left)),
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
            escape(&grant.receiver),
            escape(&grant.sender),
            escape(&grant.reason),
            grant.outcome.as_deref().map_or_else(|| "(running)".to_owned(), escape),
        ]);
    }
    table.print(out)
}

impl Object {
    fn new(object: ObjectSummary) -> Self {
        let origin = object.origin.as_ref();
        Self {
            put: format!("{:016x}", object.put.0),
            size_bytes: object.size_bytes,
            dtype: object.metadata.dtype.name(),
            array_type: output::array_type(&object.metadata),
            replicas: object.metadata.replicas.to_keep(),
            creator: origin.map(|origin| origin.creator.to_string()),
            age_ms: origin.map(|origin| u64::try_from(origin.age.as_millis()).unwrap_or(u64::MAX)),
            collective: object.metadata.agreement.as_ref().map(ToString::to_string),
            shape: object.metadata.shape,
            inline: object.inline,
            lost: object.lost,
        }
    }
}

impl Location {
    fn new(location: hoplite_client::Location) -> Self {
        Self {
            node: location.node.to_string(),
            data_address: location.data_address.to_string(),
            state: match location.state {
                LocationState::Producing => "producing",
                LocationState::Partial => "partial",
                LocationState::Complete => "complete",
            },
            retention: match location.retention {
                Retention::Pinned => "pinned",
                Retention::Evictable => "evictable",
            },
            pulling_from: location.pulling_from.map(|node| node.to_string()),
        }
    }
}

impl Grant {
    fn new(grant: hoplite_client::Grant) -> Self {
        Self {
            receiver: grant.receiver,
            sender: grant.sender,
            reason: grant.reason,
            at_us: micros(grant.at),
            outcome: grant.outcome,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_object(stage: &str, is_running: bool) -> Report {
        let position = Position {
            member: 1,
            members: 2,
            stage: stage.to_owned(),
            final_bytes: 0,
            size_bytes: 8,
            node: String::new(),
        };
        let reduce = Reduce {
            op: "sum".to_owned(),
            reduced: 2,
            sources: 2,
            hops: 2,
            plan: "ring".to_owned(),
            bytes_per_second: 0,
            latency_us: 0,
            elapsed_us: 7,
            mendings: 0,
            restarts: 0,
            is_running,
            position: Some(position),
            positions: Vec::new(),
        };
        Report {
            id: "target".to_owned(),
            id_hex: String::new(),
            shard: "shard:1".to_owned(),
            pinned_copies: 0,
            object: None,
            locations: Vec::new(),
            grants: Vec::new(),
            waiting_receivers: 0,
            reduce: Some(reduce),
            lifetime: None,
        }
    }

    fn with_object() -> Report {
        let object = Object {
            put: String::new(),
            size_bytes: 8,
            dtype: "f32",
            shape: None,
            array_type: "f32".to_owned(),
            collective: Some("allreduce of 2".to_owned()),
            replicas: 1,
            creator: Some("zero".to_owned()),
            age_ms: Some(5000),
            inline: false,
            lost: false,
        };
        let kept = Location {
            node: "zero".to_owned(),
            data_address: "zero:1".to_owned(),
            state: "complete",
            retention: "pinned",
            pulling_from: None,
        };
        Report {
            object: Some(object),
            locations: vec![kept],
            reduce: None,
            ..without_object("has failed", false)
        }
    }

    fn printed(report: &Report) -> String {
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_what_is_being_made_is_not_there_yet() {
        let growing = printed(&without_object("gives and takes", true));
        assert!(growing.contains("which knows no such object yet\n"), "{growing}");
        let failed = printed(&without_object("has failed: object target was deleted", false));
        assert!(failed.contains("which knows no such object\n"), "{failed}");
    }

    #[test]
    fn what_nobody_remembers_still_says_which_collective_has_made_it() {
        let forgotten = printed(&with_object());
        assert!(
            forgotten.contains("allreduce of 2; no queried store remembers how"),
            "{forgotten}"
        );
    }

    #[test]
    fn what_peers_say_does_not_disturb_the_terminal() {
        let text = printed(&without_object("has failed: \u{1b}[2Jgone\n", false));
        assert!(text.contains(r"has failed: \u{1b}[2Jgone\n; 0 B of 8 B"), "{text}");
    }
}
