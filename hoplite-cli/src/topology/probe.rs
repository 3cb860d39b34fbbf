use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::TypedValueParser;
use hoplite_client::{AppliedPlaces, NodeId, ProbeReport};
use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::probe::survey::{Bandwidth, SurveyOptions};
use hoplite_core::topology::probe::{MAX_PROBES, Probes};
use serde::Serialize;

use super::show;
use crate::arguments::StoreArguments;
use crate::{output, progress};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the matrix to this file, for the other verbs
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Measure only these nodes [default: all nodes that are connected to the directory]
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', value_parser = node_parser())]
    nodes: Vec<NodeId>,
    /// Echoes of each pair: auto stops when their 10th percentile is stable
    #[arg(long, value_name = "auto|COUNT", default_value = "auto", value_parser = parse_probes)]
    probes: Probes,
    /// Send trains of bytes between all pairs, one pair after another, instead of only from each
    /// node to the next
    #[arg(long)]
    bandwidth: bool,
    /// Also send trains between all pairs of a round at once, six times. This finds uplinks with
    /// less bandwidth than their hosts together, and disturbs other users of the network
    #[arg(long)]
    loaded: bool,
    /// Use the result in the directory and the stores: the groups, nested in the groups of labels,
    /// and the bandwidth of uplinks. It replaces the previous result, so that nodes lost during the
    /// probe are in no group. Implies --loaded
    #[arg(long, conflicts_with = "nodes")]
    apply: bool,
    /// Print the matrix and the remarks as JSON
    #[arg(long)]
    json: bool,
}

/// A matrix of links, for other commands, and details of the probe.
#[derive(Debug, Serialize)]
struct Document<'a> {
    nodes: &'a [String],
    alpha_ns: Vec<Vec<u32>>,
    ps_per_byte: Vec<Vec<u32>>,
    lost: Vec<Lost<'a>>,
    guessed: &'a [(u32, u32)],
    estimated: u64,
    by_tcp: u32,
    echoes: u64,
    lost_echoes: u64,
    train_bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<Applied>,
}

#[derive(Debug, Serialize)]
struct Applied {
    version: u64,
    groups: u32,
    uplink_permille: Option<u32>,
    shards: u32,
    all_shards: u32,
    nodes: u32,
    labelled_nodes: u32,
}

#[derive(Debug, Serialize)]
struct Lost<'a> {
    node: &'a str,
    reason: &'a str,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let bandwidth = if arguments.bandwidth { Bandwidth::Pairs } else { Bandwidth::Nodes };
    let (loaded, apply) = (arguments.loaded || arguments.apply, arguments.apply);
    let options = SurveyOptions { probes: arguments.probes, bandwidth, loaded, apply };
    let client = store.connect().await?;
    let bar = progress::of_steps("probe");
    let report = client
        .probe(arguments.nodes, options, |progress| {
            bar.set_length(progress.steps);
            bar.set_position(progress.done);
        })
        .await;
    bar.finish_and_clear();
    let report = report?;
    if let Some(path) = &arguments.output {
        let text = serde_json::to_string(&Document::of(&report))?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let mut stdout = io::stdout().lock();
    if arguments.json {
        return Ok(output::json(&mut stdout, &Document::of(&report))?);
    }
    let links = Links::new(&report.matrix, 0)?;
    let dendrogram = Dendrogram::new(links);
    let order = dendrogram.leaves_by_ends(links);
    show::print(&mut stdout, links, &order, &dendrogram)?;
    for line in remarks(&report) {
        writeln!(stdout, "{line}")?;
    }
    Ok(stdout.flush()?)
}

impl<'a> Document<'a> {
    fn of(report: &'a ProbeReport) -> Self {
        let matrix = &report.matrix;
        let rows = |entry: &dyn Fn(usize, usize) -> u32| -> Vec<Vec<u32>> {
            let nodes = || 0..matrix.len();
            nodes().map(|row| nodes().map(|column| entry(row, column)).collect()).collect()
        };
        Self {
            nodes: matrix.nodes(),
            alpha_ns: rows(&|a, b| matrix.link(a, b).alpha_ns),
            ps_per_byte: rows(&|a, b| matrix.link(a, b).ps_per_byte),
            lost: report.lost.iter().map(|(node, reason)| Lost { node, reason }).collect(),
            guessed: &report.guessed,
            estimated: report.estimated,
            by_tcp: report.by_tcp,
            echoes: report.echoes,
            lost_echoes: report.lost_echoes,
            train_bytes: report.train_bytes,
            seconds: report.elapsed.as_secs_f64(),
            applied: report.applied.map(|applied| {
                let AppliedPlaces { version, groups, uplink_permille, shards, .. } = applied;
                let AppliedPlaces { all_shards, nodes, labelled_nodes, .. } = applied;
                Applied {
                    version,
                    groups,
                    uplink_permille,
                    shards,
                    all_shards,
                    nodes,
                    labelled_nodes,
                }
            }),
        }
    }
}

fn remarks(report: &ProbeReport) -> Vec<String> {
    let names = report.matrix.nodes();
    let mut lines = vec![format!(
        "{} nodes in {:.1} s: {} echoes, {} lost; {} in trains",
        names.len(),
        report.elapsed.as_secs_f64(),
        report.echoes,
        report.lost_echoes,
        output::size(report.train_bytes)
    )];
    lines.extend(report.lost.iter().map(|(node, reason)| format!("without {node}: {reason}")));
    let guessed = |&(low, high): &(u32, u32)| {
        let (low, high) = (&names[low as usize], &names[high as usize]);
        format!("{low} and {high} have not reached each other: their entry is a guess")
    };
    lines.extend(report.guessed.iter().map(guessed));
    if let (Some(blocks), 1..) = (report.matrix.blocks(), report.estimated) {
        lines.push(format!(
            "{} pairs are estimates: between each two of {} groups of nodes, at most three measured \
             pairs represent all",
            report.estimated,
            blocks.len()
        ));
    }
    if report.by_tcp > 0 {
        lines.push(format!(
            "{} pairs were measured over TCP, since no datagram came back",
            report.by_tcp
        ));
    }
    lines.extend(report.applied.map(applied_line));
    lines
}

fn applied_line(applied: AppliedPlaces) -> String {
    let AppliedPlaces {
        version,
        groups,
        uplink_permille,
        shards,
        all_shards,
        nodes,
        labelled_nodes,
    } = applied;
    let found = match (uplink_permille, nodes, labelled_nodes) {
        _ if shards == 0 => "what was applied meanwhile is newer".to_owned(),
        (None, ..) => "no groups, since no links are much slower than others".to_owned(),
        (Some(_), 0, labelled) => {
            format!(
                "{groups} groups, of no effect, since all {labelled} nodes stay in the groups of their labels"
            )
        }
        (Some(permille), _, labelled) => {
            let links = f64::from(permille) / 1000.0;
            let found = format!("{groups} groups, whose uplinks carry {links} of a host's link");
            if labelled == 0 {
                found
            } else {
                format!("{found}; {labelled} nodes stay in the groups of their labels")
            }
        }
    };
    format!("applied at {shards} of {all_shards} shards, version {version}: {found}")
}

fn parse_probes(text: &str) -> anyhow::Result<Probes> {
    if text == "auto" {
        return Ok(Probes::Auto);
    }
    match text.parse() {
        Ok(count) if (1..=MAX_PROBES).contains(&count) => Ok(Probes::Count(count)),
        _ => anyhow::bail!("auto, or a number from 1 to {MAX_PROBES}"),
    }
}

fn node_parser() -> impl TypedValueParser<Value = NodeId> {
    clap::builder::StringValueParser::new().try_map(|text| NodeId::new(&text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hoplite_core::topology::blocks::Blocks;
    use hoplite_core::topology::{Link, Matrix};

    use super::*;

    fn report() -> ProbeReport {
        let names = ["a", "b", "c"].map(str::to_owned).into();
        let link = |high, low| {
            Ok(Link { alpha_ns: 10 * high as u32 + low as u32, ps_per_byte: 800 + high as u32 })
        };
        ProbeReport {
            matrix: Matrix::from_links(names, link).unwrap(),
            lost: vec![("d".to_owned(), "its connection ended".to_owned())],
            guessed: vec![(0, 2)],
            estimated: 0,
            by_tcp: 1,
            echoes: 512,
            lost_echoes: 3,
            train_bytes: 1 << 20,
            elapsed: Duration::from_millis(1500),
            applied: None,
        }
    }

    #[test]
    fn a_document_is_a_matrix_for_the_other_verbs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.json");
        let report = report();
        fs::write(&path, serde_json::to_string(&Document::of(&report)).unwrap()).unwrap();
        assert_eq!(hoplite_topology::files::matrix(&path).unwrap(), report.matrix);
    }

    #[test]
    fn what_is_not_measured_is_said() {
        let text = remarks(&report()).join("\n");
        for part in
            ["512 echoes, 3 lost; 1.0 MiB", "without d: its connection ended", "a and c", "1 pairs"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn estimates_are_said_to_be_some() {
        let blocks = Blocks::new(&[0, 1, 1]).unwrap();
        let links =
            vec![Link { alpha_ns: 20, ps_per_byte: 800 }, Link { alpha_ns: 40, ps_per_byte: 800 }];
        let names = report().matrix.nodes().to_vec();
        let matrix = Matrix::from_blocks(names, blocks, links).unwrap();
        let report = ProbeReport { matrix, estimated: 1, ..report() };
        let text = remarks(&report).join("\n");
        assert!(text.contains("1 pairs are estimates: between each two of 2 groups"), "{text}");
        let document = Document::of(&report);
        assert_eq!(document.alpha_ns, [[0, 40, 40], [40, 0, 20], [40, 20, 0]]);
        assert_eq!(document.estimated, 1);
    }

    #[test]
    fn what_is_applied_is_said() {
        let applied = AppliedPlaces {
            version: 7,
            groups: 2,
            uplink_permille: Some(260),
            shards: 1,
            all_shards: 2,
            nodes: 8,
            labelled_nodes: 0,
        };
        let line = |uplink_permille, nodes, labelled_nodes| {
            applied_line(AppliedPlaces { uplink_permille, nodes, labelled_nodes, ..applied })
        };
        assert_eq!(
            line(Some(260), 8, 0),
            "applied at 1 of 2 shards, version 7: 2 groups, whose uplinks carry 0.26 of a host's \
             link"
        );
        assert!(
            line(Some(260), 5, 3).ends_with("link; 3 nodes stay in the groups of their labels")
        );
        assert!(
            line(Some(260), 0, 8)
                .ends_with("of no effect, since all 8 nodes stay in the groups of their labels")
        );
        assert!(line(None, 0, 0).contains("no groups"));
        let late = applied_line(AppliedPlaces { shards: 0, nodes: 0, ..applied });
        assert!(late.contains("at 0 of 2 shards") && late.ends_with("newer"), "{late}");
    }

    #[test]
    fn probes_are_a_number_or_auto() {
        assert_eq!(parse_probes("auto").unwrap(), Probes::Auto);
        assert_eq!(parse_probes("10000").unwrap(), Probes::Count(10_000));
        for text in ["", "0", "10001", "-1", "many"] {
            assert!(parse_probes(text).is_err(), "{text}");
        }
    }
}
