//! `hoplite bench clients`: small puts of one client beside many clients that put all the time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::{Client, PutOptions, blocking};
use hoplite_core::extent::{GRANULE_BYTES, HEADER_BYTES};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Room;
use super::report::{Figure, Measurement, Report};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(60);
const SMALL_BYTES: usize = 1 << 10;
const BATCH: usize = 100;
const MAX_BYTES: u64 = 1 << 30;
/// Pause before each measured put, without which the client would be greedy, too.
const PAUSE: Duration = Duration::from_millis(20);
const TARGET: f64 = 3.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of greedy clients
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    greedy: u32,
    /// Size of a greedy client's large objects
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = parse_size)]
    size: u64,
    /// Number of small puts in each measurement
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    puts: u32,
}

impl Arguments {
    pub(super) fn room(&self) -> anyhow::Result<Room> {
        ensure!(self.size <= MAX_BYTES, "the size of an object is at most 1 GiB");
        let small = (HEADER_BYTES + SMALL_BYTES as u64).next_multiple_of(GRANULE_BYTES);
        let each = (HEADER_BYTES + self.size).next_multiple_of(GRANULE_BYTES);
        Ok(Room::for_one(1, u64::from(self.greedy) * each.max(BATCH as u64 * small)))
    }
}

#[derive(Clone)]
enum Work {
    Nothing,
    Small,
    Batches,
    Large(Arc<[u8]>),
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let socket = &cluster.nodes.first().context("a cluster without nodes")?.socket;
    let runtime = Runtime::new()?;
    let client = blocking::Client::connect(socket)?;
    let puts = |what: &str| puts(&client, what, arguments.puts);
    let (greedy, size) = (arguments.greedy, output::size(arguments.size));
    let mut report = Report::new("clients");
    report.note("One store. Each other client that is not idle puts and deletes without a pause.");
    puts("cold")?;
    let alone = Measurement::new("put of 1 KiB, alone", &puts("alone")?);
    let large = vec![7; usize::try_from(arguments.size)?].into();
    let works = [
        (format!("beside {greedy} idle clients"), Work::Nothing),
        (format!("beside {greedy} clients with objects of 1 KiB"), Work::Small),
        (format!("beside {greedy} clients with {BATCH} of 1 KiB in a call"), Work::Batches),
        (format!("beside {greedy} clients with objects of {size}"), Work::Large(large)),
    ];
    let mut beside = Vec::new();
    for (name, work) in works {
        let crowd = Crowd::start(&runtime, socket, greedy, &work)?;
        let measured = Measurement::new(&name, &puts(&name)?).beside(&alone);
        let calls = crowd.stop(&runtime)?;
        report.note(format!("{name}: they made {calls:.0} calls in each second."));
        beside.push((name, measured));
    }
    for (name, measured) in &beside {
        if let (Some(p99_s), Some(alone_s)) = (measured.p99_s(), alone.p99_s()) {
            let (name, value) = (format!("p99 {name}, times the p99 alone"), p99_s / alone_s);
            report.figure(Figure { name, value, target: Some(TARGET) });
        }
    }
    report.add(alone);
    beside.into_iter().for_each(|(_, measured)| report.add(measured));
    Ok(report)
}

fn puts(client: &blocking::Client, what: &str, count: u32) -> anyhow::Result<Vec<Duration>> {
    let bytes = [7; SMALL_BYTES];
    let mut times = Vec::new();
    for number in 0..count {
        let id = format!("{what}/{number}");
        thread::sleep(PAUSE);
        let started = Instant::now();
        client.put(&id, &bytes)?;
        times.push(started.elapsed());
        ensure!(client.delete([&id], TIMEOUT)? == 1, "an object was not there");
    }
    Ok(times)
}

struct Crowd {
    tasks: JoinSet<anyhow::Result<u64>>,
    is_over: Arc<AtomicBool>,
    started: Instant,
}

impl Crowd {
    /// Returns once all clients are connected.
    fn start(runtime: &Runtime, socket: &Path, count: u32, work: &Work) -> anyhow::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let connected = Arc::new(Barrier::new(count as usize + 1));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (socket, work, is_over, connected) =
                (PathBuf::from(socket), work.clone(), Arc::clone(&is_over), Arc::clone(&connected));
            let task = async move {
                let client = Client::connect(&socket).await?;
                connected.wait().await;
                let mut calls = 0;
                while !is_over.load(Ordering::Relaxed) {
                    calls += work.once(&client, number).await?;
                }
                Ok(calls)
            };
            tasks.spawn_on(task, runtime.handle());
        }
        runtime.block_on(async {
            tokio::select! {
                _ = connected.wait() => Ok(()),
                Some(ended) = tasks.join_next() => {
                    ended??;
                    anyhow::bail!("a client ended early")
                }
            }
        })?;
        Ok(Self { tasks, is_over, started: Instant::now() })
    }

    /// Returns the calls per second of all clients.
    fn stop(mut self, runtime: &Runtime) -> anyhow::Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut calls = 0;
        runtime.block_on(async {
            while let Some(ended) = self.tasks.join_next().await {
                calls += ended??;
            }
            anyhow::Ok(())
        })?;
        Ok(calls as f64 / self.started.elapsed().as_secs_f64())
    }
}

impl Work {
    async fn once(&self, client: &Client, number: u32) -> anyhow::Result<u64> {
        let small = [7; SMALL_BYTES];
        match self {
            Self::Nothing => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(0)
            }
            Self::Small => put_and_delete(client, number, &small).await,
            Self::Large(bytes) => put_and_delete(client, number, bytes).await,
            Self::Batches => {
                let ids: Vec<_> =
                    (0..BATCH).map(|object| format!("greedy/{number}/{object}")).collect();
                let options = PutOptions { timeout: TIMEOUT, ..PutOptions::default() };
                let put = client.put_many(ids.iter().map(|id| (id, small)), options).await?;
                put.into_iter().collect::<Result<(), _>>()?;
                let deleted = client.delete_many(&ids, TIMEOUT).await?;
                deleted.into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(2)
            }
        }
    }
}

async fn put_and_delete(client: &Client, number: u32, bytes: &[u8]) -> anyhow::Result<u64> {
    let id = format!("greedy/{number}");
    client.put(&id, bytes).await?;
    client.delete([&id], TIMEOUT).await?;
    Ok(2)
}
