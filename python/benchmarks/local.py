"""Measures put and get of arrays on one node: Hoplite, Ray's object store, Rust and memcpy.

    python python/benchmarks/local.py
    python python/benchmarks/local.py --sizes 1KiB 64MiB --rounds 5 --without-ray --json local.json

See README.md.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contestants import Contestant, HopliteStore, Memcpy, NotThere, RayStore, RoundTrip, RustProgram
from figures import Cell, Figures, Report, size_text

ROUND_BYTES = 32 << 20
ROUND_OBJECTS = 100
ROUND_GETS = 20
RUST_TURNS = 4
#: As in `hoplite bench local`.
COLD_BYTES = 1 << 10
IDLE_SECONDS = 0.02
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZES = "1KiB 100KiB 1MiB 64MiB 1GiB"


def main() -> int:
    args = _parser().parse_args()
    try:
        report = measure(args.sizes, args.rounds, args.cold_samples, with_ray=not args.without_ray)
    except NotThere as error:
        print(f"local.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report.text())
    if args.json is not None:
        args.json.write_text(report.json() + "\n")
    return 0


def measure(sizes: list[int], rounds: int, cold_samples: int, *, with_ray: bool) -> Report:
    most = max(size * _batch(size) for size in sizes)
    rust = RustProgram()
    with ExitStack() as cleanup:
        stores: list[Contestant] = [cleanup.enter_context(HopliteStore.running(most))]
        if with_ray:
            stores.append(cleanup.enter_context(RayStore.running(most)))
        memcpy = Memcpy()
        cells = [_measure(size, rounds, [memcpy, *stores], rust) for size in sizes]
        cold = None
        if cold_samples > 0:
            trip = cleanup.enter_context(RoundTrip.running())
            cold = _measure_cold(cold_samples, [trip, *stores], rust)
        about = rust.about()
        for contestant in (memcpy, *stores):
            about |= contestant.about()
    return Report(rounds, about, cells, cold)


def _measure(size: int, rounds: int, contestants: list[Contestant], rust: RustProgram) -> Cell:
    batch = _batch(size)
    # Not zeros, which could be one page, mapped many times.
    array = np.full(size, 7, np.uint8)
    puts: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    gets: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    rust_rounds = {1 + turn * rounds // RUST_TURNS for turn in range(RUST_TURNS)}
    for round in range(rounds + 1):
        _say(size_text(size), f"round {round} of {rounds}" if round else "warming up")
        for place in range(len(contestants)):
            contestant = contestants[(round + place) % len(contestants)]
            names = [f"{size}/{round}/{number}" for number in range(batch)]
            times = (puts[contestant.name], gets[contestant.name]) if round > 0 else ([], [])
            _round(contestant, array, names, *times)
        if round in rust_rounds:
            rust.measure(size, -(-rounds * batch // len(rust_rounds)))
    cell = Cell(size)
    for contestant in contestants:
        cell.add(
            contestant.name, Figures.of(puts[contestant.name]), Figures.of(gets[contestant.name])
        )
    cell.add(rust.name, *rust.results())
    return cell


def _measure_cold(samples: int, contestants: list[Contestant], rust: RustProgram) -> Cell:
    array = np.full(COLD_BYTES, 7, np.uint8)
    puts: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    gets: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    handles: dict[str, list[Any]] = {contestant.name: [] for contestant in contestants}
    what = f"{size_text(COLD_BYTES)} after {1000 * IDLE_SECONDS:.0f} ms of idling"
    with _without_garbage_collection():
        for sample in range(samples + 1):
            _say(what, f"sample {sample} of {samples}" if sample else "warming up")
            for contestant in contestants:
                name = contestant.name
                times = (puts[name], gets[name]) if sample > 0 else ([], [])
                time.sleep(IDLE_SECONDS)
                handles[name] += contestant.timed_puts(array, [f"cold/{sample}"], times[0])
                time.sleep(IDLE_SECONDS)
                contestant.timed_gets(handles[name][-1:], times[1])
    for contestant in contestants:
        contestant.delete(handles[contestant.name])
    rust.measure_cold(COLD_BYTES, samples)
    cell = Cell(COLD_BYTES)
    for contestant in contestants:
        name = contestant.name
        cell.add(name, Figures.of(puts[name]), Figures.of(gets[name]))
    cell.add(rust.name, *rust.results())
    return cell


def _round(
    contestant: Contestant, array: Any, names: list[str], puts: list[int], gets: list[int]
) -> None:
    with _without_garbage_collection():
        handles = contestant.timed_puts(array, names, puts)
        got = contestant.timed_gets(handles * -(-ROUND_GETS // len(names)), gets)
    if got is not None and not (
        len(got) == len(array) and got[0] == array[0] and got[-1] == array[-1]
    ):
        raise AssertionError(f"{contestant.name} returned another array")
    del got
    contestant.delete(handles)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _batch(size: int) -> int:
    return max(1, min(ROUND_OBJECTS, ROUND_BYTES // size))


def _say(what: str, how_far: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {how_far}\x1b[K", end="", file=sys.stderr, flush=True)
    elif how_far == "warming up":
        print(f"{what} ...", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = [_size(text) for text in _SIZES.split()]
    parser.add_argument(
        "--sizes", nargs="+", type=_size, default=default, metavar="SIZE", help=f"[{_SIZES}]"
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=20,
        metavar="N",
        help="how many, beside one to warm up [20]",
    )
    parser.add_argument(
        "--cold-samples",
        type=_count,
        default=200,
        metavar="N",
        help="how many small arrays are put and got after a while without a call; 0 for none [200]",
    )
    parser.add_argument("--without-ray", action="store_true", help="leave Ray out")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to it, in seconds"
    )
    return parser


def _size(text: str) -> int:
    number = text.rstrip("KMGiB")
    unit = _UNITS.get(text[len(number) :])
    if unit is None or not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64MiB")
    return int(number) * unit


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
