"""The client for asyncio: the methods of `hoplite.Client` as coroutines.

    import hoplite.aio

    async with await hoplite.aio.connect() as client:
        await client.put("weights", weights)
        weights = await client.get("weights")

The calls run on threads of their own, so that nothing blocks the event loop, and any number of them may be under way at
once. A coroutine that is cancelled cancels its call, in the store too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hoplite import _native, _node, _serialize
from hoplite._client import (
    CONNECT_TIMEOUT,
    DEFAULT_TIMEOUT,
    PAGE,
    AnyId,
    Deadline,
    Id,
    Op,
    as_given,
    check_framework,
    check_layout,
    check_op,
    check_reducible,
    divide,
    listed,
    made_ref,
    new_id,
    own_id,
    program_name,
    refuse_to_pickle,
    several,
)
from hoplite._info import ObjectInfo, object_info
from hoplite._serialize import Framework
from hoplite.errors import Superseded
from hoplite.ref import Ref, key

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Client", "connect", "init"]


class Client:
    """A connection to the store of this node, for event loops.

    Made by `connect` or `init`. It may be used by several event loops. The methods are those of `hoplite.Client`, which
    say what they do and raise; the work of pickling happens in the thread of the event loop.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, native: _native.AsyncClient) -> None:
        self._native = native

    @property
    def node(self) -> str:
        """The name of the node whose store this is."""
        return self._native.node

    @property
    def usable(self) -> bool:
        """See `hoplite.Client.usable`."""
        return self._native.usable

    async def put(
        self, id: Id | None, value: object, timeout: float | None = DEFAULT_TIMEOUT, *, confirm: bool = False
    ) -> Ref:
        """See `hoplite.Client.put`. The methods of the handle block, and use the client of `hoplite.init`."""
        encoded = _serialize.encode(value)
        name = new_id() if id is None else id
        await self._native.put(
            name, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, timeout, confirm
        )
        return made_ref(name, encoded, None)

    async def get(
        self, id: Id, timeout: float | None = None, copy: bool | None = None, framework: Framework = None
    ) -> Any:
        """See `hoplite.Client.get`."""
        check_framework(framework)
        if copy:
            return await self._get_private(id, timeout, framework)
        return _serialize.decode(await self._native.get(id, timeout), copy, framework)

    async def _get_private(self, id: Id, timeout: float | None, framework: Framework) -> Any:
        deadline = Deadline(timeout)
        while True:
            reader = await self._native.open(id, deadline.left())
            room, finish = _serialize.destination(reader, framework)
            try:
                await self._native.read(reader, room, deadline.left())
            except Superseded:
                continue
            return finish()

    async def get_into(self, id: Id, out: object, timeout: float | None = None) -> int:
        """See `hoplite.Client.get_into`.

        Cancelled, it may go on to write to `out` for a moment, until the piece that is under way is copied.
        """
        room, wanted = _serialize.as_room(out)
        if wanted.kind == "buffer":
            return await self._native.get_into(id, room, timeout)
        deadline = Deadline(timeout)
        while True:
            reader = await self._native.open(id, deadline.left())
            check_layout(id, reader, wanted)
            try:
                await self._native.read(reader, room, deadline.left())
            except Superseded:
                continue
            return reader.nbytes

    async def reduce(
        self,
        target: Id,
        sources: Iterable[AnyId],
        op: Op = "sum",
        *,
        num_objects: int | None = None,
        deterministic: bool = False,
        timeout: float | None = None,
    ) -> list[AnyId]:
        """See `hoplite.Client.reduce`. Cancelled, it ends everywhere."""
        sources = listed(sources)
        reduced = await self._native.reduce(target, sources, op, num_objects, deterministic, None, timeout)
        return as_given(reduced, sources)

    async def gather(
        self,
        ids: Iterable[Id],
        timeout: float | None = None,
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """See `hoplite.Client.gather`."""
        check_framework(framework)
        views = await self._native.gather(listed(ids), timeout)
        return [_serialize.decode(view, copy, framework) for view in views]

    async def allgather(
        self,
        ids: Iterable[Id],
        rank: int,
        value: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """See `hoplite.Client.allgather`."""
        check_framework(framework)
        ids = listed(ids)
        own_id(ids, rank)
        encoded = _serialize.encode(value)
        views = await self._native.allgather(
            ids, rank, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, timeout
        )
        return [_serialize.decode(view, copy, framework) for view in views]

    async def allreduce(
        self,
        target: Id,
        sources: Iterable[Id],
        rank: int,
        value: object = None,
        op: Op = "sum",
        *,
        out: Any = None,
        deterministic: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """See `hoplite.Client.allreduce`."""
        sources = listed(sources)
        deadline = Deadline(timeout)
        own = own_id(sources, rank)
        wanted = None if out is None else _serialize.as_room(out)
        _native.check_allreduce(target, sources, op, timeout)
        if value is not None:
            encoded = _serialize.encode(value)
            check_reducible(encoded)
            check_op(own, encoded, op)
            if wanted is not None:
                check_layout(own, encoded, wanted[1])
            await self._native.put(
                own, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, deadline.left(), False
            )
        reader = await self._native.open(own, deadline.left())
        if wanted is None:
            room, finish = _serialize.destination(reader, None)
        else:
            room = wanted[0]
            check_layout(own, reader, wanted[1])
        del reader
        await self._native.allreduce_into(target, sources, rank, room, op, deterministic, deadline.left())
        return finish() if wanted is None else out

    async def delete_allreduce(
        self, target: Id, sources: Iterable[Id], timeout: float | None = DEFAULT_TIMEOUT
    ) -> None:
        """See `hoplite.Client.delete_allreduce`."""
        sources = listed(sources)
        left = _native.allreduce_ids(key(target), len(sources))
        await self._native.delete([*sources, *left], timeout)

    async def delete(self, ids: Id | Iterable[Id], timeout: float | None = DEFAULT_TIMEOUT) -> int:
        """See `hoplite.Client.delete`."""
        return await self._native.delete(several(ids), timeout)

    async def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: float | None = None
    ) -> tuple[list[AnyId], list[AnyId]]:
        """See `hoplite.Client.wait`."""
        ids = listed(ids)
        ready = await self._native.wait(ids, len(ids) if num is None else num, timeout)
        return divide(ids, ready)

    async def contains(self, id: Id) -> bool:
        """See `hoplite.Client.contains`."""
        return await self._native.contains(id)

    async def stat(self, id: Id) -> ObjectInfo | None:
        """See `hoplite.Client.stat`."""
        return object_info(await self._native.describe(id))

    async def list(self, prefix: str | bytes = b"") -> AsyncIterator[ObjectInfo]:
        """See `hoplite.Client.list`."""
        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        after: bytes | None = b""
        while after is not None:
            page, after = await self._native.list(prefix, after, PAGE)
            for info in filter(None, map(object_info, page)):
                yield info

    async def status(self) -> Mapping[str, Any]:
        """See `hoplite.Client.status`."""
        return await self._native.status()

    def close(self) -> None:
        """See `hoplite.Client.close`. No coroutine: it does not wait."""
        self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise refuse_to_pickle()

    def __repr__(self) -> str:
        return f"<hoplite.aio.Client of node {self.node!r}>"


async def connect(
    socket: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_TIMEOUT
) -> Client:
    """Connects to the store of this node; see `hoplite.connect`."""
    return Client(await _native.connect_async(socket, timeout, program_name()))


async def init(
    socket: str | os.PathLike[str] | None = None, *, memory: str | int | None = None, start: bool = True
) -> Client:
    """Connects to the store that `hoplite.init` with the same arguments connects to, or starts. A new client each time."""
    client = await asyncio.to_thread(_node.init, socket, memory=memory, start=start)
    return await connect(client.socket)
