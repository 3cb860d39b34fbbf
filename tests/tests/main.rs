//! Tests with real daemons: one program, since each that is linked with the client and gRPC takes seconds to build.

mod background;
mod bad_input;
mod broadcast;
mod command_line;
mod configuration;
mod conformance;
mod dashboard;
mod faults;
mod lifecycle;
mod limits;
mod metrics;
mod probe;
mod reduce;
mod secured;
mod topology;
mod versions;

#[test]
fn every_file_here_is_part_of_the_program() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in here.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(
            name == "main" || include_str!("main.rs").contains(&format!("\nmod {name};\n")),
            "{name} is left out"
        );
    }
}
