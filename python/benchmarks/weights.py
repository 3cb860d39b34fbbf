"""Measures put and get of a state dict on one node, beside copies of its tensors by torch.

    python python/benchmarks/weights.py
    python python/benchmarks/weights.py --size 256MiB --tensors 64 --rounds 5

See README.md.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from local import _positive, _size

import hoplite
import hoplite.torch
from contestants import HopliteStore, NotThere
from figures import size_text
from hoplite import _native

NAME = "benchmark"
#: One version being read, one being put, and one being deleted.
VERSIONS = 3

State = dict[str, torch.Tensor]


def main() -> int:
    args = _parser().parse_args()
    if _native.BUILD != "release":
        print(f"weights.py: the extension is a {_native.BUILD} build", file=sys.stderr)
    try:
        with HopliteStore.running(VERSIONS * args.size) as store:
            times = measure(store._client, args.size, args.tensors, args.rounds)
    except NotThere as error:
        print(f"weights.py: {error}", file=sys.stderr)
        return 1
    about = f"{size_text(args.size)} in {args.tensors} tensors, medians of {args.rounds} rounds"
    print(f"{about}; torch {torch.__version__} with {torch.get_num_threads()} threads")
    for what, figures in times.items():
        print(f"{what:10} {median(figures) * 1e3:7.1f} ms, at least {min(figures) * 1e3:7.1f} ms")
    return 0


def measure(client: hoplite.Client, size: int, tensors: int, rounds: int) -> dict[str, list[float]]:
    state = {f"layer.{n}": torch.full((size // tensors // 4,), float(n)) for n in range(tensors)}
    room = {key: torch.ones_like(tensor) for key, tensor in state.items()}
    steps: dict[str, Callable[[], object]] = {
        "memcpy": lambda: _memcpy(state, room),
        "copy": lambda: _copy(state, room),
        "put": lambda: hoplite.torch.put_state_dict(NAME, state, keep=1, client=client),
        "get into": lambda: hoplite.torch.get_state_dict(NAME, room, client=client),
        "clone": lambda: {key: tensor.clone() for key, tensor in state.items()},
        "get": lambda: hoplite.torch.get_state_dict(NAME, client=client),
    }
    times: dict[str, list[float]] = {what: [] for what in steps}
    for round in range(rounds + 1):
        for what, step in steps.items():
            gc.collect()
            started = perf_counter()
            made = step()
            took = perf_counter() - started
            del made
            if round > 0:
                times[what].append(took)
    for key, tensor in hoplite.torch.get_state_dict(NAME, client=client).state_dict.items():
        assert torch.equal(tensor, state[key])
    return times


def _memcpy(state: State, room: State) -> None:
    for key, tensor in state.items():
        np.copyto(room[key].numpy(), tensor.numpy())


def _copy(state: State, room: State) -> None:
    for key, tensor in state.items():
        room[key].copy_(tensor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", type=_size, default=1 << 30, metavar="SIZE", help="of the state dict [1GiB]"
    )
    parser.add_argument(
        "--tensors", type=_positive, default=64, metavar="N", help="how many, of one size [64]"
    )
    parser.add_argument(
        "--rounds", type=_positive, default=7, metavar="N", help="beside one to warm up [7]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
