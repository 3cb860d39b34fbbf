use hoplite_core::topology::{Link, Links, Matrix, TopologyError};
use hoplite_topology::cost::{Evaluator, cost, radices};
use hoplite_topology::{Error, Model};
use serde_json::Value;

use crate::{cases, made, number, numbers, order};

fn check(matrix: &Matrix, size_bytes: u64, order: &[u32], expect: &Value) {
    let links = Links::new(matrix, size_bytes).unwrap();
    for (name, expected) in expect.as_object().unwrap() {
        let (model, expected) = match name.as_str() {
            "ring" => (Model::Ring, expected),
            "chain_block_4096" => (Model::Chain, expected),
            "double_binary_tree" => (Model::DoubleBinaryTree, &expected["worse"]),
            "halving_doubling" => (Model::HalvingDoubling, expected),
            other => {
                (Model::BCube(other.strip_prefix("bcube_").unwrap().parse().unwrap()), expected)
            }
        };
        let cost = cost(links, &model, order).unwrap();
        assert_eq!(cost, u128::from(number(expected)), "{name} of {size_bytes} bytes, {order:?}");
    }
}

#[test]
fn costs_match_the_reference() {
    for case in cases("cost") {
        let nodes = number(&case["n"]) as usize;
        if let Some(alpha_ns) = case["alpha_ns"].as_u64() {
            let link = Link {
                alpha_ns: alpha_ns as u32,
                ps_per_byte: number(&case["ps_per_byte"]) as u32,
            };
            let matrix = Matrix::from_links(made::names(nodes), |_, _| Ok(link)).unwrap();
            let identity: Vec<u32> = (0..nodes as u32).collect();
            for order in [identity, made::shuffled(nodes, 1)] {
                check(&matrix, number(&case["size_bytes"]), &order, &case["expect"]);
            }
            continue;
        }
        let matrix = made::random_matrix(nodes, number(&case["seed"]));
        if !case["alpha_ns_raw"].is_null() {
            assert_eq!(matrix, made::tables(&case["alpha_ns_raw"], &case["ps_per_byte_raw"]));
        }
        for expect in case["expect"].as_array().unwrap() {
            let order = match (expect["order"].as_str().unwrap(), case["shuffle_seed"].as_u64()) {
                ("identity", _) => (0..nodes as u32).collect(),
                (_, Some(seed)) => made::shuffled(nodes, seed),
                (name, None) => order(&case["orders"][name]),
            };
            check(&matrix, number(&expect["size_bytes"]), &order, &expect["cost"]);
        }
    }
}

#[test]
fn round_trips_become_symmetric() {
    for case in cases("probe").iter().filter(|case| case["name"] == "symmetry") {
        let gaps = serde_json::json!([[0, 0, 0], [0, 0, 0], [0, 0, 0]]);
        let matrix = made::tables(&case["rtt_ns"], &gaps);
        for (i, row) in case["expect_rtt_ns"].as_array().unwrap().iter().enumerate() {
            for (j, expected) in numbers(row).into_iter().enumerate() {
                assert_eq!(u64::from(matrix.link(i, j).alpha_ns), expected);
            }
        }
    }
}

#[test]
fn a_tree_of_nccl_has_one_child_at_rank_0_and_is_mirrored_or_shifted() {
    // Only the link (a, b) costs time. Returns the pairs for which that costs the collective time.
    let edges = |nodes: usize| {
        let mut edges = Vec::new();
        for a in 0..nodes {
            for b in 0..a {
                let link = |i: usize, j: usize| {
                    Ok(Link { alpha_ns: u32::from((i, j) == (a, b)), ps_per_byte: 0 })
                };
                let matrix = Matrix::from_links(made::names(nodes), link).unwrap();
                let identity: Vec<u32> = (0..nodes as u32).collect();
                if cost(Links::new(&matrix, 0).unwrap(), &Model::NcclTree, &identity).unwrap() > 0 {
                    edges.push((b, a));
                }
            }
        }
        edges.sort_unstable();
        edges
    };
    // The edges 0-4, 4-2, 4-6, 2-1, 2-3, 6-5, 6-7 of one tree, and of its mirror with 7 - rank.
    assert_eq!(
        edges(8),
        [
            (0, 1),
            (0, 4),
            (1, 2),
            (1, 3),
            (2, 3),
            (2, 4),
            (3, 5),
            (3, 7),
            (4, 5),
            (4, 6),
            (5, 6),
            (6, 7)
        ]
    );
    // The edges 0-4, 4-2, 2-1, 2-3 of one tree, and of the other, shifted by one rank.
    assert_eq!(edges(5), [(0, 1), (0, 3), (0, 4), (1, 2), (2, 3), (2, 4), (3, 4)]);
}

#[test]
fn a_hierarchy_costs_its_slowest_hops() {
    let matrix = made::random_matrix(12, 5);
    let links = Links::new(&matrix, 12 * 4096).unwrap();
    let order = made::shuffled(12, 6);
    let hop = |a: usize, b: usize, parts| u128::from(links.part(order[a], order[b], parts));
    // First four groups of three consecutive ranks, then three groups of ranks three apart.
    let inner = (0..4).flat_map(|group| {
        (0..3).map(move |member| (3 * group + member, 3 * group + (member + 1) % 3))
    });
    let outer = (0..3)
        .flat_map(|first| (0..4).map(move |row| (first + 3 * row, first + 3 * ((row + 1) % 4))));
    let expected = 2 * 2 * inner.map(|(a, b)| hop(a, b, 3)).max().unwrap()
        + 2 * 3 * outer.map(|(a, b)| hop(a, b, 12)).max().unwrap();
    assert_eq!(cost(links, &"hierarchical:3x4".parse().unwrap(), &order), Ok(expected));
}

#[test]
fn parts_that_do_not_divide_the_bytes_are_rounded_once() {
    for (model, nodes, factor, size_bytes, expected) in [
        ("bcube:3", 12, 9, 4096, 3_262_384),
        ("bcube:3", 12, 23, 4097, 3_271_485),
        ("bcube:3", 6, 19, 5, 2_184_015),
    ] {
        let link = |i: usize, j: usize| {
            let (a, b) = (i.max(j), i.min(j));
            let (alpha_ns, ps_per_byte) =
                (1000 + a * b * factor % 97, 1 + (a * 7 + b * factor) % 11);
            Ok(Link { alpha_ns: alpha_ns as u32, ps_per_byte: ps_per_byte as u32 })
        };
        let matrix = Matrix::from_links(made::names(nodes), link).unwrap();
        let identity: Vec<u32> = (0..nodes as u32).collect();
        let links = Links::new(&matrix, size_bytes).unwrap();
        assert_eq!(
            cost(links, &model.parse().unwrap(), &identity),
            Ok(expected),
            "{model} of {nodes}"
        );
    }
}

#[test]
fn all_orders_of_one_node_cost_nothing() {
    let matrix = made::random_matrix(1, 1);
    let links = Links::new(&matrix, 4096).unwrap();
    for model in [
        "ring",
        "halving-doubling",
        "double-binary-tree",
        "nccl-tree",
        "bcube:3",
        "chain",
        "hierarchical:1",
    ] {
        assert_eq!(cost(links, &model.parse().unwrap(), &[0]), Ok(0), "{model}");
    }
}

#[test]
fn unsupported_models_are_refused() {
    assert_eq!(radices(512, 4).unwrap(), [4, 4, 4, 4, 2]);
    assert_eq!(radices(60, 6).unwrap(), [6, 5, 2]);
    let matrix = made::random_matrix(10, 1);
    let links = Links::new(&matrix, 4096).unwrap();
    let identity: Vec<u32> = (0..10).collect();
    let refused =
        |model: &str| Evaluator::new(links, &model.parse().unwrap(), &identity).unwrap_err();
    assert_eq!(refused("halving-doubling"), Error::NotAPowerOfTwo { nodes: 10 });
    assert_eq!(refused("bcube:4"), Error::NoRadices { nodes: 10, base: 4 });
    assert_eq!(refused("hierarchical:3x3"), Error::LevelsDoNotMatch { product: 9, nodes: 10 });
    for text in [
        "",
        "rings",
        "ring:2",
        "bcube",
        "bcube:1",
        "bcube:x",
        "hierarchical:2x",
        "hierarchical:0x2",
    ] {
        assert!(matches!(text.parse::<Model>(), Err(Error::UnknownModel { .. })), "{text}");
    }
    for model in ["ring", "bcube:7", "hierarchical:2x5", "nccl-tree"] {
        assert_eq!(model.parse::<Model>().unwrap().to_string(), model);
    }
}

#[test]
fn bad_orders_are_refused() {
    let matrix = made::random_matrix(4, 1);
    let links = Links::new(&matrix, 4096).unwrap();
    let refused = |order: &[u32]| cost(links, &Model::Ring, order).unwrap_err();
    assert_eq!(
        refused(&[0, 1, 2]),
        Error::Matrix(TopologyError::OrderLength { entries: 3, nodes: 4 })
    );
    assert_eq!(
        refused(&[0, 1, 2, 2]),
        Error::Matrix(TopologyError::NotAPermutation { rank: 3, node: 2 })
    );
    assert_eq!(
        refused(&[0, 1, 4, 2]),
        Error::Matrix(TopologyError::NotAPermutation { rank: 2, node: 4 })
    );
}

#[test]
fn bad_matrices_are_refused() {
    use hoplite_core::topology::error::{BadEntry, Quantity};

    let zero = || vec![vec![0.0; 3]; 3];
    let make = |alpha_ns: Vec<Vec<f64>>| {
        Matrix::from_rows(made::names(3), &alpha_ns, &zero()).unwrap_err()
    };
    let mut short = zero();
    short[1].pop();
    let quantity = Quantity::AlphaNs;
    assert_eq!(make(short), TopologyError::NotSquare { quantity, row: 1, entries: 2, nodes: 3 });
    assert_eq!(
        make(vec![vec![0.0; 3]; 2]),
        TopologyError::RowCount { quantity, rows: 2, nodes: 3 }
    );
    for (number, entry) in [
        (f64::NAN, BadEntry::Missing),
        (-0.4, BadEntry::Negative),
        (f64::NEG_INFINITY, BadEntry::Negative),
        (f64::INFINITY, BadEntry::TooLarge),
        (4_294_967_296.0, BadEntry::TooLarge),
    ] {
        let mut rows = zero();
        rows[2][1] = number;
        assert_eq!(make(rows), TopologyError::BadEntry { quantity, row: 2, column: 1, entry });
    }
    let mut diagonal = zero();
    diagonal[1][1] = f64::NAN;
    Matrix::from_rows(made::names(3), &diagonal, &zero()).unwrap();
    let named =
        |names: Vec<String>| Matrix::from_links(names, |_, _| Ok(Link::default())).unwrap_err();
    assert_eq!(named(Vec::new()), TopologyError::NoNodes);
    assert_eq!(named(made::names(100_000)), TopologyError::TooManyNodes { count: 100_000 });
    assert_eq!(
        named(vec!["a".into(), "a".into()]),
        TopologyError::DuplicateNode { name: "a".into() }
    );
    assert_eq!(named(vec!["a".into(), String::new()]), TopologyError::BadName { index: 1 });
    assert_eq!(named(vec!["a\nb".into(), "c".into()]), TopologyError::BadName { index: 0 });
}

#[test]
fn costs_that_do_not_fit_are_refused() {
    let link = Link { alpha_ns: u32::MAX, ps_per_byte: u32::MAX };
    let matrix = Matrix::from_links(made::names(2), |_, _| Ok(link)).unwrap();
    assert!(Links::new(&matrix, 1 << 25).is_ok());
    for size_bytes in [1 << 40, u64::MAX] {
        assert_eq!(
            Links::new(&matrix, size_bytes).unwrap_err(),
            TopologyError::CostTooLarge { size_bytes }
        );
    }
}
