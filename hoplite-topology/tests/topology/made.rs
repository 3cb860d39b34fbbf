use hoplite_core::topology::random::Random;
use hoplite_core::topology::{Link, Matrix};
use serde_json::Value;

use crate::{number, numbers};

pub(crate) fn names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|node| format!("node-{node}")).collect()
}

pub(crate) fn tables(alpha_ns: &Value, ps_per_byte: &Value) -> Matrix {
    let rows = |value: &Value| -> Vec<Vec<f64>> {
        let rows = value.as_array().unwrap().iter();
        rows.map(|row| numbers(row).into_iter().map(|entry| entry as f64).collect()).collect()
    };
    let alpha = rows(alpha_ns);
    Matrix::from_rows(names(alpha.len()), &alpha, &rows(ps_per_byte)).unwrap()
}

pub(crate) fn random_tables(nodes: usize, seed: u64) -> [Vec<Vec<f64>>; 2] {
    let mut random = Random::new(seed);
    let [mut alpha_ns, mut ps_per_byte] =
        [vec![vec![0.0; nodes]; nodes], vec![vec![0.0; nodes]; nodes]];
    for (row, (alphas, gaps)) in alpha_ns.iter_mut().zip(&mut ps_per_byte).enumerate() {
        for column in (0..nodes).filter(|&column| column != row) {
            alphas[column] = (5_000 + random.below(75_000)) as f64;
            gaps[column] = (80 + random.below(820)) as f64;
        }
    }
    [alpha_ns, ps_per_byte]
}

pub(crate) fn random_matrix(nodes: usize, seed: u64) -> Matrix {
    let [alpha_ns, ps_per_byte] = random_tables(nodes, seed);
    Matrix::from_rows(names(nodes), &alpha_ns, &ps_per_byte).unwrap()
}

pub(crate) fn shuffled(nodes: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    Random::new(seed).shuffle(&mut order);
    order
}

fn planted(nodes: usize, random: &mut Random) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..nodes).collect();
    random.shuffle(&mut order);
    let mut positions = vec![0; nodes];
    for (position, &node) in order.iter().enumerate() {
        positions[node] = position;
    }
    (order, positions)
}

fn by_pairs(nodes: usize, mut link: impl FnMut(usize, usize) -> Link) -> Matrix {
    let mut links = vec![vec![Link::default(); nodes]; nodes];
    for (i, row) in links.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate().skip(i + 1) {
            *entry = link(i, j);
        }
    }
    Matrix::from_links(names(nodes), |a, b| Ok(links[a.min(b)][a.max(b)])).unwrap()
}

/// Makes a hierarchy with a known cheapest ring: other edges of a level cost more.
pub(crate) fn planted_ring(case: &Value) -> Matrix {
    let sizes: Vec<usize> = numbers(&case["sizes"]).into_iter().map(|size| size as usize).collect();
    let bases = numbers(&case["bases_alpha_ns"]);
    let nodes: usize = sizes.iter().product();
    let mut random = Random::new(number(&case["seed"]));
    let (_, positions) = planted(nodes, &mut random);
    let own: Vec<u64> = (0..nodes).map(|_| random.below(number(&case["pi_max"]))).collect();
    let level = |mut p: usize, mut q: usize| {
        let same = sizes.iter().position(|size| {
            (p, q) = (p / size, q / size);
            p == q
        });
        same.unwrap()
    };
    by_pairs(nodes, |i, j| {
        let apart = positions[i].abs_diff(positions[j]);
        let is_on_tour = apart == 1 || apart == nodes - 1;
        let more = if is_on_tour { 0 } else { 1 + random.below(number(&case["delta_max"])) };
        let alpha_ns = bases[level(positions[i], positions[j])] + own[i] + own[j] + more;
        Link { alpha_ns: alpha_ns as u32, ps_per_byte: 0 }
    })
}

/// Makes racks with a known cheapest order: unused pairs cost a little more.
pub(crate) fn planted_steps(case: &Value, is_used: impl Fn(usize, usize) -> bool) -> Matrix {
    let (nodes, rack) = (number(&case["n"]) as usize, number(&case["rack"]) as usize);
    let (intra, inter) = (numbers(&case["intra"]), numbers(&case["inter"]));
    let mut random = Random::new(number(&case["seed"]));
    let (_, positions) = planted(nodes, &mut random);
    by_pairs(nodes, |i, j| {
        let (p, q) = (positions[i], positions[j]);
        let base = if p / rack == q / rack { &intra } else { &inter };
        let more = if is_used(p, q) { 0 } else { 1 + random.below(number(&case["delta_max"])) };
        Link { alpha_ns: (base[0] + more) as u32, ps_per_byte: base[1] as u32 }
    })
}
