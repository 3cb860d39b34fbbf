"""Stored measurements: one JSON file for each run of the suite."""

import json
import operator
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from .machine import BUSY
from .workloads import WORKLOADS

_FORMAT: Final = 1


@dataclass
class Measurement:
    """One system, workload, size and number of hosts.

    Attributes:
        interval_s: the time between the arrivals of two hosts.
        after_last_s: seconds of each round, from the arrival of the last host.
        busy: the processors' busy share in each round that was long enough.
        moved_bytes: received and sent by each host in the last round, with headers.
        crossed: the missing bytes; empty if all crossed the links, None for a small object.
        error: the reason if the cell was not measured.
    """

    system: str
    workload: str
    hosts: int
    size_bytes: int
    interval_s: float
    limit_s: float
    seconds: list[float] = field(default_factory=list)
    after_last_s: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    moved_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    crossed: str | None = None
    error: str | None = None

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and self.error is None else None

    @property
    def median_after_last_s(self) -> float | None:
        return (
            statistics.median(self.after_last_s)
            if self.after_last_s and self.error is None
            else None
        )

    @property
    def processor_s(self) -> float | None:
        """A round's busy time in seconds, averaged over all processors."""
        if len(self.busy) != len(self.seconds) or self.error is not None:
            return None
        return statistics.median(map(operator.mul, self.busy, self.seconds)) if self.busy else None

    @property
    def is_bound_by_processor(self) -> bool:
        return bool(self.busy) and statistics.median(self.busy) >= BUSY


@dataclass
class Results:
    """One run of the suite.

    Attributes:
        command: repeats the run.
        systems: title, setting and version, by name.
        missing: why systems or cells were not measured, by name.
        limits: one uncapped stream on a link, by number of hosts.
        ended: empty if the run was interrupted.
    """

    started: str
    commit: str
    command: str
    machine: dict[str, str]
    rate_bits_s: int
    flow_cap_bits_s: int | None = None
    rails: int = 1
    systems: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    limits: dict[int, dict[str, float]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    ended: str = ""

    def write(self, path: Path) -> None:
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)
        path.with_suffix(".new").write_text(text + "\n")
        path.with_suffix(".new").replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        found: dict[str, Any] = json.loads(path.read_text())
        if found.pop("format", None) != _FORMAT:
            raise ValueError(f"{path} has another format; this version reads {_FORMAT}")
        found["limits"] = {int(hosts): limit for hosts, limit in found["limits"].items()}
        for cell in found["measurements"]:
            cell["moved_bytes"] = {
                host: tuple(counts) for host, counts in cell["moved_bytes"].items()
            }
        found["measurements"] = [Measurement(**cell) for cell in found["measurements"]]
        return cls(**found)

    @property
    def payload_bytes_s(self) -> float:
        """The best stream's rate times the rails: all links are equal."""
        return self.rails * max(limit["payload_bytes_s"] for limit in self.limits.values())

    def best(self, title: str, like: Measurement) -> Measurement | None:
        """A system's fastest variant in the cell of `like`; a failed one if all failed."""
        names = {name for name, system in self.systems.items() if system["title"] == title}
        found = [
            cell for cell in self.measurements if cell.system in names and same_cell(cell, like)
        ]
        return min(found, key=lambda cell: cell.median_s or float("inf"), default=None)

    def titles(self) -> list[str]:
        return list(dict.fromkeys(system["title"] for system in self.systems.values()))

    def cells(self, workload: str) -> list[Measurement]:
        found = {cell_key(cell): cell for cell in self.measurements if cell.workload == workload}
        return [found[key] for key in sorted(found)]


def cell_key(cell: Measurement) -> tuple[str, int, int, float]:
    return cell.workload, cell.hosts, cell.size_bytes, round(cell.interval_s / cell.limit_s, 2)


def same_cell(one: Measurement, other: Measurement) -> bool:
    return cell_key(one) == cell_key(other)


def crossed(workload: str, size_bytes: int, moved: list[tuple[int, int]]) -> str:
    """Describes missing bytes on the links; empty if none. `moved`: received and sent bytes by
    rank."""
    for rank, need in WORKLOADS[workload].needs(size_bytes, len(moved)).items():
        for what, least, found in [
            ("received", need.received_bytes, moved[rank][0]),
            ("sent", need.sent_bytes, moved[rank][1]),
        ]:
            if found < least:
                return f"h{rank} {what} {found} bytes instead of at least {least}"
    return ""
