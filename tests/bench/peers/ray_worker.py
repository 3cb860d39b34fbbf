"""Workers for Ray's object store, one actor on each node, with the protocol of
`hoplite-bench-worker`.

    ray_worker.py CLUSTER SOCKET ADDRESS...

The actors pass references to objects in calls, as Ray's programs do.
"""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

STRIDE = 61
START_TIMEOUT_S = 150
ASK_INTERVAL_S = 0.2
THREADS = 3
NO_RESOURCES = 0.001


class Worker:
    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.round = 0
        self.others: list[Any] = []
        self.source: Any = None
        self.results: list[Any] = []
        self.expected: list[float] = []
        # Messages by subject, whose second element is the round.
        self.inbox: dict[tuple[Any, ...], list[Any]] = {}
        self.heard = threading.Condition()

    def meet(self, others: list[Any]) -> None:
        self.others = others

    def accept(self, key: tuple[Any, ...], what: list[Any]) -> None:
        with self.heard:
            self.inbox.setdefault(key, []).append(what)
            self.heard.notify_all()

    def take(self, *key: Any) -> list[Any]:
        with self.heard:
            self.heard.wait_for(lambda: self.inbox.get(key))
            found: list[Any] = self.inbox[key].pop(0)
            return found

    def tell(self, rank: int, key: tuple[Any, ...], what: list[Any]) -> Any:
        if rank == self.rank:
            return self.accept(key, what)
        return self.others[rank].accept.remote(key, what)

    def serve(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as benchmark:
            benchmark.connect(path)
            benchmark.sendall(f"hello {self.rank}\n".encode())
            for line in benchmark.makefile():
                benchmark.sendall(f"{self.perform(line)}\n".encode())

    def perform(self, line: str) -> str:
        match line.split():
            case ["prepare", workload, *numbers]:
                self.prepare(workload, *map(int, numbers))
            case ["run", at]:
                time.sleep(max(0, int(at) - time.monotonic_ns()) / 1e9)
                started = time.monotonic_ns()
                self.run()
                return f"done {started} {time.monotonic_ns()}"
            case ["check"] if not self.is_right():
                return "error wrong result"
            case ["clean"]:
                self.forget()
        return "ok"

    def factor(self, rank: int) -> float:
        return float((rank + self.round) % 16 + 1)

    def contents(self, factor: float, elements: int) -> Any:
        return (np.arange(elements, dtype=np.int32) % 8 + 1).astype(np.float32) * np.float32(factor)

    def forget(self) -> None:
        self.source, self.results, self.expected = None, [], []
        with self.heard:
            self.inbox = {key: value for key, value in self.inbox.items() if key[1] > self.round}

    def prepare(
        self, workload: str, size_bytes: int, round_number: int, steps: int, compute_ns: int
    ) -> None:
        self.workload, self.elements, self.round = workload, size_bytes // 4, round_number
        self.steps, self.compute_s = steps, compute_ns / 1e9
        self.source = self.contents(self.factor(self.rank), self.elements)
        if workload in ("broadcast", "broadcast_late") and self.rank == 0:
            reference = ray.put(self.source)
            ray.get(
                [self.tell(rank, self.key("given"), [reference]) for rank in range(1, self.ranks)]
            )
        elif workload in ("gather", "reduce", "allreduce"):
            told = self.tell(0, self.key("source", self.rank), [ray.put(self.source)])
            if self.rank > 0:
                ray.get(told)

    def key(self, what: str, *more: int) -> tuple[Any, ...]:
        return (what, self.round, *more)

    def run(self) -> None:
        match self.workload, self.rank:
            case "round_trip", 0 | 1:
                self.round_trip()
            case "broadcast" | "broadcast_late", rank if rank > 0:
                self.got(ray.get(self.take(*self.key("given"))[0]), self.factor(0))
            case "gather", 0:
                for rank, part in enumerate(ray.get(self.sources())):
                    self.got(part, self.factor(rank))
            case "reduce", 0:
                self.got(added(ray.get(self.sources())), self.sum())
            case "reduce_late", _:
                self.reduce_late()
            case "allreduce", _:
                self.allreduce()
            case "ps_sync" | "ps_async" | "rl_gradients" | "rl_samples", 0:
                self.server()
            case "ps_sync" | "ps_async" | "rl_gradients" | "rl_samples", _:
                self.client()

    def got(self, result: Any, factor: float) -> None:
        self.results.append(result)
        self.expected.append(factor)

    def sum(self) -> float:
        return sum(self.factor(rank) for rank in range(self.ranks))

    def sources(self) -> list[Any]:
        return [self.take(*self.key("source", rank))[0] for rank in range(self.ranks)]

    def round_trip(self) -> None:
        other = 1 - self.rank
        if self.rank == 0:
            self.tell(other, self.key("there"), [ray.put(self.source)])
        self.got(ray.get(self.take(*self.key("there"))[0]), self.factor(other))
        if self.rank == 1:
            self.tell(other, self.key("there"), [ray.put(self.source)])

    def reduce_late(self) -> None:
        self.tell(0, self.key("late"), [ray.put(self.source)])
        if self.rank == 0:
            total = np.zeros(self.elements, np.float32)
            for _ in range(self.ranks):
                total += ray.get(self.take(*self.key("late"))[0])
            self.got(total, self.sum())

    def allreduce(self) -> None:
        if self.rank == 0:
            total = added(ray.get(self.sources()))
            reference = ray.put(total)
            for rank in range(1, self.ranks):
                self.tell(rank, self.key("result"), [reference])
            self.got(total, self.sum())
        else:
            self.got(ray.get(self.take(*self.key("result"))[0]), self.sum())

    def server(self) -> None:
        given = [0] * self.ranks
        workers = range(1, self.ranks)
        chosen = len(workers) if self.workload == "ps_sync" else self.ranks // 2
        for _ in range(self.steps):
            ready = [self.take(*self.key("ready")) for _ in range(chosen)]
            found = ray.get([reference for _, reference in ready])
            if self.workload == "rl_samples":
                model = self.source
                self.results, self.expected = found, [self.factor(rank) for rank, _ in ready]
            else:
                model = added(found)
                self.results, self.expected = [model], [sum(self.factor(rank) for rank, _ in ready)]
            reference = ray.put(model)
            for rank, _ in ready:
                self.tell(rank, self.key("model", given[rank]), [reference])
                given[rank] += 1
        for rank in workers:
            self.tell(rank, self.key("model", given[rank]), [])

    def client(self) -> None:
        source = self.source
        if self.workload == "rl_samples":
            source = source[: self.elements // 4]
        for step in self.computed():
            self.tell(0, self.key("ready"), [self.rank, ray.put(source)])
            answer = self.take(*self.key("model", step))
            if not answer:
                return
            model = ray.get(answer[0])
            # Only the server knows whose gradients were summed: the first element determines the
            # others.
            is_all = self.workload == "ps_sync"
            self.results, self.expected = (
                [model],
                [self.sum() - self.factor(0) if is_all else float(model[0])],
            )

    def computed(self) -> Iterator[int]:
        for step in range(self.steps if self.workload == "ps_sync" else sys.maxsize):
            parts = 4 + (5 * self.rank + 2 * step) % 9
            time.sleep(self.compute_s * parts / 8)
            yield step

    def is_right(self) -> bool:
        return all(map(self.has, self.results, self.expected))

    def has(self, found: Any, factor: float) -> bool:
        expected = self.contents(factor, len(found))
        return bool(
            factor >= 1
            and np.array_equal(found[::STRIDE], expected[::STRIDE])
            and found[-1] == expected[-1]
        )


def added(parts: list[Any]) -> Any:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def main() -> None:
    cluster, path, *addresses = sys.argv[1:]
    ray.init(address=cluster, log_to_driver=False)
    deadline = time.monotonic() + START_TIMEOUT_S
    while sum(node["Alive"] for node in ray.nodes()) < len(addresses):
        if time.monotonic() > deadline:
            sys.exit("not all nodes have joined the cluster")
        time.sleep(ASK_INTERVAL_S)
    actor = ray.remote(Worker).options
    workers: list[Any] = [
        actor(
            num_cpus=0, max_concurrency=THREADS, resources={f"node:{address}": NO_RESOURCES}
        ).remote(rank, len(addresses))
        for rank, address in enumerate(addresses)
    ]
    ray.get([one.meet.remote(workers) for one in workers])
    ray.get([one.serve.remote(path) for one in workers])


if __name__ == "__main__":
    main()
