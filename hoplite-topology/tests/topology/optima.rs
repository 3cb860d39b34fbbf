use hoplite_core::topology::{Links, Matrix};
use hoplite_topology::Model;
use hoplite_topology::cost::{cost, radices};
use hoplite_topology::solve::{Search, Status, WHOLE};

use crate::{cases, made, number, order};

fn search<'a>(links: Links<'a>, model: &Model, calls: u32, moves: u32) -> Search<'a> {
    let mut search = Search::new(links, model, 1).unwrap();
    for call in 0..calls {
        if search.advance(moves, (u64::from(call) * u64::from(WHOLE) / u64::from(calls)) as u32)
            == Status::Proved
        {
            break;
        }
    }
    assert_eq!(cost(links, model, search.best()), Ok(search.best_cost()), "{model}");
    assert!(search.lower_bound() <= search.best_cost(), "{model}");
    search
}

/// Checks that the search exceeds the optimum by at most `per_mille` thousandths.
fn check(
    matrix: &Matrix,
    size_bytes: u64,
    model: &Model,
    optimum: u64,
    per_mille: u128,
    name: &str,
) {
    let links = Links::new(matrix, size_bytes).unwrap();
    let found = search(links, model, 2000, 20);
    let optimum = u128::from(optimum);
    assert!(
        found.lower_bound() <= optimum,
        "{name} {model}: bound {} of {optimum}",
        found.lower_bound()
    );
    assert!(found.best_cost() >= optimum, "{name} {model}: {} below {optimum}", found.best_cost());
    assert!(
        found.best_cost() * 1000 <= optimum * (1000 + per_mille),
        "{name} {model}: {} for {optimum}",
        found.best_cost()
    );
}

#[test]
fn small_cases_are_solved_and_proved() {
    for case in cases("optimum").iter().filter(|case| case["alpha_ns"].is_array()) {
        let matrix = made::tables(&case["alpha_ns"], &case["ps_per_byte"]);
        let links = Links::new(&matrix, number(&case["size_bytes"])).unwrap();
        for (name, expected) in case["expect"].as_object().unwrap() {
            let model: Model = name.replace('_', "-").parse().unwrap();
            let search = search(links, &model, 0, 0);
            assert_eq!(search.status(), Status::Proved);
            assert_eq!(search.best_cost(), u128::from(number(&expected["optimum"])), "{name}");
        }
    }
}

#[test]
fn planted_rings_are_found() {
    for case in cases("planted_ring") {
        let matrix = made::planted_ring(&case);
        let name = case["name"].as_str().unwrap();
        let identity: Vec<u32> = (0..matrix.len() as u32).collect();
        let before = cost(Links::new(&matrix, 0).unwrap(), &Model::Ring, &identity).unwrap();
        assert_eq!(
            before,
            u128::from(number(&case["identity"])),
            "{name} was generated differently"
        );
        let per_mille = if matrix.len() <= 64 { 5 } else { 30 };
        check(&matrix, 0, &Model::Ring, number(&case["optimum"]), per_mille, name);
    }
    for case in cases("optimum").iter().filter(|case| case["planted_ring"].is_object()) {
        let matrix = made::planted_ring(&case["planted_ring"]);
        let optimum = number(&case["expect"]["ring"]["optimum"]);
        let links = Links::new(&matrix, 0).unwrap();
        assert_eq!(cost(links, &Model::Ring, &order(&case["optimal_order"])), Ok(optimum.into()));
        check(&matrix, 0, &Model::Ring, optimum, 5, "racks-64-clear");
    }
}

#[test]
fn planted_steps_are_found() {
    let all = cases("planted_steps");
    let handed = cases("optimum");
    let handed = handed.iter().filter(|case| case["planted_steps"].is_object());
    let all = all.iter().map(|case| (case, case, number(&case["optimum"])));
    let handed =
        handed.map(|case| (case, &case["planted_steps"], number(&case["expect"]["hd"]["optimum"])));
    for (case, made, optimum) in all.chain(handed) {
        let name = case["name"].as_str().unwrap();
        let nodes = number(&made["n"]) as usize;
        let model: Model = made["alg"].as_str().unwrap().parse().unwrap();
        let base = if let Model::BCube(base) = model { base } else { 2 };
        let groups = radices(nodes, base).unwrap();
        let is_used = |mut p: usize, mut q: usize| {
            let differing = groups.iter().filter(|&group| {
                let differs = p % group != q % group;
                (p, q) = (p / group, q / group);
                differs
            });
            differing.count() == 1
        };
        let matrix = made::planted_steps(made, is_used);
        let identity: Vec<u32> = (0..nodes as u32).collect();
        let links = Links::new(&matrix, number(&case["size_bytes"])).unwrap();
        let before =
            case["identity"].as_u64().unwrap_or_else(|| number(&case["expect"]["hd"]["identity"]));
        assert_eq!(
            cost(links, &model, &identity),
            Ok(before.into()),
            "{name} was generated differently"
        );
        check(&matrix, number(&case["size_bytes"]), &model, optimum, 100, name);
    }
}
