import argparse
import json
import os
import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path

from lab.tests.test_daemons import PROGRAMS

from .campaign import Campaign, Settings
from .faults import FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Break a real cluster at random, and check every result. Needs root.",
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long faults come (default: 60)"
    )
    seed = int(os.environ.get("HOPLITE_SEED", secrets.randbelow(2**32)))
    parser.add_argument(
        "--seed",
        type=int,
        default=seed,
        help="repeats the faults and operations of a campaign",
    )
    parser.add_argument("--stores", type=int, default=4, help="number of stores (default: 4)")
    parser.add_argument(
        "--slack",
        type=float,
        default=1,
        help="seconds after its deadline in which a call must end",
    )
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="directory of the programs")
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=FAULTS,
        default=list(FAULTS),
        help="only these kinds of faults",
    )
    parser.add_argument(
        "--spill", action="store_true", help="so little memory that stores spill to files"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    given = parser.parse_args()
    settings = Settings(
        given.programs,
        given.seed,
        given.seconds,
        given.stores,
        slack_s=given.slack,
        faults=given.faults,
        spill=given.spill,
    )
    began = time.monotonic()
    report = Campaign(
        settings,
        lambda text: print(
            f"{time.monotonic() - began:6.1f} s: {text}", file=sys.stderr, flush=True
        ),
    ).run()
    if given.json:
        outcomes = [[*name, count] for name, count in sorted(report.outcomes.items())]
        print(json.dumps({**asdict(report), "outcomes": outcomes}, default=str))
    else:
        print(report.text())
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
