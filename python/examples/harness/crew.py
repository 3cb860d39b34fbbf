"""Workers of an example: objects in separate processes, on the nodes of a cluster.

A process calls its object's methods one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import secrets
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import hoplite
from harness import cluster


class WorkerLost(Exception):
    """The example cannot continue without dead workers."""


class Crew(ABC):
    def __init__(self, size: int) -> None:
        self.size = size
        self.run = f"run-{secrets.token_hex(4)}"
        """The prefix of this run's object ids, which are deleted at the end."""

    @abstractmethod
    def tell(self, worker: int, method: str, *arguments: object) -> None:
        """Calls a method without waiting. Results go through the store."""

    @abstractmethod
    def lost(self) -> dict[int, str]:
        """Returns the dead workers and the reasons."""

    @abstractmethod
    def start(self, worker: int) -> None:
        """Replaces a dead worker. Returns at once."""

    @abstractmethod
    def starting(self, timeout: float | None = 0) -> set[int]:
        """Returns the workers that are not ready. Waits up to `timeout` seconds for one.

        Raises:
            WorkerLost: if one died.
        """

    @abstractmethod
    def kill(self, worker: int) -> None: ...


@contextmanager
def hoplite_crew(
    args: argparse.Namespace, worker_class: type[Any], *arguments: object, object_bytes: int
) -> Iterator[Crew]:
    """Runs workers that find the store of their node with `hoplite.init()`.

    They are processes, or actors of a given Ray cluster.

    Args:
        worker_class: called as `worker_class(number, *arguments)`.
        object_bytes: the size of the largest objects.
    """
    memory_bytes = cluster.store_bytes(args, object_bytes)
    with ExitStack() as cleanup:
        if args.ray_address is None:
            sockets = cleanup.enter_context(cluster.stores(args.nodes, memory_bytes))
            hoplite.init(sockets[0])
            cleanup.callback(hoplite.shutdown)
            theirs = sockets[1:] or sockets
            crew: Crew = cleanup.enter_context(
                _processes(args.workers, theirs, worker_class, arguments)
            )
        else:
            cleanup.enter_context(cluster.ray_running(args, memory_bytes))
            cleanup.enter_context(cluster.stores_on_ray(args, memory_bytes))
            cleanup.callback(hoplite.shutdown)
            objects = cleanup.enter_context(_deleted_at_the_end())
            crew = cleanup.enter_context(_actors(args.workers, worker_class, arguments))
            objects.append(crew.run)
        yield crew


@contextmanager
def _deleted_at_the_end() -> Iterator[list[str]]:
    prefixes: list[str] = []
    try:
        yield prefixes
    finally:
        client = hoplite.init()
        for prefix in prefixes:
            client.delete([known.id for known in client.list(prefix)])


@contextmanager
def ray_crew(
    args: argparse.Namespace, worker_class: type[Any], *arguments: object, object_bytes: int
) -> Iterator[RayCrew]:
    with cluster.ray_running(args, cluster.store_bytes(args, object_bytes)):
        with _actors(args.workers, worker_class, arguments) as crew:
            yield crew


class RayCrew(Crew):
    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        super().__init__(count)
        self._make = make
        self.actors = [make(worker) for worker in range(count)]
        self._starting = {
            worker: actor.__ray_ready__.remote() for worker, actor in enumerate(self.actors)
        }
        self._told: dict[int, Any] = {}

    def tell(self, worker: int, method: str, *arguments: object) -> None:
        self._told[worker] = getattr(self.actors[worker], method).remote(*arguments)

    def lost(self) -> dict[int, str]:
        import ray

        lost = {}
        for worker, told in self._told.items():
            try:
                ray.get(told, timeout=0)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                lost[worker] = str(error).strip().splitlines()[-1]
        return lost

    def start(self, worker: int) -> None:
        self._told.pop(worker, None)
        self.actors[worker] = self._make(worker)
        self._starting[worker] = self.actors[worker].__ray_ready__.remote()

    def starting(self, timeout: float | None = 0) -> set[int]:
        import ray

        workers = {ready: worker for worker, ready in self._starting.items()}
        for ready in ray.wait(list(workers), timeout=timeout)[0] if workers else []:
            worker = workers[ready]
            try:
                ray.get(ready)
            except ray.exceptions.RayError as error:
                raise WorkerLost(f"worker {worker} did not start: {error}") from None
            del self._starting[worker]
        return set(self._starting)

    def kill(self, worker: int) -> None:
        import ray

        ray.kill(self.actors[worker], no_restart=True)


@contextmanager
def _actors(
    count: int, worker_class: type[Any], arguments: tuple[object, ...]
) -> Iterator[RayCrew]:
    import ray

    remote = ray.remote(worker_class).options(num_cpus=1, scheduling_strategy="SPREAD")
    crew = RayCrew(count, lambda worker: remote.remote(worker, *arguments))
    try:
        while crew.starting(None):
            pass
        yield crew
    finally:
        for actor in crew.actors:
            ray.kill(actor)


class _ProcessCrew(Crew):
    def __init__(
        self, count: int, sockets: list[str], worker_class: type[Any], arguments: tuple[object, ...]
    ) -> None:
        super().__init__(count)
        self._sockets, self._class, self._arguments = sockets, worker_class, arguments
        self._processes: dict[int, SpawnProcess] = {}
        self._orders: dict[int, Connection] = {}
        self._starting: set[int] = set()

    def start(self, worker: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        socket = self._sockets[worker % len(self._sockets)]
        made_of = (theirs, socket, self._class, (worker, *self._arguments))
        process = spawn.Process(target=_work, args=made_of, name=f"worker-{worker}", daemon=True)
        with _without_interrupts():
            process.start()
            self._processes[worker], self._orders[worker] = process, ours
            self._starting.add(worker)
        theirs.close()

    def starting(self, timeout: float | None = 0) -> set[int]:
        said = (
            wait([self._orders[worker] for worker in self._starting], timeout)
            if self._starting
            else []
        )
        for worker in sorted(self._starting):
            if self._orders[worker] not in said:
                continue
            try:
                self._orders[worker].recv()
            except (EOFError, ConnectionResetError):
                raise WorkerLost(f"worker {worker} did not start") from None
            self._starting.remove(worker)
        return set(self._starting)

    def tell(self, worker: int, method: str, *arguments: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._orders[worker].send((method, arguments))

    def lost(self) -> dict[int, str]:
        ended = {worker: process.exitcode for worker, process in self._processes.items()}
        return {worker: _how(code) for worker, code in ended.items() if code is not None}

    def kill(self, worker: int) -> None:
        self._processes[worker].kill()
        self._processes[worker].join()

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


@contextmanager
def _processes(
    count: int, sockets: list[str], worker_class: type[Any], arguments: tuple[object, ...]
) -> Iterator[_ProcessCrew]:
    os.environ.update(cluster.ONE_THREAD)
    crew = _ProcessCrew(count, sockets, worker_class, arguments)
    try:
        for worker in range(count):
            crew.start(worker)
        while crew.starting(None):
            pass
        yield crew
    finally:
        crew.end()


def _work(
    orders: Connection, socket: str, worker_class: type[Any], arguments: tuple[object, ...]
) -> None:
    hoplite.init(socket)
    worker = worker_class(*arguments)
    orders.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            method, given = orders.recv()
            getattr(worker, method)(*given)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delays Ctrl-C; processes started inside ignore it. For the main thread."""
    came: list[int] = []
    # Children inherit the mask. The handler is for the other threads of this process.
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
