"""One trainer sends its weights to rollout workers that join, leave and die.

    python examples/weights.py --workers 8 --megabytes 64 --versions 6 --compare

The trainer puts versions without waiting for the gets. Workers get the newest version into their
parameters. One leaves, one is killed during a get, and then one joins; the others are not affected.

`--compare` repeats this with Gloo's broadcast, whose members cannot join, leave or die.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from harness.cluster import NoCluster, stores

TENSORS = 24
NAME = "policy"
TIMEOUT = 120.0


@dataclass
class Told:
    versions: dict[int, float] = field(default_factory=dict)
    """The arrival of each version."""
    end: str = ""


def weights(nbytes: int, version: int) -> dict[str, Any]:
    import torch

    return {
        f"layer.{index}": torch.full((max(1, nbytes // TENSORS // 4),), float(version))
        for index in range(TENSORS)
    }


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "hoplite.torch"])
    return context


def version_of(state: dict[str, Any]) -> int:
    found = {
        value for tensor in state.values() for value in (tensor.min().item(), tensor.max().item())
    }
    assert len(found) == 1, f"a mix of versions: {found}"
    return int(found.pop())


def work(tell: Connection, socket: str, nbytes: int, last: int, role: str) -> None:
    import torch

    import hoplite
    from hoplite.torch import get_state_dict, stream_state_dict

    torch.set_num_threads(1)
    parameters = weights(nbytes, 0)
    with hoplite.connect(socket) as client:
        tell.send("ready")
        seen = None
        while seen != last:
            if role == "dies":
                next(stream_state_dict(NAME, client=client, timeout=TIMEOUT))
                os.kill(os.getpid(), 9)
            got = get_state_dict(NAME, parameters, newer_than=seen, client=client, timeout=TIMEOUT)
            seen = got.version
            assert version_of(parameters) == seen
            tell.send((seen, time.monotonic()))
            if role == "leaves":
                return


def with_hoplite(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    import hoplite
    from hoplite.torch import put_state_dict, state_dict_versions

    torch.set_num_threads(1)
    nbytes = args.megabytes * 1_000_000
    roles = ["leaves", "dies", *["stays"] * (args.workers - 3), "joins"]
    context = _context()
    told = [Told() for _ in roles]
    ends: dict[Connection, int] = {}
    processes: dict[int, Any] = {}
    with (
        stores(args.workers + 1, 4 * nbytes + (64 << 20)) as sockets,
        hoplite.connect(sockets[0]) as client,
    ):

        def start(index: int) -> None:
            end, other = context.Pipe(duplex=False)
            about = (other, sockets[1 + index], nbytes, args.versions, roles[index])
            processes[index] = context.Process(target=work, args=about, daemon=True)
            processes[index].start()
            other.close()
            assert end.recv() == "ready"
            ends[end] = index

        def listen(seconds: float) -> None:
            for end in wait(list(ends), seconds):
                assert isinstance(end, Connection)
                try:
                    version, when = end.recv()
                    told[ends[end]].versions[version] = when
                except EOFError:
                    process = processes[ends[end]]
                    process.join()
                    told[ends[end]].end = (
                        "killed" if process.exitcode == -9 else f"code {process.exitcode}"
                    )
                    del ends[end]

        for index, role in enumerate(roles):
            if role != "joins":
                start(index)
        put: dict[int, float] = {}
        for version in range(1, args.versions + 1):
            state = weights(nbytes, version)
            if version == args.versions // 2 + 1:
                # A slow worker may see only the last version.
                while any(roles[index] in ("leaves", "dies") for index in ends.values()):
                    listen(TIMEOUT)
                start(roles.index("joins"))
            put[version] = time.monotonic()
            put_state_dict(NAME, state, version=version, client=client, timeout=TIMEOUT)
            until = put[version] + args.interval
            while ends and (left := until - time.monotonic()) > 0:
                listen(left)
        while ends:
            listen(TIMEOUT)
        kept = state_dict_versions(NAME, client=client)
    stayed = [one for one, role in zip(told, roles, strict=True) if role == "stays"]
    delays = [when - put[version] for one in stayed for version, when in one.versions.items()]
    return {
        "backend": "hoplite",
        "workers": len(roles),
        "megabytes": args.megabytes,
        "versions": args.versions,
        "ends": {
            role: told[roles.index(role)].end for role in ("leaves", "dies", "stays", "joins")
        },
        "have_last": sum(args.versions in one.versions for one in told),
        "median_s": round(statistics.median(delays), 4),
        "slowest_s": round(max(delays), 4),
        "kept": kept,
    }


def gloo_rank(
    rank: int, size: int, rendezvous: str, nbytes: int, versions: int, tell: Connection
) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    parameters = weights(nbytes, 0)
    delays = []
    for version in range(1, versions + 1):
        if rank == 0:
            parameters = weights(nbytes, version)
        dist.barrier()
        began = time.monotonic()
        for tensor in parameters.values():
            dist.broadcast(tensor, 0)
        delays.append(time.monotonic() - began)
        assert version_of(parameters) == version
    dist.destroy_process_group()
    tell.send(delays)


def with_gloo(args: argparse.Namespace) -> dict[str, Any]:
    context = _context()
    size = args.workers + 1
    with tempfile.TemporaryDirectory(prefix="hoplite-example-") as directory:
        ends = []
        processes = []
        for rank in range(size):
            end, other = context.Pipe(duplex=False)
            about = (
                rank,
                size,
                f"{directory}/rendezvous",
                args.megabytes * 1_000_000,
                args.versions,
                other,
            )
            processes.append(context.Process(target=gloo_rank, args=about, daemon=True))
            processes[-1].start()
            other.close()
            ends.append(end)
        delays = [delay for end in ends[1:] for delay in end.recv()]
        for process in processes:
            process.join()
    return {
        "backend": "gloo",
        "workers": args.workers,
        "megabytes": args.megabytes,
        "versions": args.versions,
        "median_s": round(statistics.median(delays), 4),
        "slowest_s": round(max(delays), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=8, help="rollout workers, at least 4")
    parser.add_argument("--megabytes", type=int, default=64, help="the size of the model")
    parser.add_argument(
        "--versions", type=int, default=6, help="how many versions the trainer sends"
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds from one version to the next, at least"
    )
    parser.add_argument("--compare", action="store_true", help="Gloo's broadcast, too")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    args = parser.parse_args()
    if args.workers < 4 or args.versions < 2 or args.megabytes < 1:
        parser.error("it takes at least 4 workers, 2 versions and 1 megabyte")
    try:
        reports = [with_hoplite(args), *([with_gloo(args)] if args.compare else [])]
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1
    for report in reports:
        if args.json:
            print(json.dumps(report))
            continue
        print(
            f"{report['backend']}: {report['megabytes']} MB to {report['workers']} workers, {report['versions']} times: "
            f"median {report['median_s']} s, slowest {report['slowest_s']} s"
        )
        if "ends" in report:
            ends = ", ".join(f"who {role}: {end}" for role, end in report["ends"].items())
            print(f"  {report['have_last']} workers have the last version; {ends}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
