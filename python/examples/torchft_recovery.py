"""Recovers replicas of torchft: all get the state of a healthy replica at the same time.

    python examples/torchft_recovery.py --replicas 4 --megabytes 64 --compare

The program replaces torchft's manager: it calls the same transport as
`torchft.Manager(checkpoint_transport=...)`. Each replica is a process with its own store.
`--compare` repeats this with torchft's HTTP transport.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from harness.cluster import NoCluster, stores

TENSORS = 16
TIMEOUT = timedelta(seconds=120)
SPARE_BYTES = 64 << 20


def state_of(step: int, megabytes: int) -> dict[str, Any]:
    import torch

    count = megabytes * 1_000_000 // 4 // TENSORS
    return {
        "model": {f"layer.{index}": torch.full((count,), float(step)) for index in range(TENSORS)},
        "optimizer": {"rate": 0.1, "steps": step},
    }


def transport(socket: str | None) -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(1)
    if socket is None:
        from torchft.checkpointing.http_transport import HTTPTransport

        return HTTPTransport(timeout=TIMEOUT, num_chunks=0), None
    import hoplite
    from hoplite.torch.torchft import HopliteTransport

    client = hoplite.connect(socket)
    return HopliteTransport(TIMEOUT, client=client), client


def be_behind(told: Connection, socket: str | None) -> None:
    own, client = transport(socket)
    told.send("ready")
    while (found := told.recv()) is not None:
        metadata, step = found
        got = own.recv_checkpoint(0, metadata, step, TIMEOUT)
        assert got["optimizer"] == {"rate": 0.1, "steps": step}
        assert all((tensor == step).all() for tensor in got["model"].values())
        told.send(step)
    own.shutdown()
    if client is not None:
        client.close()


def measure(args: argparse.Namespace, sockets: list[str] | None) -> dict[str, Any]:
    own, client = transport(None if sockets is None else sockets[0])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "hoplite.torch.torchft"])
    ends: list[Connection] = []
    processes = []
    for index in range(args.replicas):
        end, other = context.Pipe()
        socket = None if sockets is None else sockets[1 + index]
        processes.append(context.Process(target=be_behind, args=(other, socket), daemon=True))
        processes[-1].start()
        other.close()
        ends.append(end)
    assert [end.recv() for end in ends] == ["ready"] * args.replicas
    seconds = []
    for step in range(1, args.rounds + 1):
        state = state_of(step, args.megabytes)
        began = time.monotonic()
        own.send_checkpoint(list(range(1, args.replicas + 1)), step, state, TIMEOUT)
        for end in ends:
            end.send((own.metadata(), step))
        assert [end.recv() for end in ends] == [step] * args.replicas
        seconds.append(time.monotonic() - began)
        own.disallow_checkpoint()
    for end in ends:
        end.send(None)
    for process in processes:
        process.join()
    own.shutdown()
    left = 0
    if client is not None:
        left = len(list(client.list("weights")))
        client.close()
    return {
        "backend": "torchft's HTTP" if sockets is None else "hoplite",
        "replicas": args.replicas,
        "megabytes": args.megabytes,
        "rounds": args.rounds,
        "median_s": round(statistics.median(seconds), 4),
        "left": left,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=4, help="how many are behind")
    parser.add_argument("--megabytes", type=int, default=64, help="the size of the state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", action="store_true", help="torchft's own transport, too")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    args = parser.parse_args()
    if min(args.replicas, args.megabytes, args.rounds) < 1:
        parser.error("it takes at least one replica, megabyte and round")
    try:
        with stores(args.replicas + 1, 4 * args.megabytes * 1_000_000 + SPARE_BYTES) as sockets:
            reports = [measure(args, sockets)]
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1
    if args.compare:
        reports.append(measure(args, None))
    for report in reports:
        if args.json:
            print(json.dumps(report))
        else:
            print(
                f"{report['backend']}: {report['megabytes']} MB to {report['replicas']} replicas: "
                f"median of {report['rounds']} {report['median_s']} s"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
