//! Slurm's `topology.conf`: switches, the nodes and the switches below each.
//!
//! It says nothing of latency. Each switch on the way between two nodes is taken for one of [`SWITCH_NS`], which gives orders by the
//! tree: one under the same leaf switch, three by one switch above, five by two.

use std::collections::BTreeMap;

use hoplite_core::topology::matrix::MAX_NODES;
use hoplite_core::topology::{Link, Matrix, TopologyError};
use thiserror::Error;

/// What a switch on the way adds, assumed: between the 1 us of a cut-through switch and the tens of a loaded one.
const SWITCH_NS: u32 = 5_000;
/// What a byte takes at 10 Gbit/s, assumed on all links.
const PS_PER_BYTE: u32 = 800;
/// Levels of switches; a cycle has more.
const MAX_DEPTH: usize = 16;

/// Why a configuration is no tree of nodes.
#[derive(Debug, Error)]
pub(super) enum SlurmError {
    #[error("line {line}: {text:?} is no KEY=VALUE")]
    NoPair { line: usize, text: String },
    #[error("line {line} has no SwitchName")]
    NoSwitchName { line: usize },
    #[error("switch {name:?} is named twice")]
    DuplicateSwitch { name: String },
    #[error("{text:?} is no list of hosts")]
    HostList { text: String },
    #[error("no line describes switch {name:?}")]
    UnknownSwitch { name: String },
    #[error("switch {name:?} is below two others, or below itself")]
    NotATree { name: String },
    #[error("nodes {a:?} and {b:?} have no switch in common")]
    NotConnected { a: String, b: String },
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Whether a text looks like a `topology.conf`.
pub(super) fn is_configuration(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| line.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("switchname")))
}

/// The matrix of all nodes, in the order in which they are named.
pub(super) fn matrix(text: &str) -> Result<Matrix, SlurmError> {
    let Tree { parents, nodes } = read(text)?;
    let paths: Vec<Vec<&str>> =
        nodes.iter().map(|(_, switch)| path(&parents, switch)).collect::<Result<_, _>>()?;
    let names = nodes.iter().map(|(node, _)| node.clone()).collect();
    let mut apart = None;
    let matrix = Matrix::from_links(names, |a, b| {
        // Paths are from the root, so what they share is at their beginning.
        let shared = paths[a].iter().zip(&paths[b]).take_while(|(a, b)| a == b).count();
        if shared == 0 {
            apart.get_or_insert((a, b));
        }
        let switches = (paths[a].len() - shared) + (paths[b].len() - shared) + 1;
        Ok(Link { alpha_ns: switches as u32 * SWITCH_NS, ps_per_byte: PS_PER_BYTE })
    })?;
    match apart {
        Some((a, b)) => Err(SlurmError::NotConnected { a: nodes[a].0.clone(), b: nodes[b].0.clone() }),
        None => Ok(matrix),
    }
}

#[derive(Debug, Default)]
struct Tree {
    /// Of each switch the one above it.
    parents: BTreeMap<String, Option<String>>,
    /// With the switch of each.
    nodes: Vec<(String, String)>,
}

fn read(text: &str) -> Result<Tree, SlurmError> {
    let mut tree = Tree::default();
    let mut below: Vec<(String, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let mut name = None;
        let (mut nodes, mut switches) = (Vec::new(), Vec::new());
        for pair in line.split('#').next().unwrap_or_default().split_whitespace() {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SlurmError::NoPair { line: line_number, text: pair.chars().take(64).collect() });
            };
            match key.to_ascii_lowercase().as_str() {
                "switchname" => name = Some(value.to_owned()),
                "nodes" => nodes = hosts(value)?,
                "switches" => switches = hosts(value)?,
                // LinkSpeed, which Slurm does not use either.
                _ => {}
            }
        }
        if line.split('#').next().unwrap_or_default().trim().is_empty() {
            continue;
        }
        let name = name.ok_or(SlurmError::NoSwitchName { line: line_number })?;
        if tree.parents.insert(name.clone(), None).is_some() {
            return Err(SlurmError::DuplicateSwitch { name });
        }
        tree.nodes.extend(nodes.into_iter().map(|node| (node, name.clone())));
        below.extend(switches.into_iter().map(|switch| (switch, name.clone())));
        if tree.nodes.len() > MAX_NODES || below.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes { count: tree.nodes.len().max(below.len()) }.into());
        }
    }
    for (switch, above) in below {
        match tree.parents.get_mut(&switch) {
            None => return Err(SlurmError::UnknownSwitch { name: switch }),
            Some(Some(_)) => return Err(SlurmError::NotATree { name: switch }),
            Some(parent) => *parent = Some(above),
        }
    }
    Ok(tree)
}

/// The switches above a node, from the root on.
fn path<'a>(
    parents: &'a BTreeMap<String, Option<String>>,
    leaf: &'a str,
) -> Result<Vec<&'a str>, SlurmError> {
    let mut path = vec![leaf];
    while let Some(Some(above)) = parents.get(path[path.len() - 1]) {
        if path.len() == MAX_DEPTH {
            return Err(SlurmError::NotATree { name: leaf.to_owned() });
        }
        path.push(above);
    }
    path.reverse();
    Ok(path)
}

/// The names of a list such as `a,rack[1-3,07-09]n`.
fn hosts(text: &str) -> Result<Vec<String>, SlurmError> {
    let bad = || SlurmError::HostList { text: text.chars().take(64).collect() };
    let mut names = Vec::new();
    let mut depth = 0;
    let entries = text.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    for entry in entries {
        let Some((prefix, rest)) = entry.split_once('[') else {
            if entry.is_empty() || entry.contains(']') {
                return Err(bad());
            }
            names.push(entry.to_owned());
            continue;
        };
        let (ranges, suffix) = rest.split_once(']').ok_or_else(bad)?;
        if suffix.contains(['[', ']']) || ranges.contains('[') {
            return Err(bad());
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(first) || !digits(last) {
                return Err(bad());
            }
            let (start, end): (u64, u64) =
                (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
            if end < start || (end - start) as usize >= MAX_NODES || names.len() > MAX_NODES {
                return Err(bad());
            }
            let width = first.len();
            names.extend((start..=end).map(|number| format!("{prefix}{number:0width$}{suffix}")));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_RACKS: &str = "# made by hand
SwitchName=leaf1 Nodes=n[01-02],head LinkSpeed=100
SwitchName=leaf2 Nodes=n[03-04]

SwitchName=spine Switches=leaf[1-2]
";

    #[test]
    fn nodes_are_as_far_as_the_switches_between_them() {
        assert!(is_configuration(TWO_RACKS));
        assert!(!is_configuration("rtt_us,a,b"));
        let matrix = matrix(TWO_RACKS).unwrap();
        assert_eq!(matrix.nodes(), ["n01", "n02", "head", "n03", "n04"]);
        assert_eq!(matrix.link(0, 2).alpha_ns, SWITCH_NS);
        assert_eq!(matrix.link(2, 3).alpha_ns, 3 * SWITCH_NS);
    }

    #[test]
    fn lists_of_hosts_have_ranges() {
        assert_eq!(hosts("a,r[1-2,10]n,b").unwrap(), ["a", "r1n", "r2n", "r10n", "b"]);
        assert_eq!(hosts("n[08-11]").unwrap(), ["n08", "n09", "n10", "n11"]);
        for text in
            ["", "a,", "n[", "n[1", "n[1-", "n[2-1]", "n[a-b]", "n]", "n[1][2]", "n[0-99999999]", "n[+1-2]"]
        {
            assert!(hosts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for (text, reason) in [
            ("SwitchName=a Nodes=x\nSwitchName=b Nodes=y", "no switch in common"),
            ("SwitchName=a Nodes=x Switches=b", "no line describes"),
            ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", "twice"),
            ("SwitchName=a Nodes=x\nSwitchName=b Switches=a\nSwitchName=c Switches=a", "below two"),
            ("SwitchName=a Nodes=x Switches=b\nSwitchName=b Switches=a", "below itself"),
            ("SwitchName=a Nodes=x,x", "twice"),
            ("SwitchName=a\nNodes=x", "no SwitchName"),
            ("SwitchName=a Nodes", "no KEY=VALUE"),
            ("SwitchName=a", "no nodes"),
        ] {
            let error = matrix(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
