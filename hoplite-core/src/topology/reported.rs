//! Slow links that nodes reported.

use std::collections::{BTreeMap, BTreeSet};

use super::live::MIN_REPORTS;
use super::place::Path;
use crate::id::NodeId;

/// Reported slow links.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    nodes: BTreeMap<NodeId, (Path, Vec<NodeId>)>,
    /// Nodes whose links all count as slow, by enough reports of their group.
    slow: BTreeSet<NodeId>,
}

impl Reports {
    /// Collects each node's groups and the peers to which it reports slow links.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, Path, Vec<NodeId>)>) -> Self {
        let nodes: BTreeMap<NodeId, (Path, Vec<NodeId>)> =
            nodes.into_iter().map(|(node, path, peers)| (node, (path, peers))).collect();
        let mut reporters: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for (node, (path, peers)) in &nodes {
            let is_near = |peer: &&NodeId| {
                *peer != node && nodes.get(*peer).is_some_and(|(of, _)| of == path)
            };
            for peer in peers.iter().filter(is_near).collect::<BTreeSet<_>>() {
                *reporters.entry(peer).or_default() += 1;
            }
        }
        let enough = reporters.into_iter().filter(|(_, reporters)| *reporters >= MIN_REPORTS);
        let slow = enough.map(|(node, _)| node.clone()).collect();
        Self { nodes, slow }
    }

    /// Returns `true` if all links of a node count as slow.
    pub fn is_slow_node(&self, node: &NodeId) -> bool {
        self.slow.contains(node)
    }

    /// Returns `true` if `from` reports its link to `to`, or if all links of either node count as
    /// slow. A report counts only within a group, because slow links between groups are expected.
    pub fn is_slow(&self, from: &NodeId, to: &NodeId) -> bool {
        from != to && (self.is_slow_node(from) || self.is_slow_node(to) || self.says(from, to))
    }

    fn says(&self, from: &NodeId, to: &NodeId) -> bool {
        let (Some((path, peers)), Some((other_path, _))) =
            (self.nodes.get(from), self.nodes.get(to))
        else {
            return false;
        };
        path == other_path && peers.contains(to)
    }
}
