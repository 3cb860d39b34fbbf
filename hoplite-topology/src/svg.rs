//! Drawings: heat maps of matrices with groups, and curves.

use std::fmt::Write;

use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;

/// Most cells per side of a heat map. A cell may stand for several nodes.
const MAX_CELLS: usize = 256;
const SIDE: f64 = 640.0;
const TREE: f64 = 160.0;
const MARGIN: f64 = 40.0;

/// A line of a chart.
#[derive(Debug)]
pub struct Curve {
    /// The legend.
    pub name: String,
    /// Points sorted by x.
    pub points: Vec<(f64, f64)>,
}

/// Draws the cost of a message between each two nodes, darker if larger, with the groups' tree.
pub fn heat_map(links: Links<'_>, order: &[u32], dendrogram: &Dendrogram) -> String {
    let cells = order.len().min(MAX_CELLS);
    let ranks = |cell: usize| cell * order.len() / cells..(cell + 1) * order.len() / cells;
    // A cell shows its most expensive pair.
    let cost = |row: usize, column: usize| {
        let pairs =
            ranks(row).flat_map(|a| ranks(column).map(move |b| links.whole(order[a], order[b])));
        pairs.max().unwrap_or(0)
    };
    let costs: Vec<u64> = (0..cells)
        .flat_map(|row| (0..cells).map(move |column| (row, column)))
        .map(|(a, b)| cost(a, b))
        .collect();
    let most = costs.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut svg = open(SIDE + TREE + 2.0 * MARGIN, SIDE + 2.0 * MARGIN);
    let side = SIDE / cells as f64;
    for (index, &cost) in costs.iter().enumerate() {
        let (row, column) = (index / cells, index % cells);
        let shade = 255.0 * (1.0 - cost as f64 / most);
        let (x, y) = (MARGIN + TREE + column as f64 * side, MARGIN + row as f64 * side);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{side:.2}\" height=\"{side:.2}\" fill=\"rgb(255,{shade:.0},{shade:.0})\"/>"
        );
    }
    tree(&mut svg, order, dendrogram);
    label(&mut svg, MARGIN + TREE, MARGIN - 12.0, "cost by rank; darkest:");
    label(&mut svg, MARGIN + TREE + 180.0, MARGIN - 12.0, &format!("{:.1} us", most * 1e-6));
    svg.push_str("</svg>\n");
    svg
}

/// Draws each join of groups as a bracket, farther left for larger distances.
fn tree(svg: &mut String, order: &[u32], dendrogram: &Dendrogram) {
    let nodes = order.len();
    let mut middles = vec![0.0; nodes];
    for (rank, &node) in order.iter().enumerate() {
        middles[node as usize] = MARGIN + (rank as f64 + 0.5) * SIDE / nodes as f64;
    }
    // By first node: size, middle, and left end of the bracket.
    let mut groups: Vec<(f64, f64, f64)> =
        middles.into_iter().map(|middle| (1.0, middle, 0.0)).collect();
    let mut heads: Vec<usize> = (0..nodes).collect();
    let farthest = dendrogram.joins().iter().map(|join| join.distance_ps).max().unwrap_or(0).max(1);
    for join in dendrogram.joins() {
        let [a, b] = [join.first, join.second].map(|node| head(&mut heads, node as usize));
        let left = TREE * 0.95 * join.distance_ps as f64 / farthest as f64;
        let ((count_a, y_a, left_a), (count_b, y_b, left_b)) = (groups[a], groups[b]);
        let x = |left: f64| MARGIN + TREE - left;
        let _ = writeln!(
            svg,
            "<path d=\"M{:.2} {y_a:.2}H{:.2}V{y_b:.2}H{:.2}\" fill=\"none\" stroke=\"black\" stroke-width=\"0.6\"/>",
            x(left_a),
            x(left),
            x(left_b)
        );
        let count = count_a + count_b;
        groups[a] = (count, (count_a * y_a + count_b * y_b) / count, left);
        heads[b] = a;
    }
}

fn head(heads: &mut [usize], node: usize) -> usize {
    let mut at = node;
    while heads[at] != at {
        heads[at] = heads[heads[at]];
        at = heads[at];
    }
    at
}

const COLOURS: [&str; 4] = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"];

/// Draws curves on logarithmic axes. Leaves out points at or below zero.
pub fn curves(title: &str, x_name: &str, y_name: &str, curves: &[Curve]) -> String {
    let (width, height) = (SIDE, SIDE * 0.7);
    let mut svg = open(width + 4.0 * MARGIN, height + 3.0 * MARGIN);
    let points =
        || curves.iter().flat_map(|curve| &curve.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let range = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let (low, high) = points()
            .map(values)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if low.is_finite() { (low.ln() - 0.05, high.ln() + 0.05) } else { (0.0, 1.0) }
    };
    let ((x_low, x_high), (y_low, y_high)) = (range(&|point| point.0), range(&|point| point.1));
    let place = |x: f64, y: f64| {
        let right = (x.ln() - x_low) / (x_high - x_low) * width;
        let down = (y_high - y.ln()) / (y_high - y_low) * height;
        (2.0 * MARGIN + right, MARGIN + down)
    };
    let _ = writeln!(
        svg,
        "<rect x=\"{:.0}\" y=\"{MARGIN:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"none\" stroke=\"black\"/>",
        2.0 * MARGIN
    );
    label(&mut svg, 2.0 * MARGIN, MARGIN - 12.0, title);
    label(&mut svg, 2.0 * MARGIN + width / 2.0, height + 2.4 * MARGIN, x_name);
    label(&mut svg, 4.0, MARGIN - 12.0, y_name);
    let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for x in ticks {
        label(&mut svg, place(x, y_low.exp()).0 - 8.0, height + 1.5 * MARGIN, &format!("{x}"));
    }
    for y in [y_low, (y_low + y_high) / 2.0, y_high] {
        label(&mut svg, 4.0, place(1.0, y.exp()).1, &format!("{:.2e}", y.exp()));
    }
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let drawn = curve.points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0);
        let drawn: Vec<(f64, f64)> = drawn.map(|&(x, y)| place(x, y)).collect();
        let line: Vec<String> = drawn.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
            line.join(" ")
        );
        for (x, y) in &drawn {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if let Some((x, y)) = drawn.last() {
            label(&mut svg, x + 6.0, *y, &curve.name);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn open(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

fn label(svg: &mut String, x: f64, y: f64, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}
