"""Hoplite in a lab.

Needs the requirements of a lab, and the programs: `cargo build --workspace --bins`.
"""

import os
import signal
import unittest
from pathlib import Path
from unittest import mock

from lab import Lab, LabError, Plan
from lab.daemons import Hoplite
from lab.tests.test_lab import missing

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(os.environ.get("HOPLITE_PROGRAMS", ROOT / "target" / "debug"))
TIMEOUT_S = 300
ATTEMPTS = 5
CONTENTS = os.urandom(3_000_000)


def lacking() -> str:
    built = all(
        (PROGRAMS / program).is_file()
        for program in ("hoplite", "hoplite-store", "hoplite-directory")
    )
    return missing() or (
        ""
        if built
        else f"there are no programs in {PROGRAMS}; HOPLITE_PROGRAMS names another place"
    )


class Addresses(unittest.TestCase):
    def test_a_store_listens_on_each_rail(self) -> None:
        for rails, expected in [(1, "10.77.0.2:7402"), (2, "10.77.0.2:7402,10.78.0.2:7402")]:
            lab = Lab(Plan(hosts=2, rails=rails))
            hoplite = Hoplite(lab, PROGRAMS)
            with mock.patch.object(hoplite, "_start") as start:
                hoplite.start_store(lab.host("h1"))
            arguments = start.call_args.args[2]
            self.assertEqual(arguments[arguments.index("--listen") + 1], expected)


@unittest.skipIf(lacking(), lacking())
class Daemons(unittest.TestCase):
    def put(self, hoplite: Hoplite, host: str) -> None:
        hoplite.client(
            hoplite.lab.host(host), "put", "x", "-", input=CONTENTS, timeout=TIMEOUT_S, check=True
        )

    def check(self, hoplite: Hoplite, host: str) -> None:
        got = hoplite.client(
            hoplite.lab.host(host), "get", "x", capture_output=True, timeout=TIMEOUT_S, check=True
        )
        self.assertEqual(got.stdout, CONTENTS)

    def test_objects_cross_the_links_once_for_each_receiver(self) -> None:
        with Lab(Plan(hosts=4)) as lab, Hoplite(lab, PROGRAMS, memory="64MiB") as hoplite:
            self.put(hoplite, "h0")
            before = lab.traffic()
            for host in ("h1", "h2", "h3"):
                self.check(hoplite, host)
            moved = {link: count - before[link] for link, count in lab.traffic().items()}
            for host in ("h1", "h2", "h3"):
                self.assertGreater(moved[host].received_bytes, len(CONTENTS))
                self.assertLess(moved[host].received_bytes, 1.1 * len(CONTENTS))

    def test_an_object_survives_its_host(self) -> None:
        with Lab(Plan(hosts=4)) as lab, Hoplite(lab, PROGRAMS, memory="64MiB") as hoplite:
            self.put(hoplite, "h1")
            self.check(hoplite, "h2")
            lab.kill("h1")
            ended = hoplite.stores["h1"].process.wait(TIMEOUT_S)
            self.assertEqual(ended, -signal.SIGKILL)
            self.check(hoplite, "h3")

    def test_memory_and_shards_are_as_planned(self) -> None:
        memory = ["64MiB", "32MiB", "32MiB"]
        with (
            Lab(Plan(hosts=3)) as lab,
            Hoplite(lab, PROGRAMS, memory, ["h0", "h2"], store_arguments=()) as hoplite,
        ):
            self.assertEqual(list(hoplite.shards), ["h0", "h2"])
            for host, size in zip(lab.hosts, (64, 32, 32), strict=True):
                found = hoplite.status(host)["memory"]
                self.assertEqual(
                    (found["capacity_bytes"], found["prefaulted_bytes"]), (size << 20, size << 20)
                )

    def test_a_daemon_that_does_not_start_says_why(self) -> None:
        with Lab(Plan(hosts=1)) as lab:
            with self.assertRaisesRegex(
                LabError, "hoplite-store on h0 did not get ready: .*--nonsense"
            ):
                Hoplite(lab, PROGRAMS, store_arguments=["--nonsense"]).__enter__()
            with self.assertRaisesRegex(LabError, "hoplite-directory is missing"):
                Hoplite(lab, Path("/nowhere")).__enter__()


if __name__ == "__main__":
    unittest.main()
