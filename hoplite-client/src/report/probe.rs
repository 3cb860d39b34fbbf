use std::time::Duration;

use hoplite_core::topology::blocks::Blocks;
use hoplite_core::topology::{Link, Matrix};
use hoplite_proto::v1;

/// Result of a probe of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// Links between the nodes that stayed in the probe.
    pub matrix: Matrix,
    /// Nodes that left the probe, with the reasons.
    pub lost: Vec<(String, String)>,
    /// Pairs of nodes, by index, that could not reach each other. Their link gets the worst round
    /// trip that either node measured.
    pub guessed: Vec<(u32, u32)>,
    /// Unmeasured pairs in probes of over 2,000 nodes, which get the link of other pairs of their
    /// groups.
    pub estimated: u64,
    /// Pairs measured over TCP.
    pub by_tcp: u32,
    /// Answered round trips.
    pub echoes: u64,
    /// Unanswered round trips.
    pub lost_echoes: u64,
    /// Bytes sent to measure bandwidth.
    pub train_bytes: u64,
    /// Duration of the probe.
    pub elapsed: Duration,
    /// Node groups that daemons now use; `None` if not applied.
    pub applied: Option<AppliedPlaces>,
}

/// Measured groups of nodes and their uplinks, as daemons use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedPlaces {
    /// Version of the node groups. Daemons use the highest one.
    pub version: u64,
    /// Number of innermost groups.
    pub groups: u32,
    /// Capacity of the node groups' uplinks, in thousandths of a host's link; `None` without
    /// groups.
    pub uplink_permille: Option<u32>,
    /// Directory shards that use the node groups.
    pub shards: u32,
    /// Number of all shards.
    pub all_shards: u32,
    /// Nodes in measured groups; at zero, daemons ignore the uplinks' capacity.
    pub nodes: u32,
    /// Measured nodes that stay in the groups of their labels.
    pub labelled_nodes: u32,
}

impl ProbeReport {
    pub(crate) fn decode(probed: v1::Probed) -> Option<Self> {
        let count = probed.nodes.len();
        if probed.alpha_ns.len() != probed.ps_per_byte.len() {
            return None;
        }
        let entries = probed.alpha_ns.iter().zip(&probed.ps_per_byte);
        let mut links = entries.map(|(&alpha_ns, &ps_per_byte)| Link { alpha_ns, ps_per_byte });
        let matrix = if probed.blocks.is_empty() {
            let pairs = count.checked_mul(count.checked_sub(1)?)? / 2;
            if links.len() != pairs {
                return None;
            }
            Matrix::from_links(probed.nodes, |_, _| Ok(links.next().unwrap_or_default()))
        } else {
            let blocks = Blocks::new(&probed.blocks).ok()?;
            Matrix::from_blocks(probed.nodes, blocks, links.collect())
        };
        let is_pair =
            |pair: &v1::probed::Pair| pair.low < pair.high && (pair.high as usize) < count;
        if !probed.guessed.iter().all(is_pair) {
            return None;
        }
        Some(Self {
            matrix: matrix.ok()?,
            lost: probed.lost.into_iter().map(|lost| (lost.node, lost.reason)).collect(),
            guessed: probed.guessed.into_iter().map(|pair| (pair.low, pair.high)).collect(),
            estimated: probed.estimated,
            by_tcp: probed.by_tcp,
            echoes: probed.echoes,
            lost_echoes: probed.lost_echoes,
            train_bytes: probed.train_bytes,
            elapsed: Duration::from_micros(probed.elapsed_us),
            applied: probed.applied.map(|applied| AppliedPlaces {
                version: applied.version,
                groups: applied.groups,
                uplink_permille: Some(applied.uplink_permille).filter(|permille| *permille > 0),
                shards: applied.shards,
                all_shards: applied.all_shards,
                nodes: applied.nodes,
                labelled_nodes: applied.labelled_nodes,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_probe_found_is_checked() {
        let probed = || v1::Probed {
            nodes: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
            alpha_ns: vec![1, 2, 3],
            ps_per_byte: vec![4, 5, 6],
            guessed: vec![v1::probed::Pair { low: 0, high: 2 }],
            ..v1::Probed::default()
        };
        let report = ProbeReport::decode(probed()).unwrap();
        assert_eq!(report.matrix.link(2, 1), Link { alpha_ns: 3, ps_per_byte: 6 });
        assert_eq!(report.guessed, [(0, 2)]);
        let refused = |change: fn(&mut v1::Probed)| {
            let mut probed = probed();
            change(&mut probed);
            ProbeReport::decode(probed).is_none()
        };
        assert!(refused(|probed| probed.nodes.clear()));
        assert!(refused(|probed| probed.nodes[0] = "b".to_owned()));
        assert!(refused(|probed| probed.alpha_ns.truncate(2)));
        assert!(refused(|probed| probed.ps_per_byte.push(7)));
        assert!(refused(|probed| probed.guessed[0].high = 3));
        assert!(refused(|probed| probed.guessed[0].low = 2));
        assert!(refused(|probed| probed.blocks = vec![0, 1, 0]));
        let in_blocks = v1::Probed {
            blocks: vec![0, 1, 0],
            alpha_ns: vec![1, 2],
            ps_per_byte: vec![3, 4],
            estimated: 1,
            ..probed()
        };
        let report = ProbeReport::decode(in_blocks.clone()).unwrap();
        assert_eq!(report.matrix.link(2, 0), Link { alpha_ns: 1, ps_per_byte: 3 });
        assert_eq!(report.matrix.link(2, 1), Link { alpha_ns: 2, ps_per_byte: 4 });
        assert_eq!((report.matrix.link(0, 1), report.estimated), (report.matrix.link(1, 2), 1));
        for blocks in [vec![0, 2, 0], vec![0, 1], vec![0, 1, 0, 0], vec![0, u32::MAX, 0]] {
            assert!(ProbeReport::decode(v1::Probed { blocks, ..in_blocks.clone() }).is_none());
        }
    }
}
