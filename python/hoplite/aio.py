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
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hoplite import _native, _node
from hoplite._calls import CONNECT_TIMEOUT, Calls
from hoplite._info import ObjectInfo
from hoplite._process import log_connected, may_unpickle, program_name, refuse_to_pickle

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Client", "connect", "init"]


class Client(Calls):
    """A connection to the store of this node, for event loops.

    Made by `connect` or `init`. It may be used by several event loops. The methods are those of `hoplite.Client`, which
    say what they do and raise; the work of pickling happens in the thread of the event loop.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, native: _native.AsyncClient, allow_pickle: bool | None = None) -> None:
        super().__init__(native, allow_pickle)

    @property
    def node(self) -> str:
        """The name of the node whose store this is."""
        return self._native.node

    @property
    def cluster(self) -> str:
        """See `hoplite.Client.cluster`."""
        return self._native.cluster

    @property
    def usable(self) -> bool:
        """See `hoplite.Client.usable`."""
        return self._native.usable

    async def list(self, prefix: str | bytes = b"") -> AsyncIterator[ObjectInfo]:
        """See `hoplite.Client.list`."""
        after: bytes | None = b""
        while after is not None:
            page, after = await self.page(prefix, after)
            for info in page:
                yield info

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
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT,
    allow_pickle: bool | None = None,
) -> Client:
    """Connects to the store of this node; see `hoplite.connect`."""
    allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle
    native = await _native.connect_async(socket, timeout, program_name(), True)
    log_connected(native, _native.default_socket_path() if socket is None else socket)
    return Client(native, allow_pickle)


async def init(
    socket: str | os.PathLike[str] | None = None,
    *,
    address: str | os.PathLike[str] | None = None,
    memory: str | int | None = None,
    start: bool = True,
    allow_pickle: bool | None = None,
) -> Client:
    """Connects to the store that `hoplite.init` with the same arguments connects to, or starts. A new client each time."""
    client = await asyncio.to_thread(_node.init, socket, address=address, memory=memory, start=start)
    return await connect(client.socket, allow_pickle=allow_pickle)
