"""The bytes of an allreduce over the uplinks of racks. Needs `hoplite-bench-worker`."""

import re
import socket
import subprocess
import time
import unittest
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking

SIZE_BYTES = 8 << 20
HOSTS, RACKS = 8, 2
PLACES = [f"h{rank % RACKS * (HOSTS // RACKS) + rank // RACKS}" for rank in range(HOSTS)]
LABELS = {f"h{host}": f"rack={host // (HOSTS // RACKS)}" for host in range(HOSTS)}
# Headers take 4.6%.
OVERHEAD = 1.06


class Ranks:
    def __init__(self, lab: Lab, directory: Path, places: Sequence[str] = PLACES) -> None:
        path = str(directory / "ranks.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(len(places))
        self.listener.settimeout(TIMEOUT_S)
        program = PROGRAMS / "hoplite-bench-worker"
        self.processes = [
            lab.host(host).popen(
                [program, path, str(rank), str(len(places))], stdin=subprocess.DEVNULL
            )
            for rank, host in enumerate(places)
        ]
        self.streams: dict[int, TextIO] = {}
        for _ in places:
            connection, _ = self.listener.accept()
            connection.settimeout(TIMEOUT_S)
            stream = connection.makefile("rw")
            connection.close()
            self.streams[int(stream.readline().removeprefix("hello "))] = stream

    def tell(self, command: str) -> None:
        self.start(command)
        for rank, answer in self.answers().items():
            if not answer.startswith(("ok", "done")):
                raise AssertionError(f"rank {rank}: {answer}")

    def start(self, command: str, ranks: Collection[int] | None = None) -> None:
        for rank, stream in self.streams.items():
            if ranks is None or rank in ranks:
                stream.write(f"{command}\n")
                stream.flush()

    def answers(self, ranks: Collection[int] | None = None) -> dict[int, str]:
        return {
            rank: self.streams[rank].readline()
            for rank in (self.streams if ranks is None else ranks)
        }

    def end(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.listener.close()
        for process in self.processes:
            process.wait(TIMEOUT_S)


@unittest.skipIf(lacking(), lacking())
class Allreduces(unittest.TestCase):
    def crossed(
        self, lab: Lab, labels: dict[str, str], schedule: str, is_probed: bool = False
    ) -> tuple[int, str]:
        arguments = ["--no-prefault", "--allreduce-schedule", schedule]
        with (
            TemporaryDirectory() as directory,
            Hoplite(
                lab, PROGRAMS, memory="64MiB", store_arguments=arguments, labels=labels
            ) as hoplite,
        ):
            if is_probed:
                probe = ("topology", "probe", "--apply", "--probes", "16")
                hoplite.client(
                    lab.host("h0"), *probe, capture_output=True, timeout=TIMEOUT_S, check=True
                )
            ranks = Ranks(lab, Path(directory))
            try:
                ranks.tell(f"prepare allreduce {SIZE_BYTES} 0 0 0")
                before = lab.traffic()
                ranks.tell(f"run {time.monotonic_ns()}")
                after = lab.traffic()
                ranks.tell("check")
                described = hoplite.stat(lab.host(PLACES[0]), "bench-0-target")
                plan = re.search(r".*(ring|hierarchical|doubling) of .*", described)
                if plan is None:
                    raise AssertionError(described)
            finally:
                ranks.end()
        return max(
            (after[f"rack{rack}"] - before[f"rack{rack}"]).sent_bytes for rack in range(RACKS)
        ), plan[0]

    def test_racks_are_crossed_as_little_as_the_schedule_needs(self) -> None:
        with Lab(Plan(hosts=HOSTS, racks=RACKS)) as lab:
            ring = 2 * SIZE_BYTES * (HOSTS - 1) / HOSTS
            crossed, plan = self.crossed(lab, LABELS, "auto")
            self.assertIn("ring of 8", plan)
            self.assertIn(f"order {' '.join(f'h{host}' for host in range(HOSTS))}", plan)
            self.assertLess(crossed, OVERHEAD * ring, plan)
            crossed, plan = self.crossed(lab, LABELS, "hierarchical")
            self.assertIn("hierarchical of 4x2", plan)
            self.assertLess(crossed, OVERHEAD * 2 * SIZE_BYTES * (RACKS - 1) / RACKS, plan)

    def test_slow_uplinks_that_a_probe_finds_are_crossed_less(self) -> None:
        with Lab(Plan(hosts=HOSTS, racks=RACKS, uplink_bits_s=40_000_000)) as lab:
            crossed, plan = self.crossed(lab, {}, "auto", is_probed=True)
            self.assertIn("hierarchical of 4x2", plan)
            self.assertIn("uplinks as measured", plan)
            # A ring over all ranks puts 1.75 objects on the uplinks.
            self.assertLess(crossed, 1.2 * 2 * SIZE_BYTES * (RACKS - 1) / RACKS, plan)


if __name__ == "__main__":
    unittest.main()
