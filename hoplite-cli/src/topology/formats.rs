use std::io::{self, Write};

use clap::ValueEnum;
use hoplite_core::topology::Matrix;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The order with its cost, the cost of the matrix's own order, and a lower bound
    Json,
    /// Names in rank order, with one slot each. Open MPI may reorder them: use a rankfile there
    Hostfile,
    /// A rankfile of Open MPI 4 (--rankfile) and 5 (--map-by rankfile:file=FILE)
    Rankfile,
    /// Arguments of torchrun at each node, with static ranks; otherwise torchrun sorts nodes by
    /// name
    Torchrun,
    /// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of each node
    Env,
    /// rank, name, and index in the matrix
    Csv,
}

const MASTER_PORT: u16 = 29_500;

/// Writes an order in any format but JSON. `InvalidInput` if a node's name has a special meaning in
/// this format.
pub(super) fn write(
    out: &mut impl Write,
    format: Format,
    matrix: &Matrix,
    order: &[u32],
) -> io::Result<()> {
    let names = matrix.nodes();
    let count = order.len();
    let first = &names[order[0] as usize];
    let is_plain = |name: &&String| {
        name.chars().all(|letter| letter.is_alphanumeric() || ".-_:[]%".contains(letter))
    };
    if format != Format::Csv
        && let Some(name) = names.iter().find(|name| !is_plain(name))
    {
        let text = format!(
            "the name {name:?} cannot stand in this format: rename the node, or use json or csv"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if format == Format::Csv {
        writeln!(out, "rank,node,index")?;
    }
    for (rank, &index) in order.iter().enumerate() {
        let name = &names[index as usize];
        match format {
            Format::Json => unreachable!("JSON has more than the order"),
            Format::Hostfile => writeln!(out, "{name} slots=1")?,
            Format::Rankfile => writeln!(out, "rank {rank}={name} slot=0")?,
            Format::Torchrun => writeln!(
                out,
                "{name}: --nnodes={count} --node-rank={rank} --rdzv-backend=static --rdzv-endpoint={first}:{MASTER_PORT}"
            )?,
            Format::Env => writeln!(
                out,
                "{name}: RANK={rank} WORLD_SIZE={count} MASTER_ADDR={first} MASTER_PORT={MASTER_PORT}"
            )?,
            Format::Csv => writeln!(out, "{rank},{},{index}", quoted(name))?,
        }
    }
    Ok(())
}

/// Quotes as RFC 4180 says.
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::topology::Link;

    use super::*;

    #[test]
    fn each_format_names_ranks() {
        let text = |format, other: &str| {
            let names = ["a", other].map(str::to_owned).to_vec();
            let matrix = Matrix::from_links(names, |_, _| Ok(Link::default())).unwrap();
            let mut out = Vec::new();
            write(&mut out, format, &matrix, &[1, 0])?;
            Ok::<_, io::Error>(String::from_utf8(out).unwrap())
        };
        let named_b = |format| text(format, "b.c").unwrap();
        assert_eq!(named_b(Format::Hostfile), "b.c slots=1\na slots=1\n");
        assert_eq!(named_b(Format::Rankfile), "rank 0=b.c slot=0\nrank 1=a slot=0\n");
        assert_eq!(text(Format::Csv, "b,c").unwrap(), "rank,node,index\n0,\"b,c\",1\n1,a,0\n");
        assert!(
            named_b(Format::Torchrun).contains("a: --nnodes=2 --node-rank=1 --rdzv-backend=static")
        );
        assert!(
            named_b(Format::Env)
                .contains("a: RANK=1 WORLD_SIZE=2 MASTER_ADDR=b.c MASTER_PORT=29500")
        );
        for name in ["b c", "b;c", "b,c", "b=c", "$(b)"] {
            for format in [Format::Hostfile, Format::Rankfile, Format::Torchrun, Format::Env] {
                assert!(
                    text(format, name).unwrap_err().to_string().contains("rename the node"),
                    "{name}"
                );
            }
        }
    }
}
