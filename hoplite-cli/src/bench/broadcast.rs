use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hoplite_client::blocking::Client;
use hoplite_client::{Confirmation, PutOptions};

use super::report::{Broadcast, Measurement, Report, median, median_s};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time between the starts of two receivers, as a multiple of one transfer's time.
const STAGGER: f64 = 0.5;
const START_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The size of the object
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(super) size: u64,
    /// Number of receivers; several numbers for several measurements
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "3,7",
        value_parser = clap::value_parser!(u32).range(1..=255)
    )]
    receivers: Vec<u32>,
    /// Number of broadcasts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

impl Arguments {
    pub(super) fn nodes(&self) -> u32 {
        1 + self.receivers.iter().copied().max().unwrap_or(1)
    }
}

#[derive(Debug)]
struct Round {
    total: Duration,
    receivers: Vec<Duration>,
    origin_sent_objects: f64,
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let clients = cluster
        .nodes
        .iter()
        .map(|node| Client::connect(&node.socket))
        .collect::<Result<Vec<_>, _>>()?;
    let source = vec![7; usize::try_from(arguments.size)?];
    let mut report = Report::new("broadcast");
    let size = output::size(arguments.size);

    let single = rounds(&clients, 1, Duration::ZERO, &source, arguments.repetitions)?;
    let single_s = median(single.iter().map(|round| round.total.as_secs_f64()).collect());
    let interval = Duration::from_secs_f64(single_s * STAGGER);
    let floor = summary(format!("{size} to 1 receiver"), &single, arguments.size);
    report
        .note("The object is complete at its origin before the first receiver arrives; receivers get views.");
    report.note(format!(
        "Staggered receivers arrive {:.1} ms apart, half the time of a single receiver.",
        interval.as_secs_f64() * 1e3
    ));
    report.note(
        "All nodes share the processors of this machine. GB/S counts the bytes of all receivers.",
    );
    for &receivers in &arguments.receivers {
        for (how, interval) in [("together", Duration::ZERO), ("staggered", interval)] {
            let rounds = rounds(
                &clients,
                usize::try_from(receivers)?,
                interval,
                &source,
                arguments.repetitions,
            )?;
            let name = format!("{size} to {receivers} receivers, {how}");
            let bytes = arguments.size.saturating_mul(u64::from(receivers));
            report.add(summary(name, &rounds, bytes).beside(&floor));
        }
    }
    report.add(floor);
    Ok(report)
}

fn summary(name: String, rounds: &[Round], bytes: u64) -> Measurement {
    let totals: Vec<_> = rounds.iter().map(|round| round.total).collect();
    let count = rounds.first().map_or(0, |round| round.receivers.len());
    let of_receiver = |receiver: usize| {
        let samples: Vec<_> =
            rounds.iter().filter_map(|round| round.receivers.get(receiver).copied()).collect();
        median_s(&samples)
    };
    let receivers_s: Vec<_> = (0..count).map(of_receiver).collect();
    Measurement::new(name, &totals).moving(bytes).with_broadcast(Broadcast {
        last_s: receivers_s.last().copied().unwrap_or_default(),
        receivers_s,
        origin_sent_objects: median(rounds.iter().map(|round| round.origin_sent_objects).collect()),
    })
}

fn rounds(
    clients: &[Client],
    receivers: usize,
    interval: Duration,
    source: &[u8],
    repetitions: u32,
) -> anyhow::Result<Vec<Round>> {
    let (origin, others) = clients.split_first().context("a cluster without nodes")?;
    let receivers = others.get(..receivers).context("more receivers than nodes")?;
    let mut rounds = Vec::new();
    for repetition in 0..=repetitions {
        let round = broadcast(origin, receivers, interval, source)?;
        if repetition > 0 {
            rounds.push(round);
        }
    }
    Ok(rounds)
}

fn broadcast(
    origin: &Client,
    receivers: &[Client],
    interval: Duration,
    source: &[u8],
) -> anyhow::Result<Round> {
    const ID: &str = "broadcast";
    let options =
        PutOptions { confirm: Confirmation::Confirmed, timeout: TIMEOUT, ..PutOptions::default() };
    origin.put_with(ID, source, options)?;
    let sent_before = origin.status()?.sent_bytes;
    let first = Instant::now() + START_DELAY;
    let times = thread::scope(|scope| {
        let mut arrival = first;
        let threads: Vec<_> = receivers
            .iter()
            .map(|client| {
                let at = arrival;
                arrival += interval;
                scope.spawn(move || receive(client, ID, at, source.len()))
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<_>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a receiver panicked")))
        };
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<(Instant, Instant)>>>()
    })?;
    let sent_bytes = origin.status()?.sent_bytes.saturating_sub(sent_before);
    origin.delete([ID], TIMEOUT)?;
    let started = times.iter().map(|(start, _)| *start).min().context("no receivers")?;
    let ended = times.iter().map(|(_, end)| *end).max().context("no receivers")?;
    Ok(Round {
        total: ended - started,
        receivers: times.iter().map(|(start, end)| *end - *start).collect(),
        origin_sent_objects: sent_bytes as f64 / source.len().max(1) as f64,
    })
}

fn receive(
    client: &Client,
    id: &str,
    at: Instant,
    size_bytes: usize,
) -> anyhow::Result<(Instant, Instant)> {
    thread::sleep(at.saturating_duration_since(Instant::now()));
    let started = Instant::now();
    let view = client.get(id, TIMEOUT)?;
    let ended = Instant::now();
    ensure!(view.len() == size_bytes, "the store returned another size");
    Ok((started, ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_per_receiver() {
        let round = |receivers: &[u64], origin_sent_objects| Round {
            total: Duration::from_secs(*receivers.iter().max().unwrap()),
            receivers: receivers.iter().copied().map(Duration::from_secs).collect(),
            origin_sent_objects,
        };
        let rounds = [round(&[1, 5], 1.0), round(&[2, 4], 2.0), round(&[3, 9], 1.0)];
        let json = serde_json::to_value(summary("x".to_owned(), &rounds, 10)).unwrap();
        assert_eq!(json["broadcast"]["receivers_s"], serde_json::json!([2.0, 5.0]));
        assert_eq!(json["broadcast"]["last_s"], 5.0);
        assert_eq!(json["broadcast"]["origin_sent_objects"], 1.0);
        assert_eq!(json["median_s"], 5.0);
    }
}
