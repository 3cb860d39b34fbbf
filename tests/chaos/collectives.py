"""Collectives of threads at different stores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import hoplite
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .workload import Worker

_PARTICIPANTS: Final = 3
_PART_LENGTHS: Final = (1, 2_000, 100_000)


@dataclass(frozen=True)
class Round:
    name: str
    arrays: list[NDArray[np.int64]]
    timeout_s: float

    @property
    def sources(self) -> list[str]:
        return [f"{self.name}/{rank}" for rank in range(len(self.arrays))]

    @property
    def names(self) -> list[str]:
        pairs = [f"{source}/{rank}" for source in self.sources for rank in range(len(self.arrays))]
        return [self.name, *self.sources, *pairs]

    def parts(self, array: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return np.split(array, len(self.arrays))

    def total(self) -> NDArray[np.int64]:
        total: NDArray[np.int64] = np.sum(self.arrays, axis=0, dtype=np.int64)
        return total

    def allreduce(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        own = self.arrays[rank]
        got = client.allreduce(self.name, self.sources, rank, own, timeout=self.timeout_s)
        return got, self.total()

    def reduce_scatter(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        own = self.arrays[rank]
        got = client.reduce_scatter(self.name, self.sources, rank, own, timeout=self.timeout_s)
        return got, self.parts(self.total())[rank]

    def allgather(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        got = client.allgather(self.sources, rank, self.arrays[rank], self.timeout_s)
        return got, self.arrays

    def allgather_into(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        out, own = np.zeros_like(self.arrays), self.arrays[rank]
        client.allgather_into(self.name, self.sources, rank, out, own, timeout=self.timeout_s)
        return out, self.arrays

    def all_to_all(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        own = self.parts(self.arrays[rank])
        got = client.all_to_all(self.name, own, rank, timeout=self.timeout_s)
        return got, [self.parts(array)[rank] for array in self.arrays]

    def barrier(self, client: hoplite.Client, rank: int) -> tuple[Any, Any]:
        client.barrier(self.name, len(self.arrays), rank, self.timeout_s)
        return (), ()


COLLECTIVES: Final[dict[str, Callable[[Round, hoplite.Client, int], tuple[Any, Any]]]] = {
    "allreduce": Round.allreduce,
    "reduce_scatter": Round.reduce_scatter,
    "allgather": Round.allgather,
    "allgather_into": Round.allgather_into,
    "all_to_all": Round.all_to_all,
    "barrier": Round.barrier,
}


def collective(worker: "Worker") -> None:
    operation = worker.random.choice(list(COLLECTIVES))
    hosts = list(worker.cluster.sockets)
    hosts = worker.random.sample(hosts, min(_PARTICIPANTS, len(hosts)))
    values = np.arange(worker.random.choice(_PART_LENGTHS) * len(hosts), dtype=np.int64)
    arrays = [values * worker.random.randrange(1000) for _ in hosts]
    meeting = Round(worker.fresh("c"), arrays, worker.timeout_s)
    worker.history.names += meeting.names

    def participate(rank: int) -> None:
        ended = worker.perform(
            operation,
            hosts[rank],
            lambda client: COLLECTIVES[operation](meeting, client, rank),
        )
        if ended is not None and not np.array_equal(*ended):
            worker.history.violate(
                f"wrong result: {operation} {meeting.name} of rank {rank} on {hosts[rank]}"
            )

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(participate, range(len(hosts))))
    worker.remove(meeting.names)
