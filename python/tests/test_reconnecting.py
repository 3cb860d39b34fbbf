from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.aio
from hoplite._group import link as links
from hoplite._programs import program
from stores import PATIENCE, Cluster, await_that


def waiting(node: Cluster) -> int:
    command = [program("hoplite"), "--socket", node.sockets[0], "status", "--json"]
    status = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return int(status["shards"][0]["waiting_queries"])


def test_the_next_call_succeeds_or_reports_what_was_lost(node: Cluster) -> None:
    with node.connect() as client:
        array = np.arange(100_000)
        ref = client.put("x", array)
        got = client.get(ref)
        own = client.put(None, array).own()
        node.restart(0)
        client.put("y", b"y")
        assert client.usable
        assert client.get("y") == b"y"
        assert (got == array).all(), "an array outlives its store"
        with pytest.raises(hoplite.ObjectLost):
            client.get(ref, PATIENCE)
        del own
        node.restart(0)
        assert client.get("y", PATIENCE) == b"y", "a small object is in the directory too"
        assert client.node == "node-0"


def test_so_does_the_client_for_asyncio(node: Cluster) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(node.sockets[0]) as client:
            await client.put("x", bytes(100_000))
            await asyncio.to_thread(node.restart, 0)
            await asyncio.gather(*(client.put(f"y/{number}", b"y") for number in range(20)))
            assert client.usable
            with pytest.raises(hoplite.ObjectLost):
                await client.get("x", PATIENCE)

    asyncio.run(main())


def test_the_client_of_init_stays(node: Cluster) -> None:
    try:
        client = hoplite.init(node.sockets[0])
        node.restart(0)
        client.put("y", b"y")
        assert hoplite.init() is client
    finally:
        hoplite.shutdown()


def test_a_call_in_flight_says_if_it_may_be_made_again(node: Cluster) -> None:
    outcomes: dict[str, BaseException] = {}
    with node.connect() as client:

        def perform(name: str, call: Callable[[], Any]) -> None:
            try:
                call()
            except hoplite.HopliteError as error:
                outcomes[name] = error

        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: client.get("late", None),
            "private get": lambda: client.get("late private", None, copy=True),
            "gather": lambda: client.gather(["late 1", "late 2"], None),
            "reduce": lambda: client.reduce("sum", ["late 4"], timeout=None),
            "barrier": lambda: client.barrier("meeting", 2, 1, None),
        }
        threads = [threading.Thread(target=perform, args=call) for call in calls.items()]
        for thread in threads:
            thread.start()

        def all_wait() -> bool:
            with node.connect() as other:
                return waiting(node) >= 6 and bool(other.status()["reduces"] >= 1)

        async def get_and_kill() -> BaseException:
            async with await hoplite.aio.connect(node.sockets[0]) as other:
                get = asyncio.ensure_future(other.get("late 5", None))
                await asyncio.to_thread(await_that, "all wait", all_wait)
                await asyncio.to_thread(node.store(0).kill)
                with pytest.raises(hoplite.ConnectionLost) as caught:
                    await get
                return caught.value

        outcomes["aio"] = asyncio.run(get_and_kill())
        for thread in threads:
            thread.join(PATIENCE)
    assert all(isinstance(error, hoplite.ConnectionLost) for error in outcomes.values()), outcomes
    assert {name: error.retryable for name, error in outcomes.items()} == {  # type: ignore[attr-defined]
        "get": True,
        "private get": True,
        "gather": True,
        "reduce": False,
        "barrier": False,
        "aio": True,
    }
    assert "may have performed" in str(outcomes["reduce"])


def connected_within(socket: str, timeout: float) -> hoplite.Client:
    """Returns a client with this timeout, which the first attempts may exceed."""
    found: list[hoplite.Client] = []

    def connects() -> bool:
        try:
            found.append(hoplite.connect(socket, timeout=timeout))
        except hoplite.ConnectFailed as error:
            if error.reason != "TimedOut":
                raise
        return bool(found)

    await_that("the store answers in time", connects)
    return found[0]


def test_a_store_that_stays_away_is_waited_for_once(node: Cluster) -> None:
    with connected_within(node.sockets[0], 0.2) as client:
        client.put("x", b"x")
        node.store(0).kill()
        for _ in range(50):
            with pytest.raises(hoplite.ConnectFailed) as caught:
                client.get("x")
            assert caught.value.reason in ("NotListening", "TimedOut")
            assert caught.value.retryable
            assert not client.usable
        node.start_again(0)

        def is_put() -> bool:
            try:
                client.put("x", b"x")
            except hoplite.ConnectFailed as error:
                if error.reason != "TimedOut":
                    raise
                return False
            return True

        await_that("the store to answer", is_put)
        assert client.usable


def test_a_call_waits_for_a_store_no_longer_than_its_timeout(node: Cluster) -> None:
    async def get_with_asyncio() -> None:
        async with await hoplite.aio.connect(node.sockets[0], timeout=10 * PATIENCE) as client:
            node.store(0).kill()
            with pytest.raises(hoplite.ConnectFailed):
                await asyncio.wait_for(client.get("x", timeout=0.1), PATIENCE)

    with hoplite.connect(node.sockets[0], timeout=10 * PATIENCE) as client:
        asyncio.run(get_with_asyncio())
        started = time.monotonic()
        with pytest.raises(hoplite.ConnectFailed):
            client.get("x", timeout=0.1)
        assert time.monotonic() - started < PATIENCE


def test_control_c_ends_the_wait_for_a_store(node: Cluster) -> None:
    import signal

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    def get_with_alarm(client: hoplite.Client) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        client.get("x")

    with hoplite.connect(node.sockets[0], timeout=PATIENCE) as client:
        node.store(0).kill()
        before = signal.signal(signal.SIGALRM, raise_it)
        try:
            started = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                get_with_alarm(client)
            assert time.monotonic() - started < PATIENCE / 2
        finally:
            signal.signal(signal.SIGALRM, before)
        node.start_again(0)
        client.put("x", b"x")


def test_a_group_ends_with_its_store(node: Cluster) -> None:
    link = links.acquire(node.sockets[0], "test")
    assert link.is_alive()
    node.restart(0)
    assert not link.is_alive(), "what it has put is gone, and no other store takes its place"
    again = links.acquire(node.sockets[0], "test")
    assert again is not link
    assert again.is_alive()
    again.release()
    link.release()
