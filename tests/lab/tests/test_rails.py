"""Network cards fail during a reduce."""

import signal
import subprocess
import time
import unittest
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking
from lab.tests.test_lab import await_that

# After a cut at a quarter, the reduce takes 4 s, and a cut is noticed within 2 s.
RATE_BITS_S = 50_000_000
SIZE_BYTES = 32 << 20
SHORT_PAUSE_S = 1.5
CUT = "the peer acknowledges no bytes over this route"
SILENCE = "nothing moved for 5s"


def integers(value: int) -> bytes:
    return array("i", [value]).tobytes() * (SIZE_BYTES // 4)


@unittest.skipIf(lacking(), lacking())
class Rails(unittest.TestCase):
    logs: str

    @contextmanager
    def reducing(self) -> Iterator[Hoplite]:
        """Disturbs a reduce at h0 after a quarter of its bytes, and checks its result."""
        plan = Plan(hosts=3, rails=2, rate_bits_s=RATE_BITS_S)
        with Lab(plan) as lab, Hoplite(lab, PROGRAMS, "160MiB", shard_rail=1) as hoplite:
            coordinator = lab.host("h0")
            for name in ("h1", "h2"):
                put = ("put", name, "-", "--dtype", "i32")
                contents = integers(int(name[1:]))
                hoplite.client(
                    lab.host(name), *put, input=contents, timeout=TIMEOUT_S, check=True
                )
            before = lab.traffic()["h0"]
            arguments = ("--timeout", f"{TIMEOUT_S}s", "reduce", "sum", "h1", "h2")
            reduce = coordinator.popen(
                [hoplite.programs / "hoplite", *arguments], stdout=subprocess.DEVNULL
            )
            self.addCleanup(reduce.kill)
            await_that(
                "a quarter of the bytes",
                lambda: (lab.traffic()["h0"] - before).received_bytes >= SIZE_BYTES // 4,
            )
            yield hoplite
            self.assertEqual(reduce.wait(2 * TIMEOUT_S), 0)
            got = hoplite.client(
                coordinator, "get", "sum", "-o", "-", capture_output=True, check=True
            )
            self.assertEqual(got.stdout, integers(3))
            self.logs = "".join(store.log.read_text() for store in hoplite.stores.values())

    def test_a_hop_leaves_a_cut_card(self) -> None:
        with self.reducing() as hoplite:
            hoplite.lab.cut("h0.eth0")
        self.assertIn(CUT, self.logs)
        self.assertNotIn(SILENCE, self.logs)

    def test_a_frozen_store_has_no_cut_card(self) -> None:
        with self.reducing() as hoplite:
            stores = [hoplite.stores[name].process for name in ("h1", "h2")]
            for store in stores:
                store.send_signal(signal.SIGSTOP)
            time.sleep(2 * SHORT_PAUSE_S)
            for store in stores:
                store.send_signal(signal.SIGCONT)
        self.assertNotIn(CUT, self.logs)

    def test_a_host_that_pauses_has_no_cut_card(self) -> None:
        with self.reducing() as hoplite:
            hoplite.lab.cut("h0")
            time.sleep(SHORT_PAUSE_S)
            hoplite.lab.repair("h0")
        self.assertNotIn(CUT, self.logs)


if __name__ == "__main__":
    unittest.main()
