import json
import subprocess
import unittest
from typing import Any

from bench.weights import ROOT
from lab.tests.test_daemons import PROGRAMS, lacking

PYTHON = ROOT / "python" / ".venv" / "bin" / "python"
PATIENCE_S = 300
# A version takes 1.3 s, in which a worker can be killed.
ARGUMENTS = ["--workers", "3", "--megabytes", "4", "--versions", "3", "--rate", "25mbit", "--json"]


def lacking_package() -> str:
    built = any((ROOT / "python" / "hoplite").glob("_native*.so"))
    return lacking() or (
        "" if PYTHON.exists() and built else "the Python package is not built: run `make python`"
    )


def command(*arguments: str) -> list[str]:
    return [str(PYTHON), "-m", "bench.weights", "--programs", str(PROGRAMS), *arguments]


class Weights(unittest.TestCase):
    def send(self, what: str) -> dict[str, Any]:
        done = subprocess.run(
            command(*ARGUMENTS, "--kill", what),
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    @unittest.skipIf(lacking_package(), lacking_package())
    def test_a_worker_or_its_host_is_killed_and_another_one_joins(self) -> None:
        for what in ("worker", "host"):
            with self.subTest(what):
                found = self.send(what)
                self.assertEqual(found["ends"], {"h1": -9, "h2": 0, "h3": 0, "h4": 0})
                self.assertEqual([one["version"] for one in found["versions"]], [1, 2, 3])
                self.assertEqual(found["versions"][1]["killed"], what)
                self.assertGreater(found["versions"][1]["joined_after_s"], 0)
                for one in found["versions"]:
                    self.assertGreater(one["limits"], 0.95)

    @unittest.skipIf(not PYTHON.exists(), "the Python package is not installed")
    def test_a_command_line_that_makes_no_sense(self) -> None:
        done = subprocess.run(
            command("--workers", "1"),
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("at least 2 workers", done.stderr)


if __name__ == "__main__":
    unittest.main()
