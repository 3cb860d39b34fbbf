from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster, await_that, retry


def test_arrays_stay_readable_when_the_store_dies(node: Cluster) -> None:
    client = node.connect()
    value = np.random.default_rng(3).random(2_000_000)
    ref = client.put(None, value)
    nested = client.put(None, {"value": value})
    array, inner = client.get(ref), client.get(nested)["value"]
    node.store(0).kill()
    for call in (
        lambda: client.get(ref),
        lambda: client.put("x", b"x"),
        lambda: client.reduce("y", ["x"]),
        lambda: client.status(),
    ):
        with pytest.raises(hoplite.ConnectFailed) as caught:
            call()
        assert caught.value.path == node.sockets[0]
        assert isinstance(caught.value, ConnectionError)
    assert not client.usable
    assert (array == value).all()
    assert (inner[::-1] == value[::-1]).all()
    client.close()
    assert (array == value).all()


def test_whoever_waits_hears_of_the_death_of_the_store(node: Cluster) -> None:
    client, watcher = node.connect(), node.connect()
    raised: list[BaseException] = []

    def work(number: int) -> None:
        try:
            client.get(f"never there {number}")
        except hoplite.ConnectionLost as error:
            raised.append(error)

    def is_waited_for(id: str) -> bool:
        return bool(watcher._native.describe(id)["waiting_receivers"])

    async def main() -> None:
        other = await hoplite.aio.connect(node.sockets[0])
        waits = [asyncio.ensure_future(other.get(f"nor here {number}")) for number in range(4)]
        ids = [f"{name} {number}" for name in ("never there", "nor here") for number in range(4)]
        await asyncio.to_thread(
            await_that, "gets that wait at the store", lambda: all(map(is_waited_for, ids))
        )
        await asyncio.to_thread(node.store(0).kill)
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(outcome, hoplite.ConnectionLost)
        assert not other.usable

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join(PATIENCE)
    assert len(raised) == 4


def test_init_connects_again_to_a_store_that_was_restarted(node: Cluster) -> None:
    try:
        client = hoplite.init(node.sockets[0])
        client.put("x", b"x")
        node.store(0).kill()
        with pytest.raises(hoplite.ConnectFailed):
            client.get("x")
        with pytest.raises(hoplite.ConnectFailed) as caught:
            hoplite.init()
        assert caught.value.reason in ("NotListening", "NoSuchSocket")
        node.start_again(0)
        again = hoplite.init()
        assert again is not client
        again.put("y", b"y")
        assert again.get("y") == b"y"
    finally:
        hoplite.shutdown()


def test_a_store_that_is_stopped_answers_late(node: Cluster) -> None:
    client = node.connect()
    node.store(0).process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(hoplite.Timeout) as caught:
            client.get("x", 0.1)
        assert caught.value.operation == "get"
    finally:
        node.store(0).process.send_signal(signal.SIGCONT)
    client.put("x", b"x")
    assert client.get("x", PATIENCE) == b"x"


def test_a_get_may_allow_a_stale_value_while_the_directory_is_down(node: Cluster) -> None:
    client = node.connect()
    values = {"small": b"x", "large": np.arange(100_000)}
    refs = {name: client.put(name, value, confirm=True) for name, value in values.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client.get("small", allow_stale=True) == b"x"
    node.daemons[0].kill()
    await_that(
        "the session ends", lambda: not any(s["connected"] for s in client.status()["shards"])
    )

    async def get(name: str) -> object:
        other = await hoplite.aio.connect(node.sockets[0])
        return await other.get(name, PATIENCE, allow_stale=True)

    for name, value in values.items():
        with pytest.raises(hoplite.Timeout):
            client.get(name, 0.1)
        gets: list[Callable[[], object]] = [
            lambda name=name: client.get(name, PATIENCE, allow_stale=True),
            lambda name=name: client.get(name, PATIENCE, copy=True, allow_stale=True),
            lambda name=name: refs[name].get(PATIENCE, allow_stale=True),
            lambda name=name: client.get_many([name], PATIENCE, allow_stale=True)[0],
            lambda name=name: asyncio.run(get(name)),
        ]
        for stale in gets:
            with pytest.warns(hoplite.StaleWarning, match=name) as caught:
                assert np.array_equal(stale(), value)
            assert caught[0].filename == __file__


def test_a_full_store(node: Cluster) -> None:
    with node.connect() as client:
        client.put("filler", np.zeros(40 << 20, np.uint8))
        with pytest.raises(hoplite.StoreFull) as full:
            client.put("more", np.zeros(40 << 20, np.uint8), 0.1)
        assert full.value.id == "more"
        assert full.value.needed_bytes >= 40 << 20
        assert full.value.free_bytes < full.value.needed_bytes <= full.value.capacity_bytes
        assert full.value.retryable
        with pytest.raises(hoplite.ObjectTooLarge) as large:
            client.put("too much", np.zeros(65 << 20, np.uint8))
        assert (large.value.id, large.value.size_bytes) == ("too much", 65 << 20)
        assert large.value.limit_bytes <= 64 << 20
        assert "of 65.0 MiB" in str(large.value)
        assert "memory=" in str(large.value)
        thread = threading.Thread(
            target=client.put, args=("more", np.ones(40 << 20, np.uint8), PATIENCE)
        )
        thread.start()
        client.delete("filler")
        thread.join(PATIENCE)
        assert client.get("more", PATIENCE)[-1] == 1


def test_an_object_that_is_lost(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=2, memory="32MiB") as cluster, cluster.connect(0) as client:
        with cluster.connect(1) as other:
            other.put("x", np.zeros(1 << 20, np.uint8))
        assert client.contains("x")
        cluster.store(1).kill()
        with pytest.raises(hoplite.ObjectLost) as caught:
            client.get("x", PATIENCE)
        assert caught.value.id == "x"
        with pytest.raises(hoplite.ObjectLost) as caught:
            client.reduce("y", ["x"], timeout=PATIENCE)
        assert caught.value.id == "x"


def test_a_delete_names_the_nodes_that_did_not_confirm_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=2, memory="64MiB") as cluster, cluster.connect() as client:
        for id in ("x", "y"):
            client.put(id, np.ones(100_000))
            with cluster.connect(1) as other:
                other.get(id)
        cluster.store(1).kill()
        deletion = client.delete("x")
        assert deletion == 1
        assert (deletion.absent, deletion.absent_count) == (("node-1",), 1)
        assert repr(deletion) == "<hoplite.Deletion 1 absent=1: node-1>"

        def names_the_node() -> bool:
            with pytest.raises(hoplite.Timeout) as caught:
                client.delete("y", 0.5, wait="all")
            return caught.value.peers == ["node-1"]

        await_that("the directory answers in time", names_the_node)
        cluster.start_again(1)

        async def delete() -> hoplite.Deletion:
            async with await hoplite.aio.connect(cluster.sockets[0]) as other:
                return await other.delete(["x", "y"], PATIENCE, wait="all")

        assert not asyncio.run(delete()).absent
        with pytest.raises(ValueError, match="wait must be"):
            client.delete("x", wait="some")  # type: ignore[arg-type]


def test_a_put_with_a_quorum_needs_the_shards(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=1, memory="64MiB") as cluster, cluster.connect() as client:
        retry(client.put, "x", 1, if_absent="quorum")
        with pytest.raises(ValueError, match="if_absent must be"):
            client.put("y", 1, if_absent="all")  # type: ignore[call-overload]
        cluster.daemons[0].kill()
        await_that(
            "the end of the session",
            lambda: not any(shard["connected"] for shard in client.status()["shards"]),
        )
        with pytest.raises(hoplite.Unavailable) as caught:
            client.put("y", 1, if_absent="quorum")
        assert caught.value.retryable
