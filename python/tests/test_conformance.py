"""Cases of `tests/tests/conformance.rs`, through both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, SHORT, Cluster, await_that, used_bytes

SMALL = bytes(index * 31 % 251 for index in range(1000))
LARGE = bytes(index * 17 % 253 for index in range(300_001))


class Failed(Exception):
    def __init__(self, error: type[hoplite.HopliteError], message: str) -> None:
        self.error, self.message = error, message


Call = Callable[[Any], Any]
Case = tuple[int, str, tuple[Any, ...], dict[str, Any], Any]


def cases() -> Iterator[Case]:
    anything = object()
    exists = Failed(hoplite.AlreadyExists, "already exists")
    for id, contents in (("empty", b""), ("small", SMALL), ("large", LARGE)):
        yield 0, "put", (id, contents), {}, anything
        yield 0, "put", (id, contents), {}, anything
        yield 1, "put", (id, contents), {}, anything
        yield 0, "put", (id, b"other"), {}, exists
        yield 1, "put", (id, b"other"), {}, exists
        yield 2, "get", (id,), {"timeout": PATIENCE}, contents
        yield 1, "get_into", (id, bytearray(400_000)), {"timeout": PATIENCE}, len(contents)
        yield 0, "get", (id,), {"timeout": PATIENCE, "copy": True}, contents
        yield 0, "contains", (id,), {}, True
        yield 2, "wait", ([id], 1), {"timeout": PATIENCE}, ([id], [])
        yield 2, "delete", ([id],), {}, 1
        yield 0, "delete", (id,), {}, 0
        yield 1, "contains", (id,), {}, False
        yield 0, "put", (id, b"other"), {}, anything
        yield 1, "get", (id,), {"timeout": PATIENCE}, b"other"
        yield 1, "delete", ([id, "unknown"],), {}, 1
    timed_out = Failed(hoplite.Timeout, "timed out")
    yield 0, "get", ("unknown",), {"timeout": SHORT}, timed_out
    yield 0, "get_into", ("unknown", bytearray(10)), {"timeout": SHORT}, timed_out
    yield 1, "get", ("unknown",), {"timeout": SHORT, "copy": True}, timed_out
    yield (
        0,
        "put",
        ("huge", bytes(9 << 20)),
        {},
        Failed(hoplite.ObjectTooLarge, "larger than the limit"),
    )
    yield 1, "put", ("known", SMALL), {"confirm": True}, anything
    yield 0, "get", ("known",), {"timeout": PATIENCE}, SMALL
    yield (
        2,
        "wait",
        (["unknown", "known", "neither"], 1),
        {"timeout": PATIENCE},
        (["known"], ["unknown", "neither"]),
    )
    yield 1, "wait", (["unknown", "known"], 2), {"timeout": SHORT}, (["known"], ["unknown"])
    yield (
        2,
        "wait",
        (["unknown"], 2),
        {},
        Failed(hoplite.InvalidRequest, "more objects than there are ids"),
    )
    yield 1, "delete", ("known",), {}, 1
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.zeros((4, 0)),
    ]
    for array in arrays:
        yield 0, "put", ("typed", array), {}, anything
        yield 1, "get", ("typed",), {"timeout": PATIENCE}, array
        yield 1, "put", ("typed", array), {}, anything
        yield 0, "put", ("typed", array.tobytes()), {}, exists
        yield 0, "delete", ("typed",), {}, 1
    for rank in range(4):
        yield rank % 3, "put", (f"source/{rank}", np.full(20_000, rank + 1, np.int32)), {}, anything
    sources = [f"source/{rank}" for rank in range(4)]
    for op, result in (("sum", 10), ("max", 4), ("min", 1), ("prod", 24)):
        expected = np.full(20_000, result, np.int32)
        yield 0, "reduce", (op, sources, op), {"timeout": PATIENCE, "deterministic": True}, anything
        yield 1, "get", (op,), {"timeout": PATIENCE}, expected
    yield 2, "reduce", ("sum", sources), {"timeout": PATIENCE}, exists
    yield 2, "reduce", ("late", [*sources, "unknown"]), {"timeout": SHORT}, timed_out
    yield 2, "reduce", ("none", []), {}, Failed(hoplite.InvalidRequest, "no objects")
    yield (
        2,
        "reduce",
        ("twice", [*sources, sources[0]]),
        {},
        Failed(hoplite.DuplicateId, "more than once"),
    )
    yield (
        2,
        "reduce",
        ("many", sources),
        {"num_objects": 5},
        Failed(hoplite.InvalidRequest, "source"),
    )
    yield 1, "put", ("other type", np.zeros(20_000, np.int64)), {}, anything
    mismatch = Failed(hoplite.TypeMismatch, "cannot be reduced")
    yield 0, "reduce", ("mixed", [*sources, "other type"]), {"timeout": PATIENCE}, mismatch
    yield (
        0,
        "gather",
        (sources,),
        {"timeout": PATIENCE},
        [np.full(20_000, rank + 1, np.int32) for rank in range(4)],
    )
    yield 0, "gather", ([*sources, "unknown"],), {"timeout": SHORT}, timed_out
    yield 0, "delete", ([*sources, "other type", "sum", "max", "min", "prod"],), {}, 9
    yield 0, "contains", ("",), {}, Failed(hoplite.InvalidId, "1 to 255 bytes")
    yield 0, "contains", ("x" * 256,), {}, Failed(hoplite.InvalidId, "256")


def same(got: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return bool(
            got.dtype == expected.dtype and got.shape == expected.shape and (got == expected).all()
        )
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(same, got, expected))
    return bool(got == expected)


def check(interface: str, cluster: Cluster, perform: Callable[[int, str, Any, Any], Any]) -> None:
    for number, (node, method, arguments, options, expected) in enumerate(cases()):
        what = f"{interface}, case {number}, node {node}: {method}{arguments}"[:200]
        if isinstance(expected, Failed):
            with pytest.raises(expected.error, match=expected.message):
                perform(node, method, arguments, options)
        else:
            got = perform(node, method, arguments, options)
            assert type(expected) is object or same(got, expected), f"{what}: {got!r}"[:500]
    for node in range(3):
        with cluster.connect(node) as client:
            await_that("it is empty", lambda client=client: used_bytes(client) == 0)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=3, memory="8MiB") as cluster:
        yield cluster


def test_blocking(own_cluster: Cluster) -> None:
    clients = [own_cluster.connect(node) for node in range(3)]
    check(
        "blocking",
        own_cluster,
        lambda node, method, arguments, options: getattr(clients[node], method)(
            *arguments, **options
        ),
    )


def test_asyncio(own_cluster: Cluster) -> None:
    with asyncio.Runner() as runner:
        clients = [runner.run(hoplite.aio.connect(socket)) for socket in own_cluster.sockets]
        check(
            "asyncio",
            own_cluster,
            lambda node, method, arguments, options: runner.run(
                getattr(clients[node], method)(*arguments, **options)
            ),
        )
