"""Routes around a slow link."""

import itertools
import json
import os
import subprocess
import time
import unittest

from lab import Host, Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking

CONTENTS = os.urandom(8 << 20)
SLOW_BITS_S = 20_000_000
# Time in which a store reports a slow link.
NOTICED_S = 300
RECEIVERS = ("h1", "h3", "h4")
OTHERS = ("h1", "h2", "h3", "h4")


@unittest.skipIf(lacking(), lacking())
class SlowLinks(unittest.TestCase):
    def put(self, hoplite: Hoplite, host: Host, name: str) -> None:
        hoplite.client(
            host, "put", name, "-", "--dtype", "u8", input=CONTENTS, timeout=TIMEOUT_S, check=True
        )

    def get(self, lab: Lab, host: str, name: str) -> subprocess.Popen[bytes]:
        return lab.host(host).popen([PROGRAMS / "hoplite", "get", name], stdout=subprocess.PIPE)

    def assert_got(self, receiver: subprocess.Popen[bytes]) -> None:
        self.assertEqual(receiver.communicate(timeout=TIMEOUT_S)[0], CONTENTS)

    def is_routed_around(self, hoplite: Hoplite, name: str) -> bool:
        """Broadcasts, first to the slow host. `True` if that host served no other host."""
        h0 = hoplite.lab.host("h0")
        self.put(hoplite, h0, name)
        receivers = []
        for host in ("h2", *RECEIVERS):
            receivers.append(self.get(hoplite.lab, host, name))
            while host not in self.stat(hoplite, h0, name):
                time.sleep(0.01)
        for receiver in receivers:
            self.assert_got(receiver)
        grants = self.stat(hoplite, h0, name)
        hoplite.client(h0, "delete", name, timeout=TIMEOUT_S, check=True, capture_output=True)
        return "from h2" not in grants and "gave-way" in grants

    def stat(self, hoplite: Hoplite, host: Host, name: str) -> str:
        return hoplite.stat(host, name)

    def test_others_do_not_wait_for_a_receiver_whose_link_has_got_slow(self) -> None:
        with Lab(Plan(hosts=5)) as lab, Hoplite(lab, PROGRAMS, memory="256MiB") as hoplite:
            h0 = lab.host("h0")
            for host in RECEIVERS:
                self.put(hoplite, h0, f"first-{host}")
                self.assert_got(self.get(lab, host, f"first-{host}"))
            lab.set_rate("h2", SLOW_BITS_S)
            deadline = time.monotonic() + NOTICED_S
            attempt = 0
            while not self.is_routed_around(hoplite, f"x{attempt}"):
                self.assertLess(time.monotonic(), deadline, "the slow link was not noticed")
                attempt += 1
            shown = hoplite.client(
                h0, "topology", "show", "--json", capture_output=True, timeout=TIMEOUT_S, check=True
            )
            worst = json.loads(shown.stdout)[0]
            self.assertEqual((worst["node"], worst["is_slow"]), ("h2", True), shown.stdout)

    def reduced(self, hoplite: Hoplite, target: str, *options: str) -> tuple[str, int, int]:
        """Returns the plan, and the bytes that the slow host received and sent."""
        lab, h0 = hoplite.lab, hoplite.lab.host("h0")
        before = lab.traffic()["h2"]
        sources = [f"source-{host}" for host in OTHERS]
        hoplite.client(
            h0,
            "reduce",
            target,
            *sources,
            *options,
            timeout=TIMEOUT_S,
            check=True,
            capture_output=True,
        )
        moved = lab.traffic()["h2"] - before
        plan = self.stat(hoplite, h0, target)
        hoplite.client(h0, "delete", target, timeout=TIMEOUT_S, check=True, capture_output=True)
        return plan, moved.received_bytes, moved.sent_bytes

    def test_what_is_reduced_does_not_go_to_a_host_whose_link_has_got_slow(self) -> None:
        with Lab(Plan(hosts=5)) as lab, Hoplite(lab, PROGRAMS, memory="256MiB") as hoplite:
            for host in OTHERS:
                self.put(hoplite, lab.host(host), f"source-{host}")
            _, received, _ = self.reduced(hoplite, "usual")
            self.assertGreater(received, len(CONTENTS))
            for sender, receivers in (("h0", RECEIVERS), ("h1", ("h0", "h3", "h4"))):
                for host in receivers:
                    self.put(hoplite, lab.host(sender), f"first-{sender}-{host}")
                    self.assert_got(self.get(lab, host, f"first-{sender}-{host}"))
            lab.set_rate("h2", SLOW_BITS_S)
            deadline = time.monotonic() + 2 * NOTICED_S
            for attempt in itertools.count():
                for sender in ("h0", "h1"):
                    self.put(hoplite, lab.host(sender), f"x-{sender}-{attempt}")
                receivers = [
                    self.get(lab, "h2", f"x-{sender}-{attempt}") for sender in ("h0", "h1")
                ]
                for receiver in receivers:
                    self.assert_got(receiver)
                for sender in ("h0", "h1"):
                    hoplite.client(
                        lab.host("h0"),
                        "delete",
                        f"x-{sender}-{attempt}",
                        timeout=TIMEOUT_S,
                        check=True,
                    )
                plan, received, sent = self.reduced(hoplite, f"sum-{attempt}")
                if "slow link" in plan:
                    break
                self.assertLess(time.monotonic(), deadline, plan)
            self.assertLess(received, len(CONTENTS) / 4)
            self.assertGreater(sent, len(CONTENTS))
            _, received, sent = self.reduced(hoplite, "without", "--num", "3")
            self.assertLess(received + sent, len(CONTENTS) / 4)


if __name__ == "__main__":
    unittest.main()
