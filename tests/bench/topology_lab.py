"""Measures collectives of Hoplite on labs with racks: with and without labels, and with fixed
schedules."""

import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab import Lab, NotAvailable, Plan
from lab.daemons import Hoplite

from .systems.base import ending
from .team import Team
from .workloads import WORKLOADS

_WORKER: Final = "hoplite-bench-worker"
_ROUNDS: Final = 3
_TIMEOUT_S: Final = 120


@dataclass
class Measured:
    """Attributes:
        on_all: bytes that all uplinks together carried upwards, in sizes of the object.
        on_busiest: the same for the busiest uplink.
    """

    seconds: list[float] = field(default_factory=list)
    on_all: list[float] = field(default_factory=list)
    on_busiest: list[float] = field(default_factory=list)

    def add(self, seconds: float, objects: Sequence[float]) -> None:
        self.seconds.append(seconds)
        self.on_all.append(sum(objects))
        self.on_busiest.append(max(objects))

    def cells(self) -> list[str]:
        times = f"{statistics.median(self.seconds):.2f} ({min(self.seconds):.2f} to {max(self.seconds):.2f})"
        return [
            times,
            *(f"{statistics.median(objects):.2f}" for objects in (self.on_all, self.on_busiest)),
        ]


def measure(
    programs: Path,
    plan: Plan,
    workloads: Sequence[str],
    size: int,
    is_labelled: bool,
    schedule: str = "auto",
) -> dict[str, Measured]:
    if not (programs / _WORKER).is_file():
        raise NotAvailable(f"there is no {_WORKER} in {programs}")
    labels = (
        {host: f"rack={plan.rack_of(index)}" for index, host in enumerate(plan.host_names)}
        if is_labelled
        else {}
    )
    arguments = ["--log", "warn", "--allreduce-schedule", schedule]
    memory = str(4 * size + (64 << 20))
    found = {workload: Measured() for workload in workloads}
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        lab = stack.enter_context(Lab(plan))
        stack.enter_context(Hoplite(lab, programs, memory, [lab.hosts[-1].name], arguments, labels))
        running = stack.enter_context(ExitStack())
        team = stack.enter_context(Team("hoplite", Path(place) / "team.sock", plan.host_names))
        workers = [
            host.popen(
                [programs / _WORKER, str(team.path), str(rank), str(plan.hosts)],
                stdin=subprocess.DEVNULL,
            )
            for rank, host in enumerate(lab.hosts)
        ]
        team.gather(running.enter_context(ending(workers)))
        for workload, measured in found.items():
            finishers = WORKLOADS[workload].finishers(plan.hosts)
            for count in range(_ROUNDS + 1):
                objects: list[float] = []
                seconds = team.round(
                    workload, size, finishers, 0, _TIMEOUT_S, _counting(lab, size, objects)
                ).seconds
                if count > 0:
                    measured.add(seconds, objects)
    return found


def _counting(lab: Lab, size: int, objects: list[float]) -> Callable[[Callable[[], None]], None]:
    """Appends each uplink's bytes upwards in a round, in sizes of the object."""

    def around(body: Callable[[], None]) -> None:
        before = lab.traffic()
        body()
        after = lab.traffic()
        objects.extend(
            (after[rack] - before[rack]).sent_bytes / size for rack in lab.plan.rack_names
        )

    return around
