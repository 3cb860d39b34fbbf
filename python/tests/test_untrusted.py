"""No stored object can run code in a reader, unless it allows pickles."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.extra.numpy as npst
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hoplite
import hoplite.aio
from hoplite import _dtypes, _headers, _pickles, _serialize
from hoplite._group.round import Buffer
from stores import PATIENCE, Cluster

TYPED = (hoplite.HopliteError, TypeError, ImportError)


class Trap:
    def __reduce__(self) -> Any:
        return _trap, ()


_sprung: list[bool] = []


def _trap() -> str:
    _sprung.append(True)
    return "sprung"


@pytest.fixture(autouse=True)
def not_sprung() -> Iterator[None]:
    _sprung.clear()
    yield
    assert not _sprung, "a pickle was read that was to be refused"


@pytest.fixture(scope="module")
def careful(cluster: Cluster) -> Iterator[hoplite.Client]:
    with hoplite.connect(cluster.sockets[0], allow_pickle=False) as client:
        yield client


@pytest.mark.parametrize("framework", [None, "numpy", "torch", "jax"])
@pytest.mark.parametrize("copy", [None, True, False])
def test_a_careful_client_reads_no_pickle(
    client: hoplite.Client,
    careful: hoplite.Client,
    copy: bool | None,
    framework: _serialize.Framework,
) -> None:
    with client.put(None, Trap()) as put:
        ref = careful.ref(put.id)
        with pytest.raises(hoplite.PickleRefused, match="HOPLITE_ALLOW_PICKLE") as caught:
            careful.get(ref, copy=copy, framework=framework)
        assert caught.value.id == ref.id
        assert not caught.value.retryable
        with pytest.raises(hoplite.PickleRefused):
            careful.gather([ref], copy=copy, framework=framework)
        with pytest.raises(hoplite.PickleRefused):
            ref.get(copy=copy, framework=framework)


def test_what_needs_no_pickle_is_read(careful: hoplite.Client) -> None:
    whens = np.arange(0, 5, dtype="M8[s]")
    values: list[Any] = [
        np.arange(5.0),
        whens,
        np.zeros(3, [("a", "i4"), ("b", "S3")]),
        torch.ones(3),
        b"bytes",
        np.arange(5).astype(ml_dtypes.float8_e5m2),
        np.arange(5).astype(ml_dtypes.int4),
        torch.ones(3).to(torch.float8_e4m3fn).view(torch.uint8),
        jnp.arange(5.0),
    ]
    for value in values:
        with careful.put(None, value) as ref:
            for copy in (None, True, False):
                got = careful.get(ref, copy=copy)
                assert bytes(
                    np.asarray(memoryview(got)) if isinstance(got, memoryview) else _bytes(got)
                ) == _bytes(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def test_other_ways_to_a_pickle_are_refused_too(
    client: hoplite.Client, careful: hoplite.Client, fresh: str
) -> None:
    with client.put(fresh + "other", Trap()), pytest.raises(hoplite.PickleRefused):
        careful.allgather([fresh + "other", fresh + "own"], 1, b"harmless", PATIENCE)
    client.put(fresh + "all/0/0", Trap())
    contents = b"".join(map(bytes, _serialize.encode(Trap()).pieces))
    views = careful._native.all_to_all(
        fresh + "all", [[contents]], 0, "opaque", None, b"py1:pickle", PATIENCE
    )
    with pytest.raises(hoplite.PickleRefused):
        careful._calls._decoded([fresh + "all"], views, None, None)


def test_a_careful_client_makes_no_pickle(
    careful: hoplite.Client, cluster: Cluster, fresh: str
) -> None:
    for value in (Trap(), {"a": 1}, np.array([None]), np.ma.masked_array([1])):
        with pytest.raises(hoplite.PickleRefused, match="only be stored as a pickle") as caught:
            careful.put(fresh + "put", value)
        assert caught.value.id == fresh + "put"
        with pytest.raises(hoplite.PickleRefused):
            careful.allgather([fresh + "own"], 0, value)
        with pytest.raises(hoplite.PickleRefused):
            careful.all_to_all(fresh + "all", [value], 0, timeout=PATIENCE)
        with pytest.raises(hoplite.PickleRefused):
            careful.allgather_into(fresh + "into", [fresh + "own"], 0, bytearray(1000), value)
    with pytest.raises(hoplite.PickleRefused):
        careful.all_to_all(fresh + "all", [np.zeros(2), b"of another kind"], 0, timeout=PATIENCE)

    async def put() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0], allow_pickle=False) as client:
            with pytest.raises(hoplite.PickleRefused):
                await client.put(fresh + "put", Trap())

    asyncio.run(put())
    assert not list(careful.list(fresh))


def test_the_asynchronous_client_refuses_them_too(cluster: Cluster, client: hoplite.Client) -> None:
    async def look(id: str) -> None:
        async with await hoplite.aio.connect(cluster.sockets[0], allow_pickle=False) as client:
            assert not client.allow_pickle
            for copy in (None, True, False):
                with pytest.raises(hoplite.PickleRefused):
                    await client.get(id, copy=copy)
            with pytest.raises(hoplite.PickleRefused):
                await client.gather([id])

    with client.put(None, Trap()) as ref:
        asyncio.run(look(str(ref.id)))


@pytest.mark.parametrize(
    ("said", "allows"),
    [("", True), ("1", True), ("0", False), ("false", False), ("OFF", False), ("yes", True)],
)
def test_the_environment_decides_for_who_is_not_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, said: str, allows: bool
) -> None:
    monkeypatch.setenv("HOPLITE_ALLOW_PICKLE", said)
    with hoplite.connect(cluster.sockets[0]) as client:
        assert client.allow_pickle is allows
    with hoplite.connect(cluster.sockets[0], allow_pickle=True) as client:
        assert client.allow_pickle
    hoplite.shutdown()
    assert hoplite.init(cluster.sockets[0]).allow_pickle is allows
    hoplite.shutdown()


def test_a_mistake_in_the_environment_allows_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPLITE_ALLOW_PICKLE", "of")
    with pytest.raises(ValueError, match="1 or 0"):
        hoplite.connect(cluster.sockets[0])


def test_init_does_not_take_back_what_it_was_told(cluster: Cluster) -> None:
    hoplite.shutdown()
    assert not hoplite.init(cluster.sockets[0], allow_pickle=False).allow_pickle
    assert not hoplite.init().allow_pickle
    with pytest.raises(hoplite.ConnectFailed, match="allow_pickle"):
        hoplite.init(allow_pickle=True)
    hoplite.init().close()
    assert not hoplite.init().allow_pickle
    hoplite.shutdown()


def test_no_header_but_that_of_a_pickle_reaches_the_unpickler(
    client: hoplite.Client, fresh: str
) -> None:
    contents = b"".join(map(bytes, _serialize.encode(Trap()).pieces))
    for number, user in enumerate(
        (b"", b"py1:bytes", b"py1:pickle2", b"py1:pickle ", b"py1:torch", b"py1:ndarray x")
    ):
        id = f"{fresh}{number}"
        client._native.put(id, [contents], "opaque", None, user, PATIENCE, False)
        for copy, framework in ((None, None), (True, "numpy"), (False, "torch")):
            with contextlib.suppress(*TYPED):
                client.get(id, copy=copy, framework=framework)  # type: ignore[arg-type]


# Dtypes whose elements are not plain bytes


def objects_in_a_field() -> np.ndarray[Any, Any]:
    array = np.zeros(2, [("number", "i4"), ("deep", [("object", object)])])
    array["deep"]["object"] = [{"a": 1}, "b"]
    return array


@pytest.mark.parametrize(
    "array", [np.array([{"a": 1}], dtype=object), objects_in_a_field(), np.array(["a"], np.dtypes.StringDType())]
)  # fmt: skip
def test_a_writer_pickles_elements_that_are_more_than_bytes(
    client: hoplite.Client, careful: hoplite.Client, array: np.ndarray[Any, Any]
) -> None:
    assert _serialize.encode(array).user == _serialize.TAG_PICKLE
    assert _serialize.needs_pickle(array)
    with client.put(None, array) as ref:
        assert client.get(ref).tolist() == array.tolist()
        with pytest.raises(hoplite.PickleRefused):
            careful.get(ref)


HOSTILE = [
    b"py1:ndarray ('|O', (1,))",
    b"py1:ndarray ('O8', ())",
    b"py1:ndarray ([('a', '|O')], (1,))",
    b"py1:ndarray ([('a', [('b', '<i4'), ('c', '|O')])], (1,))",
    b"py1:ndarray ([('a', '|O', (2, 2))], (1,))",
    b"py1:ndarray (('|O', (2,)), (1,))",
    b"py1:ndarray ('T16', (1,))",
    b"py1:ndarray ('<f4', (-1,))",
    b"py1:ndarray ('<f4', (9223372036854775807, 9223372036854775807))",
    b"py1:ndarray ('V0', (1000000000000,))",
    b"py1:ndarray ('S0', (1000000000000,))",
    b"py1:ndarray ([('a', 'V0', (2147483647,)), ('b', 'u1')], (1,))",
    b"py1:ndarray ('V2147483647', (1,))",
    b"py1:ndarray " + b"(" * 2000 + b")" * 2000,
    b"py1:ndarray " + b"[" * 4000,
    b"py1:ndarray " + b"-" * 4000 + b"1",
    b"py1:ndarray " + b"not " * 900 + b"1",
    b"py1:ndarray " + b"1if 1else " * 300 + b"1",
    b"py1:ndarray " + b"1+" * 1900 + b"1",
    b"py1:ndarray __import__('os').abort()",
    b"py1:ndarray '\\",
    b"py1:ndarray ('float8_e4m3fn', (9,))",
    b"py1:ndarray ('float8_e4m3fn', (-8,))",
    b"py1:ndarray ('float9_e4m4fn', (8,))",
    b"py1:ndarray ('finfo', (8,))",
    b"py1:jax ('|O', (1,))",
    b"py1:jax ('float8_e4m3fn', (9,))",
    b"py1:jax ('V1', (8,))",
    b"py1:jax ('<M8[s]', (1,))",
    b"py1:jax [('a', '<f4')]",
    b"py1:ndarray ('\\N{BULLET}', (1,))",
    b"py1:ndarray (b'<f4', (1,))",
    b"py1:torch ('load', (1,))",
    b"py1:torch ('nn', (1,))",
    b"py1:torch ('qint8', (8,))",
    b"py1:torch ('quint4x2', (8,))",
    b"py1:torch ('complex64', (-1,))",
    b"py1:torch ('complex64', (1000000000000,))",
    b"py1:torch ('complex64', (True,))",
    b"py1:torch (None, ())",
    b"py1:torch \xff",
    b"py1:ndarray \xff\x00",
]


@pytest.mark.parametrize("user", HOSTILE, ids=lambda user: user[:40].decode(errors="replace"))
def test_a_hostile_header_is_a_typed_error(client: hoplite.Client, fresh: str, user: bytes) -> None:
    client._native.put(fresh, [b"12345678"], "opaque", None, user, PATIENCE, False)
    for copy in (None, True, False):
        with pytest.raises(hoplite.InvalidMetadata, match=fresh) as caught:
            client.get(fresh, copy=copy)
        assert caught.value.id == fresh
    for out in (np.zeros(2, np.float32), torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises((hoplite.HopliteError, TypeError)):
            client.get_into(fresh, out)
    client.delete(fresh)


class Stored(NamedTuple):
    contents: bytes
    dtype: str
    shape: tuple[int, ...] | None
    user: bytes


def read(native: hoplite.Client, id: str, stored: Stored) -> None:
    """Gets an object in all ways, with typed errors only."""
    try:
        native._native.put(
            id, [stored.contents], stored.dtype, stored.shape, stored.user, PATIENCE, False
        )
    except hoplite.HopliteError:
        return
    try:
        for copy in (None, True, False):
            for framework in (None, "numpy", "torch", "jax"):
                with contextlib.suppress(*TYPED):
                    got = native.get(id, PATIENCE, copy, framework)  # type: ignore[arg-type]
                    use(got)
        for out in (np.zeros(4, np.float32), torch.zeros(4), bytearray(64)):
            with contextlib.suppress(*TYPED):
                native.get_into(id, out, PATIENCE)
    finally:
        native.delete(id)


def use(got: Any) -> None:
    if isinstance(got, np.ndarray):
        with contextlib.suppress(ValueError, OverflowError, SystemError):
            got.copy().tobytes()
            repr(got)
    elif isinstance(got, torch.Tensor):
        # torch cannot print elements of less than 8 bits, such as int1.
        with contextlib.suppress(NotImplementedError):
            repr(got)
    elif isinstance(got, jax.Array):
        repr(got)
    else:
        bytes(got)


dtypes = npst.array_dtypes() | npst.scalar_dtypes() | npst.nested_dtypes()
shapes = st.lists(st.integers(-2, 9) | st.just(2**62), max_size=4).map(tuple)


@st.composite
def described(draw: st.DrawFn) -> bytes:
    tags = (b"py1:ndarray", b"py1:torch", b"py1:jax", b"py1:bytes", b"py1:pickle", b"py1:later")
    tag = draw(st.sampled_from((*tags, b"py1:arrow", b"py1:polars")))
    if tag in (b"py1:ndarray", b"py1:jax") and draw(st.booleans()):
        what: Any = draw(st.sampled_from(dir(ml_dtypes)))
    elif tag == b"py1:torch":
        what = draw(st.sampled_from(dir(torch)) | st.text(max_size=8))
    else:
        what = draw(st.sampled_from(HOSTILE)) if draw(st.booleans()) else _descr(draw(dtypes))
    header = repr((what, draw(shapes))).encode(errors="replace")
    header = bytearray(tag + b" " + header)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(header) - 1))
        change = draw(st.sampled_from(("flip", "cut", "double", "insert")))
        if change == "flip":
            header[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut":
            del header[at : at + draw(st.integers(1, 8))]
        elif change == "double":
            header[at:at] = header[at : at + draw(st.integers(1, 64))]
        else:
            header[at:at] = draw(
                st.binary(max_size=6) | st.sampled_from((b"(", b"['a', '|O']", b"|O", b",)"))
            )
        if not header:
            break
    return bytes(header[:4096])


def _descr(dtype: np.dtype[Any]) -> Any:
    try:
        return np.lib.format.dtype_to_descr(dtype)
    except (ValueError, TypeError):
        return dtype.str


contents = st.binary(max_size=64) | st.integers(0, 40).map(bytes)


@settings(max_examples=400)
@given(user=described() | st.binary(max_size=60), contents=contents)
@example(user=b"py1:ndarray ('|O', (1,))", contents=bytes(8))
@example(user=b"py1:pickle", contents=bytes(8))
@example(user=b"py1:jax ('float6_e2m3fn', (1,))", contents=bytes(1))
@example(user=b"py1:ndarray ('int1', ())", contents=bytes(1))
@example(user=b"py1:jax ('int1', (3,))", contents=bytes(3))
@example(user=b"py1:jax ('uint1', (3,))", contents=bytes(3))
def test_no_header_harms_a_reader(careful: hoplite.Client, user: bytes, contents: bytes) -> None:
    read(careful, "fuzz/header", Stored(contents, "opaque", None, user))


@settings(max_examples=200)
@given(
    user=st.sampled_from((b"", b"py1:torch", b"py1:jax", b"theirs", b"py1:bytes")) | described(),
    dtype=st.sampled_from((*_dtypes.TORCH_NAMES, "opaque")),
    shape=st.none() | st.lists(st.integers(0, 5), max_size=5).map(tuple),
    contents=contents,
)
def test_no_type_harms_a_reader(
    careful: hoplite.Client, user: bytes, dtype: str, shape: tuple[int, ...] | None, contents: bytes
) -> None:
    read(careful, "fuzz/type", Stored(contents, dtype, shape, user))


@given(
    head=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 200), max_size=5),
    rest=st.binary(max_size=300),
)
def test_no_frame_of_a_pickle_harms_a_reader(head: list[int], rest: bytes) -> None:
    framed = b"".join(word.to_bytes(8, "little") for word in head) + rest
    with contextlib.suppress(Exception):
        _pickles.unpickle(memoryview(framed), tensors_in_place=False)


@settings(max_examples=300)
@given(text=st.text(max_size=60) | st.from_regex(r"[\[\]\(\), 'a0-9-]{0,40}", fullmatch=True))
def test_the_literals_are_those_of_python_or_refused(text: str) -> None:
    with contextlib.suppress(_headers.BadHeader):
        _headers.literal(text)


plain = st.none() | st.integers(-(10**18), 10**18) | st.text(max_size=20)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)


@given(value=st.recursive(plain, nested, max_leaves=12))
def test_a_literal_comes_back(value: Any) -> None:
    with contextlib.suppress(RecursionError):
        got = _headers.literal(repr(value))
        assert got == value
        assert type(got) is type(value)


@given(dtype=dtypes)
def test_every_dtype_goes_one_of_both_ways(
    careful: hoplite.Client, client: hoplite.Client, dtype: np.dtype[Any]
) -> None:
    value = np.zeros(3, dtype)
    with client.put(None, value) as ref:
        assert client.get(ref).dtype == value.dtype
        if _serialize.needs_pickle(value):
            with pytest.raises(hoplite.PickleRefused):
                careful.get(ref)
        else:
            assert careful.get(ref).dtype == value.dtype


def test_a_group_takes_no_header_on_trust(careful: hoplite.Client, fresh: str) -> None:
    from hoplite._group.round import Round

    own = _serialize.encode(np.zeros(2, "c8"))
    expected = Buffer(
        np.zeros(16, np.uint8), own.dtype, own.shape, own.user, _serialize.layout(own, "numpy")
    )
    for user in HOSTILE:
        careful._native.put(fresh, [bytes(16)], "opaque", None, user, PATIENCE, False)
        view = careful._native.get(fresh, PATIENCE)
        with pytest.raises((hoplite.HopliteError, TypeError)):
            Round.checked(None, fresh, 1, view, expected)  # type: ignore[arg-type]
        careful.delete(fresh)


class Foreign:
    def __init__(self, device: Any, capsule: Any, array: Any = None) -> None:
        self._device, self._capsule, self._array = device, capsule, array

    def __dlpack_device__(self) -> Any:
        return _do(self._device)

    def __dlpack__(self, **_: Any) -> Any:
        return _do(self._capsule)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return _do(self._array)

    def __reduce__(self) -> Any:
        return str, ("pickled",)


def _do(what: Any) -> Any:
    if isinstance(what, type) and issubclass(what, BaseException):
        raise what("no")
    return what


ERRORS = [
    TypeError,
    BufferError,
    RuntimeError,
    ValueError,
    KeyError,
    NotImplementedError,
    MemoryError,
    OSError,
]


@given(
    device=st.sampled_from(
        [*ERRORS, (1, 0), (3, 0), None, 7, "cpu", (1,), (1, 2, 3), (None, None)]
    ),
    capsule=st.sampled_from([*ERRORS, None, 7, b"capsule"]),
    array=st.sampled_from([*ERRORS, None, 7, "x"]),
)
def test_whatever_a_library_refuses_goes_the_next_way(
    device: Any, capsule: Any, array: Any
) -> None:
    assert _serialize.encode(Foreign(device, capsule, array)).user == _serialize.TAG_PICKLE


def test_an_array_on_another_device_is_not_fetched_in_secret() -> None:
    with pytest.raises(TypeError, match="move it to the host"):
        _serialize.encode(Foreign((2, 0), None))


single = [
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu", 0)]),
    npst.arrays(npst.scalar_dtypes(), npst.array_shapes(max_dims=2, max_side=3)),
]
values = st.recursive(
    st.one_of(single),
    lambda inner: nested(inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(value=values)
def test_a_page_comes_back_without_a_pickle(value: Any) -> None:
    from hoplite.torch import _pages
    from hoplite.torch._state import Entry, Page

    path = (("d", "a"), ("l", 3), ("d", 7))
    page = Page(
        [Entry(path, "float32", (4, 4), (2, 0), (2, 4))], {path: value}, {path: ("int8", (0, 3))}
    )
    user, contents = _pages.encode(page)
    assert user == _pages.TAG_JSON
    again = _pages.decode(user, contents, False, "id")
    assert (again.entries, again.empty) == (page.entries, page.empty)
    assert pickle.dumps(again.values[path]) is not None
    assert alike(again.values[path], value)


def alike(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    return bool(left == right)


@settings(max_examples=300)
@given(data=st.data(), change=st.binary(max_size=4))
def test_no_page_harms_a_reader(data: st.DataObject, change: bytes) -> None:
    from hoplite.torch import _pages
    from hoplite.torch._state import Entry, Page

    path = (("d", "a"),)
    page = Page(
        [Entry(path, "float32", (4,), (0,), (4,))],
        {path: (1, b"x", np.ones(2))},
        {path: ("int8", (0,))},
    )
    user, contents = _pages.encode(page)
    at = data.draw(st.integers(0, len(contents)))
    changed = contents[:at] + change + contents[at + data.draw(st.integers(0, 3)) :]
    for tag in (user, b"", b"py1:pickle", _pages.TAG_PICKLE):
        with contextlib.suppress(hoplite.HopliteError):
            _pages.decode(tag, changed, False, "id")


def test_a_state_dict_is_got_without_pickles(cluster: Cluster, fresh: str) -> None:
    from hoplite.torch import get_state_dict, put_state_dict
    from hoplite.torch._versions import Versions

    name = fresh.replace("/", "-")
    state = {
        "w": torch.ones(3),
        "step": 7,
        "about": ("x", b"y", {"lr": 0.5}),
        "empty": torch.empty(0, 3),
    }
    with hoplite.connect(cluster.sockets[0], allow_pickle=False) as careful:
        put_state_dict(name, state, client=careful, timeout=PATIENCE)
        got = get_state_dict(name, client=careful, timeout=PATIENCE).state_dict
        assert got["about"] == state["about"]
        assert (got["w"] == 1).all()
        put_state_dict(name, {"w": torch.ones(3), "odd": Odd(3)}, client=careful, timeout=PATIENCE)
        with pytest.raises(hoplite.PickleRefused):
            get_state_dict(name, client=careful, timeout=PATIENCE)
    with hoplite.connect(cluster.sockets[0]) as trusting:
        got = get_state_dict(name, client=trusting, timeout=PATIENCE).state_dict
        assert type(got["odd"]) is Odd
        from hoplite.torch import delete_state_dict

        delete_state_dict(name, client=trusting)
    assert Versions is not None


class Odd(int): ...


def test_a_checkpoint_says_that_it_needs_a_pickle(cluster: Cluster, fresh: str) -> None:
    import torch.distributed.checkpoint as dcp

    from hoplite.torch.checkpoint import HopliteReader, HopliteWriter, delete

    name = fresh.replace("/", "-")
    with hoplite.connect(cluster.sockets[0], allow_pickle=False) as careful:
        dcp.save(
            {"w": torch.ones(3)}, storage_writer=HopliteWriter(name, client=careful), no_dist=True
        )
        with pytest.raises(hoplite.PickleRefused):
            HopliteReader(name, client=careful).read_metadata()
        delete(name, client=careful)


def test_a_reader_of_objects_in_a_buffer_lives(cluster: Cluster, fresh: str) -> None:
    with cluster.connect() as client:
        pointers = (np.arange(8, dtype=np.uint64) * 8 + 8).tobytes()
        for number, user in enumerate(HOSTILE[:8]):
            client._native.put(
                f"{fresh}{number}", [pointers], "opaque", None, user, PATIENCE, False
            )
        script = f"""
import hoplite
client = hoplite.connect({cluster.sockets[0]!r})
for number in range(8):
    for copy in (None, True, False):
        try:
            print(client.get({fresh!r} + str(number), 30, copy, "numpy"))
        except hoplite.InvalidMetadata:
            pass
        else:
            raise SystemExit("it was read")
print("alive")
"""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(hoplite.__file__).parent.parent), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
        client.delete([f"{fresh}{number}" for number in range(8)])


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float6_e2m3fn", "int2", "uint4"]
)
def test_elements_of_ml_dtypes_are_not_mistaken(
    client: hoplite.Client, careful: hoplite.Client, name: str
) -> None:
    value = np.ones(5).astype(getattr(ml_dtypes, name))
    with client.put(None, value) as ref:
        for got in (client.get(ref), careful.get(ref), careful.get(ref, copy=True)):
            assert got.dtype == value.dtype
            assert (got == value).all()


def test_a_reader_without_ml_dtypes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _headers.parse_array.cache_clear()
    with pytest.raises(ImportError, match="ml_dtypes"):
        _headers.parse_array(b"('float8_e4m3fn', (3,))")
