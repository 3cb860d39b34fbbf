from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster, await_that

ELEMENTS = 5 << 20
NBYTES = 4 * ELEMENTS


class Heard:
    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []
        self.threads: set[int] = set()

    def __call__(self, done: int, total: int) -> None:
        self.counts.append((done, total))
        self.threads.add(threading.get_ident())

    def check(self, nbytes: int) -> None:
        assert self.counts[-1] == (nbytes, nbytes)
        assert all(done <= total <= nbytes for done, total in self.counts)
        assert self.counts == sorted(set(self.counts)), "it never falls, and nothing is told twice"
        assert self.threads == {threading.get_ident()}


class Enough(Exception):
    """Raised by a callback to cancel its call."""


def enough(done: int, total: int) -> None:
    raise Enough


def values(count: int) -> list[Any]:
    return [np.full(ELEMENTS, value, np.float32) for value in range(count)]


def test_puts_and_gets(cluster: Cluster, client: hoplite.Client, fresh: str) -> None:
    value = np.arange(ELEMENTS, dtype=np.float32)
    gets: list[Callable[[hoplite.Client, Heard], Any]] = [
        lambda other, heard: other.get(fresh, progress=heard),
        lambda other, heard: other.get(fresh, copy=True, progress=heard),
        lambda other, heard: other.ref(fresh).get(progress=heard),
        lambda other, heard: other.gather([fresh], progress=heard)[0],
        lambda other, heard: into(other, heard, np.empty_like(value)),
        lambda other, heard: into(other, heard, bytearray(NBYTES)),
    ]

    def into(other: hoplite.Client, heard: Heard, out: Any) -> Any:
        assert other.get_into(fresh, out, progress=heard) == NBYTES
        return np.frombuffer(out, np.float32)

    for get in gets:
        with cluster.connect(1) as other:
            heard = Heard()
            client.put(fresh, value, progress=heard)
            heard.check(NBYTES)
            for _ in range(2):
                heard = Heard()
                assert (get(other, heard) == value).all()
                heard.check(NBYTES)
            client.delete(fresh)


def test_pickles_and_small_values(client: hoplite.Client, fresh: str) -> None:
    for number, value in enumerate((b"x", b"", {"a": np.zeros(100_000), "b": [1]}, np.zeros(3))):
        heard = Heard()
        ref = client.put(fresh + str(number), value, progress=heard)
        assert ref.nbytes is not None
        heard.check(ref.nbytes)
        for copy in (None, True):
            heard = Heard()
            client.get(ref, copy=copy, progress=heard)
            heard.check(ref.nbytes)
        ref.delete()


def test_several_objects_add_up(client: hoplite.Client, fresh: str) -> None:
    ids = [f"{fresh}{number}" for number in range(3)]
    for id, value in zip(ids, values(3), strict=True):
        client.put(id, value)
    heard = Heard()
    client.gather(ids, progress=heard)
    heard.check(3 * NBYTES)
    client.delete(ids)


def test_a_reduce(cluster: Cluster, client: hoplite.Client, fresh: str) -> None:
    sources = [f"{fresh}{number}" for number in range(3)]
    for number, value in enumerate(values(3)):
        with cluster.connect(number) as other:
            other.put(sources[number], value)
    heard = Heard()
    assert client.reduce(fresh + "sum", sources, progress=heard)
    heard.check(NBYTES)
    assert (client.get(fresh + "sum") == 3).all()
    client.delete([*sources, fresh + "sum"])


@pytest.mark.parametrize(
    "kind", ["allreduce", "reduce_scatter", "allgather_into", "allgather", "all_to_all"]
)
def test_collectives(cluster: Cluster, fresh: str, kind: str) -> None:
    ranks = 2
    sources = [f"{fresh}{rank}" for rank in range(ranks)]
    inputs = values(ranks)

    def participate(rank: int) -> None:
        heard, value = Heard(), inputs[rank]
        with cluster.connect(rank) as client:
            match kind:
                case "allgather_into":
                    out = np.empty((ranks, ELEMENTS), np.float32)
                    client.allgather_into(
                        fresh + "t", sources, rank, out, value, progress=heard, timeout=PATIENCE
                    )
                    assert [row[0] for row in out] == [0, 1]
                case "allgather":
                    got = client.allgather(sources, rank, value, PATIENCE, progress=heard)
                    assert [array[0] for array in got] == [0, 1]
                case "all_to_all":
                    halves = [value[: ELEMENTS // 2]] * ranks
                    got = client.all_to_all(
                        fresh + "t", halves, rank, progress=heard, timeout=PATIENCE
                    )
                    assert [array[0] for array in got] == [0, 1]
                case _:
                    got = getattr(client, kind)(
                        fresh + "t", sources, rank, value, progress=heard, timeout=PATIENCE
                    )
                    assert (got == 1).all()
        done, total = heard.counts[-1]
        assert 0 < done == total
        assert heard.threads == {threading.get_ident()}

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(participate, range(ranks)))
    with cluster.connect() as client:
        client.delete([*sources, fresh + "t"])


def waits(
    client: Any, id: str, progress: Callable[[int, int], object]
) -> dict[str, Callable[[], Any]]:
    out = np.zeros(3, np.float32)
    return {
        "get": lambda: client.get(id, progress=progress),
        "gather": lambda: client.gather([id], progress=progress),
        "get into a buffer": lambda: client.get_into(id, bytearray(12), progress=progress),
        "reduce": lambda: client.reduce(id + "target", [id], progress=progress),
        "allreduce": lambda: client.allreduce(
            id + "all", [id + "own", id], 0, out, progress=progress
        ),
        "allgather into": lambda: client.allgather_into(
            id + "into", [id + "own", id], 0, np.zeros((2, 3), np.float32), out, progress=progress
        ),
        "all to all": lambda: client.all_to_all(id + "pairs", [out, out], 0, progress=progress),
    }


NAMES = list(waits(None, "", enough))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_callback_raises_cancels_the_call(
    client: hoplite.Client, fresh: str, name: str
) -> None:
    began = time.monotonic()
    with pytest.raises(Enough):
        waits(client, fresh, enough)[name]()
    assert time.monotonic() - began < PATIENCE
    await_that("nothing of it goes on", lambda: client.status()["reduces"] == 0)
    client.delete([fresh + "own", fresh + "pairs/0"])
    client.put(fresh + "after", 1)
    assert client.get(fresh + "after") == 1


def test_it_is_called_while_a_call_waits(
    client: hoplite.Client, cluster: Cluster, fresh: str
) -> None:
    heard = Heard()

    def put(done: int, total: int) -> None:
        heard(done, total)
        if total == 0:
            with cluster.connect(1) as other:
                other.put(fresh, b"here")

    assert client.get(fresh, PATIENCE, progress=put) == b"here"
    assert heard.counts == [(0, 0), (4, 4)]


def test_what_it_raises_in_the_end_is_raised(client: hoplite.Client, fresh: str) -> None:
    with pytest.raises(Enough):
        client.put(fresh, b"x", progress=enough)
    assert client.get(fresh) == b"x", "the put was complete"


def test_another_thread_is_told_in_that_thread(client: hoplite.Client, fresh: str) -> None:
    def work() -> None:
        heard = Heard()
        client.put(fresh, values(1)[0], progress=heard)
        heard.check(NBYTES)
        with pytest.raises(Enough):
            client.get(fresh + "absent", progress=enough)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    client.delete(fresh)


def test_the_asynchronous_client(cluster: Cluster, fresh: str) -> None:
    async def work() -> None:
        async with (
            await hoplite.aio.connect(cluster.sockets[0]) as client,
            await hoplite.aio.connect(cluster.sockets[1]) as other,
        ):
            value = values(2)[1]
            for copy in (None, True):
                heard = Heard()
                await client.put(fresh, value, progress=heard)
                heard.check(NBYTES)
                heard = Heard()
                assert (await other.get(fresh, copy=copy, progress=heard) == value).all()
                heard.check(NBYTES)
                out = np.zeros_like(value)
                heard = Heard()
                assert await other.get_into(fresh, out, progress=heard) == NBYTES
                heard.check(NBYTES)
                await client.delete(fresh)
            for name in NAMES:
                with pytest.raises(Enough):
                    await waits(client, f"{fresh}{name}/", enough)[name]()
            absent = asyncio.ensure_future(client.get(fresh + "never", progress=Heard()))
            await asyncio.sleep(0.3)
            absent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await absent
            with pytest.raises(hoplite.Timeout):
                await client.get(fresh + "never", 0.2, progress=Heard())
            await client.put(fresh + "after", 1)
            assert await client.get(fresh + "after") == 1

    asyncio.run(work())
