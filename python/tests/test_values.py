from __future__ import annotations

import array
import decimal
import mmap
import pickle
import subprocess
import sys
from typing import Any

import hypothesis.extra.numpy as npst
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hoplite
from hoplite import _dtypes, _pickles, _serialize
from stores import Cluster, retry

REDUCIBLE = [*_dtypes.DTYPES.values(), np.dtype(ml_dtypes.bfloat16)]
OTHERS = [
    np.dtype(dtype)
    for dtype in (
        "c8", "c16", "M8[ns]", "m8[us]", "S5", "U3", "V7", ">f4", ">i8", ">u2", "g",
        [("a", "<f4"), ("b", "u1", (2, 3))],
        np.dtype([("a", "u1"), ("b", "<f8")], align=True),
        [("deep", [("x", ">i2"), ("when", "M8[s]")])],
        {"names": ["a"], "formats": ["<u2"], "offsets": [6], "itemsize": 16},
    )
] + [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.int4)]  # fmt: skip


def same(left: Any, right: Any) -> bool:
    return (
        type(left) is type(right)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
    )


def round_trips(client: hoplite.Client, value: Any) -> list[Any]:
    with client.put(None, value) as ref:
        values = [client.get(ref), client.get(ref, copy=True), client.get(ref, copy=False)]
        values += client.gather([ref])
        return values


@pytest.mark.parametrize("dtype", [*REDUCIBLE, *OTHERS], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 4), (3, 0, 2), (1,) * 32], ids=str)
def test_arrays(client: hoplite.Client, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape)) * dtype.itemsize
    contents = bytes(range(1, 256)) * (size // 255 + 1)
    if dtype in (np.dtype(bool), np.dtype(ml_dtypes.int4)) or dtype.kind == "U":
        contents = bytes(size)
    value = np.ndarray(shape, dtype, contents[:size]).copy()
    for got in round_trips(client, value):
        assert same(got, value), got


def test_dtypes_that_reduce_knows_are_known_to_everybody(client: hoplite.Client) -> None:
    for dtype in REDUCIBLE:
        with client.put(None, np.zeros((2, 3), dtype), confirm=True) as ref:
            known = retry(client.stat, ref)
            assert known is not None
            assert (known.dtype, known.shape, known.nbytes) == (
                dtype.name,
                (2, 3),
                6 * dtype.itemsize,
            )
            assert (ref.dtype, ref.shape, ref.nbytes) == (dtype.name, (2, 3), 6 * dtype.itemsize)
            assert known.kind is None


@pytest.mark.parametrize("dtype", ["f4", ">f4", "c8", [("a", "i4"), ("b", "i8")]], ids=str)
def test_arrays_that_are_not_contiguous(client: hoplite.Client, dtype: Any) -> None:
    whole = np.arange(4 * 6 * 8).astype("i2").reshape(4, 6, 8).astype(dtype)
    parts = {
        "transposed": whole.T,
        "fortran": np.asfortranarray(whole),
        "strided": whole[::2, 1:5:3, ::-1],
        "broadcast": np.broadcast_to(whole[0, 0], (3, 8)),
        "0-d": whole[1, 2, 3, ...],
    }
    for name, part in parts.items():
        for got in round_trips(client, part):
            assert same(got, part), name


@given(
    value=npst.arrays(
        dtype=st.one_of(npst.scalar_dtypes(), npst.array_dtypes()),
        shape=npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6),
    ),
    data=st.data(),
)
def test_any_array_in_any_order(client: hoplite.Client, value: Any, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(value.ndim)))
    value = value.transpose(order)
    if value.ndim:
        step = data.draw(st.sampled_from([1, 2, -1]))
        value = value[::step]
    for got in round_trips(client, value):
        assert same(got, value)
    for got in round_trips(client, {"value": [value]}):
        assert same(got["value"][0], value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(value=plain)
def test_any_plain_value(client: hoplite.Client, value: Any) -> None:
    for got in round_trips(client, value):
        if type(value) is bytes:
            got = bytes(got)
        assert type(got) is type(value)
        assert got == value


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 1000], ids=len)
def test_bytes(client: hoplite.Client, value: bytes) -> None:
    got, copied, in_place, gathered = round_trips(client, value)
    assert (type(got), type(copied), type(gathered)) == (bytes, bytes, bytes)
    assert got == copied == gathered == value
    assert type(in_place) is memoryview
    assert in_place.readonly
    assert in_place == value


def test_buffers_of_bytes(client: hoplite.Client) -> None:
    contents = bytes(range(200))
    with mmap.mmap(-1, 200) as mapped:
        mapped.write(contents)
        values: list[Any] = [
            bytearray(contents),
            memoryview(contents),
            mapped,
            memoryview(contents * 2)[::2],
        ]
        expected = [contents, contents, contents, (contents * 2)[::2]]
        for value, wanted in zip(values, expected, strict=True):
            with client.put(None, value) as ref:
                got = client.get(ref)
                assert type(got) is memoryview
                assert got.readonly
                assert got == wanted
                assert client.get(ref, copy=True) == wanted
        del value, values


def test_typed_buffers_become_arrays(client: hoplite.Client) -> None:
    for got in round_trips(client, array.array("f", [1, 2, 3])):
        assert same(got, np.array([1, 2, 3], np.float32))
    square = memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3))
    for got in round_trips(client, square):
        assert same(got, np.arange(6, dtype=np.int32).reshape(2, 3))


def test_scalars_of_numpy_become_arrays_without_dimensions(client: hoplite.Client) -> None:
    for scalar in (np.float32(1.5), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(2)):
        for got in round_trips(client, scalar):
            assert same(got, np.asarray(scalar))
    for scalar in (np.str_("x"), np.bytes_(b"x"), np.datetime64("2020-01-01")):
        for got in round_trips(client, scalar):
            assert type(got) is type(scalar)
            assert got == scalar


def test_what_has_dlpack(client: hoplite.Client) -> None:
    class Tensor:
        def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
            self.array, self.device = array, device

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.device

    class Convertible(Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no such dtype")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.array

    value = np.arange(12.0).reshape(3, 4)
    for got in [*round_trips(client, Tensor(value)), *round_trips(client, Convertible(value))]:
        assert same(got, value)
    with pytest.raises(TypeError, match="move it to the host"):
        client.put(None, Tensor(value, (2, 0)))

    class Hopeless(Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no such dtype")

    with pytest.raises(TypeError, match="no such dtype"):
        client.put(None, Hopeless(value))


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Sub(np.ndarray):
    """A subclass that only pickles preserve."""


class Named(np.ndarray):
    name = ""

    def __reduce__(self) -> Any:
        return _named, (np.asarray(self), self.name)


def _named(array: Any, name: str) -> Named:
    made: Named = array.view(Named)
    made.name = name
    return made


class Word(bytes): ...


def test_other_values_are_pickled(client: hoplite.Client) -> None:
    for got in round_trips(client, Point(decimal.Decimal("1.5"), {1, 2})):
        assert type(got) is Point
        assert (got.x, got.y) == (decimal.Decimal("1.5"), {1, 2})
    subclass = np.arange(6).view(Sub)
    for got in round_trips(client, subclass):
        assert type(got) is Sub
        assert (got == subclass).all()
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    for got in round_trips(client, masked):
        assert type(got) is type(masked)
        assert got.tolist() == [1, None, 3]
    for got in round_trips(client, Word(b"abc")):
        assert (type(got), got) == (Word, b"abc")
    objects = np.array([{"a": 1}, None, "x"], dtype=object)
    for got in round_trips(client, objects):
        assert got.tolist() == objects.tolist()
    strings = np.array(["a", "b" * 1000], dtype=np.dtypes.StringDType())
    for got in round_trips(client, strings):
        assert got.tolist() == strings.tolist()
    for got in round_trips(client, np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])):
        assert type(got) is np.recarray
        assert got.a[0] == 1


def test_a_memory_map_is_an_array(client: hoplite.Client, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(3, 4))
    mapped[:] = 7
    for got in round_trips(client, mapped):
        assert same(got, np.full((3, 4), 7, np.float32))


def test_a_dtype_whose_description_is_too_long_is_pickled(client: hoplite.Client) -> None:
    many = np.zeros(3, np.dtype([(f"field_{number}", "<f4") for number in range(500)]))
    for got in round_trips(client, many):
        assert same(got, many)


def test_arrays_in_a_pickle_stay_where_they_are(client: hoplite.Client) -> None:
    large, when = np.arange(10_000.0).reshape(100, 100), np.arange(0, 500, dtype="M8[s]")
    half = np.arange(300).astype(ml_dtypes.bfloat16)
    value = {
        "large": large,
        "fortran": np.asfortranarray(large),
        "when": when,
        "half": half,
        "again": large,
    }
    with client.put(None, value) as ref:
        got = client.get(ref)
        for name, array in got.items():
            assert same(array, value[name]), name
            assert not array.flags.writeable, name
            assert array.ctypes.data % 64 == 0, name
        assert got["again"] is got["large"]
        assert np.shares_memory(client.get(ref)["large"], got["large"])
        private = client.get(ref, copy=True)
        private["large"][:] = 0
        assert same(client.get(ref)["large"], large)
        assert not np.shares_memory(private["large"], got["large"])
    assert ref.nbytes is not None
    assert ref.nbytes < 2 * large.nbytes + 10_000


def test_what_cannot_be_put(client: hoplite.Client, fresh: str) -> None:
    for value in (sys._getframe(), (x for x in ())):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            client.put(fresh + "x", value)
    assert not client.contains(fresh + "x")
    with pytest.raises(TypeError, match="belongs to its process"):
        client.put(fresh + "x", client)


def test_lambdas_and_functions_within_functions(client: hoplite.Client) -> None:
    offset = np.arange(10_000)
    for got in round_trips(client, lambda number: number + offset[number]):
        assert got(3) == 6
    for got in round_trips(client, {"f": [lambda: 7], "a": offset}):
        assert got["f"][0]() == 7
        assert (got["a"] == offset).all()


def test_without_cloudpickle_lambdas_cannot_be_put(
    client: hoplite.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pickles, "_pickler_by_value", lambda: None)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        client.put(None, lambda: None)


def test_classes_of_a_program_reach_other_programs(
    client: hoplite.Client, cluster: Cluster, fresh: str
) -> None:
    script = f"""
import hoplite, numpy as np
class Model:
    def __init__(self, weights):
        self.weights = weights
    def sum(self):
        return helper(self.weights)
def helper(weights):
    return int(weights.sum())
client = hoplite.connect({cluster.sockets[0]!r})
client.put({fresh + "instance"!r}, Model(np.arange(10_000)))
client.put({fresh + "class"!r}, Model)
client.put({fresh + "function"!r}, helper)
assert client.get({fresh + "class"!r}) is Model
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert client.get(fresh + "instance").sum() == sum(range(10_000))
    assert client.get(fresh + "class")(np.ones(3)).sum() == 3
    assert client.get(fresh + "function")(np.ones(4)) == 4
    weights = [client.get(fresh + "instance").weights for _ in range(2)]
    assert np.shares_memory(*weights)
    client.delete([fresh + "instance", fresh + "class", fresh + "function"])


def test_subclasses_of_arrays_keep_their_type_in_place(client: hoplite.Client) -> None:
    numbers = np.arange(10_000.0).reshape(100, 100)
    values = [
        numbers.view(Sub),
        np.asfortranarray(numbers).view(Sub),
        numbers.view(np.matrix),
        np.rec.array(numbers.view([("a", "f8"), ("b", "f8")])),
    ]
    for value in values:
        with client.put(None, value) as ref:
            first, second = client.get(ref), client.get(ref)
            assert type(first) is type(value)
            assert first.dtype == value.dtype
            assert (first == value).all()
            assert np.shares_memory(first, second)
            assert not first.flags.writeable
            assert ref.nbytes is not None
            assert ref.nbytes < value.nbytes + 1000


def test_a_subclass_may_say_how_it_is_pickled(client: hoplite.Client) -> None:
    value = np.arange(3).view(Named)
    value.name = "weights"
    for got in round_trips(client, value):
        assert type(got) is Named
        assert got.name == "weights"
        assert got.tolist() == [0, 1, 2]


def test_what_other_programs_put_is_a_buffer_or_an_array(
    client: hoplite.Client, fresh: str
) -> None:
    native = client._native
    native.put(fresh + "bytes", [b"12", b"345"], "opaque", None, b"", 30.0, False)
    assert client.get(fresh + "bytes") == b"12345"
    native.put(fresh + "typed", [b"12345678"], "f32", None, b"their own", 30.0, False)
    assert same(client.get(fresh + "typed"), np.frombuffer(b"12345678", np.float32))
    native.put(fresh + "shaped", [b"123456"], "opaque", (2, 3), b"", 30.0, False)
    assert same(client.get(fresh + "shaped"), np.frombuffer(b"123456", np.uint8).reshape(2, 3))
    for name in ("bytes", "typed", "shaped"):
        assert bytes(client.get(fresh + name, copy=True)) == bytes(client.get(fresh + name))


def test_what_pretends_to_be_ours(client: hoplite.Client, fresh: str) -> None:
    def put(user: bytes, contents: bytes) -> str:
        client.delete(fresh)
        client._native.put(fresh, [contents], "opaque", None, user, 30.0, False)
        return fresh

    with pytest.raises(TypeError, match="later version"):
        client.get(put(b"py1:wonderful", b"x"))
    huge = (2**64 - 1).to_bytes(8, "little")
    for contents in (
        b"",
        b"1234567",
        bytes(8),
        huge * 2,
        b"\1" + bytes(7) + huge * 2,
        bytes(16) + b"x",
    ):
        with pytest.raises(ValueError, match="pickle"):
            client.get(put(b"py1:pickle", contents))
    for user in (b"py1:ndarray", b"py1:ndarray [", b"py1:ndarray ('<f4', (2, 2))", b"py1:torch x"):
        with pytest.raises((ValueError, TypeError, SyntaxError)):
            client.get(put(user, b"123"))


def test_get_into(client: hoplite.Client, fresh: str) -> None:
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    with client.put(fresh + "x", value) as ref:
        out = np.zeros_like(value)
        assert client.get_into(ref, out) == value.nbytes
        assert same(out, value)
        raw = bytearray(100)
        assert client.get_into(ref, raw) == 96
        assert raw[:96] == value.tobytes()
        assert client.get_into(ref, memoryview(out).cast("B")) == 96
        with pytest.raises(hoplite.BufferTooSmall) as caught:
            client.get_into(ref, bytearray(95))
        assert (caught.value.needed_bytes, caught.value.given_bytes) == (96, 95)
        for wrong in (np.zeros((4, 6)), np.zeros((6, 4), np.float32), np.zeros((4, 6), ">f4")):
            with pytest.raises(hoplite.TypeMismatch, match="float32") as mismatch:
                client.get_into(ref, wrong)
            assert mismatch.value.id == fresh + "x"
        whole = np.zeros((8, 6), np.float32)
        read_only = np.zeros((4, 6), np.float32)
        read_only.flags.writeable = False
        for wrong in (whole[::2], read_only, b"x" * 96, "x", 7, None, np.zeros((4, 6), object)):
            with pytest.raises(TypeError):
                client.get_into(ref, wrong)
    with client.put(None, {"a": 1}) as ref:
        with pytest.raises(hoplite.TypeMismatch, match="pickle"):
            client.get_into(ref, np.zeros(10))
        assert client.get_into(ref, bytearray(1000)) == ref.nbytes
    with client.put(None, np.zeros((0, 3))) as ref:
        assert client.get_into(ref, np.zeros((0, 3))) == 0
        assert client.get_into(ref, bytearray()) == 0


def test_pieces_are_aligned_and_alone() -> None:
    encoded = _serialize.encode([np.zeros(3), np.zeros(1000), np.zeros(0), b"x"])
    end = 0
    for piece in encoded.pieces:
        assert memoryview(piece).nbytes == len(piece)
        end += len(piece)
    assert end == encoded.nbytes


def test_the_other_byte_order_of_bfloat16(client: hoplite.Client) -> None:
    value = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    swapped = value.astype(value.dtype.newbyteorder(">"))
    assert swapped.tobytes() != value.tobytes()
    for got in [*round_trips(client, swapped), *round_trips(client, value)]:
        assert same(got, value)
    for got in round_trips(client, {"deep": swapped}):
        assert same(got["deep"], value)
    with (
        client.put(None, swapped) as ref,
        client.put(None, value) as other,
        client.ref("total") as total,
    ):
        client.reduce(total, [ref, other])
        assert (client.get(total) == value + value).all()


def test_subclasses_of_arrays_are_filled(client: hoplite.Client, tmp_path: Any) -> None:
    value = np.arange(6.0).reshape(2, 3)
    outs = [
        np.zeros((2, 3)).view(Sub),
        np.ma.masked_array(np.zeros((2, 3)), value < 2),
        np.memmap(tmp_path / "file", np.float64, "w+", shape=(2, 3)),
    ]
    with client.put(None, value) as ref:
        for out in outs:
            assert client.get_into(ref, out) == value.nbytes
            assert (np.asarray(out) == value).all()


def test_values_of_arrow_come_back(client: hoplite.Client) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Dask brings it")
    values = [
        arrow.array([1, None, 3]),
        arrow.array(["a", None, "b" * 1000]),
        arrow.array([True, False]),
        arrow.array([1, 2], arrow.timestamp("us")),
        arrow.array([[1], [2, 3]]),
        arrow.array(["a", "b", "a"]).dictionary_encode(),
        arrow.array([decimal.Decimal("1.5")]),
        arrow.array(["a"], arrow.string_view()),
        arrow.array([], arrow.null()),
        arrow.chunked_array([["a"], ["b"]]),
        arrow.table({"a": ["x", None], "b": [1, 2]}),
    ]
    for value in values:
        for got in round_trips(client, value):
            assert type(got) is type(value)
            assert got.equals(value)
    for got in round_trips(client, arrow.array([1, 2, 3])):
        assert np.asarray(got).tolist() == [1, 2, 3]


def test_what_is_too_large_is_refused_before_it_is_copied(client: hoplite.Client) -> None:
    wide = np.broadcast_to(1.0, (10**7, 10**7))
    when = np.broadcast_to(np.datetime64(0, "s"), (10**7, 10**7))
    tensor = torch.ones(1).expand(10**7, 10**7)
    for value in (wide, when, wide.T, tensor, [wide], {"a": tensor}):
        with pytest.raises(hoplite.ObjectTooLarge) as caught:
            client.put("too large", value)
        assert caught.value.id == "too large"
        assert caught.value.size_bytes > caught.value.limit_bytes
        assert caught.value.limit_bytes == client._native.max_object_bytes
        assert "iB, which --memory" in str(caught.value)
    with pytest.raises(hoplite.ObjectTooLarge):
        client.all_to_all("exchange", [wide], 0)
    with pytest.raises(hoplite.ObjectTooLarge):
        client.allgather(["gathered"], 0, wide)
