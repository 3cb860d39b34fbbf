"""Must pass the type checker and run: see `tests/test_typing.py`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import hoplite
import hoplite.aio

Weights = npt.NDArray[np.float32]


def get(ref: hoplite.Ref[Weights]) -> Weights:
    return hoplite.init().get(ref)


def shown(done: int, total: int) -> None:
    assert 0 <= done <= total


def threads(client: hoplite.Client) -> None:
    weights: Weights = np.ones(3, np.float32)
    ref = client.put(None, weights, progress=shown)
    assert_type(ref, hoplite.Ref[Weights])
    assert_type(client.get(ref, progress=shown), Weights)
    assert_type(client.get(ref, copy=True), Weights)
    assert_type(ref.get(), Weights)
    assert_type(get(ref), Weights)
    assert_type(client.gather([ref, ref]), list[Weights])
    assert_type(client.get(ref, framework="numpy"), Any)
    assert_type(client.get("a name", 1.0) if client.contains("a name") else None, Any | None)
    assert_type(client.put(None, b"bytes"), hoplite.Ref[bytes])
    assert_type(client.get(client.put(None, {"a": 1})), dict[str, int])
    buffer = client.put(None, bytearray(b"bytes"))
    assert_type(client.get(buffer), memoryview)
    assert isinstance(client.get(buffer), memoryview)
    with client.put(None, 7).own() as owner:
        assert_type(owner, hoplite.Ref[int])
        assert_type(owner.get(), int)
    plain: hoplite.Ref = client.ref(ref.id)
    assert_type(client.get(plain), Any)
    ready, missing = client.wait([ref], 1)
    assert not missing
    client.delete(ready)
    both: list[hoplite.Ref[object]] = [buffer, client.put("number", 3)]
    client.delete(both)


async def coroutines(socket: str) -> None:
    async with await hoplite.aio.connect(socket) as client:
        weights: Weights = np.ones(3, np.float32)
        ref = await client.put(None, weights, progress=shown)
        assert_type(await client.get(ref), Weights)
        assert_type(await client.gather([ref]), list[Weights])
        assert_type(
            await client.get("number") if await client.contains("number") else None, Any | None
        )
        await client.delete(ref)


def main() -> None:
    client = hoplite.init(sys.argv[1])
    threads(client)
    asyncio.run(coroutines(sys.argv[1]))
    print("done")


if __name__ == "__main__":
    main()
