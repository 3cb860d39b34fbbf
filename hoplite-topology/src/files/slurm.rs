//! Reads Slurm's `topology.conf`: switches, and the nodes and switches below them.
//!
//! Each switch on a path counts as [`SWITCH_NS`]: one under a common leaf, three with one switch
//! above, five with two.

use std::collections::BTreeMap;

use hoplite_core::topology::matrix::{MAX_NAME_BYTES, MAX_NODES};
use hoplite_core::topology::{Link, Matrix, TopologyError};
use thiserror::Error;

/// Between a cut-through switch's 1 us and a loaded switch's tens of microseconds.
const SWITCH_NS: u32 = 5_000;
/// Assumed rate of each link: 10 Gbit/s.
const PS_PER_BYTE: u32 = 800;
/// Most switches above a node; a longer path is a cycle.
const MAX_DEPTH: usize = 16;
/// Most digits of a number in a host's name, with leading zeros.
const MAX_DIGITS: usize = 20;

#[derive(Debug, Error)]
pub(super) enum SlurmError {
    #[error("line {line}: {text:?} is not KEY=VALUE")]
    NoPair { line: usize, text: String },
    #[error("line {line} has no SwitchName")]
    NoSwitchName { line: usize },
    #[error("switch {name:?} is named twice")]
    DuplicateSwitch { name: String },
    #[error("{text:?} is not a list of hosts")]
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

pub(super) fn is_configuration(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| {
        line.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("switchname"))
    })
}

pub(super) fn matrix(text: &str) -> Result<Matrix, SlurmError> {
    let Tree { parents, nodes } = read(text)?;
    let paths: Vec<Vec<&str>> =
        nodes.iter().map(|(_, switch)| path(&parents, switch)).collect::<Result<_, _>>()?;
    let names = nodes.iter().map(|(node, _)| node.clone()).collect();
    let mut apart = None;
    let matrix = Matrix::from_links(names, |a, b| {
        let shared = paths[a].iter().zip(&paths[b]).take_while(|(a, b)| a == b).count();
        if shared == 0 {
            apart.get_or_insert((a, b));
        }
        let switches = (paths[a].len() - shared) + (paths[b].len() - shared) + 1;
        Ok(Link { alpha_ns: switches as u32 * SWITCH_NS, ps_per_byte: PS_PER_BYTE })
    })?;
    match apart {
        Some((a, b)) => {
            Err(SlurmError::NotConnected { a: nodes[a].0.clone(), b: nodes[b].0.clone() })
        }
        None => Ok(matrix),
    }
}

#[derive(Debug, Default)]
struct Tree {
    parents: BTreeMap<String, Option<String>>,
    nodes: Vec<(String, String)>,
}

fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let (part, is_more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match lines.last_mut() {
            Some((_, whole)) if goes_on => whole.push_str(part),
            _ => lines.push((index + 1, part.to_owned())),
        }
        goes_on = is_more;
    }
    lines
}

fn read(text: &str) -> Result<Tree, SlurmError> {
    let mut tree = Tree::default();
    let mut below: Vec<(String, String)> = Vec::new();
    for (line_number, line) in lines(text) {
        let mut name = None;
        let (mut nodes, mut switches) = (Vec::new(), Vec::new());
        for pair in line.split_whitespace() {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SlurmError::NoPair {
                    line: line_number,
                    text: pair.chars().take(64).collect(),
                });
            };
            match key.to_ascii_lowercase().as_str() {
                "switchname" => name = Some(value.to_owned()),
                "nodes" => nodes = hosts(value)?,
                "switches" => switches = hosts(value)?,
                // Such as LinkSpeed, which Slurm ignores too.
                _ => {}
            }
        }
        if line.trim().is_empty() {
            continue;
        }
        let name = name.ok_or(SlurmError::NoSwitchName { line: line_number })?;
        if tree.parents.insert(name.clone(), None).is_some() {
            return Err(SlurmError::DuplicateSwitch { name });
        }
        tree.nodes.extend(nodes.into_iter().map(|node| (node, name.clone())));
        below.extend(switches.into_iter().map(|switch| (switch, name.clone())));
        if tree.nodes.len() > MAX_NODES || below.len() > MAX_NODES {
            return Err(
                TopologyError::TooManyNodes { count: tree.nodes.len().max(below.len()) }.into()
            );
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

/// Expands `a,rack[1-3,07-09]n,r[0-1]n[0-3]`.
fn hosts(text: &str) -> Result<Vec<String>, SlurmError> {
    let bad = || SlurmError::HostList { text: text.chars().take(64).collect() };
    let mut names = Vec::new();
    let mut depth = 0;
    let entries = text.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    for entry in entries {
        names.extend(expand(entry).ok_or_else(bad)?);
        if names.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes { count: names.len() }.into());
        }
    }
    Ok(names)
}

fn expand(entry: &str) -> Option<Vec<String>> {
    if entry.is_empty() {
        return None;
    }
    let mut names = vec![String::new()];
    let mut rest = entry;
    while let Some((plain, after)) = rest.split_once('[') {
        let (ranges, more) = after.split_once(']')?;
        let numbers = numbers(ranges)?;
        let is_long = names[0].len() + plain.len() > MAX_NAME_BYTES;
        if is_long || plain.contains(']') || names.len() * numbers.len() > MAX_NODES {
            return None;
        }
        let with = |name: &String| -> Vec<String> {
            numbers.iter().map(|number| format!("{name}{plain}{number}")).collect()
        };
        names = names.iter().flat_map(with).collect();
        rest = more;
    }
    if rest.len() > MAX_NAME_BYTES || rest.contains(']') {
        return None;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Some(names)
}

fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (start, end): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let width = first.len();
        if end < start || (end - start) as usize >= MAX_NODES || width > MAX_DIGITS {
            return None;
        }
        numbers.extend((start..=end).map(|number| format!("{number:0width$}")));
        if numbers.len() > MAX_NODES {
            return None;
        }
    }
    Some(numbers)
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
        assert_eq!(hosts("r[0-1]n[08,10]x").unwrap(), ["r0n08x", "r0n10x", "r1n08x", "r1n10x"]);
        for text in [
            "",
            "a,",
            "n[",
            "n[1",
            "n[1-",
            "n[2-1]",
            "n[a-b]",
            "n]",
            "n[1]]",
            "n[1]m]",
            "n[[1]]",
            "n[]",
            "n[1,]",
            "n[0-99999999]",
            "n[+1-2]",
            "r[0-999]n[0-999]",
            &format!("n[{}1-9999]", "0".repeat(100)),
            &format!("{}[1-9999]", "n".repeat(5000)),
            &"a,".repeat(20_000),
        ] {
            assert!(hosts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_backslash_continues_a_line() {
        let text = "SwitchName=leaf1 \\\n  Nodes=a,\\\nb # a comment\nSwitchName=x Nodes";
        assert_eq!(lines(text).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 4]);
        assert!(matrix(text).unwrap_err().to_string().contains("line 4"));
        let whole = matrix(text.split("\nSwitchName=x").next().unwrap()).unwrap();
        assert_eq!(whole.nodes(), ["a", "b"]);
    }

    #[test]
    fn configurations_that_are_not_a_tree_are_refused() {
        for (text, reason) in [
            ("SwitchName=a Nodes=x\nSwitchName=b Nodes=y", "no switch in common"),
            ("SwitchName=a Nodes=x Switches=b", "no line describes"),
            ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", "twice"),
            ("SwitchName=a Nodes=x\nSwitchName=b Switches=a\nSwitchName=c Switches=a", "below two"),
            ("SwitchName=a Nodes=x Switches=b\nSwitchName=b Switches=a", "below itself"),
            ("SwitchName=a Nodes=x,x", "twice"),
            ("SwitchName=a\nNodes=x", "no SwitchName"),
            ("SwitchName=a Nodes", "not KEY=VALUE"),
            ("SwitchName=a", "no nodes"),
        ] {
            let error = matrix(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
