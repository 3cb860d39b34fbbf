"""The processor time of the dashboard with 1,000 nodes:
`python3 -m dashboard.cost --programs ../target/dist`."""

import argparse
import os
import statistics
import time
from pathlib import Path

import dashboard.cluster as cluster
from dashboard.browser import Browser

ROUNDS = 5
ROUND_S = 20.0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int) -> float:
    cpu, began = cpu_s(pid), time.monotonic()
    time.sleep(ROUND_S)
    return 100 * (cpu_s(pid) - cpu) / (time.monotonic() - began)


def report(what: str, pid: int) -> None:
    shares = [share(pid) for _ in range(ROUNDS)]
    print(
        f"{what}: {statistics.median(shares):.2f}% of a core, {min(shares):.2f} to {max(shares):.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--programs", type=Path, default=cluster.BINARIES, help="where they were built"
    )
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args()
    cluster.BINARIES = arguments.programs.resolve()
    with (
        cluster.directory_process() as (process, addresses),
        cluster.crowd(addresses["directory"], arguments.nodes, 25_000, 60),
    ):
        pid = process.process.pid
        report("nobody looks", pid)
        for tab in ("nodes", "transfers", "links"):
            with Browser() as page:
                page.open(f"http://{addresses['dashboard']}/#{tab}")
                report(f"somebody looks at the {tab}", pid)


if __name__ == "__main__":
    main()
