"""The bytes over the uplinks of racks, whose stores have labels."""

import os
import statistics
import subprocess
import unittest

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import ATTEMPTS, PROGRAMS, TIMEOUT_S, lacking

CONTENTS = os.urandom(8 << 20)
RECEIVERS = ("h3", "h1", "h4", "h2", "h5")
SOURCES = ("h0", "h4", "h1", "h5", "h2", "h6", "h3", "h7")
SUM = CONTENTS.translate(bytes(8 * byte % 256 for byte in range(256)))


@unittest.skipIf(lacking(), lacking())
class Places(unittest.TestCase):
    def broadcast(self, lab: Lab, hoplite: Hoplite, name: str) -> int:
        hoplite.client(
            lab.host("h0"), "put", name, "-", input=CONTENTS, timeout=TIMEOUT_S, check=True
        )
        before = lab.traffic()
        command = [PROGRAMS / "hoplite", "get", name]
        receivers = [lab.host(host).popen(command, stdout=subprocess.PIPE) for host in RECEIVERS]
        for receiver in receivers:
            self.assertEqual(receiver.communicate(timeout=TIMEOUT_S)[0], CONTENTS)
        after = lab.traffic()
        return sum((after[rack] - before[rack]).sent_bytes for rack in ("rack0", "rack1"))

    def test_a_broadcast_enters_a_rack_once(self) -> None:
        labels = {f"h{host}": f"rack={host // 3}" for host in range(6)}
        with (
            Lab(Plan(hosts=6, racks=2)) as lab,
            Hoplite(lab, PROGRAMS, memory="64MiB", labels=labels) as hoplite,
        ):
            # The first broadcast shows the directory the usual time of a transfer.
            self.broadcast(lab, hoplite, "first")
            crossed = statistics.median(
                self.broadcast(lab, hoplite, name) for name in ("x", "y", "z")
            )
            # A receiver that yields its sender to another wastes bytes in flight.
            self.assertLess(crossed, 1.5 * len(CONTENTS))

    def test_a_reduce_leaves_a_rack_once(self) -> None:
        labels = {f"h{host}": f"rack={host // 4}" for host in range(8)}
        with (
            Lab(Plan(hosts=8, racks=2)) as lab,
            Hoplite(lab, PROGRAMS, memory="64MiB", labels=labels) as hoplite,
        ):
            for host in SOURCES:
                put = ("put", host, "-", "--dtype", "u8")
                hoplite.client(lab.host(host), *put, input=CONTENTS, timeout=TIMEOUT_S, check=True)
            receiver = lab.host("h0")

            def client(*arguments: str) -> bytes:
                options = {"timeout": TIMEOUT_S, "check": True, "capture_output": True}
                return bytes(hoplite.client(receiver, *arguments, **options).stdout)

            for _ in range(ATTEMPTS):
                before = lab.traffic()
                client("reduce", "sum", *SOURCES)
                after = lab.traffic()
                self.assertEqual(client("get", "sum"), SUM)
                racks = ("rack0", "rack1")
                crossed = sum((after[rack] - before[rack]).sent_bytes for rack in racks)
                stat = hoplite.stat(receiver, "sum")
                if "chain through 2 groups" in stat:
                    break
                client("delete", "sum")
            # Headers are 4.4%.
            self.assertLess(crossed, 1.06 * len(CONTENTS))
            self.assertIn("chain through 2 groups", stat)
            self.assertIn("objects between groups: 1", stat)


if __name__ == "__main__":
    unittest.main()
