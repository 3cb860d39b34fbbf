from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster, await_that, complaints, used_bytes


def test_many_calls_at_once(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            assert client.node == "node-0"
            arrays = [np.full(1000 + number, number, np.int32) for number in range(200)]
            gets = [
                asyncio.create_task(client.get(f"{fresh}{number}", PATIENCE))
                for number in range(200)
            ]
            await asyncio.sleep(0)
            refs = await asyncio.gather(
                *(client.put(f"{fresh}{n}", array, confirm=True) for n, array in enumerate(arrays))
            )
            for array, got in zip(arrays, await asyncio.gather(*gets), strict=True):
                assert (got == array).all()
            listed = [info.id async for info in client.list(fresh)]
            assert len(listed) == 200
            assert await client.delete(refs) == 200
            status = await client.status()
            assert status["node"] == "node-0"

    asyncio.run(main())


def test_the_event_loop_goes_on_while_calls_wait(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            waiting = asyncio.create_task(client.get(fresh, PATIENCE))
            for _ in range(100):
                await asyncio.sleep(0.001)
                assert not waiting.done()
            await client.put(fresh, b"there")
            assert await waiting == b"there"

    asyncio.run(main())


def test_cancelled_calls_end_in_the_store_too(node: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(node.sockets[0]) as client:
            empty = used_bytes(observer)
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get(fresh, None), 0.01)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.reduce(fresh, [fresh + "a", fresh + "b"]), 0.01)
            big = np.zeros(32 << 20, np.uint8)
            for delay in (0, 0, 0.0001, 0.001, 0.002, 0.005, 0.01):
                task = asyncio.create_task(client.put(fresh + "big", big))
                await asyncio.sleep(delay)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await client.delete(fresh + "big")
            await client.put(fresh, b"x")
            assert await client.get(fresh) == b"x"
            await client.delete(fresh)
            await asyncio.to_thread(
                await_that, "all is given back", lambda: used_bytes(observer) == empty
            )

    with node.connect() as observer:
        asyncio.run(main())


def test_an_array_in_a_cancelled_get_is_given_back(node: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(node.sockets[0]) as client:
            for _ in range(100):
                task = asyncio.create_task(client.get(fresh))
                await asyncio.sleep(0.0002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            del task
            await client.delete(fresh)
            gc.collect()
            await asyncio.to_thread(
                await_that, "it is given back", lambda: used_bytes(observer) == empty
            )

    with node.connect() as observer:
        empty = used_bytes(observer)
        observer.put(fresh, np.zeros(1 << 20, np.uint8))
        asyncio.run(main())


def test_several_event_loops_share_a_client(cluster: Cluster, fresh: str) -> None:
    async def connect() -> hoplite.aio.Client:
        return await hoplite.aio.connect(cluster.sockets[0])

    client = asyncio.run(connect())
    failures: list[BaseException] = []

    async def use(number: int) -> None:
        for round in range(50):
            name = f"{fresh}{number}/{round}"
            await client.put(name, np.full(100, number))
            assert (await client.get(name) == number).all()
            await client.delete(name)

    def run(number: int) -> None:
        try:
            asyncio.run(use(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_loops_that_end_leave_no_descriptors(cluster: Cluster) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            await client.status()
            left.append(asyncio.ensure_future(client.get("never there")))
            await asyncio.sleep(0)

    left: list[Any] = []

    def descriptors() -> int:
        left.clear()
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        asyncio.run(main())
    before = descriptors()
    for _ in range(10):
        asyncio.run(main())
    await_that("all are closed", lambda: descriptors() <= before)


def test_errors_are_those_of_the_other_client(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        with pytest.raises(hoplite.ConnectFailed) as refused:
            await hoplite.aio.connect("/nowhere/store.sock")
        assert refused.value.reason == "NoSuchSocket"
        client = await hoplite.aio.connect(cluster.sockets[0])
        with pytest.raises(hoplite.Timeout) as late:
            await client.get(fresh, 0.01)
        assert late.value.id == fresh
        await client.put(fresh, b"x")
        with pytest.raises(hoplite.AlreadyExists):
            await client.put(fresh, b"y")
        with pytest.raises(TypeError):
            await client.get(7)  # type: ignore[arg-type]
        await client.delete(fresh)
        client.close()
        assert not client.usable
        with pytest.raises(ValueError, match="closed"):
            await client.get(fresh)

    asyncio.run(main())


def test_collectives(cluster: Cluster, fresh: str) -> None:
    async def participant(rank: int) -> tuple[Any, Any]:
        client = await hoplite.aio.connect(cluster.sockets[rank])
        sources = [f"{fresh}{number}" for number in range(3)]
        total = await client.allreduce(
            fresh + "total", sources, rank, np.full(400_000, rank + 1.0), timeout=PATIENCE
        )
        out = np.zeros(400_000)
        peers = [f"{fresh}peer/{number}" for number in range(3)]
        everyone = await client.allgather(peers, rank, total + rank, PATIENCE)
        await client.allreduce(fresh + "next", peers, rank, out=out, timeout=PATIENCE)
        assert (out == 21).all()
        return total, everyone

    async def main() -> None:
        outcomes = await asyncio.gather(*(participant(rank) for rank in range(3)))
        for total, everyone in outcomes:
            assert (total == 6).all()
            assert total.flags.writeable
            assert [array[0] for array in everyone] == [6, 7, 8]
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            await client.delete_allreduce(
                fresh + "total", [f"{fresh}{number}" for number in range(3)]
            )
            await client.delete_allreduce(
                fresh + "next", [f"{fresh}peer/{number}" for number in range(3)]
            )
            assert [info.id async for info in client.list(fresh)] == []

    asyncio.run(main())


def test_programs_end_while_calls_wait(cluster: Cluster) -> None:
    code = f"""
import asyncio, threading, hoplite, hoplite.aio, numpy as np

async def main():
    client = await hoplite.aio.connect({cluster.sockets[0]!r})
    asyncio.ensure_future(client.get("never there"))
    asyncio.ensure_future(client.get_into("never there", np.zeros(10)))
    await asyncio.sleep(0.05)

def forever():
    hoplite.connect({cluster.sockets[0]!r}).get("never there")

threading.Thread(target=forever, daemon=True).start()
asyncio.run(main())
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "done\n", "")


def test_private_copies(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[1]) as client:
            value = np.random.default_rng(2).integers(0, 255, 10 << 20, np.uint8)
            ref = await client.put(fresh, {"deep": value})
            got = await client.get(ref, copy=True)
            assert (got["deep"] == value).all()
            assert got["deep"].flags.writeable
            out = bytearray(ref.nbytes or 0)
            assert await client.get_into(ref, out) == ref.nbytes
            started = time.monotonic()
            with pytest.raises(hoplite.Timeout):
                await client.get("never there", 0.05, copy=True)
            assert time.monotonic() - started >= 0.05
            await client.delete(ref)

    asyncio.run(main())


def test_a_loop_that_is_closed_while_calls_wait(node: Cluster, fresh: str) -> None:
    async def start() -> None:
        client = await hoplite.aio.connect(node.sockets[0])
        keep.append(client)
        keep.append(client._native.get(fresh, None))

    keep: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    gone = weakref.ref(loop)
    client = keep[0]
    keep.clear()
    del loop

    async def use() -> None:
        await client.status()

    asyncio.run(use())
    gc.collect()
    assert gone() is None
    with node.connect() as other:
        empty = used_bytes(other)
        other.put(fresh, np.zeros(1 << 20, np.uint8))
        other.delete(fresh)
        await_that("nobody holds it", lambda: used_bytes(other) == empty)


def test_buffers_are_released_when_a_call_is_done(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            buffer, room = bytearray(b"x" * 1000), bytearray(1000)
            await client.put(fresh, buffer)
            await client.get_into(fresh, room)
            for done in (buffer, room):
                done.append(1)
            await client.delete(fresh)

    asyncio.run(main())
