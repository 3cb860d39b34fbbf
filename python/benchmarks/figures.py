"""Measurements as quantiles, tables and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SAMPLES_FOR_P99 = 100


@dataclass(frozen=True)
class Figures:
    """The durations of a call in seconds."""

    samples: int
    p50: float
    p99: float | None
    minimum: float
    maximum: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Figures | None:
        if not nanoseconds:
            return None
        ordered = sorted(sample / 1e9 for sample in nanoseconds)
        count = len(ordered)
        # At least 99% of the samples do not exceed it.
        p99 = ordered[-(-99 * count // 100) - 1] if count >= SAMPLES_FOR_P99 else None
        return cls(count, median(ordered), p99, ordered[0], ordered[-1])

    @classmethod
    def together(cls, runs: Sequence[Mapping[str, Any]]) -> Figures | None:
        """Joins runs of the Rust program: takes the median of each quantile."""
        if not runs:
            return None
        p99s = [run["p99_s"] for run in runs if run["p99_s"] is not None]
        return cls(
            samples=sum(run["samples"] for run in runs),
            p50=median(run["median_s"] for run in runs),
            p99=median(p99s) if p99s else None,
            minimum=min(run["minimum_s"] for run in runs),
            maximum=max(run["maximum_s"] for run in runs),
        )


@dataclass
class Cell:
    nbytes: int
    put: dict[str, Figures] = field(default_factory=dict)
    """The figures of each contestant."""
    get: dict[str, Figures] = field(default_factory=dict)

    def add(self, name: str, put: Figures | None, get: Figures | None) -> None:
        if put is not None:
            self.put[name] = put
        if get is not None:
            self.get[name] = get


@dataclass(frozen=True)
class Report:
    rounds: int
    about: Mapping[str, str]
    cells: list[Cell]
    cold: Cell | None
    """The figures of calls after a pause."""

    def text(self) -> str:
        about = ", ".join(f"{name} {what}" for name, what in self.about.items())
        lines = [f"{about}; {self.rounds} rounds", ""]
        if any(what == "debug build" for what in self.about.values()):
            lines[:0] = [
                "NOT OPTIMISED: there are debug builds, so that this says little. Use `make bench-python`.",
                "",
            ]
        lines += _table(self.cells, "memcpy")
        if self.cold is not None:
            lines += [
                "",
                "Cold, each after a while without a call:",
                "",
                *_table([self.cold], "round trip"),
            ]
        return "\n".join(lines)

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def _table(cells: Sequence[Cell], floor_name: str) -> list[str]:
    lines = [
        "| size | call | Hoplite p50 | p99 | Rust p50 | Hoplite / Rust | Ray p50 | p99 | Ray / Hoplite "
        f"| {floor_name} p50 |",
        "| ---: | --- " + "| ---: " * 8 + "|",
    ]
    for cell in cells:
        for call, found in (("put", cell.put), ("get", cell.get)):
            ours, rust, ray, floor = (
                found.get(name) for name in ("hoplite", "rust", "ray", floor_name)
            )
            columns = [size_text(cell.nbytes), call, _p50(ours), _slow(ours)]
            columns += [_p50(rust), _times(ours, rust)]
            columns += [_p50(ray), _slow(ray), _times(ray, ours), _p50(floor)]
            lines.append(f"| {' | '.join(columns)} |")
    return lines


def size_text(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def _p50(figures: Figures | None) -> str:
    return "-" if figures is None else _time(figures.p50)


def _slow(figures: Figures | None) -> str:
    if figures is None:
        return "-"
    return f"max {_time(figures.maximum)}" if figures.p99 is None else _time(figures.p99)


def _times(one: Figures | None, other: Figures | None) -> str:
    return "-" if one is None or other is None else f"{one.p50 / other.p50:.2f}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
