from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hoplite
from stores import PATIENCE, Cluster, await_that, complaints, retry


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("HOPLITE_SOCKET", raising=False)
    yield
    hoplite.shutdown()


def private_directories(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("hoplite-private-*"))


def run(code: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **options},
    )


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return re.search(r"\) (\w)", state).group(1) == "Z"  # type: ignore[union-attr]


def test_a_private_store(tmp_path: Path) -> None:
    client = hoplite.init(memory="32MiB")
    assert hoplite.init() is client
    assert client.status()["capacity_bytes"] == 32 << 20
    client.put("x", np.arange(10))
    assert client.get("x").sum() == 45
    assert os.environ["HOPLITE_SOCKET"] == client.socket
    (directory,) = private_directories(tmp_path)
    assert str(directory) in client.socket
    assert directory.stat().st_mode & 0o777 == 0o700
    array = client.get("x")
    hoplite.shutdown()
    hoplite.shutdown()
    assert array.sum() == 45
    assert private_directories(tmp_path) == []
    assert "HOPLITE_SOCKET" not in os.environ
    assert not client.usable
    again = hoplite.init()
    assert not again.contains("x")


def test_a_private_store_knows_its_directory_at_once() -> None:
    def is_connected() -> bool:
        hoplite.shutdown()
        return all(shard["connected"] for shard in hoplite.init(memory="32MiB").status()["shards"])

    await_that("a session at once", is_connected)
    client = hoplite.init(memory="32MiB")
    assert list(client.list()) == []
    client.put("x", b"1", confirm=True)
    assert retry(client.stat, "x").id == "x"


def test_processes_that_are_started_find_the_private_store() -> None:
    client = hoplite.init(memory="32MiB")
    done = run("import hoplite; hoplite.init().put('from the child', b'hello')")
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert client.get("from the child") == b"hello"


def test_a_temporary_directory_with_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("job-1234567.node-a012.cluster.example.org" * 4)
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    client = hoplite.init(memory="32MiB")
    assert len(client.socket) > 108
    client.put("x", np.arange(100_000))
    code = "import hoplite; print(hoplite.init().get('x').sum())"
    assert run(code).stdout.split() == [str(np.arange(100_000).sum())]


def test_a_squatter_is_not_taken_for_the_store_of_this_user(tmp_path: Path) -> None:
    place = tmp_path / "run" / "hoplite"
    place.mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(hoplite.ConnectFailed) as caught:
        hoplite.init()
    assert caught.value.reason == "UntrustedPlace"
    assert private_directories(tmp_path) == []


def test_the_store_of_the_machine_comes_first(
    node: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run" / "hoplite"
    place.mkdir(parents=True)
    (place / "store.sock").symlink_to(node.sockets[0])
    assert hoplite.init().node == "node-0"
    assert private_directories(tmp_path) == []
    with pytest.raises(hoplite.ConnectFailed, match="another store"):
        hoplite.init(tmp_path / "other")
    hoplite.shutdown()
    monkeypatch.setenv("HOPLITE_SOCKET", node.sockets[0])
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert hoplite.init().node == "node-0"
    hoplite.shutdown()
    monkeypatch.delenv("HOPLITE_SOCKET")
    assert hoplite.init(node.sockets[0]).node == "node-0"
    assert os.environ.get("HOPLITE_SOCKET") is None


def test_a_store_that_was_asked_for_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.init(tmp_path / "nothing")
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.init(start=False)
    monkeypatch.setenv("HOPLITE_SOCKET", str(tmp_path / "nothing"))
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.init()
    assert private_directories(tmp_path) == []


def test_settings_of_the_machine_are_not_for_a_private_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "HOPLITE_DIRECTORY": "127.0.0.1:1",
        "HOPLITE_ARENA_FILE": "/nowhere/arena",
        "HOPLITE_NODE_ID": "no good name!",
    }.items():
        monkeypatch.setenv(name, value)
    hoplite.init(memory="32MiB").put("x", b"x")


def test_what_keeps_a_private_store_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(hoplite.ConnectFailed, match=r"did not start: .*memory"):
        hoplite.init(memory="plenty")
    monkeypatch.setenv("HOPLITE_BINARIES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hoplite._programs.__file__", str(tmp_path / "x"))
    with pytest.raises(FileNotFoundError, match="hoplite-store"):
        hoplite.init()
    assert private_directories(tmp_path) == []


def test_threads_that_init_at_once_get_one_client(tmp_path: Path) -> None:
    clients: list[hoplite.Client] = []
    threads = [
        threading.Thread(target=lambda: clients.append(hoplite.init(memory="32MiB")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clients) == 8
    assert all(client is clients[0] for client in clients)
    assert len(private_directories(tmp_path)) == 1
    clients[0].put("x", b"x")


def test_the_store_ends_with_the_program(tmp_path: Path) -> None:
    code = """
import hoplite
client = hoplite.init(memory="32MiB")
from hoplite import _node
print(_node._state.store._process.pid)
"""
    done = run(code)
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert is_gone(int(done.stdout))
    assert private_directories(tmp_path) == []


@pytest.mark.parametrize(
    "how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)", "os.abort()"]
)
def test_the_store_ends_with_a_program_that_crashes(tmp_path: Path, how: str) -> None:
    code = f"""
import os, signal, threading, hoplite
from hoplite import _node
# In a thread that ends, since the end of a thread is what the system reports.
thread = threading.Thread(target=lambda: hoplite.init(memory="32MiB"))
thread.start()
thread.join()
hoplite.init().put("x", b"x")
print(_node._state.store._process.pid, flush=True)
{how}
"""
    done = run(code)
    assert done.returncode != 0
    await_that("the store has ended", lambda: is_gone(int(done.stdout)))
    assert len(private_directories(tmp_path)) == 1, "nobody was left to remove it"
    hoplite.init(memory="32MiB")
    (directory,) = private_directories(tmp_path)
    assert str(directory) in hoplite.init().socket, "it is removed by whoever comes next"


def test_a_forked_child_leaves_the_store_of_its_parent_alone() -> None:
    code = """
import os, sys, hoplite
client = hoplite.init(memory="32MiB")
client.put("x", b"x")
child = os.fork()
if child == 0:
    assert hoplite.init().get("x") == b"x"
    hoplite.init().put("y", b"y")
    hoplite.shutdown()
    assert hoplite.init().get("x") == b"x"
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.get("y") == b"y"
"""
    done = run(code)
    assert (done.returncode, complaints(done.stderr)) == (0, "")


def test_a_private_store_that_died_is_replaced(tmp_path: Path) -> None:
    from hoplite import _node

    client = hoplite.init(memory="32MiB")
    store = _node._state.store
    assert store is not None
    store._process.kill()
    store._process.wait()
    with pytest.raises(hoplite.ConnectFailed):
        client.get("x")
    again = hoplite.init(memory="32MiB")
    assert again is not client
    again.put("x", b"x")
    assert len(private_directories(tmp_path)) == 1


def test_control_c_is_not_for_the_store() -> None:
    code = """
import os, signal, hoplite
client = hoplite.init(memory="32MiB")
try:
    os.killpg(0, signal.SIGINT)
    client.get("never there")
except KeyboardInterrupt:
    client.put("x", b"x")
    print(client.get("x"))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "b'x'\n")
    assert process.returncode != -signal.SIGINT


def test_one_place_may_be_named_in_several_ways(node: Cluster) -> None:
    client = hoplite.init(node.sockets[0])
    assert hoplite.init(Path(node.sockets[0])) is client


def test_control_c_while_a_private_store_starts(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "hoplite-store"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000\n"
    )
    program.chmod(0o755)
    code = "import hoplite; hoplite.init()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        env={**os.environ, "HOPLITE_BINARIES": str(program.parent)},
    ) as process:
        pid = tmp_path / "pid"
        await_that("it has been started", pid.exists)
        store = int(pid.read_text())
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in said
    assert is_gone(store)
    assert private_directories(tmp_path) == []


def test_nobody_elses_directories_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "hoplite-private-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "lock")
    monkeypatch.setattr("os.getuid", lambda: theirs.stat().st_uid + 1)
    hoplite.init(memory="32MiB").put("x", b"x")
    assert theirs.exists()
