#!/usr/bin/env python3
"""Puts and gets CUDA tensors, and prints the rates through pinned and through pageable memory.

Needs a GPU, the package hoplite with torch and numpy, and the programs of Hoplite:

    HOPLITE_BINARIES=target/release python tests/gpu/pinned.py

Exits with 1 if a tensor arrives with other bytes. Rates are medians in GB/s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

import hoplite
from hoplite import _native

MIB = 1 << 20


def median_rate(
    rounds: int, nbytes: int, work: Callable[[], None], after: Callable[[], None]
) -> float:
    """Returns the median of GB/s. The first round does not count."""
    taken = []
    for _ in range(1 + rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
        after()
    return nbytes / statistics.median(taken[1:]) / 1e9


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.to("cpu"), right.to("cpu"))


def check(client: hoplite.Client, sizes: list[int]) -> bool:
    wrong = []
    tensors = {
        f"{size} bytes": torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        for size in sizes
    }
    grid = torch.randn(3000, 2001, device="cuda")
    tensors |= {
        "transposed": grid.T,
        "a slice": grid[:, 1:2000:2],
        "bfloat16": grid.to(torch.bfloat16),
    }
    tensors |= {"one element": grid[0, 0], "needs a gradient": grid.clone().requires_grad_()}
    tensors |= {
        "complex64": torch.view_as_complex(
            grid[:, :2000].reshape(3000, 1000, 2).contiguous()
        ).conj()
    }
    for name, tensor in tensors.items():
        with client.put(None, tensor) as ref:
            out = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
            client.get_into(ref, out)
            got = client.get(ref)
            if (
                got.device.type != "cpu"
                or not same(got, tensor.detach())
                or not same(out, tensor.detach())
            ):
                wrong.append(name)
    # A kernel still writes this tensor.
    busy = torch.zeros(64 * MIB, device="cuda")
    for _ in range(50):
        busy += 1
    with client.put(None, busy) as ref:
        if not bool((client.get(ref) == 50).all()):
            wrong.append("a tensor that a kernel was writing")
    print("wrong:", *wrong, sep="\n  ") if wrong else print(
        f"{len(tensors) + 1} tensors arrived as they were"
    )
    return not wrong


def measure(client: hoplite.Client, nbytes: int, rounds: int) -> None:
    tensor = torch.randint(-128, 127, (nbytes,), dtype=torch.int8, device="cuda")
    out = torch.empty_like(tensor)
    private = torch.empty(nbytes, dtype=torch.int8)
    pinned = torch.empty(nbytes, dtype=torch.int8, pin_memory=True)

    def delete() -> None:
        client.delete("measured")

    def nothing() -> None:
        pass

    def put_pinned() -> None:
        client.put("measured", tensor)

    def put_pageable() -> None:
        client.put("measured", tensor.cpu())

    puts = {"put, pinned": put_pinned, "put of tensor.cpu()": put_pageable}
    rates = {name: median_rate(rounds, nbytes, put, delete) for name, put in puts.items()}
    put_pinned()

    def get_into() -> None:
        client.get_into("measured", out)

    def get_moved() -> None:
        out.copy_(client.get("measured"))

    def get_in_place() -> None:
        out.copy_(client.get("measured", copy=False))

    gets = {
        "get_into, pinned": get_into,
        "copy_ of get": get_moved,
        "copy_ of get(copy=False)": get_in_place,
        "torch alone: device to pinned": lambda: pinned.copy_(tensor),
        "torch alone: pinned to device": lambda: out.copy_(pinned),
        "torch alone: device to pageable": lambda: private.copy_(tensor),
        "torch alone: pageable to device": lambda: out.copy_(private),
    }
    for name, get in gets.items():
        out.zero_()
        rates[name] = median_rate(rounds, nbytes, get, nothing)
        if "pageable" not in name and "device to" not in name and not torch.equal(out, tensor):
            sys.exit(f"{name}: other bytes arrived")
    delete()
    print(f"\n{nbytes // MIB} MiB, GB/s")
    for name, rate in rates.items():
        print(f"  {name:34} {rate:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    print(
        torch.cuda.get_device_name(),
        "torch",
        torch.__version__,
        "hoplite",
        hoplite.__version__,
        _native.BUILD,
    )
    with hoplite.init(memory=f"{max(4096, 3 * max(arguments.mib))}MiB") as client:
        if not check(client, [0, 1, MIB - 1, MIB, 16 * MIB, 16 * MIB + 1, 32 * MIB, 50 * MIB + 3]):
            sys.exit(1)
        for mib in arguments.mib:
            measure(client, mib * MIB, arguments.rounds)
    hoplite.shutdown()


if __name__ == "__main__":
    main()
