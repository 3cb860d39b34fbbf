import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError, Wedged
from bench.team import Round, Team

FAKE = Path(__file__).with_name("fake_worker.py")


@contextmanager
def team(*faults: str) -> Iterator[Team]:
    hosts = [f"h{rank}" for rank in range(len(faults))]
    with (
        tempfile.TemporaryDirectory() as directory,
        Team("fake", Path(directory) / "socket", hosts) as found,
    ):
        workers = [
            subprocess.Popen([sys.executable, str(FAKE), str(found.path), str(rank), fault])
            for rank, fault in enumerate(faults)
        ]
        try:
            found.gather(workers)
            yield found
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


class Teams(unittest.TestCase):
    def round(
        self,
        found: Team,
        finishers: range = range(2),
        interval_s: float = 0,
        timeout_s: float = 300,
    ) -> Round:
        return found.round("broadcast", 1024, finishers, interval_s, timeout_s)

    def test_the_last_finisher_stops_the_clock(self) -> None:
        with team("never", "never", "never") as found:
            self.assertAlmostEqual(self.round(found, range(3)).seconds, 3e-6)
            self.assertAlmostEqual(self.round(found, range(1)).seconds, 1e-6)

    def test_late_workers_begin_one_after_the_other(self) -> None:
        with team("never", "never", "never") as found:
            measured = self.round(found, range(3), interval_s=0.1)
            self.assertAlmostEqual(measured.seconds, 0.2 + 3e-6)
            self.assertAlmostEqual(measured.after_last_s, 3e-6)

    def test_the_run_is_what_is_looked_at(self) -> None:
        seen = []
        with team("never") as found:

            def around(body: object) -> None:
                seen.append("before")
                assert callable(body)
                body()
                seen.append("after")

            found.round("broadcast", 1024, range(1), 0, 20, around)
        self.assertEqual(seen, ["before", "after"])

    def test_a_wedged_worker_is_named(self) -> None:
        with (
            team("never", "run-silent", "never", "run-silent") as found,
            self.assertRaisesRegex(
                Wedged, "fake on h1, h3 did not finish: broadcast of 1024 bytes, within 10 s"
            ),
        ):
            self.round(found, timeout_s=10)

    def test_a_worker_that_ends_is_named(self) -> None:
        for fault in ("prepare-die", "run-die", "clean-die"):
            with (
                self.subTest(fault),
                team("never", fault) as found,
                self.assertRaisesRegex(BenchError, "fake on h1 ended"),
            ):
                self.round(found)

    def test_a_wrong_result_is_an_error(self) -> None:
        with (
            team("never", "check-wrong") as found,
            self.assertRaisesRegex(BenchError, "h1: check: error wrong result"),
        ):
            self.round(found)

    def test_workers_that_do_not_come_are_named(self) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            Team("fake", Path(directory) / "socket", ["h0", "h1"]) as found,
        ):
            # The start of a process could take longer than the limit.
            worker = self.enterContext(socket.socket(socket.AF_UNIX))
            worker.connect(str(found.path))
            worker.sendall(b"hello 1\n")
            with self.assertRaisesRegex(Wedged, "fake did not start on h0 within 5 s"):
                found.gather([], timeout_s=5)

    def test_a_starter_that_ends_is_an_error(self) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            Team("fake", Path(directory) / "socket", ["h0"]) as found,
        ):
            starter = subprocess.Popen(["false"])
            starter.wait()
            with self.assertRaisesRegex(BenchError, "a process ended with 1"):
                found.gather([starter])


if __name__ == "__main__":
    unittest.main()
