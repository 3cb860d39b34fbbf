from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hoplite
from stores import PATIENCE, retry

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

KNOWN = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"]
KNOWN += ["uint8", "uint16", "uint32", "uint64", "bool"]
OTHERS = ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]


def tensor_of(dtype: str, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    values = torch.arange(count) % 2 if dtype == "bool" else torch.arange(count)
    return values.reshape(shape).to(getattr(torch, dtype))


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right) or left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bytes(left.contiguous().untyped_storage()) == bytes(right.contiguous().untyped_storage())


@pytest.mark.parametrize("dtype", [*KNOWN, *OTHERS])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 4)], ids=str)
def test_tensors(client: hoplite.Client, dtype: str, shape: tuple[int, ...]) -> None:
    value = tensor_of(dtype, shape)
    with client.put(None, value, confirm=True) as ref:
        known = retry(client.stat, ref)
        assert known is not None
        assert known.kind == "torch"
        if dtype in KNOWN:
            assert (known.dtype, known.shape) == (dtype, shape)
        for got in (client.get(ref), client.get(ref, copy=True), client.gather([ref])[0]):
            assert same(got, value)
            got.zero_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert same(client.get(ref, copy=False), value)
        assert same(client.get(ref), value), "those that were written to were private"


def test_arrays_and_tensors_are_exchanged(client: hoplite.Client) -> None:
    with client.put(None, torch.arange(6.0).reshape(2, 3)) as ref:
        array = client.get(ref, framework="numpy")
        assert isinstance(array, np.ndarray)
        assert not array.flags.writeable
        assert (array == np.arange(6.0).reshape(2, 3)).all()
        private = client.get(ref, framework="numpy", copy=True)
        assert private.flags.writeable
    with client.put(None, np.arange(6.0).reshape(2, 3)) as ref:
        for copy in (None, True):
            assert same(
                client.get(ref, framework="torch", copy=copy),
                torch.arange(6.0, dtype=torch.float64).reshape(2, 3),
            )
    with client.put(None, torch.ones(3, dtype=torch.bfloat16)) as ref:
        assert client.get(ref, framework="numpy").dtype == ml_dtypes.bfloat16
    with client.put(None, np.ones(3, "M8[s]")) as ref:
        for copy in (None, True):
            with pytest.raises(TypeError, match="torch has no arrays"):
                client.get(ref, framework="torch", copy=copy)
    with client.put(None, torch.ones(3, dtype=torch.complex32)) as ref:
        for framework in ("numpy", "jax"):
            with pytest.raises(TypeError, match=f"{framework} has no"):
                client.get(ref, framework=framework)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "name", ["float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "complex64", "complex128"]
)
def test_dtypes_that_reduce_does_not_know_are_exchanged(client: hoplite.Client, name: str) -> None:
    tensor = torch.ones(3).to(getattr(torch, name))
    array = np.ones(3).astype(getattr(ml_dtypes, name, name))
    with client.put(None, tensor) as ref, client.put(None, array) as other:
        for copy in (None, True):
            for got in (
                client.get(ref, framework="numpy", copy=copy),
                client.get(other, copy=copy),
            ):
                assert got.dtype == array.dtype
                assert (got == array).all()
            for got in (
                client.get(ref, copy=copy),
                client.get(other, framework="torch", copy=copy),
            ):
                assert same(got, tensor)


def test_tensors_that_are_more_than_their_elements(client: hoplite.Client) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    for part in (whole.T, whole[::2, 1:5], whole[0, 0], whole[:, :0], torch.ones(1).expand(5)):
        with client.put(None, part) as ref:
            assert torch.equal(client.get(ref), part)
    complex_tensor = torch.tensor([1 + 2j, 3 - 4j])
    for part in (complex_tensor.conj(), complex_tensor.conj().imag):
        with client.put(None, part) as ref:
            assert torch.equal(client.get(ref), part.resolve_conj().resolve_neg())
    parameter = torch.nn.Parameter(torch.ones(3))
    with client.put(None, parameter) as ref:
        got = client.get(ref)
        assert type(got) is torch.Tensor
        assert not got.requires_grad
    computed = torch.ones(3, requires_grad=True) * 2
    with client.put(None, computed) as ref:
        assert torch.equal(client.get(ref), computed.detach())


def test_tensors_that_are_not_plain(client: hoplite.Client, fresh: str) -> None:
    with pytest.raises(TypeError, match="move it to the CPU"):
        client.put(fresh, torch.ones(3, device="meta"))
    sparse = torch.eye(3).to_sparse()
    with client.put(None, sparse) as ref:
        assert torch.equal(client.get(ref).to_dense(), torch.eye(3))


def test_a_state_dict(client: hoplite.Client) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(200, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 7)
    )
    state = model.state_dict()
    with client.put(None, state) as ref:
        assert ref.nbytes is not None
        plain = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        assert plain < ref.nbytes < plain + 5000
        got = client.get(ref)
        assert type(got) is type(state)
        assert list(got) == list(state)
        assert all(torch.equal(got[name], state[name]) for name in state)
        model.load_state_dict(got)
        got["0.weight"].zero_()
        assert torch.equal(client.get(ref)["0.weight"], state["0.weight"]), "they were private"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            first, second = (client.get(ref, copy=False)["0.weight"] for _ in range(2))
        assert first.data_ptr() == second.data_ptr(), "they are in place"
        private = client.get(ref, copy=True)
        private["0.weight"].zero_()
        assert torch.equal(client.get(ref)["0.weight"], state["0.weight"])
    parameter = torch.nn.Parameter(torch.ones(3))
    with client.put(
        None, {"parameter": parameter, "leaf": torch.ones(2, requires_grad=True)}
    ) as ref:
        got = client.get(ref)
        assert type(got["parameter"]) is torch.nn.Parameter
        assert got["leaf"].requires_grad


def test_get_into_a_tensor(client: hoplite.Client) -> None:
    value = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    with client.put(None, value) as ref:
        out = torch.zeros(2, 3, dtype=torch.bfloat16)
        assert client.get_into(ref, out) == 12
        assert torch.equal(out, value)
        for wrong in (torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(2, 3)):
            with pytest.raises(hoplite.TypeMismatch):
                client.get_into(ref, wrong)
        for wrong in (
            torch.zeros(2, 6, dtype=torch.bfloat16)[:, ::2],
            torch.zeros(2, 3, device="meta"),
        ):
            with pytest.raises(TypeError):
                client.get_into(ref, wrong)


def test_dlpack_may_be_read_only(
    client: hoplite.Client, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_dlpack = np.from_dlpack

    def read_only(value: Any) -> Any:
        array = from_dlpack(value)
        array.flags.writeable = False
        return array

    monkeypatch.setattr(np, "from_dlpack", read_only)
    value = torch.arange(6.0)
    with client.put(None, value) as ref:
        out = torch.zeros(6)
        client.get_into(ref, out)
        for got in (client.get(ref), client.get(ref, copy=True), out):
            assert torch.equal(got, value)
    client.allreduce(f"{fresh}target", [f"{fresh}source"], 0, value, out=out, timeout=PATIENCE)
    assert torch.equal(out, value)


def test_torch_is_imported_by_nobody_else(cluster: Any) -> None:
    code = f"""
import sys, hoplite, numpy as np
with hoplite.connect({cluster.sockets[0]!r}) as client, client.put(None, {{"a": np.ones(3)}}) as ref:
    client.get(ref), client.get(ref, copy=True)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reduce_of_tensors(client: hoplite.Client, fresh: str) -> None:
    for rank in range(3):
        client.put(f"{fresh}{rank}", torch.full((4,), float(rank + 1)))
    client.reduce(fresh, [f"{fresh}{rank}" for rank in range(3)], timeout=PATIENCE)
    assert torch.equal(client.get(fresh, framework="torch"), torch.full((4,), 6.0))


def test_what_only_looks_contiguous_is_not_filled(client: hoplite.Client) -> None:
    with client.put(None, tensor_of("complex64", (4,))) as ref:
        lazy = torch.zeros(4, dtype=torch.complex64).conj()
        assert lazy.is_contiguous()
        with pytest.raises(TypeError, match="conjugates"):
            client.get_into(ref, lazy)
        assert client.get_into(ref, lazy.resolve_conj()) == ref.nbytes


class Nested:
    def __init__(self, socket: str, inner: hoplite.Ref) -> None:
        self.socket, self.inner = socket, inner

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with hoplite.connect(self.socket) as client:
            self.got = client.get(self.inner)


def test_a_get_within_a_get_is_another_one(client: hoplite.Client) -> None:
    inner = client.put(None, {"tensor": torch.ones(1000)})
    outer = client.put(None, [Nested(client.socket, inner), torch.ones(1000)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        nested, tensor = client.get(outer, copy=False)
        again = client.get(outer, copy=False)[1]
    assert nested.got["tensor"].sum() == 1000
    assert tensor.data_ptr() == again.data_ptr(), "what follows is in place all the same"
    client.delete([inner, outer])
