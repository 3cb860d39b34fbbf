"""What participants give each other: all_to_all, barrier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hoplite
import hoplite.aio
from stores import PATIENCE, SHORT, Cluster


def together(cluster: Cluster, participants: int, work: Callable[[hoplite.Client, int], Any]) -> list[Any]:
    """Has each participant do its work, at a node of its own, and returns what they return."""
    outcomes: list[Any] = [None] * participants

    def participate(rank: int) -> None:
        with cluster.connect(rank) as client:
            outcomes[rank] = work(client, rank)

    threads = [threading.Thread(target=participate, args=(rank,)) for rank in range(participants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("participants", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_all_to_all_of_arrays(cluster: Cluster, fresh: str, participants: int, size: int) -> None:
    def work(client: hoplite.Client, rank: int) -> Any:
        values = np.arange(participants)[:, None] + np.full(size, 10.0 * rank)
        return client.all_to_all(fresh + "round", values, rank, timeout=PATIENCE)

    for rank, got in enumerate(together(cluster, participants, work)):
        assert [array.shape for array in got] == [(size,)] * participants
        for source, array in enumerate(got):
            assert array.dtype == np.float64
            assert not array.flags.writeable
            assert (array == 10.0 * source + rank).all()
    with cluster.connect() as client:
        assert list(client.list(fresh)) == []


def test_all_to_all_of_values_that_differ(cluster: Cluster, fresh: str) -> None:
    given: list[list[Any]] = [
        [np.arange(5), np.ones((2, 3), np.float32)],
        [{"a": np.arange(100_000)}, torch.ones(3)],
    ]

    def work(client: hoplite.Client, rank: int) -> Any:
        return client.all_to_all(fresh + "round", given[rank], rank, timeout=PATIENCE)

    first, second = together(cluster, 2, work)
    np.testing.assert_array_equal(first[0], given[0][0])
    np.testing.assert_array_equal(first[1]["a"], given[1][0]["a"])
    np.testing.assert_array_equal(second[0], given[0][1])
    assert torch.equal(second[1], given[1][1])
    with cluster.connect() as client:
        assert list(client.list(fresh)) == []


def test_all_to_all_names_who_is_missing(client: hoplite.Client, fresh: str) -> None:
    with pytest.raises(hoplite.RanksMissing) as caught:
        client.all_to_all(fresh + "round", [b"mine", b"for one who never comes"], 0, timeout=SHORT)
    assert caught.value.ranks == [1]
    client.delete([info.id for info in client.list(fresh)])


def test_nobody_passes_a_barrier_alone(cluster: Cluster, fresh: str) -> None:
    last = threading.Event()

    def work(client: hoplite.Client, rank: int) -> bool:
        if rank == 2:
            with pytest.raises(hoplite.RanksMissing) as caught:
                # The others may have come or not.
                client.barrier(fresh + "all", 4, rank, timeout=SHORT)
            assert 3 in caught.value.ranks
            last.set()
        client.barrier(fresh + "round", 3, rank, timeout=PATIENCE)
        return last.is_set()

    assert together(cluster, 3, work) == [True] * 3
    with cluster.connect() as client:
        with pytest.raises(hoplite.AlreadyExists):
            client.barrier(fresh + "round", 3, 0, timeout=PATIENCE)
        client.delete([info.id for info in client.list(fresh)])


def test_ranks_that_are_none(client: hoplite.Client, fresh: str) -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"no rank {rank} among 2"):
            client.all_to_all(fresh, [b"a", b"b"], rank)
        with pytest.raises(ValueError, match=f"no rank {rank} among 2"):
            client.barrier(fresh, 2, rank)
    with pytest.raises(hoplite.InvalidId):
        client.all_to_all("x" * 254, [b"a"], 0)
    assert list(client.list(fresh)) == []


def test_coroutines(cluster: Cluster, fresh: str) -> None:
    async def participant(rank: int) -> list[bytes]:
        async with await hoplite.aio.connect(cluster.sockets[rank]) as client:
            await client.barrier(fresh + "barrier", 3, rank, PATIENCE)
            values = [f"{rank} to {to}".encode() for to in range(3)]
            return await client.all_to_all(fresh + "round", values, rank, timeout=PATIENCE)

    async def main() -> None:
        outcomes = await asyncio.gather(*(participant(rank) for rank in range(3)))
        for to, got in enumerate(outcomes):
            assert got == [f"{rank} to {to}".encode() for rank in range(3)]

    asyncio.run(main())
    with cluster.connect() as client:
        client.delete(fresh + "barrier")
        assert list(client.list(fresh)) == []
