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


def together(
    cluster: Cluster, participants: int, work: Callable[[hoplite.Client, int], Any]
) -> list[Any]:
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


@pytest.mark.parametrize("participants", [1, 2, 3])
@pytest.mark.parametrize("rows", [2, 20_000])
def test_reduce_scatter(cluster: Cluster, fresh: str, participants: int, rows: int) -> None:
    sources = [f"{fresh}{rank}" for rank in range(participants)]
    shape = (participants * rows, 5)
    arrays = [np.random.default_rng(rank).standard_normal(shape) for rank in range(participants)]

    def work(client: hoplite.Client, rank: int) -> Any:
        if rank == 0:
            client.put(sources[0], arrays[0])
            out = np.empty((rows, 5))
            assert (
                client.reduce_scatter(fresh + "sum", sources, 0, out=out, timeout=PATIENCE) is out
            )
            return out
        return client.reduce_scatter(fresh + "sum", sources, rank, arrays[rank], timeout=PATIENCE)

    parts = together(cluster, participants, work)
    assert all(part.flags.writeable for part in parts)
    np.testing.assert_allclose(np.concatenate(parts), np.sum(arrays, axis=0), atol=1e-12)
    with cluster.connect() as client:
        client.delete_allreduce(fresh + "sum", sources)
        assert list(client.list(fresh)) == []


@pytest.mark.parametrize("participants", [1, 2, 3])
@pytest.mark.parametrize("rows", [2, 20_000])
def test_allgather_into(cluster: Cluster, fresh: str, participants: int, rows: int) -> None:
    def work(client: hoplite.Client, rank: int) -> Any:
        own = torch.full((rows, 5), float(rank))
        stacked, joined = torch.zeros(participants, rows, 5), torch.zeros(participants * rows, 5)
        room = bytearray(stacked.nbytes + 1)
        sources = [f"{fresh}{number}" for number in range(participants)]
        for number, out in enumerate((stacked, joined, room)):
            value = None if number else own
            size = client.allgather_into(
                f"{fresh}round/{number}", sources, rank, out, value, timeout=PATIENCE
            )
            assert size == stacked.nbytes
        assert torch.equal(stacked.reshape(joined.shape), joined)
        assert bytes(room[:-1]) == stacked.numpy().tobytes()
        return stacked

    expected = torch.arange(float(participants))[:, None, None].expand(participants, rows, 5)
    for got in together(cluster, participants, work):
        assert torch.equal(got, expected)
    with cluster.connect() as client:
        client.delete([info.id for info in client.list(fresh)])


def test_what_cannot_be_divided_or_gathered_is_not_put(client: hoplite.Client, fresh: str) -> None:
    sources = [f"{fresh}{rank}" for rank in range(2)]
    with pytest.raises(
        hoplite.InvalidRequest, match=r"\[5, 2\] cannot be divided .* among 2 participants"
    ):
        client.reduce_scatter(fresh, sources, 0, np.ones((5, 2)))
    with pytest.raises(hoplite.InvalidRequest, match=r"shape \[\] cannot be divided"):
        client.reduce_scatter(fresh, sources, 0, np.float64(1.0))
    with pytest.raises(
        hoplite.TypeMismatch, match=r"float64\[2, 2\], to be copied into float64\[4, 2\]"
    ):
        client.reduce_scatter(fresh, sources, 0, np.ones((4, 2)), out=np.ones((4, 2)))
    with pytest.raises(TypeError, match="only arrays"):
        client.reduce_scatter(fresh, sources, 0, b"bytes")
    for out in (np.ones((3, 4)), np.ones((2, 4), np.float32), np.ones(4)):
        with pytest.raises(
            hoplite.TypeMismatch, match=r"float64\[4\], of which 2 are to be copied"
        ):
            client.allgather_into(fresh, sources, 0, out, np.ones(4))
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"no rank {rank} among 2"):
            client.reduce_scatter(fresh, sources, rank, np.ones(4))
        with pytest.raises(ValueError, match=f"no rank {rank} among 2"):
            client.allgather_into(fresh, sources, rank, np.ones(8), np.ones(4))
    assert list(client.list(fresh)) == []


def test_nobody_passes_a_barrier_alone(cluster: Cluster, fresh: str) -> None:
    last = threading.Event()

    def work(client: hoplite.Client, rank: int) -> bool:
        if rank == 2:
            with pytest.raises(hoplite.RanksMissing) as caught:
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
            sources = [f"{fresh}{number}" for number in range(3)]
            out = np.empty(300_000)
            await client.allgather_into(fresh + "all", sources, rank, out, np.ones(100_000) * rank)
            part = await client.reduce_scatter(
                fresh + "sum", [f"{id}/" for id in sources], rank, out
            )
            assert (part == 3.0 * rank).all()
            return await client.all_to_all(fresh + "round", values, rank, timeout=PATIENCE)

    async def main() -> None:
        outcomes = await asyncio.gather(*(participant(rank) for rank in range(3)))
        for to, got in enumerate(outcomes):
            assert got == [f"{rank} to {to}".encode() for rank in range(3)]

    asyncio.run(main())
    with cluster.connect() as client:
        client.delete([info.id for info in client.list(fresh)])
