from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from harness.cluster import NoCluster
from harness.compare import compare, table
from harness.crew import WorkerLost
from harness.options import checked
from harness.report import Report, plot


def main(
    parser: argparse.ArgumentParser, backends: Mapping[str, Callable[[argparse.Namespace], Report]]
) -> None:
    arguments = sys.argv[1:]
    args = checked(parser, arguments)
    try:
        if args.compare:
            reports = compare(args, arguments)
            print(table(reports))
        else:
            reports = [backends[args.backend](args)]
            print(reports[0].json() if args.json else reports[0].text())
    except (NoCluster, WorkerLost) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if args.plot:
        plot(reports, args.plot)
