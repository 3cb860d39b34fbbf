"""Tensors on CUDA devices, or in host memory as a substitute."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

import hoplite
import hoplite.aio
from hoplite import _calls, _cuda, _serialize
from stores import Cluster, used_bytes

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

SCRIPT = Path(__file__).parents[2] / "tests" / "gpu" / "pinned.py"
CHUNK = 8192
MIB = 1 << 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_tensors_on_a_device(client: hoplite.Client) -> None:
    spec = importlib.util.spec_from_file_location("pinned", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    pinned = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pinned)
    assert pinned.check(
        client, [0, 1, MIB - 1, MIB, 16 * MIB, 16 * MIB + 1, 32 * MIB, 50 * MIB + 3]
    )


class _Stream:
    def __init__(self, device: object = None) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self) -> _Stream:
        return self

    def record(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats host memory as a device. Copies complete at once."""
    empty, as_room = torch.empty, _serialize.as_room

    def unpinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        return empty(*arguments, **options)

    def room(out: Any, *, or_device: bool = False) -> Any:
        memory, wanted = as_room(out)
        return (_cuda.OnDevice(out) if or_device else memory), wanted

    monkeypatch.setattr(torch, "empty", unpinned)
    for name, stand_in in {
        "Stream": _Stream,
        "Event": _Stream,
        "current_stream": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(_cuda, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(_cuda, "pieces_of", lambda tensor, _: _cuda.OnDevice(tensor))
    monkeypatch.setattr(_calls._serialize, "as_room", room)


def tensor_of(nbytes: int) -> Any:
    return torch.randint(0, 255, (nbytes,), dtype=torch.uint8)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("nbytes", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 9 * CHUNK + 5])
def test_chunks_make_up_the_object(client: hoplite.Client, nbytes: int) -> None:
    tensor, out = tensor_of(nbytes), torch.zeros(nbytes, dtype=torch.uint8)
    with client.put(None, tensor) as ref:
        assert (ref.nbytes, ref.shape, ref.dtype) == (nbytes, (nbytes,), "uint8")
        assert torch.equal(client.get(ref), tensor)
        assert client.get_into(ref, out) == nbytes
        assert torch.equal(out, tensor)
    [ref] = client.put_many([(None, tensor)])
    assert torch.equal(client.get(ref), tensor), "calls without chunks copy the whole tensor"
    ref.delete()


@pytest.mark.usefixtures("on_device")
def test_a_tensor_that_is_not_contiguous(client: hoplite.Client) -> None:
    tensor = torch.randn(300, 200).T
    with client.put(None, tensor) as ref:
        out = torch.zeros(200, 300)
        client.get_into(ref, out)
        assert torch.equal(out, tensor)
        with pytest.raises(hoplite.TypeMismatch):
            client.get_into(ref, torch.zeros(300, 200))


async def _over_asyncio(socket: str) -> None:
    tensor, out = tensor_of(5 * CHUNK + 1), torch.zeros(5 * CHUNK + 1, dtype=torch.uint8)
    reports: list[tuple[int, int]] = []
    async with await hoplite.aio.connect(socket) as client:
        ref = await client.put(None, tensor, progress=lambda *report: reports.append(report))
        assert reports[-1] == (tensor.numel(), tensor.numel())
        await client.get_into(ref, out, progress=lambda *report: reports.append(report))
        assert reports[-1] == (tensor.numel(), tensor.numel())
        assert torch.equal(out, tensor)
        await client.delete(ref)


@pytest.mark.usefixtures("on_device")
def test_chunks_over_asyncio(cluster: Cluster) -> None:
    asyncio.run(_over_asyncio(cluster.sockets[0]))


@pytest.mark.usefixtures("on_device")
def test_a_tensor_of_another_node_arrives_in_chunks(
    cluster: Cluster, client: hoplite.Client
) -> None:
    tensor = tensor_of(3 * MIB)
    out = torch.zeros(3 * MIB, dtype=torch.uint8)
    with client.put(None, tensor) as ref, cluster.connect(1) as other:
        other.get_into(ref.id, out)
    assert torch.equal(out, tensor)


@pytest.mark.usefixtures("on_device")
def test_another_value_of_the_id_is_refused(client: hoplite.Client, fresh: str) -> None:
    tensor = tensor_of(5 * CHUNK)
    client.put(fresh, tensor, confirm=True)
    client.put(fresh, tensor)
    other = tensor.clone()
    other[-1] += 1
    with pytest.raises(hoplite.AlreadyExists):
        client.put(fresh, other)
    client.delete(fresh)


@pytest.mark.usefixtures("on_device")
def test_a_failed_put_leaves_nothing(node: Cluster) -> None:
    def fail(done: int, total: int) -> None:
        if done > CHUNK:
            raise ArithmeticError

    with node.connect() as client:
        before = used_bytes(client)
        with pytest.raises(ArithmeticError):
            client.put("failed", tensor_of(MIB), progress=fail)
        client.put("failed", b"another value", confirm=True)
        client.delete("failed")
        assert used_bytes(client) == before
