//! docs/reference/settings.md lists all settings.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::path::Path;
use std::process::Command;

use hoplite_tests::cluster::program;

const END: &str = "<!-- end -->\n";

fn table(daemon: &str) -> String {
    let output = Command::new(program(daemon)).arg("--print-reference").output().unwrap();
    assert!(output.status.success());
    let rows = String::from_utf8(output.stdout).unwrap();
    assert!(rows.lines().count() > 5, "{rows}");
    format!("| flag | variable | meaning |\n| --- | --- | --- |\n{rows}")
}

#[test]
fn the_page_lists_the_settings_of_the_daemons() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/settings.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    for daemon in ["hoplite-store", "hoplite-directory"] {
        let begin = format!("<!-- {daemon} -->\n");
        let (before, rest) = page.split_once(&begin).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        let table = table(daemon);
        if std::env::var_os("HOPLITE_WRITE_DOCS").is_some() {
            page = format!("{before}{begin}{table}{END}{after}");
            continue;
        }
        assert!(
            written == table,
            "docs/reference/settings.md is not what {daemon} has; HOPLITE_WRITE_DOCS=1 writes it:\n{table}"
        );
    }
    if std::env::var_os("HOPLITE_WRITE_DOCS").is_some() {
        std::fs::write(path, page).unwrap();
    }
}
