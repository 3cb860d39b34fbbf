from __future__ import annotations

import contextlib
import datetime
import decimal
import gc
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoplite
from hoplite import _arrow, _serialize
from stores import PATIENCE, Cluster, await_that, retry, used_bytes

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture(scope="module")
def careful(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[0], allow_pickle=False) as client:
        yield client


ARRAYS = [
    pa.array([1, None, 3]),
    pa.array(["a", None, "b" * 1000]),
    pa.array([True, None, False]),
    pa.array([WHEN, None], pa.timestamp("us", "UTC")),
    pa.array([[1], None, [2, 3]]),
    pa.array([{"a": 1, "b": ["x"]}, None]),
    pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
    pa.array(["a", "b", None, "a"]).dictionary_encode(),
    pa.array([["a"], ["b", "a"]]).cast(pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    pa.array([decimal.Decimal("1.5"), None]),
    pa.array(["a", "long enough to be outside of the view"], pa.string_view()),
    pa.array([b"12", b"34"], pa.binary(2)),
    pa.array([None, None], pa.null()),
    pa.array([], pa.list_(pa.string())),
    pa.RunEndEncodedArray.from_arrays([2, 5], [1, None]),
    pa.UnionArray.from_dense(pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["x"])]),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type)[:40])
def test_arrays(careful: hoplite.Client, array: Any) -> None:
    values = [
        array,
        array[1:],
        *([] if pa.types.is_integer(array.type) else [array[:0]]),
        pa.chunked_array([array, array[:1]]),
        pa.chunked_array([], array.type),
    ]
    values += [pa.table({"a": array, "b": array}), pa.record_batch({"a": array})[1:]]
    for value in values:
        with careful.put(None, value, confirm=True) as ref:
            known = retry(careful.stat, ref)
            assert known is not None
            assert known.kind == "arrow"
            for copy in (None, True, False):
                got = careful.get(ref, copy=copy)
                assert type(got) is type(value)
                assert got.equals(value)
                got.validate(full=True)


def test_schemas_keep_their_metadata(careful: hoplite.Client) -> None:
    field = pa.field("a", pa.int64(), nullable=False, metadata={b"unit": b"m"})
    table = pa.table([[1, 2]], schema=pa.schema([field], metadata={b"about": b"\xff\x00"}))
    empty = pa.table({})
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    for value in (table, empty, table[:0], rows):
        with careful.put(None, value) as ref:
            got = careful.get(ref)
            assert got.schema.equals(value.schema, check_metadata=True)
            assert got.num_rows == value.num_rows


def test_numbers_without_gaps_are_arrays_of_numbers(careful: hoplite.Client) -> None:
    with (
        careful.put(None, pa.array([1.0, 2.0])) as ref,
        careful.put(None, pa.array([3.0, 4.0])) as other,
    ):
        assert isinstance(careful.get(ref), np.ndarray)
        with careful.ref("arrow/total") as total:
            careful.reduce(total, [ref, other])
            assert careful.get(total).tolist() == [4.0, 6.0]


FRAME = pl.DataFrame(
    {
        "i": [1, None, 3],
        "s": ["a", None, "b" * 100],
        "c": pl.Series(["x", "y", None], dtype=pl.Categorical),
        "e": pl.Series(["x", "y", None], dtype=pl.Enum(["y", "x"])),
        "d": [WHEN.date()] * 3,
        "t": [WHEN.time()] * 3,
        "z": pl.Series([WHEN] * 3, dtype=pl.Datetime("ms", "Europe/Berlin")),
        "u": [datetime.timedelta(1)] * 3,
        "l": [[1], None, [2, 3]],
        "r": [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
        "f": pl.Series([[1, 2]] * 3, dtype=pl.Array(pl.Int8, 2)),
        "m": [decimal.Decimal("1.5")] * 3,
        "b": [b"x", None, b"\xff"],
        "n": pl.Series([None] * 3, dtype=pl.Null),
        "o": [True, None, False],
    }
)


def test_frames(careful: hoplite.Client) -> None:
    frames = [FRAME, FRAME[1:], FRAME[:0], pl.concat([FRAME, FRAME], rechunk=False), pl.DataFrame()]
    for value in [*frames, *FRAME.get_columns(), pl.Series("numbers", [1.0, 2.0]), FRAME["s"][1:]]:
        with careful.put(None, value, confirm=True) as ref:
            known = retry(careful.stat, ref)
            assert known is not None
            assert known.kind == "polars"
            for copy in (None, True, False):
                got = careful.get(ref, copy=copy)
                assert type(got) is type(value)
                assert got.equals(value)
                assert (
                    got.to_frame().schema == value.to_frame().schema
                    if isinstance(value, pl.Series)
                    else True
                )
                assert (
                    got.schema == value.schema
                    if isinstance(value, pl.DataFrame)
                    else got.name == value.name
                )


def test_frames_that_arrow_has_no_type_for_are_pickled(
    client: hoplite.Client, careful: hoplite.Client
) -> None:
    wide = pl.DataFrame({"i": pl.Series([1, 2**100], dtype=pl.Int128)})
    with pytest.raises(hoplite.PickleRefused):
        careful.put(None, wide)
    with client.put(None, wide) as ref:
        assert client.get(ref).equals(wide)


def addresses(value: Any) -> list[tuple[int, int]]:
    table = (
        value
        if isinstance(value, pa.Table)
        else value.to_arrow(compat_level=pl.CompatLevel.newest())
    )
    buffers = [
        buffer for column in table.columns for chunk in column.chunks for buffer in chunk.buffers()
    ]
    return [
        (buffer.address, buffer.size)
        for buffer in buffers
        if buffer is not None and buffer.size > 64
    ]


@pytest.mark.parametrize("form", ["arrow", "polars"])
def test_nothing_is_copied(node: Cluster, form: str) -> None:
    rows = 100_000
    numbers = np.arange(rows, dtype=np.float64)
    frame = pl.DataFrame(
        {"n": numbers, "s": [f"a string of some length, {row}" for row in range(rows)]}
    )
    lists = pa.array([[row] for row in range(rows)])
    table = pa.table(
        {"n": pa.array(numbers, mask=numbers == 3), "s": frame["s"].to_arrow(), "l": lists}
    )
    value: Any = frame if form == "polars" else table
    with node.connect() as client:
        empty = used_bytes(client)
        ref = client.put(None, value)
        first, second = client.get(ref), client.get(ref)
        assert first.equals(value)
        assert addresses(first) == addresses(second), "both are where the store has it"
        assert addresses(first)
        begin = np.frombuffer(client._native.get(ref, PATIENCE), np.uint8).ctypes.data
        for address, size in addresses(first):
            assert begin <= address
            assert address + size <= begin + (ref.nbytes or 0)
        part = first["n"][1000:1010]
        ref.delete()
        del first, second
        gc.collect()
        assert used_bytes(client) > empty
        assert (
            part.to_pylist() == list(range(1000, 1010))
            if form == "arrow"
            else part.sum() == sum(range(1000, 1010))
        )
        del part
        gc.collect()
        await_that("it is given back", lambda: used_bytes(client) == empty)


def test_frames_of_pandas_stay_in_place(client: hoplite.Client) -> None:
    rows = 10_000
    frame = pd.DataFrame(
        {"n": np.arange(rows) / 7, "i": range(rows), "s": [f"word {row}" for row in range(rows)]}
    )
    frame["when"] = pd.date_range("2026-01-01", periods=rows, tz="UTC")
    frame["kind"] = frame["s"].astype("category")
    with client.put(None, frame) as ref:
        first, second = client.get(ref), client.get(ref)
        pd.testing.assert_frame_equal(first, frame)
        for name in ("n", "i"):
            assert np.shares_memory(first[name].to_numpy(), second[name].to_numpy())
        words = [
            pa.chunked_array(pa.array(got["s"])).chunk(0).buffers()[2].address
            for got in (first, second)
        ]
        assert words[0] == words[1]


def test_large_buffers_are_put_as_they_are() -> None:
    numbers = np.arange(100_000, dtype=np.float64)
    encoded = _serialize.encode(pa.table({"a": numbers, "b": numbers}))
    large = [piece for piece in encoded.pieces if memoryview(piece).nbytes == numbers.nbytes]
    assert [np.frombuffer(piece, np.uint8).ctypes.data for piece in large] == [
        numbers.ctypes.data
    ] * 2
    place = sum(
        memoryview(piece).nbytes for piece in encoded.pieces[: encoded.pieces.index(large[0])]
    )
    assert place % 64 == 0


def test_a_slice_is_no_larger_than_it_looks(careful: hoplite.Client) -> None:
    table = pa.table({"a": np.arange(1_000_000), "s": ["x" * 10] * 1_000_000})
    with careful.put(None, table[500:600]) as ref:
        assert ref.nbytes is not None
        assert ref.nbytes < 10_000
        assert careful.get(ref).equals(table[500:600])


def test_what_is_too_large_is_refused() -> None:
    table = pa.table({"a": np.zeros(100_000)})
    with pytest.raises(hoplite.ObjectTooLarge):
        _serialize.encode(table, "id", 1000)


def test_an_array_cannot_be_filled_with_a_table(careful: hoplite.Client) -> None:
    with (
        careful.put(None, pa.table({"a": [1]})) as ref,
        pytest.raises(hoplite.TypeMismatch, match="Arrow"),
    ):
        careful.get_into(ref, np.zeros(1))


def test_without_arrow_frames_are_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arrow, "_pyarrow", lambda: None)
    assert _serialize.encode(FRAME[["i"]]).user == _serialize.TAG_PICKLE
    with pytest.raises(ImportError, match="pyarrow"):
        _arrow.decode(memoryview(b""), _arrow.Form(b"py1:arrow", b"table", 0), trusts=True)


def test_an_old_arrow_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old versions run pickles in schemas: CVE-2023-47248."""
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    assert _arrow._pyarrow() is None


def stream(value: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(value)
    return bytes(sink.getvalue())


SAMPLE = pa.table(
    {
        "i": [1, None, 3],
        "s": ["a", None, "bcd"],
        "l": [[1], None, [2, 3]],
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "v": pa.array(["a", "b" * 40, None], pa.string_view()),
        "r": [{"a": 1}, None, {"a": 2}],
    }
)


def read(client: hoplite.Client, id: str, user: bytes, contents: bytes) -> Any:
    client._native.put(id, [contents], "opaque", None, user, PATIENCE, False)
    try:
        return client.get(id, PATIENCE)
    finally:
        client.delete(id)


@pytest.mark.parametrize(
    "user",
    [b"py1:arrow", b"py1:arrow ", b"py1:arrow tables", b"py1:arrow frame", b"py1:polars table", b"py1:polars",
     b"py1:arrow table -1", b"py1:arrow table 64", b"py1:arrow table 1e1", b"py1:arrow table 1 2",
     b"py1:arrow table \xb2", b"py1:arrow table 9999", b"py1:arrow table 3", b"py1:arrow table 63"],
)  # fmt: skip
def test_a_hostile_header_is_a_typed_error(
    careful: hoplite.Client, fresh: str, user: bytes
) -> None:
    with pytest.raises(hoplite.InvalidMetadata):
        read(careful, fresh, user, stream(SAMPLE))


def test_the_form_must_be_that_of_the_stream(careful: hoplite.Client, fresh: str) -> None:
    two = stream(SAMPLE)
    for user in (b"py1:arrow array", b"py1:arrow chunked", b"py1:polars series"):
        with pytest.raises(hoplite.InvalidMetadata, match="one column"):
            read(careful, fresh, user, two)
    schema = stream(SAMPLE[:0].select(["i"]))[:-8]
    assert read(careful, fresh, b"py1:arrow table", schema).num_rows == 0
    with pytest.raises(hoplite.InvalidMetadata):
        read(careful, fresh, b"py1:arrow batch", schema[:-1])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_stream_takes_no_memory(
    careful: hoplite.Client, fresh: str, codec: str
) -> None:
    bomb = stream(pa.table({"a": np.zeros(1_000_000)}), compression=codec)
    assert len(bomb) < 100_000
    for user in (b"py1:arrow table", b"py1:polars frame"):
        with pytest.raises(hoplite.InvalidMetadata, match="compressed"):
            read(careful, fresh, user, bomb)
    words = pa.array(["x" * 10_000, "y"]).dictionary_encode()
    with pytest.raises(hoplite.InvalidMetadata, match="compressed"):
        read(careful, fresh, b"py1:arrow table", stream(pa.table({"a": words}), compression=codec))


def test_offsets_that_point_elsewhere_are_found(careful: hoplite.Client, fresh: str) -> None:
    contents = bytearray(stream(pa.table({"s": ["ab", "cd", "ef"]})))
    offsets = struct.pack("<4i", 0, 2, 4, 6)
    at = contents.index(offsets)
    contents[at : at + 16] = struct.pack("<4i", 0, 2**30, 4, 6)
    with pytest.raises(hoplite.InvalidMetadata, match="no stream of Arrow"):
        read(careful, fresh, b"py1:arrow table", bytes(contents))


def test_a_schema_runs_no_pickle(careful: hoplite.Client, fresh: str) -> None:
    trap = b"cbuiltins\nexec\n(S'raise SystemExit'\ntR."
    field = pa.field("a", pa.int64(), metadata={
        b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": trap})  # fmt: skip
    got = read(
        careful, fresh, b"py1:arrow table", stream(pa.table([[1]], schema=pa.schema([field])))
    )
    assert got.num_rows == 1


SAMPLES = [stream(SAMPLE), stream(FRAME.to_arrow(compat_level=pl.CompatLevel.newest()))]


@settings(max_examples=300)
@given(data=st.data())
def test_no_stream_harms_a_careful_reader(careful: hoplite.Client, data: st.DataObject) -> None:
    contents = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(contents) - 1))
        contents[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from((b"\xff\xff\xff\x7f", b"\x00\x00\x00\x00", b"\xff" * 8))
        )
    user = data.draw(st.sampled_from([
        b"py1:arrow table", b"py1:arrow batch", b"py1:arrow array", b"py1:arrow chunked", b"py1:polars frame",
        b"py1:polars series", b"py1:arrow table 8"]))  # fmt: skip
    try:
        got = _serialize.decode(Stored(bytes(contents), user), None, None, False, "id")
    except (hoplite.InvalidMetadata, TypeError, ImportError):
        return
    # Libraries raise arbitrary errors for invalid values.
    with contextlib.suppress(Exception, pl.exceptions.PanicException):
        assert got.nbytes < 1 << 20 if isinstance(got, (pa.Table, pa.RecordBatch)) else True
        repr(got)
        got.to_pylist() if isinstance(got, pa.Table) and got.num_rows < 1000 else None


class Stored(bytes):
    dtype, shape = "opaque", None

    def __new__(cls, contents: bytes, user: bytes) -> Stored:
        made = super().__new__(cls, contents)
        made.user = user
        return made

    user: bytes

    @property
    def nbytes(self) -> int:
        return len(self)

    def tobytes(self) -> bytes:
        return bytes(self)


def test_the_module_is_not_imported_before_it_is_needed() -> None:
    assert _serialize.encode(7).user == _serialize.TAG_PICKLE
    assert "pyarrow" in sys.modules
