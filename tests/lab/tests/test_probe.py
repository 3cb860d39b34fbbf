import json
import statistics
import unittest
from typing import Any

from lab import Host, Lab, NotAvailable, Plan
from lab.daemons import Hoplite
from lab.delay import Delay
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking
from lab.tests.test_lab import await_that


@unittest.skipIf(lacking(), lacking())
class Probe(unittest.TestCase):
    def probe(self, hoplite: Hoplite, *arguments: str) -> dict[str, Any]:
        command = ["topology", "probe", "--json", *arguments]
        host = hoplite.lab.host("h0")
        matrix: dict[str, Any] = {}

        def is_of_all() -> bool:
            # A pause of the machine ends sessions, and only connected stores are probed.
            found = hoplite.client(host, *command, capture_output=True, timeout=TIMEOUT_S)
            matrix.update(json.loads(found.stdout) if found.returncode == 0 else {})
            return matrix.get("nodes") == hoplite.lab.plan.host_names

        await_that("a probe of all hosts", is_of_all)
        self.assertEqual((matrix["lost"], matrix["guessed"]), ([], []))
        return matrix

    def between(self, table: list[list[int]], plan: Plan) -> tuple[list[int], list[int]]:
        entries: tuple[list[int], list[int]] = ([], [])
        for a in range(plan.hosts):
            for b in range(a):
                entries[plan.rack_of(a) != plan.rack_of(b)].append(table[a][b])
        return entries

    def test_round_trips_show_the_racks(self) -> None:
        plan = Plan(hosts=6, racks=2)
        try:
            with (
                Lab(plan) as lab,
                Hoplite(lab, PROGRAMS, memory="64MiB") as hoplite,
                Delay(lab, "rack1", 0.004),
            ):
                matrix = self.probe(hoplite, "--probes", "32")
        except NotAvailable as error:
            self.skipTest(str(error))
        near, far = self.between(matrix["alpha_ns"], plan)
        self.assertLess(max(near), 4_000_000)
        self.assertGreater(min(far), 4_000_000)
        self.assertEqual(matrix["by_tcp"], 0)

    def test_load_shows_uplinks_that_carry_less(self) -> None:
        plan = Plan(hosts=6, racks=2, rate_bits_s=200_000_000, uplink_bits_s=100_000_000)
        with Lab(plan) as lab, Hoplite(lab, PROGRAMS, memory="64MiB") as hoplite:
            probes = [self.probe(hoplite, "--probes", "8", "--loaded") for _ in range(3)]
        tables = [self.between(probe["ps_per_byte"], plan) for probe in probes]
        # A busy machine may delay a train.
        near, far = (
            [statistics.median(pair) for pair in zip(*entries, strict=True)]
            for entries in zip(*tables, strict=True)
        )
        # 200 Mbit/s are 41.8 ns per byte with headers. An uplink of half the rate has at least
        # twice that.
        self.assertGreater(min(near), 38_000)
        self.assertLess(max(near), min(far))
        self.assertGreater(min(far), 76_000)

    def test_transfers_show_the_links(self) -> None:
        with Lab(Plan(hosts=2)) as lab, Hoplite(lab, PROGRAMS, memory="64MiB") as hoplite:
            h0, h1 = lab.hosts

            def client(host: Host, *arguments: str, contents: bytes = b"") -> bytes:
                options = {"input": contents, "capture_output": True, "timeout": TIMEOUT_S}
                return bytes(hoplite.client(host, *arguments, check=True, **options).stdout)

            def is_estimated() -> bool:
                client(h0, "put", "x", "-", contents=bytes(6 << 20))
                client(h1, "get", "x")
                client(h0, "delete", "x")
                links = json.loads(client(h0, "topology", "show", "--json"))
                found = {(link["node"], link["is_slow"]) for link in links}
                self.assertLessEqual(found, {("h1", False)})
                # 200 Mbit/s are 41.8 ns per byte of payload. Estimates were 36 to 55 ns.
                return any(25_000 < link["ps_per_byte"] < 100_000 for link in links)

            await_that("the rate of the link", is_estimated)


if __name__ == "__main__":
    unittest.main()
