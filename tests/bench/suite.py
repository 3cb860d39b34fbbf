"""Runs every system, workload, size and number of hosts; continues after a failure."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lab import Lab, LabError, Plan, registry

from . import limit, machine
from .errors import BenchError
from .forecast import Forecast
from .results import Measurement, Results, crossed, same_cell
from .systems import SYSTEMS, Context, HopliteStores, System
from .team import Team
from .workloads import WORKLOADS, Workload, part_bytes

# Hoplite keeps smaller objects in its directory, maybe before the clock starts.
_PROVEN_FROM_BYTES: Final = 64 << 10
_TIMEOUT_LEAST_S: Final = 30
# Ray's allreduce moves two objects for each host one after another.
_TIMEOUT_TIMES_SERIAL: Final = 6
# Below this limit, first rounds, which may open connections, do not count.
_COUNTED_FIRST_S: Final = 2
_SHORT_S: Final = 1
_MEDIAN_ROUNDS: Final = 3
_FAR_BEHIND: Final = 1.1
_VERY_LONG_S: Final = 8
_STUCK_S: Final = 60


@dataclass(frozen=True)
class Settings:
    """The selection of a run.

    Attributes:
        hosts: Workloads with late hosts use only the largest number, as in the paper.
        sizes_bytes: not for training loops.
        intervals: times between late arrivals, in units of S/B.
        cell_s: no further round of a cell begins after this, if it has enough rounds.
        flow_cap_bits_s: the highest rate of one connection; None for the link's rate.
        rails: the links of each host.
    """

    systems: tuple[str, ...]
    workloads: tuple[str, ...]
    hosts: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    intervals: tuple[float, ...]
    late_from_bytes: int
    rounds: int
    cell_s: float
    rate_bits_s: int
    sizes_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    flow_cap_bits_s: int | None = None
    rails: int = 1


class Suite:
    def __init__(
        self, settings: Settings, context: Context, results: Results, store: Callable[[], None]
    ) -> None:
        """Measures cells in `results` again only if they failed. Calls `store` after each
        addition."""
        self.settings = settings
        self.context = context
        self.results = results
        self.results.measurements = [cell for cell in results.measurements if cell.error is None]
        self._store = store
        self._forecast = Forecast(settings.rounds, settings.cell_s, _MEDIAN_ROUNDS)

    def run(self) -> None:
        systems = self._systems()
        if not systems:
            raise BenchError(
                "there is nothing to measure: " + "; ".join(self.results.missing.values())
            )
        for hosts in sorted(self._workloads_by_hosts()):
            if hosts not in self.results.limits:
                measured = self._limit(hosts)
                self.results.limits[hosts] = {
                    "payload_bytes_s": measured.payload_bytes_s,
                    "round_trip_s": measured.round_trip_s,
                }
                self._store()
        left = [
            (system, hosts, self._cells(system, hosts))
            for hosts in self.results.limits
            for system in systems
        ]
        for _, _, cells in left:
            self._forecast.add(cells)
        for hosts, limits in self.results.limits.items():
            _say(f"{hosts} hosts: {limits['payload_bytes_s'] * 8 / 1e6:.1f} Mbit/s of payload")
        _say(f"{sum(len(cells) for _, _, cells in left)} measurements, {self._forecast.left()}")
        for system, hosts, cells in left:
            self._measure(system, hosts, cells)
        self.results.ended = machine.now()
        self._store()

    def _systems(self) -> list[System]:
        found = [SYSTEMS[name](self.context) for name in self.settings.systems]
        self.results.missing = {}
        for system in found:
            if lacking := system.missing():
                _say(f"without {system.name}: {lacking}")
                self.results.missing[system.name] = lacking
            else:
                facts = {
                    "title": system.title,
                    "setting": system.setting,
                    "version": system.version(),
                }
                self.results.systems[system.name] = facts
        return [system for system in found if system.name in self.results.systems]

    def _workloads_by_hosts(self) -> dict[int, list[Workload]]:
        found: dict[int, list[Workload]] = {}
        for workload in (WORKLOADS[name] for name in self.settings.workloads):
            for hosts in (workload.hosts,) if workload.hosts else self.settings.hosts:
                found.setdefault(hosts, []).append(workload)
        return found

    def _cells(self, system: System, hosts: int) -> list[Measurement]:
        if system.most_hosts is not None and hosts > system.most_hosts:
            self.results.missing[f"{system.name} on {hosts} hosts"] = (
                f"it fits on {system.most_hosts} at most"
            )
            return []
        done = [cell for cell in self.results.measurements if cell.system == system.name]
        cells = self._all_cells(system, hosts)
        return [cell for cell in cells if not any(same_cell(cell, other) for other in done)]

    def _all_cells(self, system: System, hosts: int) -> Iterator[Measurement]:
        payload_bytes_s = self.results.payload_bytes_s
        for workload in self._workloads_by_hosts().get(hosts, []):
            if workload.name in system.omits:
                continue
            if workload.is_late and hosts < max(self.settings.hosts):
                continue
            for size in self._sizes_bytes(workload):
                if workload.is_late and size < self.settings.late_from_bytes:
                    continue
                for part in self.settings.intervals if workload.is_late else (0.0,):
                    interval_s = part * size / payload_bytes_s
                    limit_s = workload.limit_s(hosts, size, payload_bytes_s, interval_s)
                    yield Measurement(system.name, workload.name, hosts, size, interval_s, limit_s)

    def _sizes_bytes(self, workload: Workload) -> tuple[int, ...]:
        if workload.loop:
            return (workload.loop.model_bytes,)
        return self.settings.sizes_of.get(workload.name, self.settings.sizes_bytes)

    def _measure(self, system: System, hosts: int, cells: list[Measurement]) -> None:
        """Measures cells. Restarts the system after a failure, unless the restart fails."""
        while cells:
            done = len(cells)
            try:
                with self._session(system, hosts) as (lab, team):
                    while cells:
                        self._cell(cells[0], lab, team)
                        self._note(cells.pop(0))
            except (BenchError, LabError) as error:
                is_start = done == len(cells) and cells[0].error is None
                failed = cells if is_start else cells[:1]
                for cell in failed:
                    cell.error = cell.error or str(error)
                    self._note(cell)
                del cells[: len(failed)]

    @contextmanager
    def _session(self, system: System, hosts: int) -> Iterator[tuple[Lab, Team]]:
        with ExitStack() as stack:
            plan = replace(self._plan(hosts), flow_cap_bits_s=self.settings.flow_cap_bits_s)
            lab = stack.enter_context(Lab(plan))
            path = registry.STATE / lab.name / "team.sock"
            running = ExitStack()
            team = Team(system.name, path, lab.plan.host_names)
            # The end of the team ends the workers.
            stack.enter_context(running)
            stack.enter_context(team)
            team.gather(running.enter_context(system.start(lab, path)))
            yield lab, team

    def _cell(self, cell: Measurement, lab: Lab, team: Team) -> None:
        workload = WORKLOADS[cell.workload]
        steps = workload.loop.steps if workload.loop else 1
        link_bytes_s = self.results.payload_bytes_s / self.settings.rails
        serial_s = cell.hosts * steps * cell.size_bytes / link_bytes_s
        timeout_s = max(_TIMEOUT_LEAST_S, cell.limit_s + _TIMEOUT_TIMES_SERIAL * serial_s)
        begun = time.monotonic()
        object_bytes = (
            part_bytes(cell.size_bytes, cell.hosts) if workload.is_split else cell.size_bytes
        )
        is_proven = object_bytes >= _PROVEN_FROM_BYTES
        problems: list[str] = []

        def around(body: Callable[[], None]) -> None:
            before = lab.traffic()
            body()
            after = lab.traffic()
            moved = {host: after[host] - before[host] for host in lab.plan.host_names}
            cell.moved_bytes = {
                host: (count.received_bytes, count.sent_bytes) for host, count in moved.items()
            }
            problem = crossed(cell.workload, cell.size_bytes, list(cell.moved_bytes.values()))
            if problem and is_proven:
                problems.append(problem)

        try:
            for number in range(self.settings.rounds + 1):
                finishers = workload.finishers(cell.hosts)
                measured = team.round(
                    cell.workload,
                    cell.size_bytes,
                    finishers,
                    cell.interval_s,
                    timeout_s,
                    around,
                    workload.loop,
                )
                if number > 0 or cell.limit_s > _COUNTED_FIRST_S:
                    cell.seconds.append(measured.seconds)
                    cell.after_last_s.append(measured.after_last_s)
                    cell.busy += [measured.busy] if measured.busy is not None else []
                if self._is_enough(cell, time.monotonic() - begun):
                    break
        except BenchError as error:
            cell.error = str(error)
            raise
        cell.crossed = (problems[0] if problems else "") if is_proven else None

    def _is_enough(self, cell: Measurement, took_s: float) -> bool:
        rounds = len(cell.seconds)
        if rounds >= self.settings.rounds or rounds == 0:
            return rounds > 0
        if cell.limit_s < _SHORT_S:
            return took_s > _STUCK_S
        is_far_behind = (
            statistics.median(cell.seconds) > _FAR_BEHIND * cell.limit_s
            or cell.limit_s > _VERY_LONG_S
        )
        is_one_enough = is_far_behind and cell.system != HopliteStores.name
        return took_s > self.settings.cell_s and rounds >= (1 if is_one_enough else _MEDIAN_ROUNDS)

    def _note(self, cell: Measurement) -> None:
        self.results.measurements.append(cell)
        self._store()
        self._forecast.done(cell)
        median_s = cell.median_s
        left = f"{self._forecast.left():<17}"
        what = f"{left}{cell.hosts:>2} hosts  {cell.system:<14}{cell.workload:<15}{cell.size_bytes / 1024:>9.0f} KiB"
        if median_s is None:
            _say(f"{what}  {cell.error}")
        else:
            times = f"{median_s * 1e3:>10.1f} ms  {median_s / cell.limit_s:>6.2f} x limit"
            _say(f"{what}{times}{f'  DID NOT CROSS: {cell.crossed}' if cell.crossed else ''}")

    def _limit(self, hosts: int) -> limit.Limit:
        with Lab(self._plan(hosts)) as lab:
            return limit.measure(lab)

    def _plan(self, hosts: int) -> Plan:
        return Plan(hosts=hosts, rate_bits_s=self.settings.rate_bits_s, rails=self.settings.rails)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def results_for(settings: Settings, root: Path, command: str) -> Results:
    return Results(
        started=machine.now(),
        commit=machine.commit(root),
        command=command,
        machine=machine.describe(),
        rate_bits_s=settings.rate_bits_s,
        flow_cap_bits_s=settings.flow_cap_bits_s,
        rails=settings.rails,
    )
