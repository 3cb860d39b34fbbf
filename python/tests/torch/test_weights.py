from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ranks
from ranks import Setting

import hoplite
from stores import PATIENCE, Cluster, Daemon, await_that, retry

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

import hoplite.torch  # noqa: E402
from hoplite.torch import (  # noqa: E402
    RankFailed,
    StateDictMismatch,
    VersionLost,
    delete_state_dict,
    get_state_dict,
    put_state_dict,
    put_tensors,
    state_dict_versions,
    stream_state_dict,
)


@pytest.fixture
def name(client: hoplite.Client, fresh: str) -> Iterator[str]:
    before = {info.id for info in client.list("weights")}
    yield fresh
    delete_state_dict(fresh, client=client)
    await_that("nothing is left", lambda: {info.id for info in client.list("weights")} <= before)


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[1]) as reader:
        yield reader


def model(value: float = 1.0) -> dict[str, Any]:
    return {
        "embedding": torch.full((700, 1000), value),
        "layers": [
            {"weight": torch.full((3, 5), value + index), "index": index} for index in range(3)
        ],
        "half": torch.full((10,), value, dtype=torch.bfloat16),
        "odd": torch.tensor([True, False, value > 0]),
        "scalar": torch.tensor(value),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(20.0).reshape(4, 5).t(),
        "settings": {
            "rate": 0.1,
            "betas": (0.9, 0.999),
            "name": "adam",
            "nothing": None,
            "groups": [],
        },
    }


def check_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            check_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            check_equal(a, b)
    else:
        assert one == other


def test_what_is_got_is_what_was_put(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    put = model(2.0)
    assert put_state_dict(name, put, client=client) == 1
    changed = put["embedding"].clone()
    put["embedding"].zero_()
    version, got = get_state_dict(name, client=reader, timeout=PATIENCE)
    assert version == 1
    put["embedding"] = changed
    check_equal(got, put)
    got["embedding"].add_(1)


def test_an_optimizer_and_a_module(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    torch.manual_seed(0)
    trained, fresh = (torch.nn.Linear(30, 20) for _ in range(2))
    optimizer = torch.optim.Adam(trained.parameters())
    trained(torch.ones(30)).sum().backward()
    optimizer.step()
    put_state_dict(
        name, {"model": trained.state_dict(), "optimizer": optimizer.state_dict()}, client=client
    )

    got = get_state_dict(name, client=reader, timeout=PATIENCE).state_dict
    fresh.load_state_dict(got["model"])
    torch.optim.Adam(fresh.parameters()).load_state_dict(got["optimizer"])
    assert torch.equal(trained.weight, fresh.weight)
    check_equal(got["optimizer"], optimizer.state_dict())


def test_tensors_are_filled_where_they_are(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    trained, behind = torch.nn.Linear(300, 2000), torch.nn.Linear(300, 2000)
    put_state_dict(name, trained.state_dict(), client=client)
    parameter = behind.weight
    into = behind.state_dict()
    into["bias"] = strided = torch.zeros(2000, 2)[:, 0]
    got = get_state_dict(name, into, client=reader, timeout=PATIENCE).state_dict
    assert got["weight"].data_ptr() == parameter.data_ptr()
    assert torch.equal(parameter, trained.weight)
    assert torch.equal(strided, trained.bias)


def test_tensors_are_filled_in_inference_mode(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    put = {"plain": torch.ones(300, 2000), "strided": torch.arange(20.0), "left": torch.ones(2, 3)}
    put_state_dict(name, put, client=client)
    with torch.inference_mode(), torch.device("meta"):
        into = {
            "plain": torch.zeros(300, 2000, device="cpu"),
            "strided": torch.zeros(20, 2, device="cpu")[:, 0],
            "left": torch.zeros(3, 2, device="cpu").t(),
        }
        check_equal(get_state_dict(name, into, client=reader, timeout=PATIENCE).state_dict, put)
        check_equal(get_state_dict(name, client=reader, timeout=PATIENCE).state_dict, put)


def test_of_tensors_that_share_memory_the_last_one_wins(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    put = {f"{index}": torch.full((4 << 20,), float(index)) for index in range(4)}
    put_state_dict(name, put, client=client)
    tied = torch.zeros(6 << 20)
    into = {
        "0": tied[: 4 << 20],
        "1": tied[2 << 20 :],
        "2": tied[: 4 << 20],
        "3": torch.zeros(4 << 20),
    }
    for _ in range(5):
        get_state_dict(name, into, client=reader, timeout=PATIENCE)
        assert bool((tied[: 4 << 20] == 2).all())
        assert bool((tied[4 << 20 :] == 1).all())
        assert bool((into["3"] == 3).all())


def test_versions_come_one_after_the_other(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(get_state_dict, name, client=reader, timeout=PATIENCE)
        put_state_dict(name, model(1), version=100, client=client)
        assert first.result().version == 100
        second = pool.submit(get_state_dict, name, newer_than=100, client=reader, timeout=PATIENCE)
        time.sleep(0.1)
        assert not second.done()
        put_state_dict(name, model(2), version=50, client=client)
        assert second.result().version == 50
    assert state_dict_versions(name, client=reader) == [100, 50]
    put_state_dict(name, model(3), version="last", client=client)
    assert state_dict_versions(name, client=reader) == [50, "last"]
    assert get_state_dict(name, version=50, client=reader).state_dict["scalar"] == 2
    delete_state_dict(name, 50, client=client)
    assert state_dict_versions(name, client=reader) == ["last"]
    with pytest.raises(hoplite.Timeout, match=r"version 50 of .* has not come; there is 'last'"):
        get_state_dict(name, version=50, client=reader, timeout=0.1)


def test_readers_never_see_a_mix(client: hoplite.Client, cluster: Cluster, name: str) -> None:
    stop = threading.Event()
    seen: dict[str, set[Any]] = {socket: set() for socket in cluster.sockets[1:]}

    def read(socket: str) -> None:
        into = {f"{index}": torch.zeros(400_000) for index in range(6)}
        with hoplite.connect(socket) as reader:
            while not stop.is_set():
                version, got = get_state_dict(name, into, client=reader, timeout=PATIENCE)
                for tensor in got.values():
                    assert tensor.min() == tensor.max() == version
                seen[socket].add(version)

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read, socket) for socket in seen]
        versions = itertools.count()

        def put_next() -> bool:
            version = next(versions)
            put = {f"{index}": torch.full((400_000,), float(version)) for index in range(6)}
            put_state_dict(name, put, version=version, client=client)
            has_ended = any(future.done() for future in readers)
            return has_ended or (version >= 7 and all(len(found) >= 2 for found in seen.values()))

        try:
            await_that("each reader sees two versions", put_next)
        finally:
            stop.set()
        for future in readers:
            future.result()


def test_tensors_arrive_while_others_are_still_made(
    client: hoplite.Client, reader: hoplite.Client, name: str
) -> None:
    may_go_on = threading.Event()

    def tensors() -> Iterator[tuple[str, Any]]:
        for index in range(4):
            yield f"layer.{index}", torch.full((500_000,), float(index))
        assert may_go_on.wait(PATIENCE)
        yield "head", torch.ones(3)

    with ThreadPoolExecutor() as pool:
        put = pool.submit(put_tensors, name, tensors(), version=7, client=client)
        with stream_state_dict(name, client=reader, timeout=PATIENCE) as stream:
            assert stream.version == 7
            first = [next(stream) for _ in range(3)]
            may_go_on.set()
            rest = dict(stream)
        assert put.result() == 7
    for index, (key, tensor) in enumerate(first):
        assert key == f"layer.{index}"
        assert torch.equal(tensor, torch.full((500_000,), float(index)))
    assert list(rest) == ["layer.3", "head"]


def test_tensors_in_the_memory_of_the_store(client: hoplite.Client, name: str) -> None:
    put_state_dict(name, model(3.0), client=client)
    got = dict(stream_state_dict(name, copy=False, client=client))
    assert got["layers.2.weight"][0, 0] == 5.0
    assert got["empty"].shape == (0, 4)
    assert torch.equal(got["strided"], model()["strided"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), r"^a\.b has the type object, and a state dict has"),
        ({1.5: torch.ones(1)}, r"^a\.b: a key is a str or an int, not 1\.5"),
        ([torch.ones(1), print], r"^a\.b\.1 has the type builtin_function"),
        (torch.ones(2, 2).to_sparse(), r"^a\.b is sparse"),
        (torch.ones(2, device="meta"), r"^a\.b is on the meta device"),
        ([{"c": {object()}}], r"^a\.b has the type object"),
    ],
)
def test_what_no_state_dict_has(client: hoplite.Client, name: str, value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        put_state_dict(name, {"a": {"b": value}}, client=client)
    assert state_dict_versions(name, client=client) == []


def test_what_does_not_fit_changes_nothing(client: hoplite.Client, name: str) -> None:
    put_state_dict(
        name, {"a": torch.ones(3), "b": torch.ones(2, 2), "only": torch.ones(1)}, client=client
    )
    into = {"a": torch.zeros(3), "b": torch.zeros(4), "missing": torch.zeros(1)}
    with pytest.raises(StateDictMismatch) as error:
        get_state_dict(name, into, client=client, timeout=PATIENCE)
    assert str(error.value) == (
        f"version 1 of {name!r} does not fit: missing is not in this version; only is only in this version; "
        "b is float32[2, 2], to be copied into float32[4]"
    )
    assert isinstance(error.value, ValueError)
    assert all((tensor == 0).all() for tensor in into.values())
    with pytest.raises(
        StateDictMismatch, match=r"a is float32\[3\], to be copied into float64\[3\]"
    ):
        get_state_dict(name, {"a": torch.zeros(3).double()}, strict=False, client=client)

    into = {"a": into["a"], "missing": into["missing"]}
    got = get_state_dict(name, into, strict=False, client=client).state_dict
    assert torch.equal(got["a"], torch.ones(3))
    assert torch.equal(into["missing"], torch.zeros(1))


def test_other_values_that_are_missing(client: hoplite.Client, name: str) -> None:
    put_state_dict(name, {"a": torch.ones(3), "step": 7, "more": 8}, client=client)
    into = {"a": torch.zeros(3), "step": 0, "settings": {"rate": 0.1}, "note": "", "list": [1]}
    with pytest.raises(
        StateDictMismatch, match=r"does not fit: settings\.rate, note, list is not in this version$"
    ):
        get_state_dict(name, into, client=client, timeout=PATIENCE)
    assert torch.equal(into["a"], torch.zeros(3))  # type: ignore[arg-type]
    got = get_state_dict(name, into, strict=False, client=client).state_dict
    assert torch.equal(got.pop("a"), torch.ones(3))
    assert got == {"step": 7, "more": 8}
    assert (
        get_state_dict(name, {"a": torch.zeros(3), "step": 0}, client=client).state_dict["step"]
        == 7
    )


def test_a_dtype_of_another_version_of_torch(client: hoplite.Client, name: str) -> None:
    from hoplite.torch._writing import _Writing

    with _Writing(name, client, 0, 1) as writing:
        writing.begin({"x": torch.empty(0)}, None)
        path = next(iter(writing._last.empty))
        writing._last.empty[path] = ("float3", (0,))
        writing.write(PATIENCE)
        writing.forget_old(1)
    said = f"this version of torch, {torch.__version__}, has no dtype 'float3'"
    with pytest.raises(TypeError, match=re.escape(said)):
        get_state_dict(name, client=client)
    with pytest.raises(TypeError, match=re.escape(said)):
        list(stream_state_dict(name, client=client))
    with pytest.raises(StateDictMismatch, match="x is float3"):
        get_state_dict(name, {"x": torch.empty(0)}, client=client)


def test_arguments_that_make_no_sense(client: hoplite.Client, name: str) -> None:
    with pytest.raises(ValueError, match="keep is at least 1, not 0"):
        put_state_dict(name, {}, keep=0, client=client)
    for bad in ("", "n" * 200):
        with pytest.raises(ValueError, match="a name has 1 to 160 characters"):
            get_state_dict(bad, client=client)
    with pytest.raises(TypeError, match="x has no elements"):
        put_tensors(name, [("x", torch.empty(0))], client=client)


def failing(begun: threading.Event, go_on: threading.Event) -> Iterator[tuple[str, Any]]:
    for index in range(5):
        yield str(index), torch.full((400_000,), 666.0)
    begun.set()
    assert go_on.wait(PATIENCE)
    raise ValueError("no more memory for this")


def test_readers_learn_that_a_version_could_not_be_put(client: hoplite.Client, name: str) -> None:
    put_state_dict(name, {"x": torch.ones(5)}, version=1, client=client)
    begun, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        putting = pool.submit(put_tensors, name, failing(begun, go_on), version=2, client=client)
        assert begun.wait(PATIENCE)
        stream = stream_state_dict(name, version=2, client=client)
        assert next(stream)[1][0] == 666
        getting = pool.submit(get_state_dict, name, version=2, client=client)
        newer = pool.submit(get_state_dict, name, newer_than=1, client=client)
        go_on.set()
        with pytest.raises(ValueError, match="no more memory"):
            putting.result()
        said = r"version 2 of .* could not be put: ValueError: no more memory for this"
        with pytest.raises(VersionLost, match=said):
            list(stream)
        with pytest.raises(VersionLost, match=said):
            getting.result()
        with pytest.raises(VersionLost, match=said):
            get_state_dict(name, version=2, client=client)
        assert get_state_dict(name, client=client).version == 1
        assert state_dict_versions(name, client=client) == [1]
        with pytest.raises(hoplite.Timeout, match=r"there is 1$"):
            get_state_dict(name, newer_than=1, client=client, timeout=0.1)
        assert not [
            info
            for info in client.list("weights-data/")
            if "/0/0" in str(info.id) and info.nbytes > 1000
        ]
        put_state_dict(name, {"x": torch.zeros(5)}, version=2, client=client)
        assert newer.result().version == 2
    assert get_state_dict(name, version=2, client=client).version == 2


HALF = """
import sys, time, torch, hoplite, hoplite.torch
from hoplite.torch._writing import MAX_PUTS
def tensors():
    for index in range(MAX_PUTS):
        yield str(index), torch.full((400_000,), 666.0)
    # As many puts have begun as go on at a time, so the first one has ended.
    print("half", flush=True)
    time.sleep(1000)
hoplite.torch.put_tensors(sys.argv[2], tensors(), version=2, client=hoplite.connect(sys.argv[1]))
"""


def begin_and_die(cluster: Cluster, name: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HALF, cluster.sockets[0], name], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
        finally:
            process.kill()


def test_a_version_that_is_half_written(
    client: hoplite.Client, cluster: Cluster, name: str
) -> None:
    begin_and_die(cluster, name)
    with pytest.raises(
        hoplite.Timeout, match="there is none that is complete, and 2 is not finished"
    ):
        get_state_dict(name, client=client, timeout=1.0)
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(get_state_dict, name, client=client, timeout=PATIENCE)
        stream = stream_state_dict(name, client=client, timeout=PATIENCE)
        assert next(stream)[1][0] == 666
        put_state_dict(name, {str(index): torch.ones(400_000) for index in range(4)}, client=client)
        version, got = whole.result()
        assert version == 2
        assert all((tensor == 1).all() for tensor in got.values())
        assert len(got) == 4
        with pytest.raises(
            VersionLost,
            match=r"version 2 of .* was (deleted while it was read|not finished, and 2 has)",
        ):
            list(stream)
    assert state_dict_versions(name, client=client) == [2]


def test_a_reader_waits_for_a_directory_that_starts_again(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path, 1, "64MiB") as cluster,
        cluster.connect() as client,
        ThreadPoolExecutor() as pool,
        socket.socket() as kept,
    ):
        directory = cluster.daemons[0]
        directory.kill()
        host, port = cluster.directory.rsplit(":", 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, int(port)))
        await_that("the store notices", lambda: not client.status()["shards"][0]["connected"])
        with pytest.raises(hoplite.Unavailable):
            get_state_dict("late", client=client, timeout=0.5)
        read = pool.submit(get_state_dict, "late", client=client, timeout=PATIENCE)
        options = ["--listen", cluster.directory, "--print-addresses", "--node-grace", "200ms"]
        cluster.daemons[0] = Daemon(directory.log, "hoplite-directory", *options)
        retry(put_state_dict, "late", model(), client=client)
        version, got = read.result()
        assert (version, got["layers"][2]["index"]) == (1, 2)


def test_the_last_complete_version_is_better_than_half_of_the_next(
    client: hoplite.Client, cluster: Cluster, name: str
) -> None:
    put_state_dict(name, {"x": torch.ones(5)}, version=1, client=client)
    begin_and_die(cluster, name)
    assert get_state_dict(name, client=client, timeout=PATIENCE).version == 1
    with pytest.raises(hoplite.Timeout, match=r"version 2 of .* has not come; there is 1, and 2"):
        get_state_dict(name, newer_than=1, client=client, timeout=1.0)


def _put_sharded(rank: int, name: str) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    whole = torch.arange(7 * 10.0).reshape(7, 10)
    state = {
        "rows": distribute_tensor(whole, mesh, [Shard(0), Shard(0)]),
        "both": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
        "copies": distribute_tensor(whole, mesh, [Replicate(), Shard(1)]),
        "plain": torch.tensor([3.0]),
        "step": 7,
    }
    return put_state_dict(name, state, version="sharded")


def _put_with_one_who_fails(rank: int, name: str, when: str) -> str:
    import hoplite.torch._writing as writing

    mesh = init_device_mesh("cpu", (3,))
    state: dict[str, Any] = {"rows": distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])}

    pieces = writing._pieces

    def broken(bundle: Any) -> list[Any]:
        raise ValueError("the memory is broken")

    if rank == 1:
        if when == "before":
            state["bad"] = object()
        else:
            writing._pieces = broken
    with pytest.raises((TypeError, ValueError) if rank == 1 else RankFailed) as error:
        put_state_dict(name, state, version=1)
    if rank != 1:
        assert error.value.ranks == (1,)  # type: ignore[attr-defined]
    with pytest.raises((VersionLost, hoplite.Timeout)):
        get_state_dict(name, version=1, timeout=0.1)
    writing._pieces = pieces
    state.pop("bad", None)
    put_state_dict(name, state, version=2)
    return str(error.value)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_all_learn_that_one_rank_fails(cluster: Cluster, name: str, when: str) -> None:
    setting = Setting(sockets=cluster.sockets, timeout=1000.0)
    said = ranks.run(3, _put_with_one_who_fails, name, when, setting=setting)
    reason = "bad has the type object" if when == "before" else "the memory is broken"
    assert reason in said[1]
    for rank in (0, 2):
        assert f"put_state_dict of {name!r} failed on rank 1: " in said[rank]
        assert reason in said[rank]


def _put_by_some_without_dtensors(rank: int, name: str) -> None:
    import torch.distributed as dist

    whole = distribute_tensor(torch.ones(2), init_device_mesh("cpu", (3,)), [Shard(0)])
    state = {"whole": whole} if rank < 2 else {}
    assert put_state_dict(name, state, group=dist.group.WORLD) == 1


def test_ranks_without_dtensors(cluster: Cluster, client: hoplite.Client, name: str) -> None:
    ranks.run(3, _put_by_some_without_dtensors, name, setting=Setting(sockets=cluster.sockets))
    assert state_dict_versions(name, client=client) == [1]
    check_equal(get_state_dict(name, client=client).state_dict, {"whole": torch.ones(2)})


def _get_resharded(rank: int, name: str) -> None:
    mesh = init_device_mesh("cpu", (3,))
    into = {
        "rows": distribute_tensor(torch.zeros(7, 10), mesh, [Shard(1)]),
        "both": distribute_tensor(torch.zeros(7, 10), mesh, [Shard(0)]),
        "copies": distribute_tensor(torch.zeros(7, 10), mesh, [Replicate()]),
        "plain": torch.zeros(1),
    }
    version, got = get_state_dict(name, into, timeout=PATIENCE)
    assert version == "sharded"
    assert got["step"] == 7
    assert got["plain"] == 3.0
    whole = torch.arange(7 * 10.0).reshape(7, 10)
    for key in ("rows", "both", "copies"):
        assert got[key] is into[key]
        assert torch.equal(got[key].full_tensor(), whole), key


def test_dtensors_are_divided_anew(cluster: Cluster, client: hoplite.Client, name: str) -> None:
    sockets = [cluster.sockets[rank % 3] for rank in range(4)]
    assert ranks.run(4, _put_sharded, name, setting=Setting(sockets)) == ["sharded"] * 4
    ranks.run(3, _get_resharded, name, setting=Setting(sockets))
    whole = torch.arange(7 * 10.0).reshape(7, 10)
    got = get_state_dict(name, client=client, timeout=PATIENCE).state_dict
    assert all(torch.equal(got[key], whole) for key in ("rows", "both", "copies"))
    streamed = dict(stream_state_dict(name, client=client))
    assert all(torch.equal(streamed[key], whole) for key in ("rows", "both", "copies"))
