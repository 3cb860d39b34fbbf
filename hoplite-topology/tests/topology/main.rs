//! Topology library against an independent reference, and its properties.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod made;

mod costs;
mod fabrics;
mod groups;
mod mappings;
mod optima;
mod properties;
mod solver;

use serde_json::Value;

fn cases(kind: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(include_str!("cases.json")).unwrap();
    let cases = file["cases"].as_array().unwrap().iter();
    let cases: Vec<Value> = cases.filter(|case| case["kind"] == kind).cloned().collect();
    assert!(!cases.is_empty(), "no case is of kind {kind}");
    cases
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn order(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|node| node as u32).collect()
}
