use std::time::{Duration, Instant};

use anyhow::ensure;
use hoplite_client::blocking::Client;
use hoplite_client::{Confirmation, PutOptions};
use hoplite_daemon::Security;
use hoplite_net::Route;
use hoplite_net::opening::Caller;
use hoplite_proto::v1;
use tonic::transport::{Channel, Endpoint};

use super::floor::TcpPipe;
use super::processor;
use super::report::{Measurement, Report};
use crate::arguments::parse_size;
use crate::cluster::Cluster;
use crate::output;

const TIMEOUT: Duration = Duration::from_secs(60);
/// The first round is a warm-up.
const ROUNDS: u32 = 11;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Size of the large object
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(super) size: u64,
    /// Size of the small objects
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    small_size: u64,
    /// Number of small objects
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    samples: u32,
    /// Number of transfers of the large object
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let [origin, receiver] = cluster.nodes.as_slice() else {
        anyhow::bail!("two nodes are needed")
    };
    let pids = [origin.pid, receiver.pid];
    let origin = Client::connect(&origin.socket)?;
    let receiver = Client::connect(&receiver.socket)?;
    let mut report = Report::new("p2p");
    small(cluster, &origin, &receiver, arguments, &mut report)?;
    large(&pids, &origin, &receiver, arguments, &mut report)?;
    Ok(report)
}

fn confirmed() -> PutOptions {
    PutOptions { confirm: Confirmation::Confirmed, timeout: TIMEOUT, ..PutOptions::default() }
}

fn small(
    cluster: &Cluster,
    origin: &Client,
    receiver: &Client,
    arguments: &Arguments,
    report: &mut Report,
) -> anyhow::Result<()> {
    let bytes = vec![7; usize::try_from(arguments.small_size)?];
    let mut directory = GrpcCaller::connect(cluster)?;
    let per_round = arguments.samples.div_ceil(ROUNDS - 1);
    let (mut calls, mut gets) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round == 1 {
            calls.clear();
            gets.clear();
        }
        let ids: Vec<_> = (0..per_round).map(|number| format!("small/{number}")).collect();
        for id in &ids {
            origin.put_with(id, &bytes, confirmed())?;
        }
        for _ in 0..per_round {
            calls.push(directory.call()?);
        }
        for id in &ids {
            let started = Instant::now();
            let view = receiver.get(id, TIMEOUT)?;
            gets.push(started.elapsed());
            ensure!(*view == *bytes, "the store returned other bytes");
        }
        origin.delete(&ids, TIMEOUT)?;
    }
    let size = output::size(arguments.small_size);
    let floor = Measurement::new("gRPC unary call", &calls);
    report.note(format!(
        "{size}: each get is the first on its node; the gRPC call is the directory's Status, over \
         one connection."
    ));
    report.add(Measurement::new(format!("{size} get from another node"), &gets).beside(&floor));
    report.add(floor);
    Ok(())
}

fn large(
    pids: &[u32],
    origin: &Client,
    receiver: &Client,
    arguments: &Arguments,
    report: &mut Report,
) -> anyhow::Result<()> {
    let source = vec![7; usize::try_from(arguments.size)?];
    let mut pipe = TcpPipe::open(source.len())?;
    let own = [std::process::id()];
    let (mut streams, mut stream_costs) = (Vec::new(), Vec::new());
    let (mut gets, mut get_costs) = (Vec::new(), Vec::new());
    for round in 0..=arguments.repetitions {
        let id = format!("large/{round}");
        origin.put_with(&id, &source, confirmed())?;

        let before = processor::time_of(&own)?;
        let stream = pipe.transfer(&source)?;
        let stream_cost = processor::time_of(&own)?.saturating_sub(before);

        let before = processor::time_of(pids)?;
        let started = Instant::now();
        let view = receiver.get(&id, TIMEOUT)?;
        let get = started.elapsed();
        let get_cost = processor::time_of(pids)?.saturating_sub(before);
        ensure!(*view == *source, "the store returned other bytes");
        drop(view);
        origin.delete([&id], TIMEOUT)?;
        if round > 0 {
            streams.push(stream);
            stream_costs.push(stream_cost);
            gets.push(get);
            get_costs.push(get_cost);
        }
    }
    let size = output::size(arguments.size);
    report.note(format!(
        "{size}: CPU S covers both stores for the get, with checksums, and both threads for the \
         stream."
    ));
    let floor = Measurement::new(format!("{size} over one raw TCP stream"), &streams)
        .moving(arguments.size)
        .costing(&stream_costs);
    report.add(
        Measurement::new(format!("{size} get from another node"), &gets)
            .moving(arguments.size)
            .costing(&get_costs)
            .beside(&floor),
    );
    report.add(floor);
    Ok(())
}

struct GrpcCaller {
    runtime: tokio::runtime::Runtime,
    directory: v1::directory_client::DirectoryClient<Channel>,
}

impl GrpcCaller {
    fn connect(cluster: &Cluster) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let address = cluster.shards.first().map_or("", String::as_str);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        let credentials = Security::from_environment().credentials()?;
        let channel = runtime
            .block_on(async { credentials.channel(&endpoint, Caller::default(), Route::Network) });
        Ok(Self { runtime, directory: v1::directory_client::DirectoryClient::new(channel) })
    }

    fn call(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.runtime.block_on(self.directory.status(v1::StatusRequest::default()))?;
        Ok(started.elapsed())
    }
}
