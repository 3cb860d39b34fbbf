"""Workers of one system, one on each host.

They share the line protocol of `hoplite-bench-worker`, over a Unix socket, which every network
namespace reaches.
"""

import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .errors import BenchError, Wedged
from .loops import Loop
from .machine import Processor

_START_TIMEOUT_S: Final = 180
_PREPARE_TIMEOUT_S: Final = 120
_POLL_S: Final = 1.0
# Time for all workers to read a command.
_LEAD_S: Final = 0.05
_LEAD_PER_WORKER_S: Final = 0.002


@dataclass(frozen=True)
class Round:
    """The seconds from the first start until all finishers have ended.

    Attributes:
        after_last_s: from the last worker's start.
        busy: the processors' busy share; None if the round was too short.
    """

    seconds: float
    after_last_s: float
    busy: float | None


class Team:
    """Listens for workers when entered, and releases them when left."""

    def __init__(self, system: str, path: Path, hosts: list[str]) -> None:
        self.path = path
        self._system = system
        self._hosts = hosts
        self._listener = socket.socket(socket.AF_UNIX)
        self._workers: dict[int, _Worker] = {}
        self._starters: list[subprocess.Popen[bytes]] = []
        self._round = 0

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o666)
        self._listener.listen(len(self._hosts))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers.values():
            worker.connection.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def gather(
        self, starters: list["subprocess.Popen[bytes]"], timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Waits for all connections. Fails if one of `starters` ends early."""
        self._starters = starters
        deadline = time.monotonic() + timeout_s
        self._listener.settimeout(_POLL_S)
        while len(self._workers) < len(self._hosts):
            self._check_starters()
            if time.monotonic() > deadline:
                missing = [
                    host for rank, host in enumerate(self._hosts) if rank not in self._workers
                ]
                raise Wedged(
                    f"{self._system} did not start on {', '.join(missing)} within {timeout_s:g} s"
                )
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            worker = _Worker(connection)
            word, _, rank = worker.read_line(timeout_s).partition(" ")
            if word != "hello" or not rank.isdigit() or int(rank) >= len(self._hosts):
                raise BenchError(f"{self._system} has a worker that does not say who it is")
            self._workers[int(rank)] = worker

    def round(
        self,
        workload: str,
        size_bytes: int,
        finishers: Iterable[int],
        interval_s: float,
        timeout_s: float,
        around: Callable[[Callable[[], None]], None] = lambda body: body(),
        loop: Loop | None = None,
    ) -> Round:
        """Prepares, runs, checks the results, cleans up.

        Args:
            finishers: the ranks whose end stops the clock.
            interval_s: the time between the starts of two ranks.
            around: called with a function that performs the run, to measure around it.
        """
        self._round += 1
        steps, compute_ns = (loop.steps, int(loop.compute_s * 1e9)) if loop else (0, 0)
        self._all(
            f"prepare {workload} {size_bytes} {self._round} {steps} {compute_ns}",
            _PREPARE_TIMEOUT_S,
        )
        times: list[tuple[int, int]] = []
        processor = Processor()

        def run() -> None:
            first = time.monotonic_ns() + int(
                (_LEAD_S + _LEAD_PER_WORKER_S * len(self._workers)) * 1e9
            )
            starts = [first + int(rank * interval_s * 1e9) for rank in range(len(self._hosts))]
            for rank, start in enumerate(starts):
                self._workers[rank].write_line(f"run {start}")
            processor.start()
            answers = self._answers(
                f"{workload} of {size_bytes} bytes",
                "done",
                timeout_s + starts[-1] / 1e9 - first / 1e9,
            )
            processor.stop()
            times.extend((int(began), int(ended)) for _, began, ended in map(str.split, answers))

        around(run)
        self._all("check", _PREPARE_TIMEOUT_S)
        self._all("clean", _PREPARE_TIMEOUT_S)
        end = max(times[rank][1] for rank in finishers)
        starts = [start for start, _ in times]
        return Round((end - min(starts)) / 1e9, (end - max(starts)) / 1e9, processor.busy())

    def _all(self, command: str, timeout_s: float) -> None:
        for worker in self._workers.values():
            worker.write_line(command)
        self._answers(command, "ok", timeout_s)

    def _answers(self, what: str, expected: str, timeout_s: float) -> list[str]:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in self._workers.items():
                selector.register(worker.connection, selectors.EVENT_READ, rank)
            while len(answers) < len(self._workers):
                left = deadline - time.monotonic()
                if left <= 0:
                    late = [
                        self._hosts[rank] for rank in sorted(self._workers) if rank not in answers
                    ]
                    raise Wedged(
                        f"{self._system} on {', '.join(late)} did not finish: {what}, within {timeout_s:.3g} s"
                    )
                for key, _ in selector.select(min(left, _POLL_S)):
                    answer = self._workers[key.data].read_line(left)
                    if not answer:
                        raise BenchError(f"{self._system} on {self._hosts[key.data]} ended: {what}")
                    if not answer.startswith(expected):
                        raise BenchError(
                            f"{self._system} on {self._hosts[key.data]}: {what}: {answer}"
                        )
                    answers[key.data] = answer
        return [answers[rank] for rank in sorted(answers)]

    def _check_starters(self) -> None:
        for starter in self._starters:
            if starter.poll() is not None:
                raise BenchError(
                    f"{self._system} did not start: a process ended with {starter.returncode}"
                )


class _Worker:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def write_line(self, line: str) -> None:
        self.connection.settimeout(_PREPARE_TIMEOUT_S)
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise BenchError(f"a worker ended: {error}") from error

    def read_line(self, timeout_s: float) -> str:
        """Returns the next line; empty if the worker has ended."""
        self.connection.settimeout(max(timeout_s, 0.001))
        while b"\n" not in self._rest:
            try:
                more = self.connection.recv(4096)
            except OSError:
                more = b""
            if not more:
                return ""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")
