"""Methods of both clients, as coroutines over a native client.

`hoplite.aio.Client` inherits them. `hoplite.Client` performs each with `run`: its native client
blocks, so the coroutines never suspend.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite import _cuda, _native, _serialize
from hoplite._answers import OnProgress, T, followed, settled
from hoplite._checks import (
    AnyId,
    Id,
    TtlAction,
    check_framework,
    check_layout,
    divide,
    lifetime_of,
    listed,
    needs_quorum,
    several,
    text,
)
from hoplite._collective_calls import CollectiveCalls
from hoplite._deletion import Deletion, waits_for_all_nodes
from hoplite._many import ManyCalls
from hoplite._process import may_unpickle, new_id
from hoplite._reports import Status, Topology, topology
from hoplite._serialize import Encoded, Framework, Layout
from hoplite._stale import warn_if_stale
from hoplite._timeouts import Deadline, TimeLimit
from hoplite.errors import PickleRefused, Superseded
from hoplite.ref import Ref

if TYPE_CHECKING:
    from hoplite._info import ObjectInfo

#: Seconds.
CONNECT_TIMEOUT = 5.0
PAGE = 1000


class Calls(CollectiveCalls, ManyCalls):
    """`hoplite.Client` documents these methods."""

    __slots__ = ("_limit", "_native", "allow_pickle")

    allow_pickle: bool

    def __init__(
        self, native: _native.Client | _native.AsyncClient, allow_pickle: bool | None = None
    ) -> None:
        self._native = native
        self._limit = native.max_object_bytes
        self.allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle

    def _encoded(self, id: Id, value: object) -> Encoded:
        encoded = _serialize.encode(value, text(id), self._limit)
        self._check_written(id, encoded)
        return encoded

    def _check_written(self, id: Id, encoded: Encoded) -> None:
        if encoded.user == _serialize.TAG_PICKLE and not self.allow_pickle:
            raise PickleRefused(
                f"the value of object {text(id)!r} can only be stored as a pickle, and this client allows none "
                "(allow_pickle=False or HOPLITE_ALLOW_PICKLE=0)",
                id=text(id),
            )

    @overload
    async def put(
        self,
        id: Id | None,
        value: bytearray | memoryview,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[memoryview]: ...
    @overload
    async def put(
        self,
        id: Id | None,
        value: T,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[T]: ...
    async def put(
        self,
        id: Id | None,
        value: object,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[Any]:
        """See `hoplite.Client.put`. The handle's methods block, and use `hoplite.init`'s client."""
        name = new_id() if id is None else id
        quorum = needs_quorum(if_absent)
        encoded = self._encoded(name, value)
        pieces, dtype, shape, user = encoded
        terms = (timeout, confirm, replicas or 0, lifetime_of(owner, ttl, ttl_action), quorum)
        # Awaits no `settled`, whose coroutine slows small puts.
        if isinstance(pieces, _cuda.OnDevice):
            await _cuda.put(self._native, name, encoded, terms, progress)
        elif progress is None:
            put = self._native.put(name, pieces, dtype, shape, user, *terms)
            if isinstance(put, Future):
                await put
        else:
            await followed(self._native, progress, "put", name, pieces, dtype, shape, user, *terms)
        return made_ref(name, encoded, self._native.cluster)

    @overload
    async def get(
        self,
        id: Ref[T],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> T: ...
    @overload
    async def get(
        self,
        id: Id,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any: ...
    async def get(
        self,
        id: Id,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any:
        """See `hoplite.Client.get`."""
        check_framework(framework)
        if copy:
            return await self._get_private(id, timeout, framework, allow_stale, progress)
        if progress is not None:
            view = await followed(self._native, progress, "get", id, timeout, allow_stale)
        else:
            view = self._native.get(id, timeout, allow_stale)
            if isinstance(view, Future):
                view = await view
        if allow_stale:
            warn_if_stale(view, text(id))
        return _serialize.decode(view, copy, framework, self.allow_pickle, text(id))

    async def _get_private(
        self,
        id: Id,
        timeout: TimeLimit,
        framework: Framework,
        allow_stale: bool,
        progress: OnProgress,
    ) -> Any:
        deadline = Deadline(timeout)
        while True:
            reader = await settled(self._native.open(id, deadline.left(), allow_stale))
            warn_if_stale(reader, text(id))
            room, finish = _serialize.destination(reader, framework, self.allow_pickle, text(id))
            try:
                left = deadline.left()
                await followed(self._native, progress, "read", reader, room, left)
            except Superseded:
                continue
            return finish()

    async def get_into(
        self, id: Id, out: object, timeout: TimeLimit = "default", *, progress: OnProgress = None
    ) -> int:
        """See `hoplite.Client.get_into`. A cancelled call completes its current copy into `out`."""
        room, wanted = _serialize.as_room(out, or_device=True)
        if wanted.kind == "buffer":
            copied: int = await followed(self._native, progress, "get_into", id, room, timeout)
            return copied
        return await fill(self._native, id, room, wanted, timeout, progress)

    async def delete(
        self,
        ids: Id | Iterable[Id],
        timeout: TimeLimit = "default",
        *,
        wait: Literal["reachable", "all"] = "reachable",
    ) -> Deletion:
        """See `hoplite.Client.delete`."""
        waits_for_all = waits_for_all_nodes(wait)
        return Deletion(*await settled(self._native.delete(several(ids), timeout, waits_for_all)))

    async def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: TimeLimit = "default"
    ) -> tuple[list[AnyId], list[AnyId]]:
        """See `hoplite.Client.wait`."""
        ids = listed(ids)
        ready = await settled(self._native.wait(ids, len(ids) if num is None else num, timeout))
        return divide(ids, ready)

    async def contains(self, id: Id) -> bool:
        """See `hoplite.Client.contains`."""
        return await settled(self._native.contains(id))

    async def stat(self, id: Id) -> ObjectInfo | None:
        """See `hoplite.Client.stat`."""
        from hoplite._info import object_info

        known = await settled(self._native.describe(id))
        return object_info(known)

    async def page(
        self, prefix: str | bytes, after: bytes
    ) -> tuple[list[ObjectInfo], bytes | None]:
        """Returns a page of objects whose ids follow `after`; also its last id if more follow."""
        from hoplite._info import object_info

        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        page, rest = await settled(self._native.list(prefix, after, PAGE))
        return list(filter(None, map(object_info, page))), rest

    async def status(self) -> Status:
        """See `hoplite.Client.status`."""
        counters = await settled(self._native.status())
        return Status(counters)

    async def topology(self) -> Topology:
        """See `hoplite.Client.topology`."""
        return topology(await self.status())


async def fill(
    native: _native.Client | _native.AsyncClient,
    id: Id,
    room: Any,
    wanted: Layout,
    timeout: TimeLimit,
    progress: OnProgress = None,
) -> int:
    deadline = Deadline(timeout)
    while True:
        reader = await settled(native.open(id, deadline.left()))
        check_layout(id, reader, wanted)
        try:
            if isinstance(room, _cuda.OnDevice):
                await _cuda.read(native, reader, room, deadline, progress)
            else:
                await followed(native, progress, "read", reader, room, deadline.left())
        except Superseded:
            continue
        return reader.nbytes


def made_ref(id: Id, encoded: Encoded, cluster: str) -> Ref[Any]:
    return Ref(
        text(id), _serialize.dtype_name(encoded.dtype), encoded.shape, encoded.nbytes, cluster
    )
