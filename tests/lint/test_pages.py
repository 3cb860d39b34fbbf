import tempfile
import unittest
from pathlib import Path
from unittest import mock

import pages

WALK = """
1. `a.rs`: calls the next file,
   in two lines. → `passed_on`
2. `b.rs`: calls the last one. → `Kind`
3. `c.rs`: ends here.
"""
FILES = {"a.rs": "b::passed_on();", "b.rs": "fn passed_on(_: Kind) {}", "c.rs": "enum Kind {}"}


class WalkTest(unittest.TestCase):
    def check(self, text: str, changes: dict[str, str] | None = None) -> list[str]:
        with tempfile.TemporaryDirectory() as place:
            for name, code in {**FILES, **(changes or {})}.items():
                (Path(place) / name).write_text(code)
            with mock.patch.object(pages, "ROOT", Path(place)):
                return pages.lost_on_the_walk(text, [f"/{name}" for name in FILES])

    def test_a_walk_whose_steps_lead_on_passes(self) -> None:
        self.assertEqual(self.check(WALK), [])

    def test_a_step_that_leads_nowhere_is_found(self) -> None:
        self.assertEqual(
            self.check(WALK, {"b.rs": "fn passed_on(_: kind) {}"}),
            ["ARCHITECTURE.md: the walk names Kind, which is not in b.rs"],
        )
        self.assertIn("not in a.rs", self.check(WALK.replace("passed_on", "parsed_on"))[0])
        self.assertEqual(
            self.check(WALK.replace(" → `Kind`", "")),
            ["ARCHITECTURE.md: the step in b.rs has no arrow to the one in c.rs"],
        )
        self.assertEqual(self.check("No walk."), ["ARCHITECTURE.md has no walk"])


class AnchorsTest(unittest.TestCase):
    def test_headings_have_anchors(self) -> None:
        text = "# Who may do what?\n\n## `hoplite top`, and more\n```sh\n# no heading\n```\n"
        self.assertEqual(pages.anchors(text), {"who-may-do-what", "hoplite-top-and-more"})


class RustTest(unittest.TestCase):
    def test_programs_are_examples(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            examples = Path(place) / "hoplite-client/examples"
            examples.mkdir(parents=True)
            (examples / "a.rs").write_text("//! An example.\nfn main() {}\n")
            [code] = pages.RUST.findall("```rust\nfn main() {}\n```\n```sh\nls\n```\n")
            with mock.patch.object(pages, "ROOT", Path(place)):
                self.assertTrue(pages.is_example(code))
                self.assertFalse(pages.is_example("fn other() {}\n"))


if __name__ == "__main__":
    unittest.main()
