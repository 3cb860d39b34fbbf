"""The client for asyncio: the methods of `hoplite.Client` as coroutines.

    import hoplite.aio

    async with await hoplite.aio.connect() as client:
        await client.put("weights", weights)
        weights = await client.get("weights")

Calls never block the event loop, and any number may be in flight. Cancelling a coroutine cancels
its call, in the store too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hoplite import _native, _node
from hoplite._calls import CONNECT_TIMEOUT, Calls
from hoplite._checks import owners_of
from hoplite._info import ObjectInfo
from hoplite._process import log_connected, may_unpickle, program_name, refuse_to_pickle

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Client", "connect", "init"]


class Client(Calls):
    """A connection to the store of this node, for event loops.

    Several event loops may use one client. The methods of `hoplite.Client` are coroutines here,
    with the same arguments, results and errors. Pickling happens in the thread of the event loop.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with await hoplite.aio.connect() as client:
        ...         await client.put("answer", np.full(2, 42))
        ...         return await client.get("answer")
        >>> asyncio.run(main())
        array([42, 42])
    """

    __slots__ = ("__weakref__",)

    def __init__(self, native: _native.AsyncClient, allow_pickle: bool | None = None) -> None:
        super().__init__(native, allow_pickle)

    @property
    def node(self) -> str:
        """The name of the store's node.

        Examples:
            >>> import asyncio
            >>> asyncio.run(hoplite.aio.connect()).node == client.node
            True
        """
        return self._native.node

    @property
    def cluster(self) -> str:
        """The name of the store's cluster.

        Examples:
            >>> import asyncio
            >>> asyncio.run(hoplite.aio.connect()).cluster == client.cluster
            True
        """
        return self._native.cluster

    @property
    def owner(self) -> str:
        """The owner that stands for this client; see `hoplite.Client.owner`.

        Examples:
            >>> import asyncio
            >>> asyncio.run(hoplite.aio.connect()).owner == client.owner
            False
        """
        return self._native.owner

    @property
    def usable(self) -> bool:
        """See `hoplite.Client.usable`.

        Examples:
            >>> import asyncio
            >>> asyncio.run(hoplite.aio.connect()).usable
            True
        """
        return self._native.usable

    async def list(self, prefix: str | bytes = b"") -> AsyncIterator[ObjectInfo]:
        """See `hoplite.Client.list`.

        Examples:
            >>> import asyncio
            >>> ref = client.put("list/0", b"1", confirm=True)
            >>> async def main():
            ...     async with await hoplite.aio.connect() as client:
            ...         return [info.id async for info in client.list("list/")]
            >>> asyncio.run(main())
            ['list/0']
        """
        after: bytes | None = b""
        while after is not None:
            page, after = await self.page(prefix, after)
            for info in page:
                yield info

    def close(self) -> None:
        """See `hoplite.Client.close`. This is no coroutine, and does not block.

        Examples:
            >>> import asyncio
            >>> other = asyncio.run(hoplite.aio.connect())
            >>> other.close()
            >>> other.usable
            False
        """
        self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
    owner: str | Iterable[str] = (),
) -> Client:
    """Returns a new client; see `hoplite.connect`.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with await hoplite.aio.connect(timeout=5) as client:
        ...         return await client.contains("absent")
        >>> asyncio.run(main())
        False
    """
    allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle
    native = await _native.connect_async(socket, timeout, program_name(), True, owners_of(owner))
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
    """Returns a new client each time. Arguments and errors are as for `hoplite.init`.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with await hoplite.aio.init() as client:
        ...         return await client.put("weights", np.ones(3))
        >>> asyncio.run(main())
        hoplite.Ref('weights', float64[3])
    """
    client = await asyncio.to_thread(
        _node.init, socket, address=address, memory=memory, start=start
    )
    return await connect(client.socket, allow_pickle=allow_pickle)
