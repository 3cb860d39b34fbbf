"""A short campaign. Needs root, the programs and the Python package; `make chaos` runs a long
one."""

import os
import secrets
import sys
import unittest

from chaos.campaign import Campaign, Settings
from chaos.collectives import COLLECTIVES
from chaos.faults import FAULTS
from lab.tests.test_daemons import PROGRAMS, lacking

SECONDS = 30
SLACK_S = 30


@unittest.skipIf(lacking(), lacking())
class Short(unittest.TestCase):
    def test_no_promise_is_broken(self) -> None:
        seed = int(os.environ.get("HOPLITE_SEED", secrets.randbelow(2**32)))
        print(f"HOPLITE_SEED={seed}", file=sys.stderr)
        settings = Settings(PROGRAMS, seed, SECONDS, slack_s=SLACK_S)
        report = Campaign(settings, lambda text: print(text, file=sys.stderr)).run()
        self.assertEqual(report.violations, [], report.text())
        self.assertLessEqual(set(report.faults), set(FAULTS))
        self.assertGreater(report.faults.total(), 0)
        done = {operation for operation, outcome in report.outcomes if outcome == "ok"}
        self.assertLessEqual(
            {"put", "get", "delete", "reduce", "put_many", "get_many", "command line"},
            done,
        )
        self.assertTrue(done & set(COLLECTIVES))


if __name__ == "__main__":
    unittest.main()
