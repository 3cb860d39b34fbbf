import tempfile
import unittest
from pathlib import Path

from bench import report, targets
from bench.results import Measurement, Results, crossed
from bench.workloads import WORKLOADS

MIB = 1 << 20


def results() -> Results:
    found = Results(
        "today",
        "abc",
        "bench run",
        {"processor": "p", "memory": "m", "kernel": "k", "distribution": "d"},
        1,
    )
    for name, title in [
        ("hoplite", "Hoplite"),
        ("openmpi", "Open MPI"),
        ("openmpi-tuned", "Open MPI"),
    ]:
        found.systems[name] = {"title": title, "setting": "as it is", "version": "1"}
    found.limits[4] = {"payload_bytes_s": 23_900_000.0, "round_trip_s": 0.0001}

    def add(system: str, size: int, seconds: list[float], error: str | None = None) -> None:
        cell = Measurement(
            system, "broadcast", 4, size, 0, 0.5, seconds, seconds, [0.2, 0.95, 0.95], error=error
        )
        found.measurements.append(cell)

    add("hoplite", MIB, [0.6, 0.5, 0.9])
    add("openmpi", MIB, [2.0])
    add("openmpi-tuned", MIB, [0.7])
    add("hoplite", 2 * MIB, [], "hoplite on h3 did not finish: broadcast, within 30 s")
    return found


class Workloads(unittest.TestCase):
    def test_limits_are_those_of_the_links(self) -> None:
        factors = {
            name: workload.limit_factor(16)
            for name, workload in WORKLOADS.items()
            if not workload.loop
        }
        self.assertEqual(
            factors,
            {
                "round_trip": 2,
                "broadcast": 1,
                "gather": 15,
                "reduce": 1,
                "allreduce": 1.875,
                "allgather": 0.9375,
                "reduce_scatter": 0.9375,
                "all_to_all": 0.9375,
                "broadcast_late": 1,
                "reduce_late": 1,
                "allreduce_late": 1.875,
            },
        )

    def test_a_disturbed_stream_is_no_limit(self) -> None:
        found = results()
        found.limits[8] = {"payload_bytes_s": 22_000_000.0, "round_trip_s": 0.0001}
        self.assertEqual(found.payload_bytes_s, 23_900_000.0)
        found.rails = 2
        self.assertEqual(found.payload_bytes_s, 2 * 23_900_000.0)
        self.assertIn(
            "191.2 Mbit/s of payload (the best of 2; the least was 176.0)",
            "\n".join(report._head(found)),
        )

    def test_whoever_arrives_last_needs_the_whole_object(self) -> None:
        self.assertEqual(WORKLOADS["reduce_late"].limit_s(4, 100, 100, interval_s=2), 7)
        self.assertEqual(WORKLOADS["allreduce_late"].limit_s(4, 100, 100, interval_s=2), 7)
        self.assertEqual(WORKLOADS["allreduce_late"].limit_s(4, 100, 100, interval_s=0.1), 1.5)

    def test_bytes_that_did_not_cross_are_noticed(self) -> None:
        self.assertEqual(crossed("broadcast", 100, [(0, 100), (100, 0), (130, 100)]), "")
        self.assertEqual(
            crossed("broadcast", 100, [(0, 100), (0, 0), (130, 100)]),
            "h1 received 0 bytes instead of at least 100",
        )
        self.assertEqual(
            crossed("gather", 100, [(199, 0), (0, 100), (0, 100)]),
            "h0 received 199 bytes instead of at least 200",
        )
        self.assertEqual(
            crossed("reduce", 100, [(100, 0), (0, 100), (0, 99)]),
            "h2 sent 99 bytes instead of at least 100",
        )
        self.assertEqual(crossed("allreduce", 100, [(75, 75)] * 4), "")
        # Parts are whole elements: each of 3 hosts has 32 of 100 bytes.
        self.assertEqual(crossed("allgather", 100, [(64, 32)] * 3), "")
        self.assertEqual(crossed("reduce_scatter", 100, [(32, 64)] * 3), "")
        self.assertEqual(crossed("all_to_all", 100, [(64, 64)] * 3), "")
        for workload, received, sent in [
            ("allgather", 63, 32),
            ("reduce_scatter", 31, 64),
            ("all_to_all", 63, 64),
        ]:
            self.assertRegex(
                crossed(workload, 100, [(received, sent)] * 3), f"h0 received {received} bytes"
            )
        for workload, received, sent in [
            ("allgather", 64, 31),
            ("reduce_scatter", 32, 63),
            ("all_to_all", 64, 63),
        ]:
            self.assertRegex(
                crossed(workload, 100, [(received, sent)] * 3), f"h0 sent {sent} bytes"
            )

    def test_every_finisher_is_a_rank(self) -> None:
        for workload in WORKLOADS.values():
            hosts = workload.hosts or 4
            self.assertLess(max(workload.finishers(hosts)), hosts)
            self.assertLess(max(workload.needs(100, hosts)), hosts)


class Stored(unittest.TestCase):
    def test_what_is_written_is_read(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "results.json"
            results().write(path)
            self.assertEqual(Results.read(path).measurements, results().measurements)
            path.write_text('{"format": 0}')
            with self.assertRaisesRegex(ValueError, "another format"):
                Results.read(path)

    def test_the_best_variant_counts(self) -> None:
        found = results()
        best = found.best("Open MPI", found.measurements[0])
        self.assertIsNotNone(best)
        self.assertEqual(best and best.system, "openmpi-tuned")
        self.assertIsNone(found.best("Open MPI", found.measurements[3]))


class Verdicts(unittest.TestCase):
    def verdict(
        self,
        workload: str,
        size: int,
        times: dict[str, float],
        limit_s: float = 1.0,
        hosts: int = 4,
    ) -> targets.Verdict:
        found = results()
        found.rate_bits_s = 200_000_000
        found.limits[hosts] = found.limits[4]
        found.measurements = [
            Measurement(name, workload, hosts, size, 0, limit_s, [seconds], [seconds])
            for name, seconds in times.items()
        ]
        (verdict,) = targets.verdicts(found)
        return verdict

    def test_large_objects_are_held_against_the_limit(self) -> None:
        for workload, seconds, is_met in [
            ("broadcast", 1.03, True),
            ("reduce", 1.04, False),
            ("allreduce", 1.02, True),
            ("gather", 1.025, False),
            ("allgather", 1.03, True),
            ("reduce_scatter", 1.04, False),
            ("all_to_all", 1.05, True),
            ("all_to_all", 1.06, False),
        ]:
            with self.subTest(workload):
                verdict = self.verdict(workload, 64 * MIB, {"hoplite": seconds})
                self.assertEqual(
                    (verdict.is_near_limit, verdict.peer, verdict.is_near_peers),
                    (is_met, None, None),
                )
        self.assertIsNone(self.verdict("broadcast", MIB, {"hoplite": 9}).is_near_limit)

    def test_an_allreduce_is_held_against_the_limit_from_1_mib_on(self) -> None:
        for size, hosts, seconds, is_met in [
            (32 << 10, 8, 9.0, None),
            (MIB, 8, 1.03, True),
            (MIB, 8, 1.04, False),
            (32 * MIB, 16, 1.04, False),
            (MIB, 16, 1.06, True),
            (MIB, 16, 1.07, False),
        ]:
            with self.subTest(size=size, hosts=hosts, seconds=seconds):
                verdict = self.verdict("allreduce", size, {"hoplite": seconds}, hosts=hosts)
                self.assertEqual(verdict.is_near_limit, is_met)

    def test_some_targets_are_times(self) -> None:
        self.assertTrue(self.verdict("broadcast", MIB, {"hoplite": 0.05}, hosts=16).is_near_limit)
        self.assertFalse(self.verdict("reduce", MIB, {"hoplite": 0.049}, hosts=16).is_near_limit)
        self.assertIsNone(self.verdict("reduce", MIB, {"hoplite": 0.049}, hosts=8).is_near_limit)

    def test_the_latency_of_the_chain_is_allowed(self) -> None:
        self.assertTrue(
            self.verdict("reduce", 64 * MIB, {"hoplite": 1.03 + 3 * 0.00005}).is_near_limit
        )
        self.assertFalse(
            self.verdict("allreduce", 64 * MIB, {"hoplite": 1.03 + 3 * 0.00005}).is_near_limit
        )

    def test_late_sources_of_an_allreduce_may_take_the_quicker_of_two_ways(self) -> None:
        found = results()
        transfer_s = MIB / found.payload_bytes_s
        for interval, least in [(0.1, 1.8), (1, 4)]:
            for seconds, is_met in [(1.04 * (least + 0.25), True), (1.06 * (least + 0.25), False)]:
                with self.subTest(interval=interval, seconds=seconds):
                    found.measurements = [
                        Measurement(
                            "hoplite",
                            "allreduce_late",
                            4,
                            MIB,
                            interval * transfer_s,
                            1,
                            [seconds * transfer_s],
                            [1],
                        )
                    ]
                    (verdict,) = targets.verdicts(found)
                    self.assertEqual(verdict.is_near_limit, is_met)

    def test_the_best_variant_of_the_best_peer_is_the_measure(self) -> None:
        verdict = self.verdict(
            "broadcast", MIB, {"hoplite": 1.5, "openmpi": 2.0, "openmpi-tuned": 1.6}
        )
        self.assertEqual(
            (verdict.peer and verdict.peer.system, verdict.is_ahead), ("openmpi-tuned", True)
        )
        self.assertTrue(verdict.is_near_peers)

    def test_level_is_enough_with_a_peer_at_the_limit_only(self) -> None:
        self.assertTrue(
            self.verdict("gather", MIB, {"hoplite": 1.03, "openmpi": 1.02}).is_near_peers
        )
        self.assertFalse(
            self.verdict("gather", MIB, {"hoplite": 1.21, "openmpi": 1.2}).is_near_peers
        )

    def test_small_objects_may_take_twice_as_long(self) -> None:
        self.assertTrue(
            self.verdict("reduce", 1024, {"hoplite": 4.0, "openmpi": 2.0}).is_near_peers
        )
        self.assertFalse(
            self.verdict("reduce", 1024, {"hoplite": 4.1, "openmpi": 2.0}).is_near_peers
        )

    def test_some_small_objects_may_take_longer(self) -> None:
        for workload, size, hosts, seconds, is_met in [
            ("round_trip", 1 << 10, 2, 3.0, True),
            ("round_trip", 1 << 10, 2, 3.1, False),
            ("round_trip", 32 << 10, 2, 2.1, False),
            ("allreduce", 32 << 10, 16, 2.5, True),
            ("allreduce", 32 << 10, 8, 2.5, False),
        ]:
            with self.subTest(workload, size=size, hosts=hosts, seconds=seconds):
                times = {"hoplite": seconds, "openmpi": 1.0}
                self.assertEqual(
                    self.verdict(workload, size, times, hosts=hosts).is_near_peers, is_met
                )

    def test_a_synchronous_loop_may_be_level(self) -> None:
        for workload, seconds, is_met in [
            ("ps_sync", 2.04, True),
            ("ps_sync", 2.05, False),
            ("ps_async", 2.04, False),
        ]:
            with self.subTest(workload, seconds=seconds):
                times = {"hoplite": seconds, "openmpi": 2.0}
                self.assertEqual(self.verdict(workload, 4 * MIB, times).is_near_peers, is_met)

    def test_processor_time_is_held_against_that_of_gloo(self) -> None:
        def lean(busy: float, hosts: int) -> tuple[float | None, bool | None]:
            found = results()
            found.systems["gloo"] = {"title": "Gloo", "setting": "", "version": "1"}
            found.limits[hosts] = found.limits[4]
            found.measurements = [
                Measurement(
                    "hoplite", "allreduce", hosts, 64 * MIB, 0, 5.0, [5.0, 6.0, 5.0], [], [busy] * 3
                ),
                Measurement(
                    "gloo", "allreduce", hosts, 64 * MIB, 0, 5.0, [10.0] * 3, [], [0.2, 0.2, 0.9]
                ),
            ]
            (verdict,) = targets.verdicts(found)
            return targets.processor_ratio(found, verdict.cell), verdict.is_lean

        self.assertEqual(lean(0.5, 8), (1.25, True))
        self.assertEqual(lean(0.6, 16), (1.5, False))
        self.assertEqual(lean(0.6, 4), (1.5, None))


class Reports(unittest.TestCase):
    def test_tables_have_times_factors_and_failures(self) -> None:
        rows = [line for line in report.tables(results()).splitlines() if line.startswith("| 4 ")]
        self.assertEqual(
            rows,
            [
                "| 4 | 1 MiB | 500 ms | **600 ms (500 ms to 900 ms) 1.20x cpu** | 700 ms 1.40x cpu |",
                "| 4 | 2 MiB | 500 ms | timed out | - |",
            ],
        )

    def test_training_loops_have_rates(self) -> None:
        found = results()
        loop = WORKLOADS["ps_sync"].loop
        assert loop is not None
        cell = Measurement(
            "hoplite", "ps_sync", 4, loop.model_bytes, 0, loop.steps / 5, [loop.steps / 4]
        )
        found.measurements = [cell]
        self.assertIn(
            "| 4 | 4 MiB | 5.00/s | **4.00/s 1.25x** | - |", report.tables(found).splitlines()
        )

    def test_times_have_three_digits(self) -> None:
        found = [report.seconds(value) for value in (0, 0.000123456, 0.0123456, 0.123456, 12.3456)]
        self.assertEqual(found, ["0", "0.123 ms", "12.3 ms", "123 ms", "12.35 s"])

    def test_sizes_are_whole(self) -> None:
        self.assertEqual(
            [report.size(size) for size in (1000, 1024, MIB, 1 << 30)],
            ["1000 B", "1 KiB", "1 MiB", "1 GiB"],
        )

    def test_the_page_for_users_has_the_medians(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            page = Path(directory) / "page.md"
            page.write_text(
                "before\n<!-- figures: make bench-report -->\nold\n<!-- end -->\nafter\n"
            )
            report.summarize(results(), page)
            lines = page.read_text().splitlines()
        self.assertEqual((lines[0], lines[-1]), ("before", "after"))
        self.assertEqual(lines[2], "| | hosts | size | floor | Hoplite | Open MPI |")
        self.assertIn("| Broadcast | 4 | 1 MiB | 500 ms | **600 ms** | 700 ms |", lines)
        self.assertIn("| Broadcast | 4 | 2 MiB | 500 ms | - | - |", lines)
        self.assertNotIn("old", lines)

    def test_a_page_without_marks_is_not_written(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            page = Path(directory) / "page.md"
            page.write_text("no marks\n")
            with self.assertRaisesRegex(ValueError, "no marks"):
                report.summarize(results(), page)
            self.assertEqual(page.read_text(), "no marks\n")

    def test_a_report_is_written(self) -> None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("there is no matplotlib; `make bench-peers` installs one")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "benchmarks.md"
            written = report.write(results(), path)
            self.assertEqual(written, [path, Path(directory) / "benchmarks" / "collectives.svg"])
            text = path.read_text()
            self.assertIn("![Collectives](benchmarks/collectives.svg)", text)
            self.assertIn(
                "Hoplite is the fastest in 1 of 1 measurements that a peer has too.", text
            )
            self.assertIn(
                "| Broadcast | 4 | 1 MiB | 600 ms | 1.20 |  | Open MPI 700 ms | **1.17** | met |",
                text,
            )
            self.assertIn(
                "* hoplite, broadcast of 2 MiB on 4 hosts: hoplite on h3 did not finish", text
            )


if __name__ == "__main__":
    unittest.main()
