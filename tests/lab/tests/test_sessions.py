"""Allreduces while links fail in their middle."""

import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_allreduces import Ranks
from lab.tests.test_daemons import PROGRAMS, lacking
from lab.tests.test_lab import await_that

PLACES = ["h0", "h1", "h2"]
SIZE_BYTES = 3 << 20
# Bytes of a ring: 1 s at `RATE_BITS_S`, 5 s at `SLOW_BITS_S`.
RING_BYTES = 2 * SIZE_BYTES * (len(PLACES) - 1) // len(PLACES)
RATE_BITS_S = 40_000_000
SLOW_BITS_S = 8_000_000
MOMENT_S = 0.2
LONG_S = 10


@unittest.skipIf(lacking(), lacking())
class Sessions(unittest.TestCase):
    lab: Lab
    hoplite: Hoplite
    ranks: Ranks
    round = 0

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = cls.enterClassContext(Lab(Plan(hosts=len(PLACES), rate_bits_s=RATE_BITS_S)))
        cls.hoplite = cls.enterClassContext(Hoplite(cls.lab, PROGRAMS, memory="64MiB"))
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.ranks = Ranks(cls.lab, Path(directory), PLACES)
        cls.addClassCleanup(cls.ranks.end)

    def set_rates(self, rate_bits_s: int) -> None:
        for host in PLACES:
            self.lab.set_rate(host, rate_bits_s)

    def disturbed(self, host: str, fraction: float, disturb: Callable[[], None]) -> dict[int, str]:
        """Calls `disturb` once `host` has the share `fraction` of its bytes."""
        Sessions.round += 1
        self.ranks.tell(f"prepare allreduce {SIZE_BYTES} {self.round} 0 0")
        self.set_rates(SLOW_BITS_S)
        before = self.lab.traffic()[host]
        self.ranks.start(f"run {time.monotonic_ns()}")
        least = fraction * RING_BYTES
        try:
            await_that(
                "the middle", lambda: (self.lab.traffic()[host] - before).received_bytes >= least
            )
            disturb()
        finally:
            self.set_rates(RATE_BITS_S)
        return self.ranks.answers()

    def plan(self) -> str:
        return self.hoplite.stat(self.lab.host("h0"), f"bench-{self.round}-target")

    def check(self, ranks: list[int]) -> None:
        self.ranks.start("check", ranks)
        for rank, answer in self.ranks.answers(ranks).items():
            self.assertEqual(answer, "ok\n", f"rank {rank}")

    def test_a_host_that_is_cut_off_for_a_moment_goes_on(self) -> None:
        def cut() -> None:
            self.lab.cut("h1")
            time.sleep(MOMENT_S)
            self.lab.repair("h1")

        for fraction in (0.1, 0.5, 0.9):
            answers = self.disturbed("h1", fraction, cut)
            self.assertTrue(all(answer.startswith("done") for answer in answers.values()), answers)
            self.check([0, 1, 2])
            plan = self.plan()
            self.assertIn("ring of 3", plan)
            self.assertNotIn("no session", plan)
            self.ranks.tell("clean")

    def test_two_hosts_that_do_not_reach_each_other_are_done_without_a_session(self) -> None:
        def cut() -> None:
            self.lab.cut_between("h1", "h2")
            await_that("the end of the session", lambda: "no session, since member" in self.plan())
            self.lab.repair_between("h1", "h2")

        answers = self.disturbed("h2", 0.4, cut)
        self.assertTrue(all(answer.startswith("done") for answer in answers.values()), answers)
        self.check([0, 1, 2])
        self.assertIn("no session, since member", self.plan())
        self.ranks.tell("clean")

    def test_a_host_that_is_cut_off_near_the_end_has_no_other_result(self) -> None:
        def cut() -> None:
            self.lab.cut("h2")
            time.sleep(LONG_S)
            self.lab.repair("h2")

        answers = self.disturbed("h2", 1.0, cut)
        self.check([rank for rank, answer in answers.items() if answer.startswith("done")])
        for answer in answers.values():
            self.assertRegex(answer, "^done|lost")
        self.ranks.tell("clean")


if __name__ == "__main__":
    unittest.main()
