"""Transfers and collectives over several connections, where the network caps single ones.

Needs the requirements of `test_daemons`.
"""

import array
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
CAP_BITS_S = RATE_BITS_S // 4
SIZE_BYTES = 8 << 20
CONTENTS = array.array("f", [value % 251 for value in range(SIZE_BYTES // 4)]).tobytes()
SUM = array.array("f", [HOSTS * (value % 251) for value in range(SIZE_BYTES // 4)]).tobytes()
METRICS = "127.0.0.1:9402"
# The time of an object over one connection.
ONE_LANE_S = 8 * SIZE_BYTES / CAP_BITS_S


@unittest.skipIf(lacking(), lacking())
class Lanes(unittest.TestCase):
    hoplite: Hoplite

    def run_lab(self, flow_cap_bits_s: int | None) -> None:
        plan = Plan(hosts=HOSTS, rate_bits_s=RATE_BITS_S, flow_cap_bits_s=flow_cap_bits_s)
        lab = self.enterContext(Lab(plan))
        arguments = ["--no-prefault", "--lanes", "16", "--metrics", METRICS]
        self.hoplite = self.enterContext(Hoplite(lab, PROGRAMS, "96MiB", store_arguments=arguments))

    def client(self, host: int, *arguments: str, contents: bytes | None = None) -> bytes:
        at = self.hoplite.lab.host(f"h{host}")
        ended = self.hoplite.client(
            at, *arguments, input=contents, capture_output=True, timeout=TIMEOUT_S, check=True
        )
        return ended.stdout

    def put(self, host: int, name: str) -> None:
        layout = ["--dtype", "float32", "--shape", str(SIZE_BYTES // 4)]
        self.client(host, "put", name, "-", *layout, contents=CONTENTS)

    def metric(self, name: str) -> float:
        """Returns a metric of the first host's store."""
        at = self.hoplite.lab.host("h0")
        program = f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())"
        text = at.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[-1])

    def transfer(self, name: str) -> float:
        """Returns the time of a transfer to another host."""
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
        self.run_lab(CAP_BITS_S)
        times = [self.transfer(f"x{number}") for number in range(4)]
        # Four lanes take a quarter of the time. The start of the client is the rest.
        self.assertLess(min(times), 0.6 * ONE_LANE_S, times)

    def test_collectives_over_lanes_have_the_right_result(self) -> None:
        self.run_lab(CAP_BITS_S)
        sources = self.put_sources("s")
        self.client(0, "reduce", "r", *sources)
        self.assertEqual(self.client(0, "get", "r"), SUM)
        self.client(0, "delete", "r")
        with ThreadPoolExecutor(HOSTS) as pool:
            for attempt in range(3):
                begun = time.monotonic()
                ranks = [
                    pool.submit(self.client, rank, "allreduce", f"a{attempt}", *sources, "--rank", str(rank), "-o", "-")
                    for rank in range(HOSTS)
                ]
                for rank in ranks:
                    self.assertEqual(rank.result(), SUM)
                took = time.monotonic() - begun
                self.client(0, "delete", f"a{attempt}")
        # With one lane, each host sends four thirds of the object at the cap.
        self.assertLess(took, 0.7 * 4 / 3 * ONE_LANE_S)

    def test_a_link_that_one_connection_fills_keeps_one(self) -> None:
        self.run_lab(None)
        for number in range(3):
            self.transfer(f"x{number}")
        self.assertEqual(self.metric("hoplite_store_lanes"), 0)
        # Each trial has ended with one connection.
        opened, left = (
            self.metric(f'hoplite_store_lane_changes_total{{change="{change}"}}') for change in ("opened", "left")
        )
        self.assertEqual(opened, left)


if __name__ == "__main__":
    unittest.main()
