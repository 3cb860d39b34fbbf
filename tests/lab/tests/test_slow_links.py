"""What is sent around a link that has got slow. Needs what `test_daemons` needs."""

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
# What a store waits for before it tells others, and what comes on top until it is seen: a transfer or two over the slow link.
NOTICED_S = 60
RECEIVERS = ("h1", "h3", "h4")


@unittest.skipIf(lacking(), lacking())
class SlowLinks(unittest.TestCase):
    def put(self, hoplite: Hoplite, host: Host, name: str) -> None:
        hoplite.client(host, "put", name, "-", "--dtype", "u8", input=CONTENTS, timeout=TIMEOUT_S, check=True)

    def get(self, lab: Lab, host: str, name: str) -> subprocess.Popen[bytes]:
        return lab.host(host).popen([PROGRAMS / "hoplite", "get", name], stdout=subprocess.PIPE)

    def assert_got(self, receiver: subprocess.Popen[bytes]) -> None:
        self.assertEqual(receiver.communicate(timeout=TIMEOUT_S)[0], CONTENTS)

    def is_routed_around(self, hoplite: Hoplite, name: str) -> bool:
        """Has the slow host begin with a new object, and then the others; whether none of them followed it."""
        h0 = hoplite.lab.host("h0")
        self.put(hoplite, h0, name)
        receivers = []
        for host in ("h2", *RECEIVERS):
            receivers.append(self.get(hoplite.lab, host, name))
            # Each asks before the next one does.
            while host not in self.stat(hoplite, h0, name):
                time.sleep(0.01)
        for receiver in receivers:
            self.assert_got(receiver)
        grants = self.stat(hoplite, h0, name)
        hoplite.client(h0, "delete", name, timeout=TIMEOUT_S, check=True, capture_output=True)
        return "from h2" not in grants and "gave-way" in grants

    def stat(self, hoplite: Hoplite, host: Host, name: str) -> str:
        command = ("stat", name)
        return str(hoplite.client(host, *command, timeout=TIMEOUT_S, check=True, capture_output=True, text=True).stdout)

    def test_others_do_not_wait_for_a_receiver_whose_link_has_got_slow(self) -> None:
        with Lab(Plan(hosts=5)) as lab, Hoplite(lab, PROGRAMS, memory="256MiB") as hoplite:
            h0 = lab.host("h0")
            # What is usual here.
            for host in RECEIVERS:
                self.put(hoplite, h0, f"first-{host}")
                self.assert_got(self.get(lab, host, f"first-{host}"))
            lab.set_rate("h2", SLOW_BITS_S)
            deadline = time.monotonic() + NOTICED_S
            attempt = 0
            while not self.is_routed_around(hoplite, f"x{attempt}"):
                self.assertLess(time.monotonic(), deadline, "the slow link was not noticed")
                attempt += 1
            shown = hoplite.client(h0, "topology", "show", "--json", capture_output=True, timeout=TIMEOUT_S, check=True)
            self.assertEqual([link["node"] for link in json.loads(shown.stdout) if link["is_slow"]], ["h2"])


if __name__ == "__main__":
    unittest.main()
