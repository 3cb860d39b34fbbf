from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import hoplite
import hoplite.aio
from hoplite import _jax, _serialize
from stores import PATIENCE, Cluster, await_that, retry, used_bytes

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int4",
]
WIDE = ["float64", "int64", "uint64", "complex128"]


def same(left: Any, right: Any) -> bool:
    return (
        isinstance(left, jax.Array)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and np.asarray(left).tobytes() == np.asarray(right).tobytes()
    )


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 4), (100, 100)], ids=str)
def test_arrays(cluster: Cluster, dtype: str, shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        value = jnp.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    assert value.dtype == dtype
    with (
        hoplite.connect(cluster.sockets[0], allow_pickle=False) as careful,
        careful.put(None, value, confirm=True) as ref,
    ):
        known = retry(careful.stat, ref)
        assert known is not None
        assert known.kind == "jax"
        for copy in (None, True, False):
            assert same(careful.get(ref, copy=copy), value)
        assert same(careful.gather([ref])[0], value)
        as_numpy = careful.get(ref, framework="numpy")
        assert type(as_numpy) is np.ndarray
        assert as_numpy.tobytes() == np.asarray(value).tobytes()
        out = np.zeros(shape, value.dtype)
        assert careful.get_into(ref, out) == out.nbytes
        assert out.tobytes() == np.asarray(value).tobytes()


def test_nothing_is_copied(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        ref = client.put(None, jnp.arange(100_000.0))
        first, second = client.get(ref), client.get(ref)
        assert first.unsafe_buffer_pointer() == second.unsafe_buffer_pointer()
        assert first.unsafe_buffer_pointer() == client.get(ref, framework="numpy").ctypes.data
        assert client.get(ref, copy=True).unsafe_buffer_pointer() != first.unsafe_buffer_pointer()
        ref.delete()
        gc.collect()
        assert used_bytes(client) > empty
        assert first[99_999] == 99_999
        del first, second
        gc.collect()
        await_that("it is given back", lambda: used_bytes(client) == empty)


def test_jax_never_writes_to_the_memory_of_the_store(client: hoplite.Client) -> None:
    add = jax.jit(lambda array: array + 1, donate_argnums=0)
    with client.put(None, jnp.arange(100_000.0)) as ref:
        assert add(client.get(ref))[0] == 1
        changed = client.get(ref).at[0].set(7)
        assert changed[0] == 7
        assert client.get(ref)[0] == 0


def test_the_framework_can_be_chosen(client: hoplite.Client) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    narrow = numbers.astype(ml_dtypes.float8_e5m2)
    for value in (
        numbers,
        torch.from_numpy(numbers.copy()),
        jnp.asarray(numbers),
        narrow,
        jnp.asarray(narrow),
    ):
        with client.put(None, value) as ref:
            for copy in (None, True):
                of_jax = client.get(ref, framework="jax", copy=copy)
                assert isinstance(of_jax, jax.Array)
                assert of_jax.astype(np.float32).tolist() == numbers.tolist()
                of_torch = client.get(ref, framework="torch", copy=copy)
                assert of_torch.to(torch.float32).tolist() == numbers.tolist()
    with client.put(None, np.ones(3, "M8[s]")) as ref, pytest.raises(TypeError):
        client.get(ref, framework="jax")


def test_trees_of_arrays_stay_in_place(client: hoplite.Client) -> None:
    tree = {"w": jnp.ones((100, 100)), "b": [jnp.zeros(3, jnp.bfloat16)], "step": 7}
    with client.put(None, tree) as ref:
        got, again = client.get(ref), client.get(ref)
        assert jax.tree.structure(got) == jax.tree.structure(tree)
        assert same(got["w"], tree["w"])
        assert same(got["b"][0], tree["b"][0])
        assert got["w"].unsafe_buffer_pointer() == again["w"].unsafe_buffer_pointer()
    assert ref.nbytes is not None
    assert ref.nbytes < 41_000


def test_collectives(client: hoplite.Client, fresh: str) -> None:
    value = jnp.arange(4, dtype=jnp.float32)
    sources = [fresh + "0"]
    total = client.allreduce(fresh + "all", sources, 0, value)
    assert same(total, value)
    gathered = client.allgather([fresh + "g"], 0, value)
    assert same(gathered[0], value)
    assert same(client.all_to_all(fresh + "a", [value], 0)[0], value)
    client.put(fresh + "x", value)
    client.reduce(fresh + "sum", [fresh + "x", fresh + "0"])
    assert (client.get(fresh + "sum") == np.asarray(value) * 2).all()
    assert same(client.get(fresh + "sum", framework="jax"), value * 2)


def test_the_asynchronous_client(cluster: Cluster, fresh: str) -> None:
    async def work() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            await client.put(fresh, jnp.arange(10_000))
            assert same(await client.get(fresh), jnp.arange(10_000))
            assert same(await client.get(fresh, copy=True), jnp.arange(10_000))

    asyncio.run(work())


def test_what_is_no_array_of_numbers(client: hoplite.Client) -> None:
    refused: list[BaseException] = []

    @jax.jit
    def put(array: Any) -> Any:
        with pytest.raises(Exception) as caught:
            client.put("traced", array)
        refused.append(caught.value)
        return array

    put(jnp.ones(3))
    assert "traced" in str(refused[0]).lower()
    assert _jax.host_array(jax.random.key(0)) is None
    assert _jax.host_array(np.ones(3)) is None


def test_an_array_of_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        platform = "gpu"

        def __str__(self) -> str:
            return "cuda:0"

    monkeypatch.setattr(jax.Array, "devices", lambda self: {Device()}, raising=False)
    value = jnp.ones(3)
    monkeypatch.setattr(type(value), "devices", lambda self: {Device()})
    with pytest.raises(TypeError, match="cuda:0 cannot be put; move it"):
        _serialize.encode(value)


def test_a_reader_without_jax_is_told(cluster: Cluster, fresh: str) -> None:
    with cluster.connect() as client:
        client.put(fresh, jnp.arange(3.0))
        script = f"""
import sys
sys.modules["jax"] = None
import hoplite
client = hoplite.connect({cluster.sockets[0]!r})
try:
    client.get({fresh!r}, {PATIENCE})
except ImportError as error:
    print(error)
print(client.get({fresh!r}, framework="numpy"))
"""
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[0].startswith("this needs jax")
        assert done.stdout.splitlines()[1] == "[0. 1. 2.]"
        client.delete(fresh)
