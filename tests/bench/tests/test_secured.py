
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from bench.secured import KINDS, ROOT
from lab.tests.test_daemons import PROGRAMS, lacking

PATIENCE_S = 300


class Secured(unittest.TestCase):
    @unittest.skipIf(lacking(), lacking())
    def test_each_is_measured_as_often(self) -> None:
        command = [sys.executable, "-m", "bench.secured", "--programs", str(PROGRAMS), "--json"]
        command += ["--mebibytes", "1", "--receivers", "2", "--rounds", "2"]
        done = subprocess.run(
            command,
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["size_bytes"], found["receivers"]), (1 << 20, 2))
        self.assertEqual(
            {kind: len(seconds) for kind, seconds in found["seconds"].items()},
            dict.fromkeys(KINDS, 2),
        )
        self.assertTrue(
            all(seconds > 0.5 * found["limit_s"] for seconds in found["median_s"].values()), found
        )

    def test_nonsense_is_refused(self) -> None:
        for arguments in (["--rounds", "0"], ["--receivers", "none"], ["--programs", "/nowhere"]):
            command = [sys.executable, "-m", "bench.secured", *arguments]
            done = subprocess.run(
                command,
                cwd=ROOT / "tests",
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            self.assertIn(done.returncode, (1, 2), arguments)
            self.assertTrue(
                done.stderr.startswith(("secured: ", "usage: ")) and not done.stdout, done
            )

    def test_without_a_lab_one_line_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "hoplite-bench-worker").touch()
            command = [
                sys.executable,
                "-m",
                "bench.secured",
                "--programs",
                place,
                "--receivers",
                "1",
            ]
            environment = {**os.environ, "PATH": place}
            done = subprocess.run(
                command,
                cwd=ROOT / "tests",
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
                env=environment,
            )
        self.assertEqual(done.returncode, 1, done)
        self.assertTrue(done.stderr.startswith("secured: ") and not done.stdout, done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
