"""What was measured, as it is stored: one JSON file for each run of the suite."""

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
    """One cell: one system, one workload, one size, one number of hosts.

    Attributes:
        system: its name.
        workload: its name.
        hosts: how many.
        size_bytes: of each object.
        interval_s: how long after each other the hosts arrive.
        limit_s: the least time that it can take.
        seconds: of each round.
        after_last_s: the same from the arrival of the last host.
        busy: the part of the processor time that was used, for each round that was long enough to say.
        moved_bytes: received and sent over the link of each host, headers included, in the last round.
        crossed: whether the bytes crossed the links in each round: empty if so, else what is missing. None if the
            object is so small that a system may have moved it before.
        error: why it was not measured; None if it was.
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
        """The median; None if it was not measured."""
        return statistics.median(self.seconds) if self.seconds and self.error is None else None

    @property
    def median_after_last_s(self) -> float | None:
        """The median time from the arrival of the last host; None if it was not measured."""
        return statistics.median(self.after_last_s) if self.after_last_s and self.error is None else None

    @property
    def processor_s(self) -> float | None:
        """The time for which processors of the machine were busy, the median in units of all of them; None if unknown."""
        if len(self.busy) != len(self.seconds) or self.error is not None:
            return None
        return statistics.median(map(operator.mul, self.busy, self.seconds)) if self.busy else None

    @property
    def is_bound_by_processor(self) -> bool:
        """Whether the processors, not the links, may have been the limit."""
        return bool(self.busy) and statistics.median(self.busy) >= BUSY


@dataclass
class Results:
    """One run of the suite.

    Attributes:
        started: date and time.
        commit: of Hoplite.
        command: that repeats it.
        machine: what it ran on.
        rate_bits_s: of the links.
        systems: title, setting and version of each, by name.
        missing: why systems, or some of their measurements, were not measured, by name.
        limits: what a stream got on a link, by number of hosts: `payload_bytes_s`, `round_trip_s`.
        measurements: in the order in which they were made.
        ended: date and time; empty if it was interrupted.
    """

    started: str
    commit: str
    command: str
    machine: dict[str, str]
    rate_bits_s: int
    systems: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    limits: dict[int, dict[str, float]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    ended: str = ""

    def write(self, path: Path) -> None:
        """Stores it."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)
        path.with_suffix(".new").write_text(text + "\n")
        path.with_suffix(".new").replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Loads what was stored.

        Raises:
            ValueError: it is of another format.
        """
        found: dict[str, Any] = json.loads(path.read_text())
        if found.pop("format", None) != _FORMAT:
            raise ValueError(f"{path} has another format; this version reads {_FORMAT}")
        found["limits"] = {int(hosts): limit for hosts, limit in found["limits"].items()}
        for cell in found["measurements"]:
            cell["moved_bytes"] = {host: tuple(counts) for host, counts in cell["moved_bytes"].items()}
        found["measurements"] = [Measurement(**cell) for cell in found["measurements"]]
        return cls(**found)

    @property
    def payload_bytes_s(self) -> float:
        """What the links carry: the best that a stream got. All links are shaped alike, so less is a disturbance."""
        return max(limit["payload_bytes_s"] for limit in self.limits.values())

    def best(self, title: str, like: Measurement) -> Measurement | None:
        """The fastest variant of a system for what `like` measures; one that failed if none succeeded."""
        names = {name for name, system in self.systems.items() if system["title"] == title}
        found = [cell for cell in self.measurements if cell.system in names and same_cell(cell, like)]
        return min(found, key=lambda cell: cell.median_s or float("inf"), default=None)

    def titles(self) -> list[str]:
        """The systems that were measured, without their variants."""
        return list(dict.fromkeys(system["title"] for system in self.systems.values()))

    def cells(self, workload: str) -> list[Measurement]:
        """One measurement of a workload for each number of hosts, size and interval, in order."""
        found = {cell_key(cell): cell for cell in self.measurements if cell.workload == workload}
        return [found[key] for key in sorted(found)]


def cell_key(cell: Measurement) -> tuple[str, int, int, float]:
    """What is measured, whatever the system. Intervals that are parts of a measured time differ a little."""
    return cell.workload, cell.hosts, cell.size_bytes, round(cell.interval_s / cell.limit_s, 2)


def same_cell(one: Measurement, other: Measurement) -> bool:
    """Whether two systems were measured doing the same."""
    return cell_key(one) == cell_key(other)


def crossed(workload: str, size_bytes: int, moved: list[tuple[int, int]]) -> str:
    """Whether the bytes of an object crossed the links; empty if so, else what is missing.

    Args:
        workload: its name.
        size_bytes: of each object.
        moved: received and sent bytes of each host, by rank.
    """
    for rank, need in WORKLOADS[workload].needs(size_bytes, len(moved)).items():
        for what, least, found in [
            ("received", need.received_bytes, moved[rank][0]),
            ("sent", need.sent_bytes, moved[rank][1]),
        ]:
            if found < least:
                return f"h{rank} {what} {found} bytes instead of at least {least}"
    return ""
