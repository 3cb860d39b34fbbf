"""Whole runs with fake systems. Needs the requirements of a lab, and iperf3."""

import io
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import ClassVar
from unittest import mock

from bench import limit, report, suite
from bench.errors import BenchError
from bench.results import Measurement, Results
from bench.suite import Settings, Suite, results_for
from bench.systems import SYSTEMS, Context, System
from bench.systems.base import Processes, ending
from lab import Lab, registry
from lab.tests.test_lab import missing

FAKE = Path(__file__).with_name("fake_worker.py")
LACKING = missing() or limit.missing()


class Fake(System):
    name = "fake"
    title = "Fake"
    setting = ""
    fault = "never"

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return "1"

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        workers = [
            host.popen(
                [sys.executable, FAKE, socket, str(rank), self.fault if rank == 1 else "never"]
            )
            for rank, host in enumerate(lab.hosts)
        ]
        with ending(workers):
            yield workers


class Absent(Fake):
    name = "absent"

    def missing(self) -> str:
        return "it was never written"


class Wedging(Fake):
    name = "wedging"
    fault = "run-silent"


class Small(Fake):
    name = "small"
    most_hosts = 2


class Omitting(Fake):
    name = "omitting"
    omits = frozenset({"broadcast"})


class Capped(Fake):
    name = "capped"
    preloads: ClassVar[list[str]] = []

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        found = lab.hosts[0].run(
            ["printenv", "LD_PRELOAD"], capture_output=True, text=True, check=False
        )
        self.preloads.append(found.stdout)
        with super().start(lab, socket) as workers:
            yield workers


class Unable(Fake):
    name = "unable"

    @contextmanager
    def start(self, lab: Lab, socket: Path) -> Iterator[Processes]:
        with ending([lab.hosts[0].popen(["false"])]) as processes:
            yield processes


class Rounds(unittest.TestCase):
    def rounds(self, system: str, limit_s: float, round_s: float, cell_s: float = 4) -> int:
        settings = Settings((), (), (), (), (), 0, rounds=5, cell_s=cell_s, rate_bits_s=1)
        results = Results("", "", "", {}, 1)
        found = Suite(settings, Context(Path(), Path(), 0, Path()), results, lambda: None)
        cell = Measurement(system, "allreduce", 4, 1, 0, limit_s)
        while not found._is_enough(cell, round_s * len(cell.seconds)):
            cell.seconds.append(round_s)
        return len(cell.seconds)

    def test_what_is_short_at_the_limit_has_all_rounds(self) -> None:
        for system in ("hoplite", "ray"):
            self.assertEqual(self.rounds(system, 0.9, 3.0), 5)
        self.assertEqual(self.rounds("ray", 0.001, 40.0), 2, "it is stuck")

    def test_what_is_long_has_a_median(self) -> None:
        for system, limit_s, round_s, expected in [
            ("hoplite", 5.0, 5.1, 3),
            ("hoplite", 5.0, 9.0, 3),
            ("hoplite", 42.0, 42.5, 3),
            ("gloo", 5.0, 5.4, 3),
            ("gloo", 5.0, 5.6, 1),
            ("gloo", 42.0, 42.5, 1),
            ("hoplite", 1.2, 1.3, 4),
            ("gloo", 1.2, 1.4, 3),
        ]:
            with self.subTest(system, limit_s=limit_s, round_s=round_s):
                self.assertEqual(self.rounds(system, limit_s, round_s), expected)

    def test_a_long_run_has_all_rounds(self) -> None:
        self.assertEqual(self.rounds("gloo", 5.0, 5.6, cell_s=60), 5)

    def test_workloads_may_have_sizes_of_their_own(self) -> None:
        settings = Settings(
            ("fake",),
            ("reduce", "allreduce", "ps_sync"),
            (3,),
            (4, 8),
            (),
            0,
            1,
            1,
            1,
            {"reduce": (8,)},
        )
        results = Results("", "", "", {}, 1)
        results.limits[3] = {"payload_bytes_s": 1e6, "round_trip_s": 1e-4}
        context = Context(Path(), Path(), 0, Path())
        cells = Suite(settings, context, results, lambda: None)._all_cells(Fake(context), 3)
        sizes = [(cell.workload, cell.size_bytes) for cell in cells]
        self.assertEqual(
            sizes, [("reduce", 8), ("allreduce", 4), ("allreduce", 8), ("ps_sync", 4 << 20)]
        )


@unittest.skipIf(LACKING, LACKING)
class Suites(unittest.TestCase):
    def run_suite(
        self,
        *systems: type[System],
        earlier: Results | None = None,
        round_s: float = 300,
        flow_cap_bits_s: int | None = None,
    ) -> Results:
        settings = Settings(
            systems=tuple(system.name for system in systems),
            workloads=("broadcast", "broadcast_late"),
            hosts=(3,),
            sizes_bytes=(1024, 128 << 10),
            intervals=(0.5,),
            late_from_bytes=128 << 10,
            rounds=2,
            cell_s=60,
            rate_bits_s=200_000_000,
            flow_cap_bits_s=flow_cap_bits_s,
        )
        results = earlier or results_for(settings, Path(__file__).parent, "test")
        with (
            tempfile.TemporaryDirectory() as directory,
            redirect_stderr(io.StringIO()),
            mock.patch.dict(SYSTEMS, {system.name: system for system in systems}),
            mock.patch.object(suite, "_TIMEOUT_LEAST_S", round_s),
            mock.patch.object(limit, "_SECONDS", 1),
            mock.patch.object(limit, "_OMIT_SECONDS", 0),
        ):
            context = Context(Path(directory), Path(directory), 1024, Path(directory) / "log")
            stored = Path(directory) / "results.json"
            Suite(settings, context, results, lambda: results.write(stored)).run()
            self.assertEqual(Results.read(stored).measurements, results.measurements)
        self.assertTrue(results.ended)
        return results

    def tearDown(self) -> None:
        left = [name for name in registry.names() if registry.is_owned(name)]
        self.assertFalse([name for name in left if name.startswith(f"hoplite-{os.getpid()}-")])

    def test_every_cell_is_measured(self) -> None:
        results = self.run_suite(Fake)
        found = [
            (cell.workload, cell.size_bytes, len(cell.seconds), cell.error)
            for cell in results.measurements
        ]
        large = 128 << 10
        self.assertEqual(
            found,
            [
                ("broadcast", 1024, 2, None),
                ("broadcast", large, 2, None),
                ("broadcast_late", large, 2, None),
            ],
        )
        late = results.measurements[-1]
        self.assertGreater(late.seconds[0], 2 * late.interval_s)
        self.assertLess(late.after_last_s[0], late.interval_s)

    def test_what_did_not_cross_the_links_is_said(self) -> None:
        crossed = [cell.crossed for cell in self.run_suite(Fake).measurements]
        self.assertIsNone(crossed[0])
        self.assertRegex(crossed[1] or "", r"h0 sent \d+ bytes instead of at least 131072")

    def test_a_cap_holds_for_systems_and_not_for_the_limit(self) -> None:
        cap_bits_s = 10_000_000
        results = self.run_suite(Capped, flow_cap_bits_s=cap_bits_s)
        self.assertEqual([cell.error for cell in results.measurements], [None] * 3)
        self.assertRegex(Capped.preloads[-1], r"flow_cap\.so")
        self.assertGreater(results.payload_bytes_s * 8, 3 * cap_bits_s)
        self.assertIn(
            "Each connection of a system gets at most 10 Mbit/s.", "\n".join(report._head(results))
        )

    def test_a_missing_system_is_named(self) -> None:
        results = self.run_suite(Absent, Omitting)
        self.assertEqual(results.missing, {"absent": "it was never written"})
        self.assertEqual([cell.system for cell in results.measurements], ["omitting"])

    def test_a_run_without_any_system_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchError, "nothing to measure: it was never written"):
            self.run_suite(Absent)

    def test_a_system_that_does_not_fit_is_named(self) -> None:
        results = self.run_suite(Small)
        self.assertEqual(
            (results.missing, results.measurements),
            ({"small on 3 hosts": "it fits on 2 at most"}, []),
        )

    def test_what_a_system_cannot_express_is_left_out(self) -> None:
        found = [cell.workload for cell in self.run_suite(Omitting).measurements]
        self.assertEqual(found, ["broadcast_late"])

    def test_a_continued_run_measures_only_what_lacks(self) -> None:
        results = self.run_suite(Fake)
        first = list(results.measurements)
        results.measurements[1].error = "it failed"
        results.ended = ""
        again = self.run_suite(Fake, earlier=results)
        self.assertEqual(again.measurements[:2], [first[0], first[2]])
        (new,) = again.measurements[2:]
        self.assertEqual((new.workload, new.size_bytes, new.error), ("broadcast", 128 << 10, None))

    def test_a_wedged_system_is_started_again_for_each_cell(self) -> None:
        errors = [cell.error or "" for cell in self.run_suite(Wedging, round_s=10).measurements]
        self.assertEqual(len(errors), 3)
        for error in errors:
            self.assertRegex(error, "wedging on h1 did not finish")

    def test_a_system_that_does_not_start_is_tried_once(self) -> None:
        errors = [cell.error for cell in self.run_suite(Unable).measurements]
        self.assertEqual(errors, ["unable did not start: a process ended with 1"] * 3)


if __name__ == "__main__":
    unittest.main()
