//! Compares the times of collectives, also with failures, to the links' bounds.
//!
//! `HOPLITE_SEED=N` determines the failures.

use std::process::{Command, Output};
use std::time::Duration;

use hoplite_sim::scale::{Arrivals, Experiment, FlowCap, Outcome, Workload};

const NODES: usize = 100;

fn seed() -> u64 {
    std::env::var("HOPLITE_SEED").map_or(1, |text| text.parse().expect("a number"))
}

/// With gigabytes, a chain's latency is short beside a transfer.
fn experiment(workload: Workload) -> Experiment {
    Experiment {
        nodes: NODES,
        workload,
        size_bytes: 1 << 30,
        seed: seed(),
        ..Experiment::default()
    }
}

fn run(experiment: &Experiment) -> Outcome {
    let (outcome, _) = experiment.run();
    check(outcome.undone == 0 && outcome.error.is_none(), experiment, &outcome);
    check(outcome.completion >= experiment.bound(), experiment, &outcome);
    outcome
}

#[track_caller]
fn check(holds: bool, experiment: &Experiment, outcome: &Outcome) {
    let seed = experiment.seed;
    assert!(holds, "HOPLITE_SEED={seed} repeats it: {experiment:#?} came to {outcome:#?}");
}

/// Adds the time of the longest chain's hops, and a tenth for connections and the directory.
fn with_a_chain(experiment: &Experiment) -> Duration {
    let hops = u32::try_from(experiment.nodes).expect("there are few");
    experiment.bound().mul_f64(1.1) + experiment.hop_time() * hops
}

#[test]
fn receivers_that_come_together_form_one_chain() {
    let experiment = experiment(Workload::Broadcast);
    let outcome = run(&experiment);
    assert_eq!(outcome.done, NODES - 1);
    let counts = outcome.counts;
    assert_eq!(
        (counts.grants, counts.pulls, counts.failed_pulls),
        (99, 99, 0),
        "each receiver keeps its sender"
    );
    check(outcome.completion <= with_a_chain(&experiment), &experiment, &outcome);
}

#[test]
fn a_thousand_receivers_take_about_two_transfers() {
    let experiment =
        Experiment { nodes: 1000, size_bytes: 64 << 20, ..experiment(Workload::Broadcast) };
    let outcome = run(&experiment);
    assert_eq!((outcome.done, outcome.counts.grants, outcome.counts.failed_pulls), (999, 999, 0));
    let allowed = experiment.transfer_time(2.0) + experiment.hop_time() * 64;
    check(outcome.completion <= allowed, &experiment, &outcome);
}

/// The first run shows the shard that hops are faster than it assumes.
#[test]
fn a_chain_of_a_thousand_grows_as_fast_as_its_bytes() {
    let experiment =
        Experiment { nodes: 1000, is_repeated: true, ..experiment(Workload::Broadcast) };
    let outcome = run(&experiment);
    assert_eq!((outcome.done, outcome.counts.grants, outcome.counts.failed_pulls), (999, 999, 0));
    check(outcome.completion <= with_a_chain(&experiment), &experiment, &outcome);
}

#[test]
fn capped_connections_fill_the_links_together() {
    let capped = |max_lanes, is_repeated| {
        let bytes_per_second = Experiment::default().bytes_per_second / 2;
        let flow_cap = Some(FlowCap { bytes_per_second, max_lanes });
        Experiment { nodes: 8, flow_cap, is_repeated, ..experiment(Workload::Broadcast) }
    };
    let outcome = run(&capped(1, false));
    check(outcome.completion >= outcome.bound.mul_f64(1.95), &capped(1, false), &outcome);
    // The nodes of a chain try more lanes one after the other.
    for (is_repeated, times) in [(false, 1.15), (true, 1.02)] {
        let experiment = capped(4, is_repeated);
        let outcome = run(&experiment);
        check(outcome.completion <= outcome.bound.mul_f64(times), &experiment, &outcome);
    }
}

#[test]
fn receivers_that_come_late_do_not_wait() {
    let arrivals = Arrivals::Staggered(Duration::from_secs(10));
    let experiment = Experiment { arrivals, ..experiment(Workload::Broadcast) };
    let outcome = run(&experiment);
    assert_eq!(outcome.done, NODES - 1);
    let alone = experiment.transfer_time(1.05);
    check(outcome.longest <= alone + experiment.hop_time() * 10, &experiment, &outcome);
}

#[test]
fn receivers_resume_elsewhere_when_nodes_die() {
    let experiment = Experiment { failures_percent: 5.0, ..experiment(Workload::Broadcast) };
    let outcome = run(&experiment);
    check(
        outcome.done >= NODES - 1 - 5
            && outcome.counts.crashes > 0
            && outcome.counts.failed_pulls > 0,
        &experiment,
        &outcome,
    );
    // A receiver that loses its sender is served last in the worst case.
    let allowed = with_a_chain(&experiment) + experiment.transfer_time(2.0);
    check(outcome.completion <= allowed, &experiment, &outcome);
}

#[test]
fn a_reduce_takes_as_long_as_it_was_planned() {
    let experiment = experiment(Workload::Reduce);
    let outcome = run(&experiment);
    assert_eq!((outcome.done, outcome.restarts, outcome.mendings), (1, 0, 0));
    check(outcome.completion <= with_a_chain(&experiment), &experiment, &outcome);
}

#[test]
fn a_small_reduce_goes_along_a_tree() {
    let experiment = Experiment { size_bytes: 4 << 20, ..experiment(Workload::Reduce) };
    let outcome = run(&experiment);
    let plan = outcome.plan.as_deref().unwrap_or_default();
    assert!(plan.starts_with("binary tree"), "{plan}");
    // Two objects per node, seven levels. A chain would take 100 ms.
    check(outcome.completion <= Duration::from_millis(40), &experiment, &outcome);
}

#[test]
fn a_reduce_waits_only_for_its_last_source() {
    let arrivals = Arrivals::Staggered(Duration::from_secs(10));
    let experiment = Experiment { arrivals, ..experiment(Workload::Reduce) };
    let outcome = run(&experiment);
    let after_the_last = outcome.completion.saturating_sub(experiment.last_arrival());
    check(after_the_last <= experiment.transfer_time(1.05), &experiment, &outcome);
}

#[test]
fn a_reduce_replaces_the_sources_of_nodes_that_die() {
    let experiment = Experiment { failures_percent: 5.0, ..experiment(Workload::Reduce) };
    let outcome = run(&experiment);
    check(outcome.done == 1 && outcome.counts.crashes == 5, &experiment, &outcome);
    check((1..=5).contains(&outcome.mendings), &experiment, &outcome);
    // Each new set of sources starts from the first byte. The last node dies before the bound.
    let allowed = experiment.bound() + with_a_chain(&experiment) + experiment.transfer_time(1.0);
    check(outcome.completion <= allowed, &experiment, &outcome);
}

#[test]
fn all_get_the_result_of_an_allreduce_while_it_grows() {
    let experiment = experiment(Workload::Allreduce);
    let outcome = run(&experiment);
    assert_eq!(outcome.done, NODES);
    // A reduce and a broadcast overlap, each along a chain of all nodes.
    let allowed = experiment.transfer_time(2.2) + experiment.hop_time() * 2 * 100;
    check(outcome.completion <= allowed, &experiment, &outcome);
}

#[test]
fn a_get_costs_the_directory_five_messages() {
    for nodes in [2, NODES] {
        let together = Experiment { nodes, ..experiment(Workload::Broadcast) };
        let staggered = Experiment {
            arrivals: Arrivals::Staggered(Duration::from_secs(10)),
            ..together.clone()
        };
        for experiment in [together, staggered] {
            let outcome = run(&experiment);
            println!("{nodes} nodes: {} messages per get", outcome.messages_per_operation());
            check(outcome.messages_per_operation() <= 5.0, &experiment, &outcome);
        }
    }
}

/// Receivers may publish bytes of the old target after the restart.
#[test]
fn a_restarted_target_is_not_mistaken_for_a_deleted_one() {
    let experiment = Experiment {
        nodes: 200,
        failures_percent: 5.0,
        size_bytes: 64 << 20,
        ..experiment(Workload::Allreduce)
    };
    let outcome = run(&experiment);
    check(outcome.done >= 190 && outcome.restarts > 0, &experiment, &outcome);
}

#[test]
fn small_objects_come_from_the_directory() {
    let experiment = Experiment { size_bytes: 4096, ..experiment(Workload::Broadcast) };
    let outcome = run(&experiment);
    assert_eq!((outcome.done, outcome.counts.grants), (NODES - 1, 0));
    check(outcome.completion <= Duration::from_millis(5), &experiment, &outcome);
}

#[test]
fn an_experiment_always_has_the_same_outcome() {
    for workload in [Workload::Broadcast, Workload::Allreduce] {
        let experiment =
            Experiment { failures_percent: 10.0, size_bytes: 64 << 20, ..experiment(workload) };
        assert_eq!(experiment.run().0, experiment.run().0);
    }
}

fn hoplite_scale(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_hoplite-scale");
    Command::new(program).args(arguments).output().expect("the program runs")
}

#[test]
fn the_program_prints_each_experiment_as_a_row_or_as_json() {
    let chosen = [
        "--nodes",
        "4,20",
        "--workload",
        "broadcast,allreduce",
        "--failures",
        "0,10",
        "--size-mib",
        "1",
    ];
    let table = hoplite_scale(&chosen);
    assert!(table.status.success(), "{table:?}");
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("broadcast")).count(), 4, "{table}");

    let json = hoplite_scale(&[&chosen[..], &["--json", "--arrivals", "staggered"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let experiments = json["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), 8);
    for experiment in experiments {
        assert_eq!(
            (&experiment["undone"], &experiment["error"]),
            (&0.into(), &().into()),
            "{experiment:#}"
        );
        assert!(
            experiment["completion_s"].as_f64().unwrap() >= experiment["bound_s"].as_f64().unwrap()
        );
    }
}

#[test]
fn the_program_refuses_nonsensical_arguments() {
    for arguments in
        [["--nodes", "1"], ["--failures", "-1"], ["--size-mib", "0"], ["--rate-mbit", "0"]]
    {
        let refused = hoplite_scale(&arguments);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}
