"""Measures the first use of a group: `init_process_group`, and an all_reduce of 4 KB.

    python python/benchmarks/first_use.py
    python python/benchmarks/first_use.py --ranks 8 --rounds 20

See README.md.
"""

from __future__ import annotations

import argparse
import compileall
import json
import multiprocessing
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

BACKENDS = ("hoplite", "gloo")
ELEMENTS = 1000
STORE_BYTES = 64 << 20
WAIT_LIMIT = 120.0

Times = dict[str, list[float]]


def main() -> int:
    from contestants import HopliteStore, NotThere

    args = _parser().parse_args()
    compile_package()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    try:
        with HopliteStore.running(STORE_BYTES) as store:
            times = measure(context, store._client.socket, args.ranks, args.rounds)
    except (NotThere, ChildProcessError) as error:
        print(f"first_use.py: {error}", file=sys.stderr)
        return 1
    report = {
        backend: {what: {"median": median(of), "minimum": min(of)} for what, of in found.items()}
        for backend, found in times.items()
    }
    if args.json:
        print(json.dumps({"ranks": args.ranks, "rounds": args.rounds, "seconds": report}))
        return 0
    print(
        f"{args.ranks} ranks, the slowest of them, medians of {args.rounds} rounds (and the least)"
    )
    for what in times["hoplite"]:
        ours, theirs = (report[backend][what] for backend in BACKENDS)
        print(
            f"{what:20} hoplite {_ms(ours['median'])} ({_ms(ours['minimum'])}), gloo {_ms(theirs['median'])} "
            f"({_ms(theirs['minimum'])}): {ours['median'] / theirs['median']:.2f} x"
        )
    return 0


def compile_package() -> None:
    """Writes bytecode, as pip does."""
    import hoplite

    compileall.compile_dir(hoplite.__path__[0], quiet=1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def measure(context: Any, store: str, ranks: int, rounds: int) -> dict[str, Times]:
    times: dict[str, Times] = {}
    for round in range(rounds + 1):
        for backend in BACKENDS:
            found = _round(context, backend, store, ranks)
            if round > 0:
                for what in found[0]:
                    slowest = max(of[what] for of in found)
                    times.setdefault(backend, {}).setdefault(what, []).append(slowest)
    return times


def _round(context: Any, backend: str, store: str, ranks: int) -> list[dict[str, float]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ends, processes = [], []
    for rank in range(ranks):
        end, other = context.Pipe()
        about = (other, backend, store, f"tcp://127.0.0.1:{port}", rank, ranks)
        process = context.Process(target=_be_rank, args=about, daemon=True)
        process.start()
        other.close()
        ends.append(end)
        processes.append(process)
    try:
        for end in ends:
            _told(end)
        for end in ends:
            end.send("begin")
        return [_told(end) for end in ends]
    finally:
        for process in processes:
            process.join(WAIT_LIMIT)
            process.kill()


def _told(end: Connection) -> Any:
    try:
        if end.poll(WAIT_LIMIT):
            return end.recv()
    except EOFError:
        pass
    raise ChildProcessError("a rank has failed")


def _be_rank(
    end: Connection, backend: str, store: str, address: str, rank: int, ranks: int
) -> None:
    import os

    import torch
    import torch.distributed as dist

    os.environ["HOPLITE_SOCKET"] = store
    torch.set_num_threads(1)
    tensor = torch.full((ELEMENTS,), 1.0)
    end.send("ready")
    end.recv()

    def timed(call: Callable[[], object]) -> float:
        started = perf_counter()
        call()
        return perf_counter() - started

    times = {
        "init_process_group": timed(
            lambda: dist.init_process_group(
                backend, init_method=address, rank=rank, world_size=ranks
            )
        ),
        "first all_reduce": timed(lambda: dist.all_reduce(tensor)),
        "second all_reduce": timed(lambda: dist.all_reduce(tensor)),
    }
    assert tensor[0].item() == float(ranks) ** 2
    end.send(times)
    dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    from local import _positive

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=_positive, default=4, metavar="N", help="processes of a group [4]"
    )
    parser.add_argument(
        "--rounds", type=_positive, default=11, metavar="N", help="beside one to warm up [11]"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, in seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
