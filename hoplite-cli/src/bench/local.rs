use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::blocking::Client;
use hoplite_client::{Confirmation, PutOptions};

use super::floor::{UnixEcho, WarmMemory};
use super::report::{Measurement, Report};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(60);
/// The first round is a warm-up.
const ROUNDS: u32 = 11;
const IDLE: Duration = Duration::from_millis(20);
const VIEWS: u32 = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Size of the large object
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(super) size: u64,
    /// Size of the small objects
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    small_size: u64,
    /// Number of small objects
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    samples: u32,
    /// Number of small objects that are put and got after 20 ms without a call; 0 for none
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(..=100_000))]
    cold_samples: u32,
    /// Number of small objects in one call of put_many and get_many; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=65_536))]
    batch: u32,
    /// Number of puts of the large object
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let node = cluster.nodes.first().context("a cluster without nodes")?;
    let client = Client::connect(&node.socket)?;
    let mut report = Report::new("local");
    small(&client, arguments, &mut report)?;
    if arguments.cold_samples > 0 {
        cold(&client, arguments, &mut report)?;
    }
    if arguments.batch > 0 {
        batches(&client, arguments, &mut report)?;
    }
    large(&client, arguments, &mut report)?;
    Ok(report)
}

fn small(client: &Client, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let bytes = vec![7; usize::try_from(arguments.small_size)?];
    let per_round = arguments.samples.div_ceil(ROUNDS - 1);
    let mut echo = UnixEcho::start()?;
    let [mut trips, mut puts, mut confirmed, mut gets] = [const { Vec::<Duration>::new() }; 4];
    for round in 0..ROUNDS {
        if round == 1 {
            for samples in [&mut trips, &mut puts, &mut confirmed, &mut gets] {
                samples.clear();
            }
        }
        for _ in 0..per_round {
            trips.push(echo.round_trip()?);
        }
        for (confirm, samples) in
            [(Confirmation::Confirmed, &mut confirmed), (Confirmation::BySize, &mut puts)]
        {
            let ids: Vec<_> =
                (0..per_round).map(|number| format!("small/{confirm:?}/{number}")).collect();
            for id in &ids {
                let options = PutOptions { confirm, timeout: TIMEOUT, ..PutOptions::default() };
                let started = Instant::now();
                client.put_with(id, &bytes, options)?;
                samples.push(started.elapsed());
            }
            if confirm == Confirmation::BySize {
                for id in &ids {
                    let started = Instant::now();
                    let view = client.get(id, TIMEOUT)?;
                    ensure!(*view == *bytes, "the store returned other bytes");
                    drop(view);
                    gets.push(started.elapsed());
                }
            }
            client.delete(&ids, TIMEOUT)?;
        }
    }
    let size = output::size(arguments.small_size);
    let floor = Measurement::new("Unix socket round trip", &trips);
    report.note(format!(
        "{size}: a new id for every put; the bare round trip carries 64 bytes each way."
    ));
    report.add(Measurement::new(format!("{size} put"), &puts).beside(&floor));
    report.add(
        Measurement::new(format!("{size} put, confirmed by the directory"), &confirmed)
            .beside(&floor),
    );
    report.add(Measurement::new(format!("{size} get"), &gets).beside(&floor));
    report.add(floor);
    Ok(())
}

fn batches(client: &Client, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let bytes = vec![7; usize::try_from(arguments.small_size)?];
    let rounds = arguments.samples.div_ceil(arguments.batch).clamp(3, 100);
    let [mut puts, mut gets, mut deletes] = [const { Vec::<Duration>::new() }; 3];
    for round in 0..=rounds {
        let ids: Vec<_> =
            (0..arguments.batch).map(|number| format!("batch/{round}/{number}")).collect();
        let options = PutOptions { timeout: TIMEOUT, ..PutOptions::default() };
        let started = Instant::now();
        let put = client.put_many(ids.iter().map(|id| (id, &bytes)), options)?;
        let put_at = Instant::now();
        put.into_iter().collect::<Result<(), _>>()?;
        let getting = Instant::now();
        let views = client.get_many(&ids, TIMEOUT)?;
        let got_at = Instant::now();
        for view in views {
            ensure!(*view? == *bytes, "the store returned other bytes");
        }
        let deleting = Instant::now();
        let deleted = client.delete_many(&ids, TIMEOUT)?;
        let deleted_at = Instant::now();
        for was_there in deleted {
            ensure!(was_there?, "an object was not there");
        }
        if round > 0 {
            puts.push((put_at - started) / arguments.batch);
            gets.push((got_at - getting) / arguments.batch);
            deletes.push((deleted_at - deleting) / arguments.batch);
        }
    }
    let (size, count) = (output::size(arguments.small_size), arguments.batch);
    report.note(format!(
        "put_many, get_many and delete_many have {count} objects; the time is that of one object."
    ));
    report.add(Measurement::new(format!("{size} put_many"), &puts));
    report.add(Measurement::new(format!("{size} get_many"), &gets));
    report.add(Measurement::new(format!("{size} delete_many"), &deletes));
    Ok(())
}

fn cold(client: &Client, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let bytes = vec![7; usize::try_from(arguments.small_size)?];
    let mut echo = UnixEcho::start()?;
    let [mut trips, mut puts, mut gets] = [const { Vec::<Duration>::new() }; 3];
    for number in 0..arguments.cold_samples {
        let id = format!("cold/{number}");
        thread::sleep(IDLE);
        trips.push(echo.round_trip()?);
        thread::sleep(IDLE);
        let started = Instant::now();
        client.put(&id, &bytes)?;
        puts.push(started.elapsed());
        thread::sleep(IDLE);
        let started = Instant::now();
        let view = client.get(&id, TIMEOUT)?;
        gets.push(started.elapsed());
        ensure!(*view == *bytes, "the store returned other bytes");
        client.delete([id], TIMEOUT)?;
    }
    let size = output::size(arguments.small_size);
    let after = format!("after {} ms of idling", IDLE.as_millis());
    let floor = Measurement::new(format!("Unix socket round trip, {after}"), &trips);
    report.add(Measurement::new(format!("{size} put, {after}"), &puts).beside(&floor));
    report.add(Measurement::new(format!("{size} get, {after}"), &gets).beside(&floor));
    report.add(floor);
    Ok(())
}

fn large(client: &Client, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    // Nonzero, because the system maps all untouched zero pages to one page.
    let source = vec![7; usize::try_from(arguments.size)?];
    let mut memory = WarmMemory::new(arguments.size)?;
    let (mut copies, mut puts, mut views) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=arguments.repetitions {
        let copy = memory.copy(&source);
        let options = PutOptions {
            confirm: Confirmation::Confirmed,
            timeout: TIMEOUT,
            ..PutOptions::default()
        };
        let started = Instant::now();
        client.put_with("large", &source, options)?;
        let put = started.elapsed();
        if round > 0 {
            copies.push(copy);
            puts.push(put);
        }
        if round < arguments.repetitions {
            client.delete(["large"], TIMEOUT)?;
        }
    }
    for _ in 0..VIEWS {
        let started = Instant::now();
        let view = client.get("large", TIMEOUT)?;
        views.push(started.elapsed());
        ensure!(view.size_bytes() == arguments.size, "the store returned another size");
    }
    let size = output::size(arguments.size);
    let floor = Measurement::new(format!("{size} memcpy into warm shared memory"), &copies)
        .moving(arguments.size);
    report.note(format!(
        "{size}: every put waits for the directory; a get returns a view, without a copy."
    ));
    report
        .add(Measurement::new(format!("{size} put"), &puts).moving(arguments.size).beside(&floor));
    report.add(floor);
    report.add(Measurement::new(format!("{size} get"), &views));
    Ok(())
}
