#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use hoplite_core::topology::random::Random;
use hoplite_core::topology::{Link, Links, Matrix};
use hoplite_tests::cluster::program;
use hoplite_topology::{Model, cost};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write_json(&self, name: &str, value: &Value) -> String {
        self.write(name, &value.to_string())
    }
}

fn topology(arguments: &[&str]) -> Output {
    Command::new(program("hoplite")).arg("topology").args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = topology(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn document(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

fn failure(arguments: &[&str]) -> String {
    let output = topology(arguments);
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("hoplite: ") && output.stdout.is_empty(), "{output:?}");
    line
}

fn racks(racks: usize, hosts: usize) -> Value {
    let nodes = racks * hosts;
    let mut shuffled: Vec<usize> = (0..nodes).collect();
    Random::new(7).shuffle(&mut shuffled);
    let table = |inside: u32, outside: u32| -> Vec<Vec<u32>> {
        let entry = |a: usize, b: usize| match (shuffled[a], shuffled[b]) {
            (a, b) if a == b => 0,
            (a, b) if a / hosts == b / hosts => inside,
            _ => outside,
        };
        (0..nodes).map(|a| (0..nodes).map(|b| entry(a, b)).collect()).collect()
    };
    let names: Vec<String> = (0..nodes).map(|node| format!("host-{node}")).collect();
    json!({"nodes": names, "alpha_ns": table(10_000, 60_000), "ps_per_byte": table(800, 3200)})
}

fn matrix(value: &Value) -> Matrix {
    let names =
        value["nodes"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let entry = |table: &str, a: usize, b: usize| value[table][a][b].as_u64().unwrap() as u32;
    let link = |a, b| {
        Ok(Link { alpha_ns: entry("alpha_ns", a, b), ps_per_byte: entry("ps_per_byte", a, b) })
    };
    Matrix::from_links(names.collect(), link).unwrap()
}

#[test]
fn costs_of_orders() {
    let files = Files::new();
    let value = racks(4, 4);
    let file = files.write_json("m.json", &value);
    let matrix = matrix(&value);
    let links = Links::new(&matrix, 1 << 20).unwrap();
    let reversed: Vec<u32> = (0..16).rev().collect();
    let order = files.write_json("order.json", &json!(reversed));
    for model in [
        "ring",
        "halving-doubling",
        "double-binary-tree",
        "nccl-tree",
        "bcube:4",
        "chain",
        "hierarchical:4x4",
    ] {
        let parsed: Model = model.parse().unwrap();
        for (name, ranks) in [("identity", (0..16).collect()), (order.as_str(), reversed.clone())] {
            let found = document(&[
                "cost", "--matrix", &file, "--order", name, "--model", model, "--size", "1MiB",
                "--json",
            ]);
            assert_eq!(
                found,
                json!({"cost_ps": cost::cost(links, &parsed, &ranks).unwrap() as u64}),
                "{model}"
            );
        }
    }
    let people = text(&["cost", "--matrix", &file, "--model", "ring", "--size", "0"]);
    assert!(people.contains("us (") && people.ends_with(" ps)\n"), "{people}");
}

#[test]
fn orders_are_found_and_printed_in_all_formats() {
    let files = Files::new();
    let value = racks(4, 8);
    let file = files.write_json("m.json", &value);
    let search = ["--matrix", &file, "--size", "1048576", "--seconds", "1", "--seed", "3"];
    let order = |model: &str, more: &[&str]| {
        let arguments: Vec<&str> = ["order", "--for", model]
            .into_iter()
            .chain(search)
            .chain(more.iter().copied())
            .collect();
        text(&arguments)
    };
    for model in ["ring", "halving-doubling"] {
        let found: Value = serde_json::from_str(&order(model, &[])).unwrap();
        let numbers =
            ["lower_bound_ps", "cost_ps", "before_ps"].map(|name| found[name].as_u64().unwrap());
        assert!(numbers.is_sorted(), "{numbers:?}");
        // Four ring hops cross racks, and two of five steps of halving-doubling.
        let optimum = match model {
            "ring" => 28 * (10_000_000 + 800 * (1 << 20)) + 4 * (60_000_000 + 3200 * (1 << 20)),
            _ => {
                let inside: u64 = (1..=3).map(|bit| 10_000_000 + 800 * ((1 << 20) >> bit)).sum();
                inside + (4..=5).map(|bit| 60_000_000 + 3200 * ((1_u64 << 20) >> bit)).sum::<u64>()
            }
        };
        assert_eq!(found["cost_ps"], json!(optimum), "{model}");
        let result = files.write_json("result.json", &found);
        let again = document(&[
            "cost", "--matrix", &file, "--order", &result, "--model", model, "--size", "1M",
            "--json",
        ]);
        assert_eq!(again["cost_ps"], found["cost_ps"]);
    }
    let lines = |format: &str| -> Vec<String> {
        order("ring", &["--format", format]).lines().map(str::to_owned).collect()
    };
    assert_eq!(lines("hostfile").len(), 32);
    assert!(lines("rankfile")[31].starts_with("rank 31=host-"));
    assert!(lines("torchrun")[5].contains("--node-rank=5 --rdzv-backend=static"));
    assert!(lines("env")[0].contains("RANK=0 WORLD_SIZE=32 MASTER_ADDR=host-"));
    assert_eq!(lines("csv")[0], "rank,node,index");
}

#[test]
fn an_external_solver_may_prove_an_order_or_find_a_better_one() {
    let files = Files::new();
    let matrix = files.write_json("m.json", &racks(3, 3));
    let order = |script: &str| {
        let z3 = files.write(
            "z3",
            &format!("#!/bin/sh\ncat > {}\n{script}\n", files.path("question").display()),
        );
        fs::set_permissions(&z3, fs::Permissions::from_mode(0o755)).unwrap();
        let found = document(&[
            "order",
            "--matrix",
            &matrix,
            "--for",
            "double-binary-tree",
            "--size",
            "4096",
            "--seconds",
            "0.1",
            "--z3",
            &z3,
        ]);
        ["lower_bound_ps", "cost_ps"].map(|name| found[name].as_u64().unwrap())
    };
    let [bound, cost] = order("echo unsat");
    assert_eq!(bound, cost, "the solver says that there is no better one");
    let question = fs::read_to_string(files.path("question")).unwrap();
    assert!(question.starts_with("(set-logic QF_LIA)") && question.contains(&format!(" {cost}))")));
    for script in [
        "echo unknown",
        "exit 3",
        "echo sat; for i in 0 1 2 3 4 5 6 7 8; do echo \"(define-fun x_${i}_$i () Bool true)\"; done",
    ] {
        let [bound, cost] = order(script);
        assert!(bound < cost, "{script}");
    }
    let missing = [
        "order",
        "--matrix",
        &matrix,
        "--for",
        "double-binary-tree",
        "--size",
        "1",
        "--seconds",
        "0.1",
        "--z3",
        "/no/z3",
    ];
    assert!(failure(&missing).contains("/no/z3"));
}

#[test]
fn matrices_are_also_read_from_csv_and_from_slurm() {
    let files = Files::new();
    let csv = files.write("rtt.csv", "rtt_us,a,b,c\na,0,40,90\nb,44,0,70\nc,82,71,0\n");
    let cost = |file: &str| {
        document(&["cost", "--matrix", file, "--model", "ring", "--size", "0", "--json"])
    };
    assert_eq!(cost(&csv), json!({"cost_ps": (22_000 + 45_000 + 35_500) * 1000}));
    let slurm = files.write(
        "topology.conf",
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=top Switches=s[1-2]\n",
    );
    assert_eq!(cost(&slurm), json!({"cost_ps": (5_000 + 15_000 + 5_000 + 15_000) * 1000}));
}

#[test]
fn hdrm_is_mapped_and_checked() {
    let files = Files::new();
    let mapping = document(&["hdrm", "--hosts-per-switch", "1", "--switches", "8", "--json"]);
    assert_eq!(mapping, json!({"upper": [[0], [3], [5], [6]], "lower": [[1], [2], [4], [7]]}));
    let good = files.write_json("good.json", &mapping);
    assert!(text(&["hdrm", "--check", &good]).contains("no link carries two pairs of the 8 ranks"));
    text(&["hdrm", "--check", &good, "--hosts-per-switch", "1", "--switches", "8", "--json"]);
    assert!(
        failure(&["hdrm", "--check", &good, "--hosts-per-switch", "2", "--switches", "16"])
            .contains("not 16 with 2")
    );
    let bad = files.write_json(
        "bad.json",
        &json!({"upper": [[0], [3], [5], [7]], "lower": [[1], [2], [4], [6]]}),
    );
    assert!(
        failure(&["hdrm", "--check", &bad])
            .contains("distance 2 ranks 4 and 6 are both in the lower half")
    );
    let empty = files.write_json("empty.json", &json!({"upper": [], "lower": []}));
    assert!(failure(&["hdrm", "--check", &empty]).contains("rank 0 has no place"));
    for (hosts, switches, reason) in
        [("5", "8", "share a link"), ("2", "6", "power of two"), ("0", "8", "at least one host")]
    {
        assert!(
            failure(&["hdrm", "--hosts-per-switch", hosts, "--switches", switches])
                .contains(reason)
        );
    }
}

#[test]
fn allreduces_are_decomposed() {
    let arguments = [
        "decompose",
        "--ranks",
        "64",
        "--levels",
        "4x16",
        "--bandwidth",
        "1.25e9,312500000",
        "--latency",
        "1e-4",
        "--size",
        "64MiB",
    ];
    let plan = document(&[&arguments[..], &["--json"]].concat());
    let stages = plan["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    assert_eq!(stages[1]["bytes_per_second"], json!(312_500_000.0 / 4.0));
    let total: f64 = stages.iter().map(|stage| stage["seconds"].as_f64().unwrap()).sum();
    assert!((plan["total_s"].as_f64().unwrap() - total).abs() < 1e-12);
    assert!(plan["ring_s"].as_f64().unwrap() > 0.0);
    assert!(text(&arguments).contains("one ring"));
    let alone = [
        "--ranks", "1", "--levels", "1", "--bandwidth", "1", "--latency", "0", "--size", "1",
        "--json",
    ];
    assert!(
        text(&[&["decompose"][..], &alone].concat()).contains("\"total_s\": 0.0"),
        "and not -0"
    );
    assert!(
        failure(&[
            "decompose", "--ranks", "63", "--levels", "4x16", "--bandwidth", "1,1", "--latency",
            "0", "--size", "1"
        ])
        .contains("64")
    );
}

#[test]
fn fabrics_are_simulated_and_drawn() {
    let files = Files::new();
    let plot = files.path("plot.svg");
    let run = |collective: &str, more: &[&str]| {
        let arguments = [
            "simulate", "--fabric", "bigraph", "--nodes", "1024", "--size", "256KiB", "--json",
            "--collective", collective,
        ];
        document(&[&arguments[..], more].concat())["seconds"].as_f64().unwrap()
    };
    let hdrm = run("hdrm", &["--plot", plot.to_str().unwrap()]);
    assert!((hdrm - 181e-6).abs() < 0.1e-6, "{hdrm}");
    assert!(run("ring", &[]) > run("hd", &["--order", "shuffled:1", "--routing", "ecmp:1"]));
    assert!(run("hd", &["--order", "shuffled:1", "--routing", "ecmp:1"]) > hdrm);
    let drawing = fs::read_to_string(plot).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.matches("<polyline").count() == 4);
    let matrix = files.write_json("m.json", &racks(2, 4));
    for fabric in ["fat-tree", "torus", &matrix] {
        let found = document(&[
            "simulate", "--fabric", fabric, "--nodes", "8", "--collective", "hierarchical",
            "--size", "8K", "--levels", "4x2", "--json",
        ]);
        assert_eq!(found["steps"].as_array().unwrap().len(), 2, "{fabric}");
    }
    assert!(
        failure(&[
            "simulate", "--fabric", "torus", "--nodes", "8", "--collective", "hdrm", "--size", "1"
        ])
        .contains("BiGraph")
    );
    assert!(
        failure(&["simulate", "--fabric", "bigraph", "--collective", "hd", "--size", "1"])
            .contains("--nodes")
    );
    assert!(
        failure(&[
            "simulate", "--fabric", &matrix, "--nodes", "9", "--collective", "hd", "--size", "1"
        ])
        .contains("8 nodes")
    );
    let bandwidth = ["--bandwidth", "1e-320"];
    let simulated = [
        "simulate", "--fabric", "torus", "--nodes", "8", "--collective", "ring", "--size", "1M",
        "--json",
    ];
    assert!(failure(&[&simulated[..], &bandwidth].concat()).contains("longer than a number"));
    let decomposed =
        ["decompose", "--ranks", "8", "--levels", "8", "--latency", "0", "--size", "1M", "--json"];
    assert!(failure(&[&decomposed[..], &bandwidth].concat()).contains("a time of inf"));
}

#[test]
fn pairs_of_a_matrix_share_the_uplinks_of_groups() {
    let files = Files::new();
    let loaded = files.write_json("loaded.json", &racks(2, 4));
    let mut stated = racks(1, 8);
    let rack = |node: usize| json!([if node < 4 { "a" } else { "b" }]);
    stated["groups"] = (0..8).map(rack).collect();
    stated["uplinks"] = json!([0.25]);
    let stated = files.write_json("stated.json", &stated);
    let run = |file: &str, order: &str, more: &[&str]| {
        let order = files.write(order, order);
        let size = ["simulate", "--collective", "ring", "--size", "64M", "--json"];
        document(&[&size[..], &["--fabric", file, "--order", &order], more].concat())
    };
    let (in_racks, in_turn) = ("[0,1,2,3,4,5,6,7]", "[0,4,1,5,2,6,3,7]");
    let found = run(&stated, in_racks, &[]);
    assert_eq!(found["shared"], json!({"groups": 2, "uplinks": [0.25]}));
    let (near, far) =
        (found["seconds"].as_f64().unwrap(), run(&stated, in_turn, &[])["seconds"].as_f64());
    assert!(far.unwrap() > 3.9 * near, "four pairs cross, and not one");
    let fast = run(&stated, in_turn, &["--uplinks", "4"]);
    assert!(fast["seconds"].as_f64().unwrap() < near, "as the argument says");
    assert_eq!(run(&loaded, in_racks, &[])["shared"]["groups"], 2);
    let refused = ["simulate", "--collective", "ring", "--size", "1", "--fabric"];
    assert!(failure(&[&refused[..], &[&loaded, "--uplinks", "1,2"]].concat()).contains("1 levels"));
    assert!(
        failure(&[&refused[..], &["torus", "--nodes", "4", "--uplinks", "1"]].concat())
            .contains("own links")
    );
}

#[test]
fn matrices_are_shown() {
    let files = Files::new();
    let matrix = files.write_json("m.json", &racks(4, 4));
    let plot = files.path("map.svg");
    let table = text(&["show", "--matrix", &matrix, "--plot", plot.to_str().unwrap()]);
    let groups: Vec<&str> =
        table.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(groups.len(), 16);
    for rack in groups.chunks(4) {
        assert!(rack.iter().all(|group| group == &rack[0]), "{table}");
    }
    let drawing = fs::read_to_string(plot).unwrap();
    assert_eq!(drawing.matches("<rect").count(), 16 * 16 + 1);
    assert_eq!(drawing.matches("<path").count(), 15);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of inputs")]
fn bad_input_is_refused_in_one_line() {
    let files = Files::new();
    let good = files.write_json("good.json", &racks(1, 4));
    let cost = |matrix: &str, more: &[&str]| {
        failure(&[&["cost", "--matrix", matrix, "--size", "0"], more].concat())
    };
    let ring = ["--model", "ring"];
    assert!(cost("/does/not/exist", &ring).contains("/does/not/exist"));
    let names: Vec<String> = (0..100_000).map(|node| node.to_string()).collect();
    for (name, text, reason) in [
        ("empty", String::new(), "no nodes"),
        (
            "rows",
            json!({"nodes": ["a", "b"], "alpha_ns": [[0, 1]], "ps_per_byte": [[0, 1], [1, 0]]}).to_string(),
            "1 rows",
        ),
        (
            "nan",
            r#"{"nodes": ["a", "b"], "alpha_ns": [[0, NaN], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]}"#
                .to_owned(),
            "line 1",
        ),
        (
            "null",
            json!({"nodes": ["a", "b"], "alpha_ns": [[0, null], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]})
                .to_string(),
            "missing",
        ),
        (
            "negative",
            json!({"nodes": ["a", "b"], "alpha_ns": [[0, -1], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]})
                .to_string(),
            "negative",
        ),
        (
            "twice",
            json!({"nodes": ["a", "a"], "alpha_ns": [[0, 1], [1, 0]], "ps_per_byte": [[0, 1], [1, 0]]})
                .to_string(),
            "twice",
        ),
        ("many", json!({"nodes": names, "alpha_ns": [], "ps_per_byte": []}).to_string(), "100000 nodes"),
    ] {
        let file = files.write(name, &text);
        let line = cost(&file, &ring);
        assert!(line.contains(reason), "{name}: {line}");
    }
    for (order, reason) in [
        ("[0, 1, 2]", "3 entries"),
        ("[0, 1, 2, 2]", "permutation"),
        ("[0, 1, 2, 9]", "permutation"),
        ("{}", "list"),
    ] {
        let order = files.write("order.json", order);
        let line = cost(&good, &["--model", "ring", "--order", &order]);
        assert!(line.contains(reason), "{line}");
    }
    let three = files.write("three.csv", "0,1,1\n1,0,1\n1,1,0\n");
    assert!(cost(&three, &["--model", "halving-doubling"]).contains("power of two"));
    for usage in [
        vec!["cost"],
        vec!["cost", "--matrix", &good, "--model", "star", "--size", "1"],
        vec!["cost", "--matrix", &good, "--model", "ring", "--size", "-1"],
        vec!["order", "--matrix", &good, "--for", "ring", "--size", "1", "--format", "xml"],
        vec!["order", "--matrix", &good, "--for", "ring", "--size", "1", "--seconds", "nan"],
        vec!["hdrm", "--switches", "8"],
        vec![
            "decompose", "--ranks", "4", "--levels", "2x", "--bandwidth", "1", "--latency", "0",
            "--size", "1",
        ],
        vec!["simulate", "--fabric", "torus", "--collective", "tree", "--size", "1"],
        vec!["probe", "--probes", "0"],
        vec!["probe", "--nodes", "a b"],
        vec!["show", "--plot", "x.svg"],
        vec!["show", "--order", "identity"],
        vec!["show", "--matrix", &good, "--json"],
        vec!["guess"],
    ] {
        assert_eq!(topology(&usage).status.code(), Some(2), "{usage:?}");
    }
}
