use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use hoplite_client::{NodeStatus, PlaceKeys, RailStatus, ShardStatus, SpillStatus};
use hoplite_core::problem::ProblemKind;
use serde::Serialize;

use crate::arguments::{StoreArguments, parse_duration};
use crate::output::{self, Alignment, Table};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show the status repeatedly until Ctrl-C, by default every 2 seconds
    #[arg(
        long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s", value_parser = parse_duration,
        conflicts_with = "json"
    )]
    watch: Option<Duration>,
}

const CLEAR: &str = "\x1b[2J\x1b[H";
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    if let Some(interval) = arguments.watch {
        return watch(store, interval.max(SHORTEST_INTERVAL)).await;
    }
    let status = Report::from(store.connect().await?.status().await?);
    let mut stdout = io::stdout().lock();
    if arguments.json {
        output::json(&mut stdout, &status)?;
    } else {
        status.print(&mut stdout)?;
    }
    Ok(())
}

/// Shows the status until Ctrl-C, even while the store restarts.
async fn watch(store: &StoreArguments, interval: Duration) -> anyhow::Result<()> {
    let mut client = store.connect_to_watch().await?;
    loop {
        let mut text = Vec::new();
        match client.status().await {
            Ok(status) => Report::from(status).print(&mut text)?,
            Err(error) => {
                writeln!(text, "{error}")?;
                if let Ok(again) = store.connect_to_watch().await {
                    client = again;
                }
            }
        }
        let mut stdout = io::stdout().lock();
        text.splice(0..0, if stdout.is_terminal() { CLEAR.bytes() } else { "\n".bytes() });
        stdout.write_all(&text)?;
        stdout.flush()?;
        drop(stdout);
        tokio::time::sleep(interval).await;
    }
}

#[derive(Debug, Serialize)]
struct Report {
    node: String,
    cluster: String,
    version: String,
    data_address: String,
    uptime_ms: u64,
    memory: Memory,
    #[serde(with = "Spill")]
    spill: SpillStatus,
    copies: u64,
    is_draining: bool,
    clients: u64,
    transfers: Transfers,
    reduces: Reduces,
    shards: Vec<ShardStatus>,
    troubles: Vec<String>,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Problem {
    cause: &'static str,
    cure: &'static str,
    texts: Vec<String>,
}

impl From<(ProblemKind, Vec<String>)> for Problem {
    fn from((kind, texts): (ProblemKind, Vec<String>)) -> Self {
        Self { cause: kind.cause(), cure: kind.cure(), texts }
    }
}

#[derive(Debug, Serialize)]
struct Memory {
    capacity_bytes: u64,
    free_bytes: u64,
    pinned_bytes: u64,
    evictable_bytes: u64,
    reserved_bytes: u64,
    prefaulted_bytes: u64,
    evictions: u64,
    expired: u64,
    abandoned: u64,
}

/// The present spill files, and counts since the store's start.
#[derive(Serialize)]
#[serde(remote = "SpillStatus")]
struct Spill {
    objects: u64,
    bytes: u64,
    clean_bytes: u64,
    files: u64,
    file_bytes: u64,
    limit_bytes: u64,
    spilled_objects: u64,
    spilled_bytes: u64,
    loaded_objects: u64,
    loaded_bytes: u64,
    failures: u64,
    recovered_objects: u64,
    recovered_bytes: u64,
    unrecovered_objects: u64,
}

#[derive(Debug, Serialize)]
struct Transfers {
    pulls: u64,
    serves: u64,
    sent_bytes: u64,
    received_bytes: u64,
    corrupt_frames: u64,
    put_conflicts: u64,
    max_lanes: u32,
    extra_lanes: u64,
    rails: Vec<RailStatus>,
    failed_routes: u32,
}

#[derive(Debug, Serialize)]
struct Reduces {
    coordinated: u64,
    hops: u64,
    directed_hops: u64,
    combinations: u64,
}

impl From<NodeStatus> for Report {
    fn from(status: NodeStatus) -> Self {
        let problems = status.problems();
        Self {
            node: status.node,
            cluster: status.cluster,
            version: status.version,
            data_address: status.data_address,
            uptime_ms: u64::try_from(status.uptime.as_millis()).unwrap_or(u64::MAX),
            memory: Memory {
                capacity_bytes: status.capacity_bytes,
                free_bytes: status.free_bytes,
                pinned_bytes: status.pinned_bytes,
                evictable_bytes: status.evictable_bytes,
                reserved_bytes: status.reserved_bytes,
                prefaulted_bytes: status.prefaulted_bytes,
                evictions: status.evictions,
                expired: status.expired,
                abandoned: status.abandoned,
            },
            spill: status.spill,
            copies: status.copies,
            is_draining: status.is_draining,
            clients: status.clients,
            transfers: Transfers {
                pulls: status.pulls,
                serves: status.serves,
                sent_bytes: status.sent_bytes,
                received_bytes: status.received_bytes,
                corrupt_frames: status.corrupt_frames,
                put_conflicts: status.put_conflicts,
                max_lanes: status.max_lanes,
                extra_lanes: status.extra_lanes,
                rails: status.rails,
                failed_routes: status.failed_routes,
            },
            reduces: Reduces {
                coordinated: status.reduces,
                hops: status.hops,
                directed_hops: status.directed_hops,
                combinations: status.combinations,
            },
            shards: status.shards,
            troubles: problems.iter().flat_map(|(_, lines)| lines.clone()).collect(),
            problems: problems.into_iter().map(Problem::from).collect(),
        }
    }
}

pub(super) fn keys_differ(keys: &[PlaceKeys]) -> Option<String> {
    let of = |keys: &PlaceKeys| {
        let names = if keys.keys.is_empty() { "nothing".to_owned() } else { keys.keys.join("+") };
        format!("{} by {names}", keys.nodes)
    };
    let counts = keys.iter().map(of).collect::<Vec<_>>().join(", ");
    (keys.len() > 1)
        .then(|| format!("labels do not fit together: {counts}; give all stores the same keys"))
}

impl Report {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.print_node(out)?;
        self.print_memory(out)?;
        self.print_spill(out)?;
        self.print_transfers(out)?;
        self.print_problems(out)?;
        self.print_places(out)?;
        writeln!(out)?;
        self.print_shards(out)
    }

    fn print_node(&self, out: &mut impl Write) -> io::Result<()> {
        let uptime = Duration::from_secs(self.uptime_ms / 1000);
        writeln!(
            out,
            "node       {} of cluster {}, version {}",
            self.node, self.cluster, self.version
        )?;
        writeln!(out, "data       {}", self.data_address)?;
        writeln!(out, "uptime     {}", humantime::format_duration(uptime))?;
        if self.is_draining {
            writeln!(
                out,
                "state      draining: it moves its objects to other stores, and accepts no new ones"
            )?;
        }
        writeln!(out, "clients    {}", self.clients)
    }

    fn print_memory(&self, out: &mut impl Write) -> io::Result<()> {
        let memory = &self.memory;
        writeln!(
            out,
            "memory     {}: {} free, {} pinned, {} evictable, {} faulted in",
            output::size(memory.capacity_bytes),
            output::size(memory.free_bytes),
            output::size(memory.pinned_bytes),
            output::size(memory.evictable_bytes),
            output::size(memory.prefaulted_bytes),
        )?;
        writeln!(out, "copies     {}, and {} evictions so far", self.copies, memory.evictions)?;
        writeln!(
            out,
            "lifetimes  {} expired, {} without their owner",
            memory.expired, memory.abandoned
        )
    }

    fn print_spill(&self, out: &mut impl Write) -> io::Result<()> {
        let spill = &self.spill;
        if spill.spilled_objects + spill.failures > 0 {
            writeln!(
                out,
                "spilled    {} in {} objects, {} files of {}; {} written and {} read so far, {} failures",
                output::size(spill.bytes),
                spill.objects,
                spill.files,
                output::size(spill.file_bytes),
                output::size(spill.spilled_bytes),
                output::size(spill.loaded_bytes),
                spill.failures,
            )?;
        }
        if spill.recovered_objects + spill.unrecovered_objects > 0 {
            writeln!(
                out,
                "recovered  {} in {} objects of killed stores, {} objects dropped",
                output::size(spill.recovered_bytes),
                spill.recovered_objects,
                spill.unrecovered_objects,
            )?;
        }
        Ok(())
    }

    fn print_transfers(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { transfers, reduces, .. } = self;
        writeln!(
            out,
            "transfers  {} received ({} pulls now), {} sent in {} serves",
            output::size(transfers.received_bytes),
            transfers.pulls,
            output::size(transfers.sent_bytes),
            transfers.serves,
        )?;
        if transfers.max_lanes > 1 {
            writeln!(
                out,
                "lanes      at most {} connections for a transfer; sends use {} beyond the first",
                transfers.max_lanes, transfers.extra_lanes,
            )?;
        }
        for rail in &transfers.rails {
            let failed = match rail.failed_routes {
                0 => String::new(),
                count => format!(", failed routes: {count}"),
            };
            writeln!(
                out,
                "card       {}: {} received, {} sent, {} connections{failed}",
                rail.address,
                output::size(rail.received_bytes),
                output::size(rail.sent_bytes),
                rail.connections,
            )?;
        }
        writeln!(
            out,
            "reduces    {} coordinated with {} hops, {} hops and {} combinations here",
            reduces.coordinated, reduces.directed_hops, reduces.hops, reduces.combinations
        )
    }

    fn print_problems(&self, out: &mut impl Write) -> io::Result<()> {
        let Transfers { corrupt_frames, put_conflicts, .. } = self.transfers;
        writeln!(
            out,
            "troubles   {corrupt_frames} corrupt frames, {put_conflicts} conflicting puts"
        )?;
        for Problem { cause, cure, texts } in &self.problems {
            for text in texts {
                writeln!(out, "trouble    {text}")?;
            }
            writeln!(out, "  cause    {cause}\n  cure     {cure}")?;
        }
        Ok(())
    }

    fn print_places(&self, out: &mut impl Write) -> io::Result<()> {
        let shard = self.shards.iter().find(|shard| shard.connected);
        if let Some(warning) = shard.and_then(|shard| keys_differ(&shard.place_keys)) {
            writeln!(out, "places     {warning}")?;
        }
        if let Some(shard) = shard.filter(|shard| shard.places_version > 0) {
            let uplink = match shard.uplink_permille {
                0 => "no groups in use".to_owned(),
                permille => {
                    format!("an uplink carries {} of a host's link", f64::from(permille) / 1000.0)
                }
            };
            writeln!(out, "measured   {uplink}")?;
        }
        Ok(())
    }

    fn print_shards(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new([
            ("SHARD", Alignment::Left),
            ("SESSION", Alignment::Left),
            ("PROTOCOL", Alignment::Right),
            ("OBJECTS", Alignment::Right),
            ("INLINE", Alignment::Right),
            ("NODES", Alignment::Right),
            ("WAITING", Alignment::Right),
            ("COPIES MISSING", Alignment::Right),
            ("MEASURED", Alignment::Right),
        ]);
        for shard in &self.shards {
            table.row([
                shard.address.clone(),
                if shard.connected { "up" } else { "down" }.to_owned(),
                shard.protocol.to_string(),
                shard.objects.to_string(),
                output::size(shard.inline_bytes),
                shard.nodes.to_string(),
                shard.waiting_queries.to_string(),
                shard.under_replicated.to_string(),
                if shard.places_version > 0 {
                    shard.places_version.to_string()
                } else {
                    "never".to_owned()
                },
            ]);
        }
        table.print(out)
    }
}
