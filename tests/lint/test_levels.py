import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import levels

ARCHITECTURE = """
| level | modules of `hoplite-core/src/` | what they are |
| --- | --- | --- |
| 1 | `words` | |
| 2 | `plan`, `wire` | |
| 3 | `node` | |

| 4 | `another` | a table |
"""
LIB = "pub mod words;\npub mod plan;\npub mod wire;\npub mod node;\npub use words::Id;\n"
CLEAN = {
    "hoplite-core/src/lib.rs": LIB,
    "hoplite-core/src/words.rs": "pub struct Id;\n",
    "hoplite-core/src/plan/mod.rs": "mod cost;\npub use cost::Cost;\nuse cost::f;\nuse crate::words::Id;\n",
    "hoplite-core/src/plan/cost.rs": "pub struct Cost(pub crate::Id);\npub(in crate::plan) fn f() {}\n",
    "hoplite-core/src/wire.rs": "use crate::words::{self, Id as Name};\n// use crate::node::Node;\n",
    "hoplite-core/src/node.rs": 'use crate::{plan::Cost, words::Id};\npub struct Node;\nconst A: &str = "crate::node::Node";\n',
    "store/src/main.rs": "mod engine;\nuse hoplite_core::node::Node;\n",
    "store/src/engine.rs": "use hoplite_core::plan::Cost;\n",
}


class LevelsTest(unittest.TestCase):
    def check(self, changes: dict[str, str], allowed: str = "") -> str:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            files = {
                "Cargo.toml": '[workspace]\nmembers = ["hoplite-core", "store"]\n',
                "hoplite-core/Cargo.toml": '[package]\nname = "hoplite-core"\n',
                "store/Cargo.toml": '[package]\nname = "hoplite-store"\n',
                "ARCHITECTURE.md": ARCHITECTURE,
                "tests/lint/cycles.txt": allowed,
                **CLEAN,
                **changes,
            }
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                code = levels.main(root)
            self.assertEqual(code, 1 if said.getvalue() else 0)
            return said.getvalue()

    def test_clean_sources_pass(self) -> None:
        self.assertEqual(self.check({}), "")

    def test_an_import_that_goes_up_is_found(self) -> None:
        for code in (
            "use crate::node::Node;",
            "use super::super::node::Node;",
            "use crate::{node::{Node}};",
            "fn f(_: crate::node::Node) {}",
        ):
            said = self.check({"hoplite-core/src/plan/cost.rs": f"pub struct Cost;\n{code}\n"})
            self.assertIn("plan/cost.rs imports up: node::Node, of `node`", said)

    def test_an_import_that_goes_up_through_others_is_found(self) -> None:
        said = self.check(
            {
                "hoplite-core/src/lib.rs": f"{LIB}pub use node::Node;\n",
                "hoplite-core/src/wire.rs": "use crate::Node;\n",
            }
        )
        self.assertEqual(said, "wire.rs imports up: Node, of `node`\n")

    def test_an_import_that_goes_sideways_is_found(self) -> None:
        said = self.check({"hoplite-core/src/wire.rs": "use crate::plan::Cost;\n"})
        self.assertEqual(said, "wire.rs imports sideways: plan::Cost, of `plan`\n")

    def test_a_module_without_a_level_is_found(self) -> None:
        said = self.check(
            {"hoplite-core/src/lib.rs": f"{LIB}mod new;\n", "hoplite-core/src/new.rs": ""}
        )
        self.assertEqual(said, "new.rs has no level in ARCHITECTURE.md\n")

    def test_tests_may_import_what_they_like(self) -> None:
        tests = "#[cfg(test)]\nmod tests {\n    use crate::node::Node;\n    fn f() { let x = [{}]; }\n}\n"
        self.assertEqual(self.check({"hoplite-core/src/wire.rs": tests}), "")
        in_file = {
            "hoplite-core/src/wire.rs": "#[cfg(test)]\nmod tests;\n",
            "hoplite-core/src/wire/tests.rs": "use crate::node::Node;\n",
        }
        self.assertEqual(self.check(in_file), "")

    def test_a_cycle_of_files_is_found(self) -> None:
        cyclic = {
            "hoplite-core/src/plan/mod.rs": "mod cost;\npub use cost::Cost;\nuse cost::price;\npub struct Plan;\n",
            "hoplite-core/src/plan/cost.rs": "use super::Plan;\npub struct Cost;\npub fn price() {}\n",
        }
        names = "hoplite-core/src/plan/cost.rs, hoplite-core/src/plan/mod.rs"
        self.assertEqual(self.check(cyclic), f"these files import each other in a cycle: {names}\n")
        self.assertEqual(self.check(cyclic, names.replace(", ", "\n")), "")
        self.assertIn(
            "cycle", self.check(cyclic, names.replace(", ", "\n\n")), "they are in two groups"
        )

    def test_a_cycle_that_is_gone_must_leave_the_list(self) -> None:
        said = self.check({}, "store/src/engine.rs\nstore/src/main.rs\n")
        self.assertEqual(said.count("is in no cycle any more"), 2)


if __name__ == "__main__":
    unittest.main()
