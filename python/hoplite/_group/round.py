"""Buffers, and the objects of one collective."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from hoplite import _native
from hoplite._calls import fill
from hoplite._checks import Op, check_layout
from hoplite._dtypes import DTYPES, bfloat16
from hoplite._serialize import Layout
from hoplite.errors import SizeMismatch, TypeMismatch

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

#: Larger copies run in another thread. The switch costs about 50 us.
COPY_ASIDE_BYTES = 1 << 20

OPAQUE = "opaque"

#: Stores compute each `Op`; ranks compute the other operations.
GroupOp = Op | Literal["and", "or", "xor"]


class Buffer(NamedTuple):
    memory: Bytes
    dtype: str = OPAQUE
    shape: tuple[int, ...] | None = None
    user: bytes = b""
    layout: Layout | None = None
    """The layout that other ranks must use. None compares only the size, and in
    `Round.checked` the dtype."""

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


class Round:
    def __init__(
        self, client: _native.AsyncClient, prefixes: Sequence[str], rank: int, deadline: float
    ) -> None:
        self.client = client
        self.rank = rank
        self.size = len(prefixes)
        self.made: list[str] = []
        self.awaited: dict[int, str] = {}
        self._prefixes = prefixes
        self._deadline = deadline

    def id(self, part: str, rank: int) -> str:
        return f"{self._prefixes[rank]}{part}{rank}"

    def id_for(self, part: str, source: int, to: int) -> str:
        return f"{self._prefixes[source]}{part}{source}/{to}"

    def ids(self, part: str) -> list[str]:
        return [self.id(part, rank) for rank in range(self.size)]

    def others(self) -> list[int]:
        """Returns the other ranks from the next one on, to spread the load."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    async def missing(self) -> list[int]:
        ranks, ids = list(self.awaited), list(self.awaited.values())
        there = await self.client.wait(ids, len(ids), 0.0)
        return [rank for index, rank in enumerate(ranks) if index not in there]

    async def put(self, id: str, buffer: Buffer) -> None:
        self.made.append(id)
        await self.client.put(
            id, [buffer.memory], buffer.dtype, buffer.shape, buffer.user, self.left(), False
        )

    async def get_into(self, id: str, buffer: Buffer, rank: int) -> None:
        self.awaited[rank] = id
        if buffer.layout is not None:
            await fill(self.client, id, buffer.memory, buffer.layout, self.left())
            return
        size_bytes = await self.client.get_into(id, buffer.memory, self.left())
        if size_bytes != buffer.nbytes:
            raise SizeMismatch(
                f"rank {rank} passed {size_bytes} bytes, and rank {self.rank} expected {buffer.nbytes}"
            )

    def checked(self, id: str, rank: int, view: _native.View, expected: Buffer) -> Bytes:
        if expected.layout is not None:
            check_layout(id, view, expected.layout)
        elif (view.dtype, view.nbytes) != (expected.dtype, expected.nbytes):
            raise TypeMismatch(
                f"rank {rank} passed {view.nbytes} bytes of {view.dtype}, "
                f"and rank {self.rank} {expected.nbytes} of {expected.dtype}"
            )
        return np.ndarray((view.nbytes,), np.uint8, cast(Any, view))


async def at_once(*parts: Awaitable[Any]) -> None:
    if len(parts) == 1:
        await parts[0]
        return
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        # Waits, because the caller may use the buffers afterwards.
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def copy(contents: Buffer, out: Buffer) -> None:
    if contents.nbytes < COPY_ASIDE_BYTES:
        out.memory[:] = contents.memory
    else:
        await asyncio.to_thread(np.copyto, out.memory, contents.memory)


def reduced(memories: Sequence[Bytes], dtype: str, op: GroupOp) -> Bytes:
    if dtype == "bf16" and (torch := sys.modules.get("torch")) is not None:
        # By torch, because numpy needs ml_dtypes for bfloat16.
        of_torch = getattr(torch, _NAMES_IN_TORCH[op])
        total = torch.from_numpy(memories[0].copy()).view(torch.bfloat16)
        for memory in memories[1:]:
            of_torch(total, torch.from_numpy(memory.copy()).view(torch.bfloat16), out=total)
        result: Bytes = total.view(torch.uint8).numpy()
        return result
    of_numpy, known = _OF_NUMPY[op], DTYPES.get(dtype) or bfloat16()
    array = memories[0].copy().view(known)
    with np.errstate(all="ignore"):
        for memory in memories[1:]:
            of_numpy(array, memory.view(known), out=array)
    return array.view(np.uint8)


_OF_NUMPY: dict[GroupOp, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_NAMES_IN_TORCH: dict[GroupOp, str] = {
    "sum": "add",
    "prod": "mul",
    "min": "minimum",
    "max": "maximum",
}
