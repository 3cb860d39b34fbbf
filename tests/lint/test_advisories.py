import tempfile
import unittest
from pathlib import Path

from advisories import NotADatabase, found, meets

ADVISORY = """```toml
[advisory]
id = "RUSTSEC-2020-0001"
package = "leaky"
{more}

[versions]
patched = [">= 1.2.3", ">= 1.1.4, < 1.2.0"]
unaffected = ["< 1.0.0"]
```

# It leaks
"""


class AdvisoriesTest(unittest.TestCase):
    def test_requirements_mean_what_they_mean_to_cargo(self) -> None:
        for requirement, inside, outside in [
            (">= 1.2.3, < 1.3", ["1.2.3", "1.2.9"], ["1.2.2", "1.3.0"]),
            ("> 1.2", ["1.2.1"], ["1.2.0"]),
            ("<= 0.3.1", ["0.3.1", "0.1.0"], ["0.3.2"]),
            ("^1.2.3", ["1.2.3", "1.9.0"], ["1.2.2", "2.0.0"]),
            ("1.2", ["1.2.0", "1.9.9"], ["1.1.9", "2.0.0"]),
            ("^0.2.3", ["0.2.3", "0.2.9"], ["0.2.2", "0.3.0"]),
            ("^0.0.3", ["0.0.3"], ["0.0.4"]),
            ("^0", ["0.9.0"], ["1.0.0"]),
            ("~1.2", ["1.2.9"], ["1.3.0"]),
            ("=1.2.3", ["1.2.3"], ["1.2.4"]),
            ("*", ["7.0.0"], []),
        ]:
            for version in inside:
                self.assertTrue(meets(version, requirement), f"{version} {requirement}")
            for version in outside:
                self.assertFalse(meets(version, requirement), f"{version} {requirement}")

    def look_up(
        self, version: str, more: str = "", ignored: frozenset[str] = frozenset()
    ) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            database = Path(directory)
            (database / "crates" / "leaky").mkdir(parents=True)
            (database / "crates" / "leaky" / "RUSTSEC-2020-0001.md").write_text(
                ADVISORY.format(more=more)
            )
            return found(database, [("leaky", version), ("other", "1.0.0")], set(ignored))

    def test_versions_between_those_that_are_safe_are_found(self) -> None:
        for version in ["0.9.9", "1.1.4", "1.2.3"]:
            self.assertEqual(self.look_up(version), [])
        for version in ["1.0.0", "1.1.3", "1.2.2"]:
            (line,) = self.look_up(version)
            self.assertTrue(
                line.startswith(f"leaky {version}: RUSTSEC-2020-0001 (vulnerability)"), line
            )

    def test_what_was_withdrawn_or_is_ignored_is_not_found(self) -> None:
        self.assertEqual(self.look_up("1.0.0", more='withdrawn = "2021-01-01"'), [])
        self.assertEqual(self.look_up("1.0.0", ignored=frozenset({"RUSTSEC-2020-0001"})), [])

    def test_an_empty_directory_is_no_database(self) -> None:
        with tempfile.TemporaryDirectory() as directory, self.assertRaises(NotADatabase):
            found(Path(directory), [], set())


if __name__ == "__main__":
    unittest.main()
