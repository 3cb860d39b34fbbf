use std::process::Command;

use hoplite_tests::cluster::{Cluster, program, retry};

#[test]
fn each_example_runs_and_leaves_nothing_behind() {
    let cluster = Cluster::of(1);
    let examples = program("hoplite").with_file_name("examples");
    for (example, lines) in [
        ("put_get", &["1048576 bytes, the first is 7"][..]),
        ("reduce", &["3 gradients, 4096 bytes, first element 3"]),
        ("allreduce", &["rank 0: 64 bytes, first element 3", "rank 2: 64 bytes, first element 3"]),
    ] {
        let mut command = Command::new(examples.join(example));
        let output = command
            .env("HOPLITE_SOCKET", cluster.socket(0))
            .output()
            .expect("built by `cargo build --workspace --all-targets`");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{example}: {said}");
        for line in lines {
            assert!(said.contains(line), "{example}: {said}");
        }
    }
    assert!(retry("list", || cluster.client(0).list("", "", 10)).objects.is_empty());
}
