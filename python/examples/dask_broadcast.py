"""Broadcasts an array to all workers of Dask, with Hoplite and with Dask alone.

    python examples/dask_broadcast.py --workers 4 --megabytes 100

Each worker is a process with its own store, so that data moves as between nodes. The time lasts
until all workers have summed the array.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster

import hoplite
import hoplite.dask
from harness.cluster import NoCluster, stores

#: Arrays are deleted half a minute late.
SPARE_BYTES = 64 << 20


def add_up(array: Any) -> float:
    return float(array.sum())


def rounds(client: Client, args: argparse.Namespace, scatter: Any) -> list[float]:
    seconds = []
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    for number in range(args.rounds):
        array = np.full(args.megabytes * 125_000, float(number + 1))
        began = time.monotonic()
        future = scatter(array)
        sums = [client.submit(add_up, future, workers=[worker], pure=False) for worker in workers]
        assert client.gather(sums) == [array.size * (number + 1.0)] * len(workers)
        seconds.append(time.monotonic() - began)
        del future, sums
    return seconds


def measure(args: argparse.Namespace, sockets: list[str] | None) -> dict[str, Any]:
    environments = [{"HOPLITE_SOCKET": socket} for socket in (sockets or [])[1:]] or [
        {}
    ] * args.workers
    workers = {
        number: {"cls": Nanny, "options": {"nthreads": 1, "env": environment}}
        for number, environment in enumerate(environments)
    }
    scheduler = {
        "cls": Scheduler,
        "options": {"dashboard": False, "dashboard_address": None, "host": "127.0.0.1"},
    }
    quiet = logging.WARNING
    with SpecCluster(workers, scheduler, silence_logs=quiet) as cluster, Client(cluster) as client:
        if sockets is None:
            seconds = rounds(
                client, args, lambda array: client.scatter(array, broadcast=True, hash=False)
            )
        else:
            hoplite.dask.install(client, socket=sockets[0])
            seconds = rounds(client, args, lambda array: hoplite.dask.scatter(array, client))
    return {
        "backend": "dask" if sockets is None else "hoplite",
        "workers": args.workers,
        "megabytes": args.megabytes,
        "rounds": args.rounds,
        "first_s": round(seconds[0], 4),
        "median_s": round(statistics.median(seconds), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=100, help="the size of the array")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    args = parser.parse_args()
    if min(args.workers, args.megabytes, args.rounds) < 1:
        parser.error("it takes at least one worker, megabyte and round")
    os.environ.pop("HOPLITE_SOCKET", None)
    reports = [measure(args, None)]
    try:
        memory = (args.rounds + 2) * args.megabytes * 1_000_000 + SPARE_BYTES
        with stores(args.workers + 1, memory) as sockets:
            reports.append(measure(args, sockets))
            hoplite.shutdown()
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1
    for report in reports:
        if args.json:
            print(json.dumps(report))
        else:
            print(
                f"{report['backend']}: {report['megabytes']} MB to {report['workers']} workers: "
                f"first {report['first_s']} s, median of {report['rounds']} {report['median_s']} s"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
