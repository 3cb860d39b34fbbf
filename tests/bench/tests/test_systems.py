"""Real systems, each workload once. Needs the requirements of a lab."""

import dataclasses
import io
import os
import tempfile
import unittest
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

from bench import limit
from bench.suite import Settings, Suite, results_for
from bench.systems import SYSTEMS, Context
from bench.workloads import WORKLOADS, Workload, training
from lab.tests.test_lab import missing

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(os.environ.get("HOPLITE_PROGRAMS", ROOT / "target" / "debug"))
LACKING = missing() or limit.missing()
HOSTS = 4
SIZE_BYTES = 128 << 10


def short_loops() -> dict[str, Workload]:
    return {
        name: training(
            name,
            workload.title,
            workload.figure,
            "",
            dataclasses.replace(workload.loop, model_bytes=SIZE_BYTES, steps=4, compute_s=0.04),
        )
        for name, workload in WORKLOADS.items()
        if workload.loop is not None
    }


@unittest.skipIf(LACKING, LACKING)
class Systems(unittest.TestCase):
    def check(self, name: str) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            mock.patch.dict(WORKLOADS, short_loops()),
            mock.patch.object(limit, "_SECONDS", 1),
            mock.patch.object(limit, "_OMIT_SECONDS", 0),
        ):
            log = Path(directory) / "log"
            context = Context(PROGRAMS, ROOT / "target" / "bench", SIZE_BYTES, log)
            system = SYSTEMS[name]
            if lacking := system(context).missing():
                self.skipTest(lacking)
            settings = Settings(
                systems=(name,),
                workloads=tuple(WORKLOADS),
                hosts=(HOSTS,),
                sizes_bytes=(1024, SIZE_BYTES),
                intervals=(0.5,),
                late_from_bytes=SIZE_BYTES,
                rounds=1,
                cell_s=1,
                rate_bits_s=200_000_000,
            )
            results = results_for(settings, ROOT, "test")
            with redirect_stderr(io.StringIO()):
                Suite(settings, context, results, lambda: None).run()
            for cell in results.measurements:
                with self.subTest(workload=cell.workload, size_bytes=cell.size_bytes):
                    self.assertIsNone(cell.error, log.read_text(errors="replace")[-2000:])
                    self.assertFalse(cell.crossed)
            self.assertEqual(
                {cell.workload for cell in results.measurements}, set(WORKLOADS) - system.omits
            )

    def test_hoplite(self) -> None:
        self.check("hoplite")

    @unittest.skipUnless(
        os.environ.get("HOPLITE_TEST_PEERS"), "peers are tested by `make test-peers`"
    )
    def test_peers(self) -> None:
        for name in SYSTEMS:
            with self.subTest(name):
                self.check(name)


if __name__ == "__main__":
    unittest.main()
