"""Client for threads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hoplite import _native
from hoplite._answers import run
from hoplite._calls import CONNECT_TIMEOUT, Calls
from hoplite._checks import AnyId, Id, owners_of
from hoplite._collectives import Collectives
from hoplite._deletion import Deletion
from hoplite._many import Many
from hoplite._process import log_connected, may_unpickle, program_name, refuse_to_pickle
from hoplite._reports import Objects, Status, Topology
from hoplite._timeouts import TimeLimit
from hoplite._values import Values
from hoplite.ref import Ref

if TYPE_CHECKING:
    from typing import Self

    from hoplite._info import ObjectInfo


class Client(Collectives, Values, Many):
    """A connection to the store of this node.

    In the examples, `client` is `hoplite.init()`, and `np` is numpy.

    * **Threads**: any number may share a client. Other threads run while a call waits or copies.
      Ctrl-C interrupts a call.
    * **Processes**: a client belongs to the process that made it. In a forked child, its methods
      raise `ForkedChild`. A client cannot be pickled: pass `Ref`s, and call `hoplite.init()` where
      they arrive.
    * **Ids**: a `str` (its UTF-8 bytes), 1 to 255 `bytes`, or a `Ref`. A `Ref` of another cluster
      raises `ClusterMismatch`.
    * **Timeouts**: in seconds; `None` waits for ever. The default is `$HOPLITE_TIMEOUT` (`30s`,
      `5min`, seconds, or `never`), read once, or else 5 minutes. After 10 s, a call warns with the
      logger `hoplite`, and names the missing object, rank or peer.
    * **Restarts**: the next call connects to the new store. A call in flight raises
      `ConnectionLost`; its `retryable` says whether to repeat the call. If no store comes back
      within 5 s, or within the call's timeout, the call raises `ConnectFailed`.

    Any method may raise `ConnectFailed`, `ConnectionLost`, `ForkedChild`, and `TypeError` for wrong
    arguments, before anything is sent.

    Examples:
        >>> client.put("squares", np.arange(4) ** 2)
        hoplite.Ref('squares', int64[4])
        >>> client.get("squares")
        array([0, 1, 4, 9])
    """

    __slots__ = ("__weakref__", "_calls", "_for_owners", "_native", "_process", "_socket")

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = CONNECT_TIMEOUT,
        allow_pickle: bool | None = None,
        owner: str | Iterable[str] = (),
    ) -> None:
        """See `hoplite.connect`."""
        allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle
        socket = _native.default_socket_path() if socket is None else socket
        self._native = _native.connect(socket, timeout, program_name(), True, owners_of(owner))
        self._calls = Calls(self._native, allow_pickle)
        self._socket = os.fspath(socket)
        self._process = self._native.process
        self._for_owners: _native.Client | None = None
        log_connected(self._native, self._socket)

    @property
    def socket(self) -> str:
        """The path of the store's socket.

        Examples:
            >>> hoplite.connect(client.socket).node == client.node
            True
        """
        return self._socket

    @property
    def node(self) -> str:
        """The name of the store's node.

        Examples:
            >>> ref = client.put("where", b"here", confirm=True)
            >>> client.node in [location.node for location in client.stat("where").locations]
            True
        """
        return self._native.node

    @property
    def cluster(self) -> str:
        """The name of the store's cluster.

        Examples:
            >>> client.put("named", b"").cluster == client.cluster
            True
        """
        return self._native.cluster

    @property
    def owner(self) -> str:
        """The owner that stands for this client, as in `put(..., owner="client")`.

        Other clients of the store may use it, too.

        Examples:
            >>> client.put("mine", b"1", owner=client.owner, confirm=True)
            hoplite.Ref('mine')
            >>> client.stat("mine").owner == client.owner
            True
        """
        return self._native.owner

    @property
    def allow_pickle(self) -> bool:
        """`False` if this client refuses pickled values; see `hoplite.connect`.

        Examples:
            >>> client.allow_pickle
            True
        """
        return self._calls.allow_pickle

    @property
    def usable(self) -> bool:
        """`True` unless the client is closed, inherited by a fork, or known to be disconnected.

        The next call of a disconnected client connects again.

        Examples:
            >>> other = hoplite.connect(client.socket)
            >>> other.usable
            True
            >>> other.close()
            >>> other.usable
            False
        """
        return self._native.usable

    def ref(self, id: str | bytes) -> Ref[Any]:
        """Returns a handle of an existing or future object, without sending anything.

        Examples:
            >>> ref = client.ref("later")
            >>> client.put("later", b"now")
            hoplite.Ref('later')
            >>> ref.get()
            b'now'
        """
        return Ref(id, cluster=self.cluster, client=self)

    def delete(
        self,
        ids: Id | Iterable[Id],
        timeout: TimeLimit = "default",
        *,
        wait: Literal["reachable", "all"] = "reachable",
    ) -> Deletion:
        """Removes every copy of one object, or of several.

        Blocks until all copies are gone; with `wait="all"`, also until lost nodes return and drop
        theirs. Arrays that programs hold stay readable.

        Returns:
            The number of objects that existed. The result also names lost nodes that may have
            copies.

        Raises:
            Timeout: Not all copies are known to be gone in time. `peers` names the nodes.

        Examples:
            >>> ref = client.put("old", b"1", confirm=True)
            >>> client.delete(["old", "absent"])
            1
        """
        return run(self._calls.delete(ids, timeout, wait=wait))

    def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: TimeLimit = "default"
    ) -> tuple[list[AnyId], list[AnyId]]:
        """Waits until `num` of the objects are available somewhere in the cluster.

        Args:
            num: The number to wait for; `None` means all.
            timeout: Seconds to wait. Zero sends one request to the directory, which has 5 s to
                answer.

        Returns:
            Two lists in the order of `ids`: the available objects, and the others. After a timeout
            the first has fewer than `num`, without an error.

        Raises:
            InvalidRequest: There are fewer ids than `num`.

        Examples:
            >>> ref = client.put("ready", b"1", confirm=True)
            >>> client.wait(["ready", "absent"], num=1)
            (['ready'], ['absent'])
            >>> client.wait(["absent"], timeout=0)
            ([], ['absent'])
        """
        return run(self._calls.wait(ids, num, timeout))

    def contains(self, id: Id) -> bool:
        """Returns `True` if all bytes of the object are somewhere in the cluster.

        Blocks for one request to the directory.

        Examples:
            >>> ref = client.put("here", b"1", confirm=True)
            >>> client.contains("here"), client.contains("absent")
            (True, False)
        """
        return run(self._calls.contains(id))

    def stat(self, id: Id) -> ObjectInfo | None:
        """Returns the size, type, copies and history of an object; `None` if there is none.

        Blocks for one request to the directory.

        Raises:
            Unavailable: The directory cannot be reached.

        Examples:
            >>> ref = client.put("grid", np.zeros((2, 2)), confirm=True)
            >>> info = client.stat("grid")
            >>> info.nbytes, info.dtype, info.shape, info.available
            (32, 'float64', (2, 2), True)
            >>> client.stat("absent") is None
            True
        """
        return run(self._calls.stat(id))

    def list(self, prefix: str | bytes = b"") -> Objects:
        """Yields the objects of the cluster whose id begins with `prefix`, ordered by id.

        Blocks for each page. An object put without `confirm` may be missing for some milliseconds.

        Raises:
            Unavailable: A shard of the directory cannot be reached.

        Examples:
            >>> refs = [client.put(f"list/{k}", b"1", confirm=True) for k in range(2)]
            >>> [info.id for info in client.list("list/")]
            ['list/0', 'list/1']
        """
        return Objects(lambda after: run(self._calls.page(prefix, after)))

    def status(self) -> Status:
        """Returns the counters of the store, such as memory in bytes.

        Blocks for one request to the store.

        Examples:
            >>> status = client.status()
            >>> 0 < status["free_bytes"] <= status["capacity_bytes"]
            True
        """
        return run(self._calls.status())

    def topology(self) -> Topology:
        """Returns the links of the store to other stores, the slowest first, as transfers measured
        them.

        Blocks for one request to the store.

        Examples:
            >>> client.topology()    # one node has no links
            ()
        """
        return run(self._calls.topology())

    def close(self) -> None:
        """Ends the connection.

        Arrays stay readable. They and owning handles keep the connection open.

        Examples:
            >>> with hoplite.connect() as other:    # closes at the end of the block
            ...     ref = other.put("closed", b"1")
            >>> other.usable
            False
        """
        self._for_owners = None
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise refuse_to_pickle()

    def __repr__(self) -> str:
        return f"<hoplite.Client of node {self.node!r}>"

    def _outlived(self) -> _native.Client:
        """Returns the connection of owning handles, which outlives this client."""
        if self._for_owners is None:
            self._for_owners = self._native.share()
        return self._for_owners


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT,
    allow_pickle: bool | None = None,
    owner: str | Iterable[str] = (),
) -> Client:
    """Returns a new client of a store of this machine.

    Blocks until the store has answered, for at most `timeout` seconds.

    Args:
        socket: The path of the socket; `None` for `$HOPLITE_SOCKET`, or the default socket.
        timeout: Seconds for connecting, and for a restarted store to come back.
        allow_pickle: `False` refuses to write and read pickles, because reading one runs code of
            its writer. Arrays, tensors, `bytes`, tables of Arrow and frames of polars need none.
            `None` takes `$HOPLITE_ALLOW_PICKLE` (1 or 0), or else `True`.
        owner: Up to 7 names of owners that the client holds; see `put`.

    Raises:
        ConnectFailed: There is no store, or it is not trusted; `reason` says which.
        InvalidRequest: The name of an owner is not allowed.

    Examples:
        >>> with hoplite.connect(allow_pickle=False) as careful:
        ...     ref = careful.put("pickled", {"a": 1})
        ...     careful.get("pickled")
        Traceback (most recent call last):
        hoplite.errors.PickleRefused: ...
    """
    return Client(socket, timeout=timeout, allow_pickle=allow_pickle, owner=owner)
