"""Measures put and get of numpy arrays on one node: Hoplite beside Ray's object store, Rust and memcpy, in one run.

    python python/benchmarks/local.py
    python python/benchmarks/local.py --sizes 1KiB 64MiB --rounds 5 --without-ray --json local.json

All take turns, round by round, so that a disturbance of the machine hits all. README.md says what is compared.
"""

from __future__ import annotations

import argparse
import gc
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from contestants import Contestant, HopliteStore, Memcpy, NotThere, RayStore, RustProgram
from figures import Cell, Figures, Report, size_text

#: What is put in a round before it is got and deleted: no more than these, but one array at least.
ROUND_BYTES = 32 << 20
ROUND_OBJECTS = 100
#: So often is got in a round at least, if need be each array several times. Nobody keeps anything of an array that is gone.
ROUND_GETS = 20
#: The Rust program is run so many times between the rounds of a size, and measures as many objects in all.
RUST_TURNS = 4
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZES = "1KiB 100KiB 1MiB 64MiB 1GiB"


def main() -> int:
    args = _parser().parse_args()
    try:
        report = measure(args.sizes, args.rounds, with_ray=not args.without_ray)
    except NotThere as error:
        print(f"local.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report.text())
    if args.json is not None:
        args.json.write_text(report.json() + "\n")
    return 0


def measure(sizes: list[int], rounds: int, *, with_ray: bool) -> Report:
    """Measures all sizes, one after the other.

    Raises:
        NotThere: if something is missing that it takes.
    """
    most = max(size * _batch(size) for size in sizes)
    rust = RustProgram()
    with ExitStack() as cleanup:
        contestants: list[Contestant] = [Memcpy()]
        contestants.append(cleanup.enter_context(HopliteStore.running(most)))
        if with_ray:
            contestants.append(cleanup.enter_context(RayStore.running(most)))
        cells = [_measure(size, rounds, contestants, rust) for size in sizes]
        about = rust.about()
        for contestant in contestants:
            about |= contestant.about()
    return Report(rounds, about, cells)


def _measure(size: int, rounds: int, contestants: list[Contestant], rust: RustProgram) -> Cell:
    batch = _batch(size)
    # Not zeros, which would be one page that is mapped many times.
    array = np.full(size, 7, np.uint8)
    puts: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    gets: dict[str, list[int]] = {contestant.name: [] for contestant in contestants}
    rust_rounds = {1 + turn * rounds // RUST_TURNS for turn in range(RUST_TURNS)}
    for round in range(rounds + 1):
        _say(size_text(size), f"round {round} of {rounds}" if round else "warming up")
        # Another one is the first in each round.
        for place in range(len(contestants)):
            contestant = contestants[(round + place) % len(contestants)]
            names = [f"{size}/{round}/{number}" for number in range(batch)]
            # The first round warms up, and does not count.
            times = (puts[contestant.name], gets[contestant.name]) if round > 0 else ([], [])
            _round(contestant, array, names, *times)
        if round in rust_rounds:
            rust.measure(size, -(-rounds * batch // len(rust_rounds)))
    cell = Cell(size)
    for contestant in contestants:
        cell.add(contestant.name, Figures.of(puts[contestant.name]), Figures.of(gets[contestant.name]))
    cell.add(rust.name, *rust.results())
    return cell


def _round(contestant: Contestant, array: Any, names: list[str], puts: list[int], gets: list[int]) -> None:
    """Puts the array under each name, gets them, and deletes them all."""
    gc.collect()
    gc.disable()
    try:
        handles = contestant.timed_puts(array, names, puts)
        got = contestant.timed_gets(handles * -(-ROUND_GETS // len(names)), gets)
    finally:
        gc.enable()
    if got is not None and not (len(got) == len(array) and got[0] == array[0] and got[-1] == array[-1]):
        raise AssertionError(f"{contestant.name} returned another array")
    del got
    contestant.delete(handles)


def _batch(size: int) -> int:
    return max(1, min(ROUND_OBJECTS, ROUND_BYTES // size))


def _say(what: str, how_far: str) -> None:
    """Progress: a line that changes on a terminal; elsewhere one for each size."""
    if sys.stderr.isatty():
        print(f"\r{what}: {how_far}\x1b[K", end="", file=sys.stderr, flush=True)
    elif how_far == "warming up":
        print(f"{what} ...", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = [_size(text) for text in _SIZES.split()]
    parser.add_argument("--sizes", nargs="+", type=_size, default=default, metavar="SIZE", help=f"[{_SIZES}]")
    parser.add_argument(
        "--rounds", type=_positive, default=20, metavar="N", help="how many, beside one to warm up [20]"
    )
    parser.add_argument("--without-ray", action="store_true", help="leave Ray out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to it, in seconds")
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


if __name__ == "__main__":
    sys.exit(main())
