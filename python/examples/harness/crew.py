"""The workers of an example: each an object in a process of its own, on one of the nodes.

A worker is of an ordinary class. It is made in its process from its number and what else the example gives it, and there
its methods are called, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import secrets
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import hoplite
from harness import cluster


class WorkerLost(Exception):
    """Workers have died that the example cannot do without."""


class Crew(ABC):
    """All workers, by their numbers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.run = f"run-{secrets.token_hex(4)}"
        """How the ids of this run's objects are to begin, as others may use the cluster. They are deleted at its end."""

    @abstractmethod
    def tell(self, worker: int, method: str, *arguments: object) -> None:
        """Has a worker call a method, and returns at once. What comes of it goes through the store."""

    @abstractmethod
    def lost(self) -> dict[int, str]:
        """The workers that have died, and how."""

    @abstractmethod
    def kill(self, worker: int) -> None:
        """Ends a worker without giving it a chance to say anything."""


@contextmanager
def hoplite_crew(
    args: argparse.Namespace, worker_class: type[Any], *arguments: object, object_bytes: int
) -> Iterator[Crew]:
    """Workers that each find the store of their node with `hoplite.init()`, as does this program.

    They are processes of this machine, on a cluster that is started for them; or actors, if a Ray cluster was named.

    Args:
        worker_class: what the workers are: `worker_class(number, *arguments)`.
        object_bytes: the size of the largest objects, for which the stores are to have room.
    """
    memory_bytes = cluster.store_bytes(args, object_bytes)
    with ExitStack() as cleanup:
        if args.ray_address is None:
            sockets = cleanup.enter_context(cluster.stores(args.nodes, memory_bytes))
            hoplite.init(sockets[0])
            cleanup.callback(hoplite.shutdown)
            # The first node is that of this program, unless there is no other.
            theirs = sockets[1:] or sockets
            crew: Crew = cleanup.enter_context(_processes(args.workers, theirs, worker_class, arguments))
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
    """Gives a list: of the prefixes of ids that are deleted when the block ends."""
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
    """The same workers as actors, for data that moves through Ray's own object store."""
    with cluster.ray_running(args, cluster.store_bytes(args, object_bytes)):
        with _actors(args.workers, worker_class, arguments) as crew:
            yield crew


class RayCrew(Crew):
    """Workers that are Ray actors."""

    def __init__(self, actors: list[Any]) -> None:
        super().__init__(len(actors))
        self.actors = actors
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

    def kill(self, worker: int) -> None:
        import ray

        ray.kill(self.actors[worker], no_restart=True)


@contextmanager
def _actors(count: int, worker_class: type[Any], arguments: tuple[object, ...]) -> Iterator[RayCrew]:
    import ray

    # SPREAD: on as many nodes as there are.
    remote = ray.remote(worker_class).options(num_cpus=1, scheduling_strategy="SPREAD")
    actors = [remote.remote(worker, *arguments) for worker in range(count)]
    try:
        ray.get([actor.__ray_ready__.remote() for actor in actors])
        yield RayCrew(actors)
    finally:
        for actor in actors:
            ray.kill(actor)


class _ProcessCrew(Crew):
    """Workers that are processes of this machine."""

    def __init__(self, processes: list[SpawnProcess], orders: list[Connection]) -> None:
        super().__init__(len(processes))
        self._processes, self._orders = processes, orders

    def tell(self, worker: int, method: str, *arguments: object) -> None:
        # One that has died is found by `lost`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._orders[worker].send((method, arguments))

    def lost(self) -> dict[int, str]:
        ended = {worker: process.exitcode for worker, process in enumerate(self._processes)}
        return {worker: _how(code) for worker, code in ended.items() if code is not None}

    def kill(self, worker: int) -> None:
        self._processes[worker].kill()
        self._processes[worker].join()


@contextmanager
def _processes(
    count: int, sockets: list[str], worker_class: type[Any], arguments: tuple[object, ...]
) -> Iterator[_ProcessCrew]:
    os.environ.update(cluster.ONE_THREAD)
    spawn = multiprocessing.get_context("spawn")
    processes, orders = [], []
    try:
        for worker in range(count):
            ours, theirs = spawn.Pipe()
            made_of = (theirs, sockets[worker % len(sockets)], worker_class, (worker, *arguments))
            process = spawn.Process(target=_work, args=made_of, name=f"worker-{worker}", daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            orders.append(ours)
        for worker, connection in enumerate(orders):
            try:
                connection.recv()
            except EOFError:
                raise WorkerLost(f"worker {worker} did not start") from None
        yield _ProcessCrew(processes, orders)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _work(orders: Connection, socket: str, worker_class: type[Any], arguments: tuple[object, ...]) -> None:
    """What a worker process does, until the program that started it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program.
    hoplite.init(socket)
    worker = worker_class(*arguments)
    orders.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            method, given = orders.recv()
            getattr(worker, method)(*given)


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
