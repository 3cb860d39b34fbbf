from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster, await_that, retry

SOON = 0.2
OWNER = """
import hoplite, numpy, sys, time
client = hoplite.connect(sys.argv[1])
client.put("owned", numpy.arange(50_000), owner="client")
client.put("small", b"small", owner="client", confirm=True)
client.put("plain", b"plain", confirm=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(
        tmp_path, nodes=1, memory="64MiB", store_arguments=("--owner-grace", "200ms")
    ) as cluster:
        yield cluster


def await_end(client: hoplite.Client, id: str) -> None:
    await_that(f"{id} ends", lambda: client.stat(id) is None)


def test_an_object_ends_at_its_ttl_and_an_array_of_it_stays(
    client: hoplite.Client, fresh: str
) -> None:
    value = np.arange(100_000)
    id, array = put_and_get(client, fresh, value)
    await_end(client, id)
    assert not client.contains(id)
    assert (array == value).all()


def put_and_get(client: hoplite.Client, prefix: str, value: Any) -> tuple[str, Any]:
    """Puts with a growing ttl, until a get succeeds."""
    for number in itertools.count():
        id, ttl = f"{prefix}{number}", SOON * 2**number
        try:
            client.put(id, value, ttl=ttl)
            return id, client.get(id, 0)
        except (hoplite.Deleted, hoplite.ObjectLost, hoplite.Timeout):
            assert ttl < PATIENCE, "the object ends before its ttl"
    raise AssertionError


def test_stat_and_list_show_the_lifetime(client: hoplite.Client, fresh: str) -> None:
    client.put(fresh + "x", b"x", ttl=3600, owner="client", confirm=True)
    client.put(fresh + "y", b"y", ttl=7, ttl_action="free", confirm=True)
    info = retry(client.stat, fresh + "x")
    assert info is not None
    assert info.expires_in is not None
    assert 3000 < info.expires_in <= 3600
    assert (info.owner, info.ttl, info.ttl_action) == (client.owner, 3600.0, "delete")
    listed = {entry.id: entry for entry in client.list(fresh)}
    assert listed[fresh + "y"].ttl_action == "free"
    assert listed[fresh + "x"].owner == client.owner


def test_many_objects_share_a_lifetime(client: hoplite.Client, fresh: str) -> None:
    ids = [f"{fresh}{number}" for number in range(300)]
    puts = client.put_many(
        [(id, b"1") for id in ids], ttl=SOON, confirm=True, return_exceptions=True
    )
    assert all(isinstance(put, (hoplite.Ref, hoplite.Deleted)) for put in puts), puts
    await_that("they end", lambda: next(iter(client.list(fresh)), None) is None)


def test_the_objects_of_a_killed_process_are_deleted(store: Cluster) -> None:
    command = [sys.executable, "-c", OWNER, store.sockets[0]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        client = store.connect()
        assert client.get("owned")[-1] == 49_999
    finally:
        process.kill()
        process.wait()
    await_end(client, "owned")
    await_end(client, "small")
    assert client.get("plain") == b"plain"
    assert client.status()["abandoned"] == 2


def test_a_job_ends_with_its_last_process(store: Cluster) -> None:
    client = store.connect()

    async def work() -> None:
        async with await hoplite.aio.connect(store.sockets[0], owner=["job-7", "job-8"]) as other:
            await other.put("result", b"1", owner="job-7", confirm=True)
            assert other.owner != client.owner
            driver = hoplite.connect(store.sockets[0], owner="job-7")
        await asyncio.sleep(2 * SOON)
        assert client.get("result") == b"1"
        driver.close()

    asyncio.run(work())
    await_end(client, "result")


@pytest.mark.parametrize(
    "lifetime",
    [
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": math.nan},
        {"ttl": math.inf},
        {"ttl": 30 * 86400 + 1},
        {"ttl": 1, "ttl_action": "evict"},
        {"ttl_action": "free"},
        {"owner": ""},
        {"owner": "x" * 256},
        {"owner": "a\nb"},
        {"owner": "nobody holds this"},
    ],
)
def test_wrong_lifetimes_are_refused(
    client: hoplite.Client, fresh: str, lifetime: dict[str, Any]
) -> None:
    with pytest.raises(hoplite.InvalidRequest):
        client.put(fresh + "x", b"x", **lifetime)
    with pytest.raises(hoplite.InvalidRequest):
        client.put_many({fresh + "x": b"x"}, **lifetime)
    assert not client.contains(fresh + "x")


def test_wrong_owners_of_a_client_are_refused(cluster: Cluster) -> None:
    for owner in ("", "x" * 256, "a\0"):
        with pytest.raises(hoplite.InvalidRequest):
            hoplite.connect(cluster.sockets[0], owner=owner)
    with pytest.raises(hoplite.ConnectFailed, match="limited to 8"):
        hoplite.connect(cluster.sockets[0], owner=[f"job-{number}" for number in range(8)])
