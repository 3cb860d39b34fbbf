//! Reads matrices and orders from files.

mod csv;
mod slurm;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use hoplite_core::topology::{Matrix, TopologyError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A matrix of the most nodes that there may be has 2 x 10^8 entries; with ten bytes for each it is as large.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// A matrix, and what its file says of groups of nodes.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) matrix: Matrix,
    /// The names of the groups of each node, outermost first.
    pub(super) groups: Option<Vec<Vec<String>>>,
    /// What their uplinks carry at each level, outermost first, in links of a node.
    pub(super) uplinks: Option<Vec<f64>>,
}

/// Reads a matrix in whatever form.
pub(super) fn matrix(path: &Path) -> anyhow::Result<Matrix> {
    Ok(fabric(path)?.matrix)
}

/// Reads a matrix in whatever form: JSON starts with a brace, or is a document of the wrong shape; a `topology.conf` has switches, all else
/// is CSV. Spreadsheets begin a file with a byte order mark.
pub(super) fn fabric(path: &Path) -> anyhow::Result<Fabric> {
    let text = text(path)?;
    let text = text.trim_start_matches('\u{feff}');
    let plain = |matrix| Fabric { matrix, groups: None, uplinks: None };
    let fabric = if text.trim_start().starts_with(['{', '[']) {
        json_fabric(text)
    } else if slurm::is_configuration(text) {
        slurm::matrix(text).map(plain).map_err(anyhow::Error::from)
    } else {
        csv::matrix(text).map(plain).map_err(anyhow::Error::from)
    };
    fabric.with_context(|| path.display().to_string())
}

/// Reads the order of `nodes` ranks: a list of the nodes' indices, or an object that has one as `order`, as the verb of that name
/// prints it; `identity` is that of the matrix.
pub(super) fn order(argument: &Path, nodes: usize) -> anyhow::Result<Vec<u32>> {
    if argument.as_os_str() == "identity" {
        return Ok((0..nodes as u32).collect());
    }
    let entries = match json(argument)? {
        OrderFile::List(entries) | OrderFile::Result { order: entries } => entries,
    };
    let entry = |(rank, node)| u32::try_from(node).map_err(|_| TopologyError::NotAPermutation { rank, node });
    let order: Result<_, _> = entries.into_iter().enumerate().map(entry).collect();
    order.with_context(|| argument.display().to_string())
}

/// Reads a JSON document.
pub(super) fn json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = text(path)?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an order is a list of the nodes' indices")]
enum OrderFile {
    List(Vec<u64>),
    Result { order: Vec<u64> },
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a matrix is an object with nodes, alpha_ns and ps_per_byte")]
struct MatrixFile {
    nodes: Vec<Name>,
    alpha_ns: Vec<Vec<Entry>>,
    ps_per_byte: Vec<Vec<Entry>>,
    groups: Option<Vec<Vec<Name>>>,
    uplinks: Option<Vec<f64>>,
}

/// A name; also a number, for nodes that have no other.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a node's name is a text or a number")]
enum Name {
    Text(String),
    Number(u64),
}

/// An entry; `null` is a missing one, for which NaN stands.
#[derive(Debug)]
struct Entry(f64);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Option::deserialize(deserializer)?.unwrap_or(f64::NAN)))
    }
}

fn json_fabric(text: &str) -> anyhow::Result<Fabric> {
    let file: MatrixFile = serde_json::from_str(text)?;
    let name = |name| match name {
        Name::Text(text) => text,
        Name::Number(number) => number.to_string(),
    };
    let rows = |rows: Vec<Vec<Entry>>| -> Vec<Vec<f64>> {
        rows.into_iter().map(|row| row.into_iter().map(|Entry(number)| number).collect()).collect()
    };
    let nodes = file.nodes.into_iter().map(name).collect();
    let matrix = Matrix::from_rows(nodes, &rows(file.alpha_ns), &rows(file.ps_per_byte))?;
    let names = |groups: Vec<Name>| groups.into_iter().map(name).collect();
    let groups = file.groups.map(|groups| groups.into_iter().map(names).collect());
    Ok(Fabric { matrix, groups, uplinks: file.uplinks })
}

/// A file is larger than any matrix.
#[derive(Debug, thiserror::Error)]
#[error("the file is larger than {MAX_FILE_BYTES} bytes")]
struct TooLarge;

fn text(path: &Path) -> anyhow::Result<String> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        anyhow::ensure!(text.len() as u64 <= MAX_FILE_BYTES, TooLarge);
        Ok(text)
    };
    read().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use hoplite_core::topology::Link;

    use super::*;

    #[test]
    fn a_matrix_is_names_and_two_tables() {
        let text =
            r#"{"nodes": ["a", 7], "alpha_ns": [[0, 5.4], [6, null]], "ps_per_byte": [[0, 3], [2, 0]]}"#;
        let matrix = json_fabric(text).unwrap().matrix;
        assert_eq!(matrix.nodes(), ["a", "7"]);
        assert_eq!(matrix.link(0, 1), Link { alpha_ns: 6, ps_per_byte: 3 });
    }

    #[test]
    fn bad_matrices_are_refused_with_the_reason() {
        for (text, reason) in [
            ("{}", "missing field `nodes`"),
            ("[]", "a matrix is an object with nodes"),
            (r#"{"nodes": [], "alpha_ns": [], "ps_per_byte": []}"#, "no nodes"),
            (r#"{"nodes": ["a"], "alpha_ns": [[0]]}"#, "missing field `ps_per_byte`"),
            (
                r#"{"nodes": ["a", "b"], "alpha_ns": [[0, null], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#,
                "missing",
            ),
            (
                r#"{"nodes": ["a", "b"], "alpha_ns": [[0, -1], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#,
                "negative",
            ),
            (
                r#"{"nodes": ["a", "b"], "alpha_ns": [[0, NaN], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#,
                "expected",
            ),
            (
                r#"{"nodes": ["a", "b"], "alpha_ns": [[0], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#,
                "entries",
            ),
            (
                r#"{"nodes": ["a", "a"], "alpha_ns": [[0, 1], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#,
                "twice",
            ),
        ] {
            let error = json_fabric(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("matrix");
        for text in [
            r#"{"nodes": ["a", "b"], "alpha_ns": [[0, 5], [6, 0]], "ps_per_byte": [[0, 3], [2, 0]]}"#,
            "rtt_us,a,b\na,0,1\nb,1,0",
            "SwitchName=s Nodes=a,b",
        ] {
            std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
            assert_eq!(matrix(&path).unwrap().nodes(), ["a", "b"], "{text}");
        }
    }

    #[test]
    fn an_order_is_a_list_or_what_order_prints() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("order");
        for text in ["[2, 0, 1]", r#"{"order": [2, 0, 1], "cost_ps": 7}"#] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(order(&path, 3).unwrap(), [2, 0, 1]);
        }
        for text in ["", "[1.5]", "[-1]", "[4294967296]", "\"a\"", "{}"] {
            std::fs::write(&path, text).unwrap();
            assert!(order(&path, 3).is_err(), "{text}");
        }
        assert_eq!(order(Path::new("identity"), 2).unwrap(), [0, 1]);
    }
}
