//! Files of matrices and orders: JSON, CSV, and Slurm's `topology.conf`.

mod csv;
mod slurm;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hoplite_core::topology::{Matrix, TopologyError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// In bytes. The largest matrix has 2 x 10^8 entries of about ten bytes.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// An unusable file.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct FileError {
    /// File.
    pub path: PathBuf,
    /// Reason why the file is unusable.
    #[source]
    pub problem: Problem,
}

/// Reason why a file is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Larger than any matrix.
    #[error("the file is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// The JSON is invalid, or has another form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A wrong line of CSV or Slurm.
    #[error(transparent)]
    Lines(Box<dyn std::error::Error + Send + Sync>),
    /// An invalid matrix or order.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// A matrix with the nodes' groups.
#[derive(Debug)]
pub struct Fabric {
    /// Matrix.
    pub matrix: Matrix,
    /// Each node's groups, outermost first.
    pub groups: Option<Vec<Vec<String>>>,
    /// Capacity of an uplink at each level, outermost first, as a multiple of a node link's
    /// capacity.
    pub uplinks: Option<Vec<f64>>,
}

/// Reads a matrix: JSON, CSV, or Slurm's `topology.conf`.
///
/// # Errors
/// [`FileError`].
pub fn matrix(path: &Path) -> Result<Matrix, FileError> {
    Ok(fabric(path)?.matrix)
}

/// Reads a matrix and its groups. JSON starts with a brace or bracket, `topology.conf` with a
/// switch; the rest is CSV, perhaps with a spreadsheet's byte-order mark.
///
/// # Errors
/// [`FileError`].
pub fn fabric(path: &Path) -> Result<Fabric, FileError> {
    of_file(path, || {
        let text = text(path)?;
        let text = text.trim_start_matches('\u{feff}');
        let plain = |matrix| Fabric { matrix, groups: None, uplinks: None };
        if text.trim_start().starts_with(['{', '[']) {
            json_fabric(text)
        } else if slurm::is_configuration(text) {
            slurm::matrix(text).map(plain).map_err(|error| Problem::Lines(error.into()))
        } else {
            csv::matrix(text).map(plain).map_err(|error| Problem::Lines(error.into()))
        }
    })
}

/// Reads each rank's node from JSON: a list of node indices, or an object with the list `order`.
/// The path `identity` stands for rank r at node r.
///
/// # Errors
/// [`FileError`].
pub fn order(path: &Path, nodes: usize) -> Result<Vec<u32>, FileError> {
    if path.as_os_str() == "identity" {
        return Ok((0..nodes as u32).collect());
    }
    let (OrderFile::List(entries) | OrderFile::Result { order: entries }) = json(path)?;
    let entry = |(rank, node)| {
        u32::try_from(node).map_err(|_| TopologyError::NotAPermutation { rank, node })
    };
    of_file(path, || Ok(entries.into_iter().enumerate().map(entry).collect::<Result<_, _>>()?))
}

/// Reads a file of JSON.
///
/// # Errors
/// [`FileError`].
pub fn json<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    of_file(path, || Ok(serde_json::from_str(&text(path)?)?))
}

fn of_file<T>(path: &Path, read: impl FnOnce() -> Result<T, Problem>) -> Result<T, FileError> {
    read().map_err(|problem| FileError { path: path.to_owned(), problem })
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

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a node's name is a text or a number")]
enum Name {
    Text(String),
    Number(u64),
}

#[derive(Debug)]
struct Entry(f64);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Option::deserialize(deserializer)?.unwrap_or(f64::NAN)))
    }
}

fn json_fabric(text: &str) -> Result<Fabric, Problem> {
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

fn text(path: &Path) -> Result<String, Problem> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(Problem::TooLarge);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use hoplite_core::topology::Link;

    use super::*;

    #[test]
    fn a_matrix_is_names_and_two_tables() {
        let text = r#"{"nodes": ["a", 7], "alpha_ns": [[0, 5.4], [6, null]], "ps_per_byte": [[0, 3], [2, 0]]}"#;
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
    fn an_order_is_a_list_or_the_output_of_order() {
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
