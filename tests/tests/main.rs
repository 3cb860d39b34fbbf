//! Tests with real daemons, in one program that links once.

mod background;
mod bad_input;
mod batches;
mod broadcast;
mod command_line;
mod configuration;
mod conformance;
mod dashboard;
mod direct;
mod doctor;
mod drain;
mod examples;
mod exchange;
mod faults;
mod labels;
mod lanes;
mod lifecycle;
mod lifetimes;
mod limits;
mod metrics;
mod names;
mod probe;
mod problems;
mod quotas;
mod rails;
mod reconnecting;
mod recovery;
mod reduce;
mod replicas;
mod secured;
mod shards;
mod sockets;
mod spill;
mod timeouts;
mod topology;
mod traces;
mod upgrade;
mod versions;

#[test]
fn every_file_here_is_part_of_the_program() {
    fn check(directory: &std::path::Path, root: &str) {
        let text = std::fs::read_to_string(directory.join(root)).unwrap();
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_named =
                text.lines().any(|line| line.trim_start_matches("pub ") == format!("mod {name};"));
            assert!(path.ends_with(root) || is_named, "{} is left out", path.display());
            if path.is_dir() {
                check(&path, "mod.rs");
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), "main.rs");
}
