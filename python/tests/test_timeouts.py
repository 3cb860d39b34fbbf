from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster

CALLS = """
import asyncio, sys, hoplite, hoplite.aio
socket = sys.argv[1]
client = hoplite.connect(socket)

def calls(client):
    yield lambda: client.get("never")
    yield lambda: client.get("never", copy=True)
    yield lambda: client.get_into("never", bytearray(8))
    yield lambda: client.gather(["never"])
    yield lambda: client.reduce("sum", ["never"])
    yield lambda: client.barrier("meeting", 2, 0)
    yield lambda: client.allgather(["own", "never"], 0, b"x")

for call in calls(client):
    try:
        call()
    except TimeoutError as error:
        print(type(error).__name__)
ready, missing = client.wait(["never"])
print(len(ready))

async def main():
    client = await hoplite.aio.connect(socket)
    for call in calls(client):
        try:
            await call()
        except TimeoutError as error:
            print(type(error).__name__)

asyncio.run(main())
"""


def run(code: str, *arguments: str, timeout: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "HOPLITE_TIMEOUT": timeout},
    )


def test_the_environment_sets_the_default_of_all_calls(node: Cluster) -> None:
    done = run(CALLS, node.sockets[0], timeout="250ms")
    assert done.returncode == 0, done.stderr
    sync = ["Timeout"] * 5 + ["RanksMissing", "Timeout"]
    assert done.stdout.split() == [*sync, "0", *sync]


def test_a_wrong_variable_is_an_error_that_names_it(node: Cluster) -> None:
    code = """
import sys, hoplite
try:
    hoplite.connect(sys.argv[1])
except hoplite.InvalidRequest as error:
    print(error)
"""
    done = run(code, node.sockets[0], timeout="soon")
    assert "HOPLITE_TIMEOUT" in done.stdout
    assert '"soon" is not a timeout' in done.stdout
    code = "import hoplite._native; print(hoplite._native.default_timeout())"
    for timeout, default in {"": "300.0", "7": "7.0", "1min 30s": "90.0", "never": "None"}.items():
        assert run(code, timeout=timeout).stdout.strip() == default


def test_timeouts_that_are_none(client: hoplite.Client) -> None:
    for copy in (None, True):
        for number in (-1.0, float("nan")):
            with pytest.raises(ValueError, match='"default"'):
                client.get("never", number, copy)
        for text in ("soon", "", "1"):
            with pytest.raises(TypeError):
                client.get("never", text, copy)  # type: ignore[arg-type]


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[logging.LogRecord] = []
        self.came = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.came:
            self.all.append(record)
            self.came.notify_all()

    def until(self, count: int) -> list[str]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.all) >= count, PATIENCE)
            return [f"{record.levelname}: {record.getMessage()}" for record in self.all]

    def __enter__(self) -> Records:
        logging.getLogger("hoplite").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("hoplite").removeHandler(self)


def test_calls_that_wait_for_long_say_once_what_is_missing(cluster: Cluster, fresh: str) -> None:
    late = [f"{fresh}{number}" for number in range(3)]
    got: list[Any] = []

    async def wait() -> None:
        async with await hoplite.aio.connect(cluster.sockets[1]) as client:
            got.append(await client.get(late[2], None))

    with hoplite.connect(cluster.sockets[0]) as client, Records() as records:
        threads = [
            threading.Thread(target=lambda: got.append(client.get(late[0], None))),
            threading.Thread(target=lambda: got.append(client.gather(late[:2], None))),
            threading.Thread(target=lambda: asyncio.run(wait())),
        ]
        for thread in threads:
            thread.start()
        said = records.until(3)
        for id in late:
            client.put(id, b"x")
        for thread in threads:
            thread.join(PATIENCE)
        assert len(got) == 3
        assert len(records.all) == 3, "once for each call"
    waited = "has waited 10s and goes on: missing:"
    assert sorted(said) == [
        f"WARNING: gather of {late[0]} {waited} {late[0]}, {late[1]}",
        f"WARNING: get of {late[0]} {waited} {late[0]}",
        f"WARNING: get of {late[2]} {waited} {late[2]}",
    ]


def test_init_reports_that_it_starts_a_private_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("HOPLITE_SOCKET", raising=False)
    hoplite.shutdown()
    try:
        with Records() as records:
            client = hoplite.init(memory="32MiB")
            hoplite.init()
            (said,) = records.until(1)
        assert said.startswith(
            f"WARNING: no store listens at {tmp_path}/hoplite/store.sock: started a private store"
        )
        assert client.socket in said
    finally:
        hoplite.shutdown()
        monkeypatch.delenv("HOPLITE_SOCKET", raising=False)


def test_init_with_an_address_never_starts_a_store(tmp_path: Path, node: Cluster) -> None:
    hoplite.shutdown()
    try:
        for arguments in ({"socket": tmp_path / "none"}, {"address": tmp_path / "none"}):
            with pytest.raises(hoplite.ConnectFailed) as caught:
                hoplite.init(**arguments, start=True)  # type: ignore[arg-type]
            assert caught.value.reason == "NoSuchSocket"
        with pytest.raises(TypeError, match="two names"):
            hoplite.init("here", address="there")
        client = hoplite.init(address=node.sockets[0])
        assert client.socket == node.sockets[0]
        assert asyncio.run(_connected(node.sockets[0])) == "node-0"
    finally:
        hoplite.shutdown()


async def _connected(address: str) -> str:
    async with await hoplite.aio.init(address=address) as client:
        return client.node
