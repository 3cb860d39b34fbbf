//! Thousands of simulated clusters.
//!
//! `HOPLITE_SEED=N` runs one seed, and prints the latest `HOPLITE_TRACE_LINES=N` events of a
//! failure. `HOPLITE_SEEDS=N` sets the number of seeds, `HOPLITE_FIRST_SEED=N` the first one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hoplite_sim::Trace;
use hoplite_sim::campaign::{self, Summary};

const SEEDS: u64 = 5000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn explain(seed: u64) {
    let limit = variable("HOPLITE_TRACE_LINES").unwrap_or(400);
    let trace = Trace::new(usize::try_from(limit).expect("a number of lines"));
    let for_run = trace.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| campaign::run(seed, Some(for_run))));
    if outcome.is_err() {
        let events = trace.lines().join("\n");
        panic!(
            "seed {seed} fails; HOPLITE_SEED={seed} repeats it; the latest events were:\n{events}"
        );
    }
}

#[test]
fn clusters_survive_random_failures() {
    if let Some(seed) = variable("HOPLITE_SEED") {
        return explain(seed);
    }
    let seeds = variable("HOPLITE_SEEDS").unwrap_or(SEEDS);
    let first = variable("HOPLITE_FIRST_SEED").unwrap_or(0);
    let (mut total, mut failed) = (Summary::default(), Vec::new());
    for seed in first..first + seeds {
        match catch_unwind(|| campaign::run(seed, None)) {
            Ok(summary) => total.add(&summary),
            Err(_) => failed.push(seed),
        }
    }
    if let Some(seed) = failed.first() {
        println!("seeds {failed:?} fail");
        explain(*seed);
    }
    println!("{seeds} seeds: {total:?}");
    let counts = total.counts;
    assert!(
        counts.pulls - counts.failed_pulls > seeds
            && counts.failed_pulls > 0
            && total.evictions > 0,
        "the clusters were idle"
    );
    assert!(
        total.reduces > seeds && counts.hops > seeds && counts.failed_hops > 0,
        "no reduces or hops"
    );
    assert!(total.participants > seeds && total.sessions > 0, "no allreduces");
    assert!(
        total.exchanged > 0 && total.parts > 0 && total.parts_left > 0,
        "no exchanges, or none that failed"
    );
    assert!(
        counts.failed_members > 0 && counts.resumed_streams > 0,
        "no failures of sessions, or no resumed streams"
    );
    assert!(total.probes_received > seeds / 2, "the places of stores did not change");
    assert!(total.shard_changes > seeds / 20, "the shards did not change");
    assert!(
        total.repaired_reduces > 0 && total.restarted_reduces > 0,
        "no reduce survived a failure"
    );
}

#[test]
fn seeds_that_failed_once_pass() {
    [82_553, 55_296].into_iter().for_each(explain);
}

#[test]
fn a_seed_always_has_the_same_run() {
    assert_eq!(campaign::run(1, None), campaign::run(1, None));
}
