from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, Cluster, Daemon, await_that, complaints, retry, used_bytes

#: Python warns about forks with threads.
NO_WARNING = ["-W", "ignore::DeprecationWarning"]


def test_a_handle_says_what_it_stands_for(client: hoplite.Client) -> None:
    ref = client.put(None, np.zeros((2, 3), np.float32))
    assert isinstance(ref.id, str)
    assert (ref.dtype, ref.shape, ref.nbytes) == ("float32", (2, 3), 24)
    assert repr(ref) == f"hoplite.Ref({ref.id!r}, float32[2, 3])"
    assert (ref.get() == 0).all()
    assert not ref.owned
    other = client.put(None, {"a": 1})
    assert other.id != ref.id
    assert (other.dtype, other.shape) == (None, None)
    assert repr(other) == f"hoplite.Ref({other.id!r})"
    client.delete([ref, other])


def test_handles_of_one_object_are_equal(client: hoplite.Client) -> None:
    assert hoplite.Ref("abc") == hoplite.Ref(b"abc") == client.ref("abc")
    assert hash(hoplite.Ref("abc")) == hash(hoplite.Ref(b"abc", "float32", (1,), 4))
    assert hoplite.Ref("abc") != hoplite.Ref("abd")
    assert hoplite.Ref("abc") != "abc"
    assert len({hoplite.Ref("abc"), hoplite.Ref(b"abc")}) == 1


def test_handles_are_small_and_are_pickled(client: hoplite.Client) -> None:
    with client.put("name", np.zeros(100_000)) as ref:
        for again in (pickle.loads(pickle.dumps(ref)), copy.copy(ref), copy.deepcopy(ref)):
            assert again == ref
            assert (again.dtype, again.shape, again.nbytes) == (ref.dtype, ref.shape, ref.nbytes)
            assert not again.owned
            assert (client.get(again) == 0).all()
            del again
        assert len(pickle.dumps(ref)) < 200


def test_a_handle_takes_the_place_of_an_id_everywhere(client: hoplite.Client, fresh: str) -> None:
    first, second = client.put(None, np.ones(3)), client.put(None, np.ones(3))
    target = client.ref(fresh)
    assert client.reduce(target, [first, second.id], timeout=PATIENCE) in (
        [first, second.id],
        [second.id, first],
    )
    assert (target.get() == 2).all()
    assert client.wait([first, second, hoplite.Ref("never there")], 2, PATIENCE)[0] == [
        first,
        second,
    ]
    assert client.contains(first)
    known = retry(client.stat, target)
    assert known is not None
    assert known.id == fresh
    assert [array[0] for array in client.gather([first, target])] == [1, 2]
    assert client.delete([first, second, target]) == 3


def test_what_is_available_now(cluster: Cluster, client: hoplite.Client, fresh: str) -> None:
    ids = [fresh + name for name in ("here", "there", "never there", "large")]
    with cluster.connect(1) as other:
        client.put(ids[0], b"x", confirm=True)
        other.put(ids[1], b"x", confirm=True)
        other.put(ids[3], np.zeros(100_000))
        assert client.wait(ids[3:]) == (ids[3:], [])
        assert client.wait(ids, timeout=0) == ([ids[0], ids[1], ids[3]], [ids[2]])
        assert client.wait(ids[2:3], timeout=0) == ([], ids[2:3])
    client.delete(ids)


def test_the_end_of_a_block(client: hoplite.Client) -> None:
    with client.put(None, b"x") as ref:
        assert ref.owned
        assert client.get(ref) == b"x"
    assert not ref.owned
    assert not client.contains(ref)
    with pytest.raises(KeyError), client.put(None, b"y") as ref:
        raise KeyError
    assert not client.contains(ref)
    with client.put(None, b"z") as ref:
        client.delete(ref)


def test_the_end_of_an_owner(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        ref = client.put(None, np.zeros(1 << 20, np.uint8)).own()
        assert ref.own() is ref
        copied = pickle.loads(pickle.dumps(ref))
        del copied
        gc.collect()
        assert used_bytes(client) > empty
        cycle = [ref]
        cycle.append(cycle)  # type: ignore[arg-type]
        del ref, cycle
        gc.collect()
        await_that("it is deleted", lambda: used_bytes(client) == empty)
        left = client.put("left", b"x").own().disown()
        assert not left.owned
        del left
        many = [client.put(None, np.zeros(1000, np.uint8)).own() for _ in range(2000)]
        threads = [threading.Thread(target=many.clear)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await_that("all are deleted", lambda: [info.id for info in client.list()] == ["left"])
        ref = client.put("explicit", b"x").own()
        ref.delete()
        assert not ref.owned
        client.put("explicit", b"y")
        del ref
        client.put(None, b"z").own()
        await_that("it is deleted", lambda: [info.id for info in client.list("py/")] == [])
        assert client.get("explicit") == b"y"


def test_the_end_of_the_program(node: Cluster) -> None:
    code = f"""
import hoplite, numpy as np
client = hoplite.connect({node.sockets[0]!r})
owned = client.put("owned", np.zeros(100_000)).own()
left = client.put("left", np.zeros(100_000))
client.put("dropped", np.zeros(100_000)).own()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    with node.connect() as client:
        assert [info.id for info in client.list()] == ["left"]


def test_owners_whose_store_is_gone_do_no_harm(node: Cluster, tmp_path: Path) -> None:
    code = f"""
import hoplite, os, signal
client = hoplite.connect({node.sockets[0]!r})
owned = [client.put(None, b"x").own() for _ in range(10)]
os.kill({node.store(0).process.pid}, signal.SIGKILL)
owned.pop()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "", "")


def test_a_forked_child_owns_nothing(node: Cluster) -> None:
    code = f"""
import os, gc, hoplite
client = hoplite.connect({node.sockets[0]!r})
ref = client.put("x", b"x").own()
child = os.fork()
if child == 0:
    del ref
    gc.collect()
    raise SystemExit
os.waitpid(child, 0)
assert client.get("x") == b"x"
ref.disown()
"""
    done = subprocess.run(
        [sys.executable, *NO_WARNING, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    with node.connect() as client:
        assert client.get("x", PATIENCE) == b"x"


def test_owners_outlive_the_client(node: Cluster) -> None:
    with node.connect() as observer:
        client = node.connect()
        refs = [client.put(f"x/{number}", b"x").own() for number in range(3)]
        client.close()
        with pytest.raises(ValueError, match="closed"):
            client.get("x/0")
        assert observer.contains("x/0")
        del refs
        await_that("all are deleted", lambda: [info.id for info in observer.list()] == [])


@pytest.mark.parametrize("before", ["", "import weakref; weakref.finalize(object, print)"])
def test_the_end_of_a_program_with_the_client_of_init(node: Cluster, before: str) -> None:
    code = f"""
{before or "pass"}
import hoplite
import hoplite.aio
owned = [hoplite.init({node.sockets[0]!r}).put(None, b"x").own() for _ in range(100)]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    with node.connect() as client:
        assert [info.id for info in client.list()] == []


def test_a_forked_child_may_become_an_owner(node: Cluster) -> None:
    code = f"""
import os, gc, hoplite
ref = hoplite.init({node.sockets[0]!r}).put("x", b"x").own()
child = os.fork()
if child == 0:
    assert not ref.owned
    assert ref.own().owned
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
assert ref.owned
assert not hoplite.init().contains("x")
"""
    done = subprocess.run(
        [sys.executable, *NO_WARNING, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")


@pytest.fixture
def other_cluster(tmp_path: Path) -> Iterator[hoplite.Client]:
    socket = str(tmp_path / "store.sock")
    options = ["--socket", socket, "--memory", "32MiB", "--no-prefault", "--print-addresses"]
    store = Daemon(tmp_path / "log", "hoplite-store", *options, "--cluster", "elsewhere")
    with hoplite.connect(socket) as client:
        yield client
    store.stop()


def test_a_handle_of_another_cluster_names_nothing_here(
    client: hoplite.Client, other_cluster: hoplite.Client, fresh: str
) -> None:
    assert (client.cluster, other_cluster.cluster) == ("hoplite", "elsewhere")
    id = fresh + "same"
    ours, theirs = client.put(id, b"ours"), other_cluster.put(id, b"theirs")
    assert (ours.cluster, theirs.cluster) == ("hoplite", "elsewhere")
    assert client.ref(id).cluster == "hoplite"
    assert ours != theirs
    assert ours == hoplite.Ref(id)
    travelled = pickle.loads(pickle.dumps(ours))
    assert travelled.cluster == "hoplite"
    calls = [
        lambda: other_cluster.get(travelled),
        lambda: other_cluster.get(travelled, copy=True),
        lambda: other_cluster.get_into(travelled, bytearray(10)),
        lambda: other_cluster.put(travelled, b"x"),
        lambda: other_cluster.delete(travelled),
        lambda: other_cluster.delete([id, travelled]),
        lambda: other_cluster.gather([id, travelled]),
        lambda: other_cluster.wait([travelled], timeout=0),
        lambda: other_cluster.reduce("t", [travelled]),
        lambda: other_cluster.reduce(travelled, ["s"]),
        lambda: other_cluster.allreduce("t", [travelled], 0, np.ones(3)),
        lambda: other_cluster.allgather([travelled], 0, b"x"),
        lambda: other_cluster.barrier(travelled, 1, 0),
        lambda: other_cluster.contains(travelled),
        lambda: other_cluster.stat(travelled),
        lambda: hoplite.Ref(id, cluster="hoplite", client=other_cluster).get(),
        lambda: hoplite.Ref(id, cluster="hoplite", client=other_cluster).delete(),
        lambda: hoplite.Ref(id, cluster="hoplite", client=other_cluster).own(),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(hoplite.ClusterMismatch) as caught:
            call()
        error = caught.value
        assert (error.id, error.ref_cluster, error.store_cluster) == (id, "hoplite", "elsewhere"), (
            number
        )
        assert '"hoplite"' in str(error) or "'hoplite'" in str(error)
        assert "elsewhere" in str(error)
    assert other_cluster.get(id) == b"theirs"
    assert client.get(travelled) == b"ours"
    client.delete(travelled)


def test_the_asynchronous_client_refuses_it_too(
    cluster: Cluster, client: hoplite.Client, other_cluster: hoplite.Client, fresh: str
) -> None:
    theirs = other_cluster.put(fresh, b"theirs")

    async def look() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as here:
            assert here.cluster == "hoplite"
            with pytest.raises(hoplite.ClusterMismatch):
                await here.get(theirs)
            assert (await here.put(fresh + "x", b"x")).cluster == "hoplite"

    asyncio.run(look())
    client.delete(fresh + "x")


def test_handles_that_were_pickled_before_name_no_cluster(
    client: hoplite.Client, fresh: str
) -> None:
    client.put(fresh, b"x")
    old = hoplite.Ref(fresh, None, None, 1)
    assert old.cluster is None
    assert client.get(old) == b"x"
    client.delete(old)


def test_a_private_store_is_a_cluster_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    hoplite.shutdown()
    first = hoplite.init(memory="16MiB").put("x", b"x")
    assert first.cluster is not None
    assert first.cluster.startswith("private-")
    hoplite.shutdown()
    hoplite.init(memory="16MiB").put("x", b"y")
    with pytest.raises(hoplite.ClusterMismatch):
        hoplite.init().delete(first)
    hoplite.shutdown()
