from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.aio
from hoplite._html import size
from stores import PATIENCE, SHORT, Cluster, Daemon, await_that

LARGE = 20 << 20


class Knot:
    """A reference cycle, which only a garbage collection frees."""

    def __init__(self, held: Any) -> None:
        self.me, self.held = self, held


@pytest.fixture
def no_automatic_collection() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_automatic_collection")
def test_a_put_collects_garbage_before_it_waits_for_room(node: Cluster) -> None:
    with node.connect() as client:
        for number in range(8):
            client.put(f"x{number}", np.zeros(LARGE, np.uint8), timeout=PATIENCE)
            Knot(client.get(f"x{number}"))
            client.delete(f"x{number}")


@pytest.mark.usefixtures("no_automatic_collection")
def test_the_asynchronous_client_collects_it_too(node: Cluster) -> None:
    async def run() -> None:
        async with await hoplite.aio.connect(node.sockets[0]) as client:
            for number in range(8):
                await client.put(f"x{number}", np.zeros(LARGE, np.uint8), timeout=PATIENCE)
                Knot(await client.get(f"x{number}"))
                await client.delete(f"x{number}")

    asyncio.run(run())


def test_a_full_store_names_who_holds_what(node: Cluster) -> None:
    with node.connect() as client, node.connect() as other:
        client.put("kept", np.zeros(LARGE, np.uint8))
        client.put("held", np.zeros(LARGE, np.uint8))
        held = other.get("held")
        client.delete("held")
        with pytest.raises(hoplite.StoreFull) as caught:
            client.put("more", np.zeros(2 * LARGE, np.uint8), timeout=SHORT)
        assert f"(process {os.getpid()}) holds " in str(caught.value)
        assert "in 1 objects" in caught.value.holders
        node, kept, *_ = caught.value.holders.split(",")
        assert node == "on node-0"
        assert kept == f" objects that were put and not deleted take {size(LARGE)}"
        del held
        await_that("there is room", lambda: client.status()["free_bytes"] > 2 * LARGE)
        assert LARGE <= client.status()["pinned_bytes"] < LARGE + 4096
        client.put("more", np.zeros(2 * LARGE, np.uint8), timeout=PATIENCE)


def test_a_put_of_an_id_that_another_writer_has_still_waits(node: Cluster) -> None:
    with node.connect() as client:
        value = np.zeros(30 << 20, np.uint8)
        puts = [threading.Thread(target=client.put, args=("same", value)) for _ in range(4)]
        for put in puts:
            put.start()
        for put in puts:
            put.join()
        assert client.get("same").nbytes == value.nbytes


@pytest.fixture
def narrow(tmp_path: Path) -> Any:
    socket = str(tmp_path / "store.sock")
    options = ["--socket", socket, "--memory", "64MiB", "--no-prefault", "--print-addresses"]
    store = Daemon(
        tmp_path / "log", "hoplite-store", *options, "--max-references", "20", "--max-ids", "50"
    )
    yield socket
    store.stop()


def test_small_arrays_hold_no_references(narrow: str) -> None:
    with hoplite.connect(narrow) as client:
        for number in range(200):
            client.put(f"{number}", np.full(4, number))
        held = [client.get(f"{number}") for number in range(200)]
        held += client.gather([f"{number}" for number in range(10)])
        assert [int(array[0]) for array in held] == [*range(200), *range(10)]
        assert all(array.ctypes.data % 64 == 0 and not array.flags.writeable for array in held)
        assert client.delete([f"{number}" for number in range(200)]) == 200
        assert [int(array[0]) for array in held[:200]] == list(range(200))


def test_a_full_table_of_references_blocks_no_puts(narrow: str) -> None:
    with hoplite.connect(narrow) as client:
        for number in range(21):
            client.put(f"{number}", np.full(1000, number, np.int64))
        held = [client.get(f"{number}") for number in range(20)]
        with pytest.raises(hoplite.LimitExceeded, match="references"):
            client.get("20")
        client.put("large", np.zeros(1 << 20))
        client.put("small", np.zeros(3))
        client.put("large", np.zeros(1 << 20))
        client.put("small", np.zeros(3))
        held.pop()
        assert client.get("large").nbytes == 8 << 20


def test_deletes_and_waits_of_many_ids_are_divided(narrow: str) -> None:
    ids = [f"{number}" for number in range(333)]
    with hoplite.connect(narrow) as client:
        for id in ids[:300]:
            client.put(id, b"x", confirm=True)
        assert client.wait(ids, 0, 0) == (ids[:300], ids[300:])
        assert client.wait(ids[:300], timeout=PATIENCE) == (ids[:300], [])
        ready, missing = client.wait(ids, timeout=SHORT)
        assert (ready, missing) == (ids[:300], ids[300:])
        waiting = threading.Thread(
            target=lambda: ready.append(client.wait(ids, 301, PATIENCE)[0][-1])
        )
        waiting.start()
        client.put(ids[332], b"x", confirm=True)
        waiting.join()
        assert ready[-1] == ids[332]
        assert client.delete(ids) == 301
        assert client.wait(ids, timeout=0) == ([], ids)


def test_the_asynchronous_client_divides_them_too(narrow: str) -> None:
    ids = [f"{number}" for number in range(120)]

    async def run() -> int:
        async with await hoplite.aio.connect(narrow) as client:
            await asyncio.gather(*(client.put(id, b"x", confirm=True) for id in ids))
            assert (await client.wait(ids, timeout=PATIENCE))[0] == ids
            return await client.delete(ids)

    assert asyncio.run(run()) == 120
