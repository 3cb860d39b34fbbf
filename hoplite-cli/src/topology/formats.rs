//! Orders as other programs read them.

use std::io::{self, Write};

use clap::ValueEnum;
use hoplite_core::topology::Matrix;

/// How an order is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The order with its cost, that of the matrix's own order, and a lower bound
    Json,
    /// Names in rank order, with one slot each. Open MPI does not promise to keep their order: use a rankfile there
    Hostfile,
    /// A rankfile of Open MPI 4 (--rankfile) and 5 (--map-by rankfile:file=FILE)
    Rankfile,
    /// The arguments of torchrun at each node, with static ranks; with others it sorts nodes by name
    Torchrun,
    /// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of each node
    Env,
    /// rank, name, and index in the matrix
    Csv,
}

/// torch.distributed's own.
const MASTER_PORT: u16 = 29_500;

/// Writes an order in any format but JSON.
pub(super) fn write(out: &mut impl Write, format: Format, matrix: &Matrix, order: &[u32]) -> io::Result<()> {
    let names = matrix.nodes();
    let count = order.len();
    let first = &names[order[0] as usize];
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

/// A cell of a CSV file (RFC 4180).
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
        let names = ["a", "b,c"].map(str::to_owned).to_vec();
        let matrix = Matrix::from_links(names, |_, _| Ok(Link::default())).unwrap();
        let text = |format| {
            let mut out = Vec::new();
            write(&mut out, format, &matrix, &[1, 0]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Format::Hostfile), "b,c slots=1\na slots=1\n");
        assert_eq!(text(Format::Rankfile), "rank 0=b,c slot=0\nrank 1=a slot=0\n");
        assert_eq!(text(Format::Csv), "rank,node,index\n0,\"b,c\",1\n1,a,0\n");
        assert!(text(Format::Torchrun).contains("a: --nnodes=2 --node-rank=1 --rdzv-backend=static"));
        assert!(text(Format::Env).contains("a: RANK=1 WORLD_SIZE=2 MASTER_ADDR=b,c MASTER_PORT=29500"));
    }
}
