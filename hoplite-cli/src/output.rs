use std::io::{self, Write};
use std::time::Duration;

use console::{Color, Style};
use hoplite_client::{Dtype, Metadata, ObjectId};
pub(crate) use hoplite_core::text::size;
use serde::Serialize;

pub(crate) fn count(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// In the largest unit: `59s`, `3m`, `23h`, `2d`.
pub(crate) fn age(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `f32[2,3]`, or `-` for plain bytes.
pub(crate) fn array_type(metadata: &Metadata) -> String {
    match (&metadata.shape, metadata.dtype) {
        (None, Dtype::Opaque) => "-".to_owned(),
        (None, dtype) => dtype.to_string(),
        (Some(shape), dtype) => {
            let extents: Vec<_> = shape.iter().map(u64::to_string).collect();
            format!("{dtype}[{}]", extents.join(","))
        }
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Serialize)]
pub(crate) struct Id {
    id: String,
    id_hex: String,
}

impl Id {
    pub(crate) fn new(id: &ObjectId) -> Self {
        Self { id: id.readable(), id_hex: hexadecimal(id.as_bytes()) }
    }

    pub(crate) fn readable(&self) -> &str {
        &self.id
    }
}

pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()
}

/// Widest padded column: one long id must not widen all rows.
const MAX_PADDED: usize = 40;

pub(crate) fn coloured(colour: Color) -> Style {
    Style::new().for_stdout().fg(colour)
}

/// Columns are aligned, except for very long cells. Later rows can widen columns.
#[derive(Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    titles: [&'static str; COLUMNS],
    alignments: [Alignment; COLUMNS],
    widths: [usize; COLUMNS],
    rows: Vec<[String; COLUMNS]>,
    /// Style of a cell by its column, from 0, and its text.
    style: fn(usize, &str) -> Style,
    title_printed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alignment {
    Left,
    Right,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(crate) fn new(columns: [(&'static str, Alignment); COLUMNS]) -> Self {
        let titles = columns.map(|(title, _)| title);
        Self {
            titles,
            alignments: columns.map(|(_, alignment)| alignment),
            widths: titles.map(|title| title.chars().count()),
            rows: Vec::new(),
            style: |_, _| Style::new(),
            title_printed: false,
        }
    }

    pub(crate) fn styled(self, style: fn(usize, &str) -> Style) -> Self {
        Self { style, ..self }
    }

    pub(crate) fn row(&mut self, row: [String; COLUMNS]) {
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(cell.chars().count().min(MAX_PADDED));
        }
        self.rows.push(row);
    }

    /// Prints the rows; the first call prints the titles, too.
    pub(crate) fn print(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !self.title_printed {
            self.title_printed = true;
            self.line(out, &self.titles, |_, _| Style::new().for_stdout().bold())?;
        }
        for row in &self.rows {
            self.line(out, &row.each_ref().map(String::as_str), self.style)?;
        }
        self.rows.clear();
        out.flush()
    }

    fn line(
        &self,
        out: &mut impl Write,
        cells: &[&str; COLUMNS],
        style: fn(usize, &str) -> Style,
    ) -> io::Result<()> {
        let mut line = String::new();
        let mut gap = 0;
        for (column, cell) in cells.iter().enumerate() {
            let padding = self.widths[column].saturating_sub(cell.chars().count());
            let (before, after) = match self.alignments[column] {
                Alignment::Left => (0, padding),
                Alignment::Right => (padding, 0),
            };
            gap += before;
            if !cell.is_empty() {
                line.extend(std::iter::repeat_n(' ', gap));
                line.push_str(&style(column, cell).apply_to(cell).to_string());
                gap = 0;
            }
            gap += after + 2;
        }
        writeln!(out, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let ages =
            [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h", "23h", "1d", "2d"]);
    }

    #[test]
    fn array_types_look_like_rust_or_numpy() {
        let metadata = |dtype, shape| Metadata { dtype, shape, ..Metadata::default() };
        assert_eq!(array_type(&metadata(Dtype::Opaque, None)), "-");
        assert_eq!(array_type(&metadata(Dtype::F32, None)), "f32");
        assert_eq!(array_type(&metadata(Dtype::F32, Some(vec![2, 3]))), "f32[2,3]");
        assert_eq!(array_type(&metadata(Dtype::Bf16, Some(vec![]))), "bf16[]");
    }

    #[test]
    fn one_long_cell_does_not_widen_the_table() {
        let mut table = Table::new([("id", Alignment::Left), ("size", Alignment::Right)]);
        let long = "x".repeat(255);
        table.row([long.clone(), "1 B".to_owned()]);
        table.row(["y".to_owned(), "2 B".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], format!("{long}   1 B"));
        assert_eq!(lines[2].len(), MAX_PADDED + "  size".len());
    }

    #[test]
    fn colours_do_not_move_columns() {
        let red = |column, cell: &str| match (column, cell) {
            (0, "bad") => Style::new().red().force_styling(true),
            _ => Style::new(),
        };
        let mut table =
            Table::new([("verdict", Alignment::Left), ("says", Alignment::Left)]).styled(red);
        table.row(["bad".to_owned(), "no".to_owned()]);
        table.row(["good".to_owned(), String::new()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines, ["\u{1b}[31mbad\u{1b}[0m      no", "good"]);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("id", Alignment::Left), ("size", Alignment::Right)]);
        table.row(["weights".to_owned(), "1 B".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        table.row(["x".to_owned(), "1023 B".to_owned()]);
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "id       size\nweights   1 B\nx        1023 B\n");
    }
}
