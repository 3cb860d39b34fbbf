"""Workers that call random stores."""

import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import hoplite
import numpy as np

from .collectives import collective
from .history import History, Key, contents
from .limits import expire, quota

T = TypeVar("T")

# A fault can explain these. Every other error is a violation.
EXPECTED = (
    hoplite.Timeout,
    hoplite.RanksMissing,
    hoplite.ObjectLost,
    hoplite.Deleted,
    hoplite.StoreFull,
    hoplite.NotEnoughNodes,
    hoplite.Draining,
    hoplite.ShuttingDown,
    hoplite.Unavailable,
    hoplite.ConnectFailed,
    hoplite.ConnectionLost,
)
SIZES = (100, 3_000, 20_000, 200_000, 2_000_000)
BATCH = 20
SOURCES = 3
# An operation that takes longer ignores its deadline.
STUCK_S = 120.0


@dataclass(frozen=True)
class Cluster:
    """Attributes:
        sockets: of the stores, by host.
        program: the command line, a client in Rust.
    """

    sockets: dict[str, str]
    program: Path


class Worker(threading.Thread):
    def __init__(
        self,
        number: int,
        history: History,
        cluster: Cluster,
        timeout_s: float,
        slack_s: float,
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.random = random.Random(f"{history.seed} worker {number}")
        self.number = number
        self.history = history
        self.cluster = cluster
        self.timeout_s = timeout_s
        self.slack_s = slack_s
        self.stop = stop
        self.clients: dict[str, hoplite.Client] = {}
        self.made = 0

    def run(self) -> None:
        actions = (
            self.write,
            self.read,
            self.read,
            self.read,
            self.batch,
            self.reduce,
            self.look,
            self.command_line,
            partial(collective, self),
            partial(quota, self),
            partial(expire, self),
        )
        while not self.stop.is_set():
            try:
                self.random.choice(actions)()
            except Exception as error:  # noqa: BLE001 -- reported as a violation, and the campaign goes on
                self.history.violate(f"{self.name}: {type(error).__name__}: {error}")
        for client in self.clients.values():
            client.close()

    def perform(
        self,
        operation: str,
        where: str,
        call: Callable[[hoplite.Client], T],
        key: Key | None = None,
    ) -> T | None:
        """Performs one call with the deadline `timeout_s`; `None` after an expected error."""
        client = self.client(where)
        if client is None:
            return None
        outcome = "ok"
        began = time.monotonic()
        try:
            return call(client)
        except EXPECTED as error:
            outcome = type(error).__name__
            return None
        except hoplite.HopliteError as error:
            outcome = type(error).__name__
            self.history.violate(
                f"unexpected error: {operation} on {where}: {outcome}: {error}", key
            )
            return None
        finally:
            overrun = time.monotonic() - began - self.timeout_s
            self.history.count(operation, outcome)
            self.history.overrun(overrun)
            if overrun > self.slack_s:
                self.history.violate(
                    f"late: {operation} on {where}, {overrun:.1f} s after its deadline ({outcome})"
                )

    def client(self, where: str) -> hoplite.Client | None:
        """Returns a client, which reconnects with each call; `None` if it cannot connect at
        first."""
        if where not in self.clients:
            try:
                self.clients[where] = hoplite.connect(
                    self.cluster.sockets[where], timeout=self.timeout_s
                )
            except EXPECTED as error:
                self.history.count("connect", type(error).__name__)
        return self.clients.get(where)

    def somewhere(self) -> str:
        return self.random.choice(list(self.cluster.sockets))

    def write(self) -> None:
        key = self.random.choice(self.history.keys)
        if not key.writer.acquire(blocking=False):
            return
        try:
            if self.delete(key):
                self.put(key)
        finally:
            key.writer.release()

    def put(self, key: Key) -> None:
        version, where, replicas = (
            key.begun + 1,
            self.somewhere(),
            self.random.choice((1, 2, 2)),
        )
        value = contents(self.history.seed, key.name, version, self.random.choice(SIZES))
        key.unanswered.add(version)
        key.begun = version
        began = time.monotonic()
        done = self.perform(
            "put",
            where,
            lambda client: client.put(
                key.name,
                value,
                self.timeout_s,
                confirm=replicas if replicas > 1 else True,
                replicas=replicas,
            ),
            key,
        )
        what = f"put of version {version} on {where}, {len(value)} bytes, {replicas} replicas"
        self.history.wrote(key, began, what, done is not None)
        if done is not None:
            key.replicas = replicas
            key.present = version
            key.unanswered.discard(version)

    def delete(self, key: Key) -> bool:
        version = key.begun
        key.present = None
        if version == key.deleted:
            return True
        began, where = time.monotonic(), self.somewhere()
        done = self.perform(
            "delete",
            where,
            lambda client: client.delete(key.name, self.timeout_s),
            key,
        )
        self.history.wrote(key, began, f"delete of version {version} on {where}", done is not None)
        if done is None:
            return False
        key.deleted = version
        return True

    def read(self) -> None:
        key, where = self.random.choice(self.history.keys), self.somewhere()
        if key.begun == key.deleted:
            return
        floor = key.deleted
        value = self.perform("get", where, lambda client: client.get(key.name, self.timeout_s))
        if value is not None:
            self.history.check_read(key, bytes(value), floor, where)

    def command_line(self) -> None:
        key, where = self.random.choice(self.history.keys), self.somewhere()
        floor = key.deleted
        got = self.run_program(where, "get", key.name, "-o", "-")
        if got.returncode == 0:
            self.history.check_read(key, got.stdout, floor, where)

    def run_program(self, where: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        store = [
            "--socket",
            self.cluster.sockets[where],
            "--timeout",
            f"{self.timeout_s}s",
        ]
        began = time.monotonic()
        ended = subprocess.run(
            [self.cluster.program, *store, *arguments],
            capture_output=True,
            timeout=STUCK_S,
            check=False,
        )
        overrun = time.monotonic() - began - self.timeout_s
        self.history.count(
            "command line", "ok" if ended.returncode == 0 else f"exit {ended.returncode}"
        )
        if overrun > self.slack_s:
            self.history.violate(
                f"late: the command line on {where}, {overrun:.1f} s after its deadline"
            )
        return ended

    def fresh(self, what: str) -> str:
        self.made += 1
        name = f"w{self.number}/{what}{self.made}"
        self.history.names.append(name)
        return name

    def batch(self) -> None:
        values = {self.fresh("m"): self.random.randbytes(200) for _ in range(BATCH)}
        put = self.perform(
            "put_many",
            where := self.somewhere(),
            lambda client: client.put_many(list(values.items()), self.timeout_s),
        )
        if put is not None:
            got = self.perform(
                "get_many",
                where := self.somewhere(),
                lambda client: client.get_many(list(values), self.timeout_s),
            )
            for (name, value), found in zip(values.items(), got or (), strict=False):
                if not isinstance(found, BaseException) and bytes(found) != value:
                    got_bytes = bytes(found)
                    wrong = sum(one != other for one, other in zip(got_bytes, value, strict=False))
                    self.history.violate(
                        f"wrong bytes: {name} on {where}: {wrong} of {len(got_bytes)} differ, "
                        f"{got_bytes.count(0)} are zero, from {got_bytes[:8].hex()}"
                    )
        self.remove(list(values))

    def reduce(self) -> None:
        sources, target = [self.fresh("s") for _ in range(SOURCES)], self.fresh("t")
        length = self.random.choice((10, 5_000, 300_000))
        arrays = [np.full(length, self.random.randrange(1000), np.int64) for _ in sources]
        puts = [self.put_array(*pair) for pair in zip(sources, arrays, strict=True)]
        if all(puts):
            reduced = self.perform(
                "reduce",
                self.somewhere(),
                lambda client: client.reduce(target, sources, timeout=self.timeout_s),
            )
            where = self.somewhere()
            got = reduced and self.perform(
                "get", where, lambda client: client.get(target, self.timeout_s)
            )
            if isinstance(got, np.ndarray) and not np.array_equal(got, sum(arrays)):
                self.history.violate(f"wrong sum: {target} on {where}")
        self.remove([*sources, target])

    def put_array(self, name: str, array: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bool:
        put = self.perform(
            "put",
            self.somewhere(),
            lambda client: client.put(name, array, self.timeout_s),
        )
        return put is not None

    def remove(self, names: list[str]) -> None:
        """Deletes objects. After a failure, `Campaign` deletes them at the end."""
        self.perform(
            "delete_many",
            self.somewhere(),
            lambda client: client.delete(names, self.timeout_s),
        )

    def look(self) -> None:
        key, where = self.random.choice(self.history.keys), self.somewhere()
        self.perform("stat", where, lambda client: (client.stat(key.name),))
