//! Reads a table of round trips in CSV, with a row per sender and a column per receiver.
//!
//! The first row and column may name the nodes, and the corner the unit. A latency is half a round
//! trip (Cloud Collectives, section IV-B). Without bandwidths, bytes cost nothing.

use hoplite_core::topology::matrix::MAX_NODES;
use hoplite_core::topology::{Matrix, TopologyError};
use thiserror::Error;

#[derive(Debug, Error)]
pub(super) enum CsvError {
    #[error("the corner is {corner:?} instead of a unit: rtt_ns, rtt_us or rtt_ms")]
    Unit { corner: String },
    #[error("line {line} has {cells} cells, not {expected}")]
    Cells { line: usize, cells: usize, expected: usize },
    #[error("line {line} is named {row:?}, but the column of the same node {column:?}")]
    Names { line: usize, row: String, column: String },
    #[error("line {line} has {text:?}, which is not a number")]
    NoNumber { line: usize, text: String },
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

pub(super) fn matrix(text: &str) -> Result<Matrix, CsvError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    // A header, and one line too many, to notice an excess.
    let rows = lines.take(MAX_NODES + 2);
    let rows: Vec<(usize, Vec<&str>)> = rows
        .map(|(line, text)| (line, text.split(',').take(MAX_NODES + 2).map(cell).collect()))
        .collect();
    let Some((_, first)) = rows.first() else { return Err(TopologyError::NoNodes.into()) };
    if first[0].parse::<f64>().is_ok() && rows.len() == first.len() {
        let names = (0..rows.len()).map(|node| node.to_string()).collect();
        return table(names, &rows, 0, 500.0);
    }
    let half_ns = match first[0] {
        "rtt_ns" => 0.5,
        "" | "rtt_us" => 500.0,
        "rtt_ms" => 500_000.0,
        corner => return Err(CsvError::Unit { corner: corner.chars().take(32).collect() }),
    };
    let names: Vec<String> = first[1..].iter().map(|&name| name.to_owned()).collect();
    for ((line, row), column) in rows[1..].iter().zip(&names) {
        if row[0] != column {
            let (row, column) = (row[0].to_owned(), column.clone());
            return Err(CsvError::Names { line: *line, row, column });
        }
    }
    table(names, &rows[1..], 1, half_ns)
}

fn cell(text: &str) -> &str {
    text.trim().trim_matches('"')
}

fn table(
    names: Vec<String>,
    rows: &[(usize, Vec<&str>)],
    skip: usize,
    half_ns: f64,
) -> Result<Matrix, CsvError> {
    let number = |line: usize, text: &str| match text {
        "" | "-" => Ok(f64::NAN),
        text => match text.parse::<f64>() {
            Ok(round_trip) => Ok(round_trip * half_ns),
            Err(_) => Err(CsvError::NoNumber { line, text: text.chars().take(32).collect() }),
        },
    };
    let expected = names.len() + skip;
    let row = |(line, row): &(usize, Vec<&str>)| {
        if row.len() != expected {
            return Err(CsvError::Cells { line: *line, cells: row.len(), expected });
        }
        row[skip..].iter().map(|text| number(*line, text)).collect()
    };
    let alpha_ns: Vec<Vec<f64>> = rows.iter().map(row).collect::<Result<_, _>>()?;
    let ps_per_byte: Vec<Vec<f64>> = alpha_ns.iter().map(|row| vec![0.0; row.len()]).collect();
    Ok(Matrix::from_rows(names, &alpha_ns, &ps_per_byte)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_half_of_the_worse_round_trip() {
        for text in [
            "rtt_us, a, b, c\na, 0, 40, 90\nb, 44, 0, 70\nc, 82, 71, 0\n",
            "rtt_ns,\"a\",\"b\",\"c\"\n\"a\",-,40000,90000\n# half\n\"b\",44000,-,70000\n\n\"c\",82000,71000,-",
            "0,40,90\n44,0,70\n82,71,0\n",
        ] {
            let matrix = matrix(text).unwrap();
            let alpha = |a, b| matrix.link(a, b).alpha_ns;
            assert_eq!((alpha(0, 1), alpha(0, 2), alpha(1, 2)), (22_000, 45_000, 35_500), "{text}");
        }
    }

    #[test]
    fn bad_tables_are_refused_with_the_line() {
        for (text, reason) in [
            ("", "no nodes"),
            ("rtt_us,a,b\na,0,1\nb,x,0", "line 3 has \"x\""),
            ("rtt_us,a,b\na,0,1\nb,0", "line 3 has 2 cells"),
            ("rtt_us,a,b\na,0,1\nc,1,0", "line 3 is named \"c\""),
            ("rtt_us,a,b\na,0,1", "rows"),
            ("rtt_us,a,b\na,0,\nb,1,0", "missing"),
            ("rtt_us,a,b\na,0,nan\nb,1,0", "missing"),
            ("rtt_us,a,b\na,0,-3\nb,1,0", "negative"),
            ("rtt_us,a,a\na,0,1\na,1,0", "twice"),
            (&format!("rtt_us{}", ",1".repeat(20_000)), "more than"),
            ("seconds,a,b\na,0,1\nb,1,0", "corner"),
        ] {
            let error = matrix(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
