mod arrays;
mod round;

use std::time::Duration;

use anyhow::{Context, ensure};
use hoplite_client::blocking::Client;

use super::floor::TcpPipe;
use super::report::{Measurement, Report, Traffic, median};
use super::{Room, SPARE_BYTES};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;
use arrays::Arrays;
use round::{Round, Sample, Taken};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Size of each array
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    size: u64,
    /// Number of nodes with one array each; several numbers for several measurements
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "2,4,8,16",
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    nodes: Vec<u32>,
    /// Number of repetitions of each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

impl Arguments {
    /// Each node needs memory for its array, intermediate results, the target and copies of parts.
    /// The first node also stores all other arrays.
    pub(super) fn room(&self) -> Room {
        let nodes = self.nodes.iter().copied().max().unwrap_or(2);
        let each_bytes = 5 * self.size + SPARE_BYTES;
        Room { nodes, each_bytes, first_bytes: each_bytes + self.size * u64::from(nodes) }
    }
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    ensure!(
        arguments.size.is_multiple_of(4),
        "the size must be a whole number of elements, of 4 bytes each"
    );
    let clients = cluster
        .nodes
        .iter()
        .map(|node| Client::connect(&node.socket))
        .collect::<Result<Vec<_>, _>>()?;
    let arrays = Arrays::new(usize::try_from(arguments.size)?, clients.len());
    let mut pipe = TcpPipe::open(arrays.of(0).len())?;
    let size = output::size(arguments.size);
    let mut report = Report::new("reduce");
    report.note(format!("Every node has an array of {size} of f32; the first one gets their sum."));
    report.note(
        "Get all and add: the first node gets views of all arrays at once, then adds them on one \
         core.",
    );
    report.note(
        "Reduce and broadcast: all nodes get the sum while it grows, or after it is complete.",
    );
    report.note("Allreduce and get copy into the callers' buffers. GB/S counts one array.");
    report.note("All nodes share the processors of this machine.");
    for &nodes in &arguments.nodes {
        let participants =
            clients.get(..usize::try_from(nodes)?).context("more participants than nodes")?;
        let round = Round::new(participants, &arrays)?;
        round.check(&mut pipe)?;
        let mut samples = Vec::new();
        for _ in 0..arguments.repetitions {
            samples.push(round.run(&mut pipe)?);
        }
        summarise(&mut report, nodes, arguments.size, &samples);
    }
    Ok(report)
}

fn summarise(report: &mut Report, nodes: u32, size_bytes: u64, samples: &[Sample]) {
    let what = |what: &str| format!("{what}, {nodes} x {}", output::size(size_bytes));
    let timed = |name: String, time: fn(&Sample) -> Duration| {
        Measurement::new(name, &samples.iter().map(time).collect::<Vec<_>>()).moving(size_bytes)
    };
    let taken = |name: &str, taken: fn(&Sample) -> Taken| {
        let elapsed: Vec<_> = samples.iter().map(|sample| taken(sample).elapsed).collect();
        let of_traffic = |count: fn(&Traffic) -> f64| {
            median(samples.iter().map(|sample| count(&taken(sample).traffic)).collect())
        };
        Measurement::new(what(name), &elapsed).moving(size_bytes).with_traffic(Traffic {
            sent_objects: of_traffic(|traffic| traffic.sent_objects),
            received_objects: of_traffic(|traffic| traffic.received_objects),
        })
    };
    let stream = timed(format!("one raw TCP stream, beside {nodes} nodes"), |sample| sample.stream);
    let in_turn = taken("reduce, then broadcast", |sample| sample.in_turn);
    report.add(taken("reduce", |sample| sample.reduce).beside(&stream));
    report.add(timed(what("get all and add"), |sample| sample.gather_and_add).beside(&stream));
    report.add(taken("gather", |sample| sample.gather).beside(&stream));
    report.add(taken("reduce and broadcast", |sample| sample.composed).beside(&in_turn));
    report.add(in_turn.beside(&stream));
    report.add(taken("allreduce", |sample| sample.allreduce).beside(&stream));
    report.add(stream);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_has_room_for_all_arrays() {
        let arguments = Arguments { size: 10, nodes: vec![4, 2], repetitions: 1 };
        let Room { nodes, each_bytes, first_bytes } = arguments.room();
        assert_eq!((nodes, first_bytes - each_bytes), (4, 40));
    }

    #[test]
    fn every_way_is_in_the_report() {
        let taken = |milliseconds, sent_objects| Taken {
            elapsed: Duration::from_millis(milliseconds),
            traffic: Traffic { sent_objects, received_objects: 2.0 },
        };
        let sample = Sample {
            stream: Duration::from_millis(10),
            reduce: taken(20, 1.5),
            gather: taken(30, 1.0),
            gather_and_add: Duration::from_millis(40),
            in_turn: taken(50, 1.0),
            composed: taken(25, 1.0),
            allreduce: taken(60, 1.0),
        };
        let mut report = Report::new("reduce");
        summarise(&mut report, 3, 1 << 20, &[sample]);
        let json = serde_json::to_value(&report).unwrap();
        let measurements = json["measurements"].as_array().unwrap();
        assert_eq!(measurements.len(), 7);
        assert_eq!(measurements[0]["name"], "reduce, 3 x 1.0 MiB");
        assert_eq!(measurements[0]["beside"]["times"], 2.0);
        assert_eq!(measurements[0]["traffic"]["sent_objects"], 1.5);
        assert_eq!(measurements[3]["beside"]["times"], 0.5);
    }
}
