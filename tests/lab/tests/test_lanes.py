"""Transfers and collectives over lanes (several connections), in a network that caps single
connections.

Needs the requirements of `test_daemons`.
"""

import array
import json
import sys
import time
import unittest
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking

HOSTS = 3
RATE_BITS_S = 200_000_000
CAPPED_LANES = 4
CAP_BITS_S = RATE_BITS_S // CAPPED_LANES
SIZE_BYTES = 8 << 20
CONTENTS = array.array("f", [value % 251 for value in range(SIZE_BYTES // 4)]).tobytes()
SUM = array.array("f", [HOSTS * (value % 251) for value in range(SIZE_BYTES // 4)]).tobytes()
METRICS = "127.0.0.1:9402"
ONE_LANE_S = 8 * SIZE_BYTES / CAP_BITS_S
ATTEMPTS = 8


@unittest.skipIf(lacking(), lacking())
class Lanes(unittest.TestCase):
    hoplite: Hoplite

    def make_lab(self, flow_cap_bits_s: int | None) -> Lab:
        plan = Plan(hosts=HOSTS, rate_bits_s=RATE_BITS_S, flow_cap_bits_s=flow_cap_bits_s)
        return self.enterContext(Lab(plan))

    def start_stores(self, lab: Lab) -> Hoplite:
        arguments = ["--no-prefault", "--lanes", "16", "--metrics", METRICS]
        self.hoplite = Hoplite(lab, PROGRAMS, "96MiB", store_arguments=arguments)
        return self.hoplite

    def client(self, host: int, *arguments: str, contents: bytes | None = None) -> bytes:
        at = self.hoplite.lab.host(f"h{host}")
        ended = self.hoplite.client(
            at, *arguments, input=contents, capture_output=True, timeout=TIMEOUT_S, check=True
        )
        return ended.stdout

    def put(self, host: int, name: str) -> None:
        layout = ["--dtype", "float32", "--shape", str(SIZE_BYTES // 4)]
        self.client(host, "put", name, "-", *layout, contents=CONTENTS)

    def metrics(self) -> dict[str, float]:
        at = self.hoplite.lab.host("h0")
        program = f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())"
        text = at.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        lines = [
            line.rsplit(maxsplit=1)
            for line in text.splitlines()
            if line.startswith("hoplite_store_lane")
        ]
        return {name: float(value) for name, value in lines}

    def changes(self) -> dict[str, int]:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = self.metrics()
            names = ("opened", "left", "lost", "ended")
            changes = {
                name: int(found[f'hoplite_store_lane_changes_total{{change="{name}"}}'])
                for name in names
            }
            closed = changes["left"] + changes["lost"] + changes["ended"]
            if changes["opened"] == closed and found["hoplite_store_lanes"] == 0:
                return changes
        self.fail(f"open lanes after {TIMEOUT_S} s: {found}")

    def shown_lanes(self) -> int | None:
        """Returns the lanes that the first host's store shows."""
        links = json.loads(self.client(0, "topology", "show", "--json"))
        found: list[int | None] = [link["lanes"] for link in links if link["node"] == "h1"]
        return found[0] if found else None

    def transfer(self, name: str) -> float:
        self.put(0, name)
        begun = time.monotonic()
        self.assertEqual(self.client(1, "get", name), CONTENTS)
        took = time.monotonic() - begun
        self.client(0, "delete", name)
        return took

    def put_sources(self, prefix: str) -> Sequence[str]:
        names = [f"{prefix}{host}" for host in range(HOSTS)]
        for host, name in enumerate(names):
            self.put(host, name)
        return names

    def test_capped_connections_fill_the_link_together(self) -> None:
        with self.start_stores(self.make_lab(CAP_BITS_S)):
            found = []
            for number in range(ATTEMPTS):
                before = self.changes()["ended"]
                took = self.transfer(f"x{number}")
                lanes = 1 + self.changes()["ended"] - before
                shown = self.shown_lanes() or 0
                found.append((lanes, took, shown))
                if min(lanes, shown) >= CAPPED_LANES and took < ONE_LANE_S:
                    return
            self.fail(f"all transfers were slow, or show too few lanes: {found}")

    def test_collectives_over_lanes_have_the_right_result(self) -> None:
        with self.start_stores(self.make_lab(CAP_BITS_S)), ThreadPoolExecutor(HOSTS) as pool:
            sources = self.put_sources("s")
            self.client(0, "reduce", "r", *sources)
            self.assertEqual(self.client(0, "get", "r"), SUM)
            self.client(0, "delete", "r")
            times = []
            for attempt in range(ATTEMPTS):
                begun = time.monotonic()
                ranks = [
                    pool.submit(
                        self.client,
                        rank,
                        "allreduce",
                        f"a{attempt}",
                        *sources,
                        "--rank",
                        str(rank),
                        "-o",
                        "-",
                    )
                    for rank in range(HOSTS)
                ]
                for rank in ranks:
                    self.assertEqual(rank.result(), SUM)
                times.append(time.monotonic() - begun)
                self.client(0, "delete", f"a{attempt}")
                if times[-1] < 4 / 3 * ONE_LANE_S:
                    return
            self.fail(f"all were slow: {times}")

    def test_a_link_that_one_connection_fills_keeps_one(self) -> None:
        lab = self.make_lab(None)
        found = []
        for _ in range(ATTEMPTS):
            with self.start_stores(lab):
                for number in range(3):
                    self.transfer(f"x{number}")
                changes, shown = self.changes(), self.shown_lanes()
            found.append((changes, shown))
            if 0 < changes["opened"] == changes["left"] and shown == 1:
                return
        self.fail(f"each attempt kept connections: {found}")


if __name__ == "__main__":
    unittest.main()
