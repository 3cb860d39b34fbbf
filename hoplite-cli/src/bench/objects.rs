//! `hoplite bench objects`: one store with many small objects.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::PutOptions;
use hoplite_client::blocking::Client;
use hoplite_core::Limits;
use hoplite_core::extent::{GRANULE_BYTES, HEADER_BYTES};
use hoplite_core::shard::MAX_INLINE_BYTES;

use super::Room;
use super::report::{Figure, Measurement, Report};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(60);
const BATCH: u32 = 1000;
const MAX_SAMPLES: u32 = 20_000;
const PAGE: usize = 10_000;
const LISTINGS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// Shards remember deletes for 30 s.
const RETURN_TIMEOUT: Duration = Duration::from_secs(45);
const MIB: u64 = 1 << 20;
const KEPT_BYTES: u64 = 64 * MIB;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of objects, in thousands
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    thousands: u32,
    /// Size of each object, at most 1 MiB
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    size: u64,
}

impl Arguments {
    pub(super) fn room(&self) -> anyhow::Result<Room> {
        ensure!(self.size <= MIB, "the size of an object is at most 1 MiB");
        let objects = u64::from((self.thousands + 1) * BATCH);
        Ok(Room::for_one(1, objects * (HEADER_BYTES + self.size).next_multiple_of(GRANULE_BYTES)))
    }

    /// Object bytes that the shard keeps.
    fn inline_bytes(&self) -> u64 {
        let is_inline = self.size < Limits::default().inline_below_bytes;
        let all_bytes = u64::from(self.thousands * BATCH) * self.size;
        if is_inline { all_bytes.min(MAX_INLINE_BYTES) } else { 0 }
    }
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let store = cluster.nodes.first().context("a cluster without nodes")?;
    let shard = *cluster.shard_pids.first().context("a cluster without a directory")?;
    let client = Client::connect(&store.socket)?;
    let bench = Bench { client, bytes: vec![7; usize::try_from(arguments.size)?] };
    let objects = arguments.thousands * BATCH;
    let mut report = Report::new("objects");
    let size = output::size(arguments.size);
    report.note(format!("One store, one shard, {objects} objects of {size}."));
    report.note("The bytes of small objects that the shard keeps do not count as its own.");

    bench.put(0)?;
    let samples = MAX_SAMPLES.min(objects * 2);
    bench.gets(1, samples)?;
    let alone = Measurement::new("get from a store of 1000 objects", &bench.gets(1, samples)?);
    let memory = || Ok::<_, anyhow::Error>([private_bytes(store.pid)?, private_bytes(shard)?]);
    let before = memory()?;
    let puts =
        (1..=arguments.thousands).map(|batch| bench.put(batch)).collect::<Result<Vec<_>, _>>()?;
    report.add(Measurement::new("put_many, for each object", &puts));
    bench.await_listed(objects + BATCH)?;
    let full = memory()?;
    report.add(
        Measurement::new("get", &bench.gets(arguments.thousands + 1, samples)?).beside(&alone),
    );
    report.add(alone);
    bench.lists(arguments.thousands)?;
    let some =
        Measurement::new("list of a prefix with 1000 objects", &bench.lists(arguments.thousands)?);
    report.add(some);
    let started = Instant::now();
    ensure!(bench.count()? == u64::from(objects + BATCH), "the list is incomplete");
    report.add(Measurement::new("list of all objects, in pages", &[started.elapsed()]));
    let deletes = (1..=arguments.thousands)
        .map(|batch| bench.delete(batch))
        .collect::<Result<Vec<_>, _>>()?;
    report.add(Measurement::new("delete_many, for each object", &deletes));
    let daemons = [("store", 500.0, 0), ("shard", 350.0, arguments.inline_bytes())];
    for (place, (name, target, kept_bytes)) in daemons.into_iter().enumerate() {
        let bytes = full[place].saturating_sub(before[place] + kept_bytes);
        report.figure(Figure {
            name: format!("private bytes of the {name} for each object"),
            value: bytes as f64 / f64::from(objects),
            target: Some(target),
        });
    }
    let kept = || -> anyhow::Result<Vec<u64>> {
        Ok(memory()?
            .into_iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before))
            .collect())
    };
    let deleted = Instant::now();
    while kept()?.iter().any(|kept| *kept > KEPT_BYTES) && deleted.elapsed() < RETURN_TIMEOUT {
        thread::sleep(PAUSE);
    }
    report.note(format!(
        "Memory was read {:.0} s after the deletes.",
        deleted.elapsed().as_secs_f64()
    ));
    for (name, kept) in ["store", "shard"].into_iter().zip(kept()?) {
        report.figure(Figure {
            name: format!("MiB that the {name} keeps"),
            value: (kept / MIB) as f64,
            target: Some((KEPT_BYTES / MIB) as f64),
        });
    }
    Ok(report)
}

struct Bench {
    client: Client,
    bytes: Vec<u8>,
}

fn name(batch: u32, number: u32) -> String {
    format!("batch-{batch:05}/object-{number:04}")
}

impl Bench {
    fn put(&self, batch: u32) -> anyhow::Result<Duration> {
        let ids: Vec<_> = (0..BATCH).map(|number| name(batch, number)).collect();
        let options = PutOptions { timeout: TIMEOUT, ..PutOptions::default() };
        let started = Instant::now();
        let put = self.client.put_many(ids.iter().map(|id| (id, &self.bytes)), options)?;
        let elapsed = started.elapsed();
        put.into_iter().collect::<Result<(), _>>()?;
        Ok(elapsed / BATCH)
    }

    fn gets(&self, batches: u32, samples: u32) -> anyhow::Result<Vec<Duration>> {
        let mut scattered = 1_u32;
        (0..samples)
            .map(|_| {
                scattered = scattered.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let number = (scattered >> 4) % (batches * BATCH);
                let id = name(number / BATCH, number % BATCH);
                let started = Instant::now();
                let view = self.client.get(&id, TIMEOUT)?;
                let elapsed = started.elapsed();
                ensure!(*view == *self.bytes, "the store returned other bytes");
                Ok(elapsed)
            })
            .collect()
    }

    fn lists(&self, batches: u32) -> anyhow::Result<Vec<Duration>> {
        (0..LISTINGS)
            .map(|number| {
                let prefix = format!("batch-{:05}/", number % batches);
                let started = Instant::now();
                let page = self.client.list(&prefix, "", PAGE)?;
                let elapsed = started.elapsed();
                ensure!(page.objects.len() == BATCH as usize, "the list is incomplete");
                Ok(elapsed)
            })
            .collect()
    }

    fn count(&self) -> anyhow::Result<u64> {
        let (mut count, mut after) = (0, None);
        loop {
            let from =
                after.as_ref().map_or(&[][..], |id: &hoplite_client::ObjectId| id.as_bytes());
            let page = self.client.list("", from, PAGE)?;
            count += page.objects.len() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(count);
            }
        }
    }

    fn await_listed(&self, objects: u32) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.count()? < u64::from(objects) {
            ensure!(started.elapsed() < TIMEOUT, "the directory does not know all objects");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn delete(&self, batch: u32) -> anyhow::Result<Duration> {
        let ids: Vec<_> = (0..BATCH).map(|number| name(batch, number)).collect();
        let started = Instant::now();
        let deleted = self.client.delete_many(&ids, TIMEOUT)?;
        let elapsed = started.elapsed();
        for was_there in deleted {
            ensure!(was_there?, "an object was not there");
        }
        Ok(elapsed / BATCH)
    }
}

/// Returns the resident memory of a process without files and shared memory.
fn private_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .context("cannot read a process's memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes.and_then(|text| text.parse::<u64>().ok()).context("no memory in the status")?
        * 1024)
}
