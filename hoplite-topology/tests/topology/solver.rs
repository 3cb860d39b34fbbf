//! Queries to an external solver, answered by trying all orders.

use std::collections::BTreeMap;

use hoplite_core::topology::Links;
use hoplite_topology::cost::cost;
use hoplite_topology::smt::{Answer, answer, query};
use hoplite_topology::{Error, Model};

use crate::made;

#[derive(Debug)]
enum Term {
    Word(String),
    List(Vec<Self>),
}

fn parse(text: &str) -> Vec<Term> {
    let text = text.replace('(', " ( ").replace(')', " ) ");
    let mut open = vec![Vec::new()];
    for word in text.split_whitespace() {
        match word {
            "(" => open.push(Vec::new()),
            ")" => {
                let list = Term::List(open.pop().unwrap());
                open.last_mut().unwrap().push(list);
            }
            word => open.last_mut().unwrap().push(Term::Word(word.to_owned())),
        }
    }
    assert_eq!(open.len(), 1, "parentheses are balanced");
    open.pop().unwrap()
}

fn word(term: &Term) -> &str {
    match term {
        Term::Word(word) => word,
        Term::List(list) => panic!("{list:?}"),
    }
}

fn list(term: &Term) -> &[Term] {
    match term {
        Term::List(list) => list,
        Term::Word(word) => panic!("{word}"),
    }
}

/// Smallest numbers that satisfy the assertions so far.
type Numbers = BTreeMap<String, u128>;

fn number(term: &Term, numbers: &Numbers) -> u128 {
    match term {
        Term::Word(word) => {
            word.parse().unwrap_or_else(|_| numbers.get(word).copied().unwrap_or(0))
        }
        Term::List(list) => list[1..].iter().map(|term| number(term, numbers)).sum(),
    }
}

fn holds(term: &Term, order: &[u32]) -> bool {
    match term {
        Term::Word(name) => {
            let (rank, node) = name.strip_prefix("x_").unwrap().split_once('_').unwrap();
            order[rank.parse::<usize>().unwrap()] == node.parse::<u32>().unwrap()
        }
        Term::List(list) => match word(&list[0]) {
            "and" => list[1..].iter().all(|term| holds(term, order)),
            "or" => list[1..].iter().any(|term| holds(term, order)),
            "not" => !holds(&list[1], order),
            other => panic!("{other}"),
        },
    }
}

/// Raises numbers until `term`, a (>= name ...), holds. `true` if it raised any.
fn raise(term: &Term, numbers: &mut Numbers) -> bool {
    let [_, name, least] = list(term) else { panic!("{term:?}") };
    let least = number(least, numbers);
    if number(name, numbers) >= least {
        return false;
    }
    numbers.insert(word(name).to_owned(), least);
    true
}

/// Checks a query with the smallest numbers that it allows.
fn satisfies(query: &[Term], order: &[u32]) -> bool {
    let assertions = || {
        query
            .iter()
            .map(list)
            .filter(|command| word(&command[0]) == "assert")
            .map(|command| &command[1])
    };
    let mut numbers = Numbers::new();
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for assertion in assertions() {
            match word(&list(assertion)[0]) {
                ">=" => is_changed |= raise(assertion, &mut numbers),
                "=>" if holds(&list(assertion)[1], order) => {
                    is_changed |= raise(&list(assertion)[2], &mut numbers)
                }
                _ => {}
            }
        }
    }
    let mut assertions = assertions();
    assertions.all(|assertion| match word(&list(assertion)[0]) {
        ">=" | "=>" => true,
        "<" => number(&list(assertion)[1], &numbers) < number(&list(assertion)[2], &numbers),
        _ => holds(assertion, order),
    })
}

#[test]
fn a_query_is_satisfied_by_exactly_the_cheaper_orders() {
    for (nodes, models) in [
        (4, &["ring", "halving-doubling", "bcube:4", "nccl-tree"][..]),
        (5, &["ring", "double-binary-tree", "nccl-tree"]),
        (6, &["bcube:3"]),
    ] {
        let matrix = made::random_matrix(nodes, 21);
        let links = Links::new(&matrix, 7200).unwrap();
        for model in models {
            let model: Model = model.parse().unwrap();
            let orders: Vec<Vec<u32>> = (0..12).map(|seed| made::shuffled(nodes, seed)).collect();
            let costs: Vec<u128> =
                orders.iter().map(|order| cost(links, &model, order).unwrap()).collect();
            let below = costs[0];
            let query = parse(&query(links, &model, below).unwrap());
            for (order, cost) in orders.iter().zip(&costs) {
                assert_eq!(satisfies(&query, order), *cost < below, "{model}: {order:?}");
            }
            assert!(!satisfies(&query, &vec![0; nodes]), "an order has each node once");
        }
    }
}

#[test]
fn answers_hold_an_order_or_none() {
    let model = "sat\n(\n  (define-fun x_0_1 () Bool\n    true)\n  (define-fun c_0 () Int 7)\n  (define-fun x_0_0 () Bool false)\n\
                 (define-fun x_1_0 () Bool true))\n";
    assert_eq!(answer(model, 2), Ok(Answer::Order(vec![1, 0])));
    assert_eq!(answer(model, 3), Err(Error::NoModel { rank: 2 }));
    assert_eq!(answer("unsat\n(error \"no model\")", 2), Ok(Answer::NoneCheaper));
    for text in ["unknown", "", "timeout"] {
        assert_eq!(answer(text, 2), Ok(Answer::Unknown));
    }
}

#[test]
fn unsupported_queries_are_refused() {
    let matrix = made::random_matrix(17, 1);
    let links = Links::new(&matrix, 0).unwrap();
    assert_eq!(query(links, &Model::Ring, 1), Err(Error::TooManyForSolver { count: 17 }));
    let matrix = made::random_matrix(6, 1);
    let links = Links::new(&matrix, 0).unwrap();
    assert!(matches!(query(links, &Model::Chain, 1), Err(Error::UnknownModel { .. })));
    assert!(matches!(query(links, &Model::HalvingDoubling, 1), Err(Error::NotAPowerOfTwo { .. })));
}
