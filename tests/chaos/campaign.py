"""A campaign: workers and faults in a lab, one fault after another, with checks after each fault
and at the end."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import hoplite

from lab import Lab, Plan, registry
from lab.daemons import Hoplite

from .faults import FAULTS, FILLERS, HALF, Target
from .history import History, Key
from .preload import KINDS, Preload
from .workload import EXPECTED, STUCK_S, Cluster, Worker

SHARDS: Final = 2
_SETTLE_S: Final = 2.0
_CHECKED_KEYS: Final = 8
_POLL_S: Final = 0.2
_DELETED_AT_ONCE: Final = 1000
_MEMORY: Final = "128MiB"
_SPILLING_MEMORY: Final = "8MiB"
_SPILL_LIMIT: Final = "32MiB"


@dataclass(frozen=True)
class Settings:
    """Attributes:
        seed: decides the faults, and the operations of each worker.
        seconds: the time in which faults begin.
        workers: threads that call stores.
        keys: the number of keys that workers share.
        timeout_s: the deadline of each call.
        slack_s: the time by which a call may exceed its deadline.
        settled_s: after a fault, the time until all replicated objects must be readable.
        spill: stores have little memory, and spill.
    """

    programs: Path
    seed: int
    seconds: float = 60
    stores: int = 4
    workers: int = 6
    keys: int = 40
    timeout_s: float = 10
    slack_s: float = 1
    settled_s: float = 60
    faults: Sequence[str] = tuple(FAULTS)
    spill: bool = False


@dataclass
class Report:
    """Attributes:
        faults: the number of each kind.
        outcomes: the number of calls, by operation and outcome.
        longest_overrun_s: the longest time beyond a call's deadline; negative if none.
        spilled: objects that stores have spilled, counted between faults.
        effects: of preloaded faults.
        violations: every broken promise.
    """

    settings: Settings
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    longest_overrun_s: float = 0.0
    spilled: int = 0
    effects: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        calls = sum(self.outcomes.values())
        lines = [
            f"Seed {self.settings.seed}: {self.faults.total()} faults, {calls} calls, {len(self.violations)} violations.",
            f"The latest call ended {self.longest_overrun_s:+.2f} s after its deadline.",
            f"The stores have spilled {self.spilled} objects.",
            "",
            "| fault | times | effects |",
            "| --- | --- | --- |",
            *(
                f"| {name} | {count} | {self.effects.get(name, '')} |"
                for name, count in sorted(self.faults.items())
            ),
            "",
            "| operation | outcomes |",
            "| --- | --- |",
        ]
        for operation in sorted({operation for operation, _ in self.outcomes}):
            found = sorted(
                (outcome, count)
                for (name, outcome), count in self.outcomes.items()
                if name == operation
            )
            lines.append(
                f"| {operation} | {', '.join(f'{outcome} {count}' for outcome, count in found)} |"
            )
        return "\n".join([*lines, *(f"VIOLATION: {violation}" for violation in self.violations)])


class Campaign:
    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.say = say
        self.history = History(settings.seed, settings.keys, say)
        self.random = random.Random(f"{settings.seed} faults")
        self.report = Report(settings)
        self.spilled: Counter[str] = Counter()

    def run(self) -> Report:
        memory, spill_limit = (
            (_SPILLING_MEMORY, _SPILL_LIMIT) if self.settings.spill else (_MEMORY, None)
        )
        hosts = [f"h{number}" for number in range(SHARDS + self.settings.stores + 1)]
        shards, stores, spare = hosts[:SHARDS], hosts[SHARDS:-1], hosts[-1]
        with Lab(Plan(hosts=len(hosts))) as lab:
            preload = Preload(registry.STATE / lab.name, hosts)
            with Hoplite(
                lab,
                self.settings.programs,
                memory,
                shards,
                store_hosts=stores,
                spill_limit=spill_limit,
                environment=preload.environment,
            ) as daemons:
                target = Target(lab, daemons, stores, shards, spare, self.random, preload)
                cluster = Cluster(
                    {host: daemons.socket(host) for host in stores},
                    self.settings.programs / "hoplite",
                )
                self._strain(target, cluster)
                self._check_keys(cluster, self.history.keys)
                self._check_expired(cluster)
                self._check_empty(target, cluster)
                ends = [*daemons.stores.values(), *daemons.shards.values(), *target.ended]
        for daemon in ends:
            if daemon.process.returncode != 0:
                self.history.violate(f"{daemon.name} ended with {daemon.process.returncode}")
        self.report.effects = target.effects
        self.report.outcomes = self.history.outcomes
        self.report.longest_overrun_s = self.history.longest_overrun_s
        self.report.violations = self.history.violations
        return self.report

    def _strain(self, target: Target, cluster: Cluster) -> None:
        stop = threading.Event()
        settings = self.settings
        workers = [
            Worker(
                number,
                self.history,
                cluster,
                settings.timeout_s,
                settings.slack_s,
                stop,
            )
            for number in range(settings.workers)
        ]
        for worker in workers:
            worker.start()
        ends_at = time.monotonic() + settings.seconds
        while time.monotonic() < ends_at:
            self._fault(target)
            self._await_replicas(target)
            self._count_spilled(target)
            # Writers go on, and the check skips the keys that they change.
            self._check_keys(
                cluster,
                self.random.sample(self.history.keys, min(_CHECKED_KEYS, settings.keys)),
            )
        stop.set()
        for worker in workers:
            worker.join(STUCK_S)
            if worker.is_alive():
                self.history.violate(f"hang: {worker.name} has not ended after {STUCK_S:.0f} s")

    def _fault(self, target: Target) -> None:
        name = self.random.choice(self.settings.faults)
        fault, longest_s = FAULTS[name]
        effects = target.effects[name]
        with fault(target) as said:
            holds_s = self.random.uniform(0.2, longest_s)
            self.say(f"{said}, for {holds_s:.1f} s")
            time.sleep(holds_s)
        self.report.faults[name] += 1
        if name in KINDS and target.effects[name] == effects:
            self.history.violate(f"fault: {name} had no effect")
        time.sleep(_SETTLE_S)

    def _count_spilled(self, target: Target) -> None:
        for host in target.stores:
            spill = target.hoplite.status(target.lab.host(host)).get("spill", {})
            before, now = self.spilled[host], spill.get("spilled_objects", 0)
            # A store that has started again counts from zero.
            self.report.spilled += now - before if now >= before else now
            self.spilled[host] = now

    def _await_replicas(self, target: Target) -> None:
        """Waits for all replicas, because the next fault may destroy an only copy."""
        ends_at = time.monotonic() + self.settings.settled_s
        lacking: Any = "unknown"
        while time.monotonic() < ends_at:
            shards = target.hoplite.status(target.lab.host(target.store())).get("shards", [])
            lacking = [shard.get("under_replicated", 1) for shard in shards]
            if len(lacking) == SHARDS and not any(lacking):
                return
            time.sleep(_POLL_S)
        self.history.violate(
            f"replicas: still {lacking} objects without all copies {self.settings.settled_s:.0f} s later"
        )

    def _check_keys(self, cluster: Cluster, keys: Sequence[Key]) -> None:
        """An acknowledged replicated value must be readable on all stores, a deleted one on
        none."""
        for key in keys:
            if not key.writer.acquire(timeout=STUCK_S):
                self.history.violate(f"hang: the writer of {key.name} does not end")
                continue
            try:
                self._check_key(cluster, key)
            finally:
                key.writer.release()

    def _check_key(self, cluster: Cluster, key: Key) -> None:
        for where, socket in cluster.sockets.items():
            try:
                with hoplite.connect(socket, timeout=self.settings.timeout_s) as client:
                    if key.present is not None and key.replicas > 1:
                        value = bytes(client.get(key.name, self.settings.settled_s))
                        self.history.check_read(key, value, key.deleted, where)
                    elif (
                        key.begun == key.deleted
                        and not key.unanswered
                        and client.contains(key.name)
                    ):
                        self.history.violate(
                            f"returned: {key.name} exists on {where} after its delete",
                            key,
                        )
            except EXPECTED as error:
                self.history.violate(
                    f"lost: {key.name} version {key.present} on {where}: {type(error).__name__}: {error}",
                    key,
                )

    def _check_expired(self, cluster: Cluster) -> None:
        ends_at = time.monotonic() + self.settings.settled_s
        left: list[Any] = ["unknown"]
        while left and time.monotonic() < ends_at:
            try:
                with hoplite.connect(next(iter(cluster.sockets.values()))) as client:
                    ids = [entry.id for entry in client.list()]
                    left = [name for name in ids if name in self.history.expiring]
            except EXPECTED as error:
                self.say(f"listing: {error}")
            time.sleep(_POLL_S)
        if left:
            self.history.violate(f"ttl: {left} are not deleted")

    def _check_empty(self, target: Target, cluster: Cluster) -> None:
        """Deletes all objects, also the names of lost ones, which shards remember but do not list,
        and checks that nothing is kept.
        """
        names = [*self.history.names, *FILLERS, HALF]
        ends_at = time.monotonic() + self.settings.settled_s
        left: dict[str, Any] = {"all": "unknown"}
        while left and time.monotonic() < ends_at:
            try:
                with hoplite.connect(next(iter(cluster.sockets.values()))) as client:
                    ids = [*names, *(entry.id for entry in client.list())]
                    for begin in range(0, len(ids), _DELETED_AT_ONCE):
                        client.delete(
                            ids[begin : begin + _DELETED_AT_ONCE],
                            self.settings.timeout_s,
                        )
            except EXPECTED as error:
                self.say(f"deleting the rest: {error}")
            left = {}
            for host in target.stores:
                status = target.hoplite.status(target.lab.host(host))
                if not status:
                    left[host] = "no answer"
                    continue
                memory = status["memory"]
                used = {
                    "copies": status["copies"],
                    "bytes": memory["capacity_bytes"] - memory["free_bytes"],
                    "entries": sum(shard["objects"] for shard in status["shards"]),
                    "spill files": status["spill"]["files"],
                    "waiting": sum(shard["waiting_queries"] for shard in status["shards"]),
                }
                if any(used.values()):
                    left[host] = used
            time.sleep(_POLL_S)
        if left:
            self.history.violate(f"leak: {left} after everything was deleted")
