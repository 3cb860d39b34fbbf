from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hoplite
from stores import PATIENCE, Cluster, await_that, used_bytes


def in_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_parents_client_is_refused(node: Cluster) -> None:
    with node.connect() as client:
        array = client.get(client.put("x", np.arange(100_000)))

        def work() -> None:
            for call in (
                lambda: client.get("x"),
                lambda: client.put("y", b"y"),
                lambda: client.delete("x"),
                lambda: client.status(),
            ):
                with pytest.raises(hoplite.ForkedChild) as caught:
                    call()
                assert (caught.value.connected, caught.value.current) == (os.getppid(), os.getpid())
            assert not client.usable
            assert array[7] == 7, "what the parent has is readable as long as it has it"
            client.close()

        in_child(work)
        assert (client.get("x") == array).all()


def test_what_a_child_drops_stays_the_parents(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        held = [client.get(client.put("x", np.zeros(1 << 20, np.uint8)))]
        client.delete("x")

        def work() -> None:
            held.clear()

        in_child(work)
        assert used_bytes(client) > empty
        held.clear()
        await_that("it is given back", lambda: used_bytes(client) == empty)


def test_a_child_connects_for_itself(node: Cluster) -> None:
    with node.connect() as client:
        client.put("from the parent", np.arange(10))

        def work() -> None:
            with node.connect() as own:
                assert own.get("from the parent").sum() == 45
                own.put("from the child", np.ones(100_000))

        in_child(work)
        assert client.get("from the child", PATIENCE).sum() == 100_000


def test_a_child_that_is_forked_while_threads_call(node: Cluster) -> None:
    import threading

    with node.connect() as client:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                client.put("x", b"x")
                client.get("x")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):

                def check() -> None:
                    with pytest.raises(hoplite.ForkedChild):
                        client.get("x")
                    with node.connect() as own:
                        assert own.get("x", PATIENCE) == b"x"

                in_child(check)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_asyncio_in_a_forked_child(node: Cluster) -> None:
    import asyncio

    import hoplite.aio

    async def main() -> None:
        async with await hoplite.aio.connect(node.sockets[0]) as client:
            await client.put("x", b"x")
            assert await client.get("x") == b"x"

    asyncio.run(main())
    in_child(lambda: asyncio.run(main()))
    asyncio.run(main())


def test_the_default_client_is_made_anew_in_a_child(node: Cluster) -> None:
    try:
        client = hoplite.init(node.sockets[0])
        assert hoplite.init() is client
        ref = client.put("x", np.arange(10))

        def work() -> None:
            own = hoplite.init()
            assert own is not client
            assert own.socket == client.socket
            assert own.get("x").sum() == 45
            assert ref.get().sum() == 45, "a handle uses what is of its process"

        in_child(work)
        assert hoplite.init() is client
        assert client.usable
    finally:
        hoplite.shutdown()


def double(socket: str, ref: hoplite.Ref) -> hoplite.Ref:
    client = hoplite.init(socket)
    assert ref.get(PATIENCE).flags.writeable is False
    return client.put(None, ref.get() * 2)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_handles_go_to_other_processes_and_come_back(node: Cluster, method: str) -> None:
    with node.connect() as client, multiprocessing.get_context(method).Pool(2) as pool:
        refs = [client.put(None, np.full(10_000, number)) for number in range(4)]
        doubled = pool.starmap(double, [(node.sockets[0], ref) for ref in refs])
        for number, ref in enumerate(doubled):
            assert isinstance(ref, hoplite.Ref)
            assert (client.get(ref) == 2 * number).all()


def test_clients_are_not_pickled(client: hoplite.Client) -> None:
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(client)


def test_a_worker_that_is_killed_leaves_nothing(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            own = node.connect()
            held: list[Any] = [own.put("x", np.zeros(8 << 20, np.uint8)), own.get("x")]
            os.write(told, b"!")
            while held:
                own.wait(["never there"])
        assert os.read(ready, 1) == b"!"
        assert used_bytes(client) > empty
        client.delete("x")
        assert used_bytes(client) > empty
        os.kill(child, 9)
        os.waitpid(child, 0)
        await_that("its references are taken back", lambda: used_bytes(client) == empty)
        os.close(ready)
        os.close(told)
