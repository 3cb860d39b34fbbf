"""Handles of objects."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, overload

from hoplite import _native
from hoplite._process import logger
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.errors import ClusterMismatch

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar

    from hoplite._answers import OnProgress
    from hoplite._client import Client

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

#: Seconds; a delete is tried once.
_DELETE_TIMEOUT = 5.0
_BATCH = 1024


class Ref(Generic[T_co]):
    """A small handle of an object: its id, dtype, shape, size and cluster.

    A handle can be pickled, and replaces the id in every call. Pass it to other processes instead
    of arrays. A `Ref[T]` has a value of type `T`.

    A handle that *owns* its object (`own`) deletes it at the end of a `with` block, or with the
    last reference. Copies own nothing.

    Examples:
        >>> import pickle
        >>> with client.put(None, np.ones(3)) as ref:
        ...     again = pickle.loads(pickle.dumps(ref))
        ...     again.get()
        array([1., 1., 1.])
        >>> client.contains(ref)
        False
    """

    __slots__ = (
        "__weakref__",
        "_client",
        "_owner",
        "_owner_process",
        "cluster",
        "dtype",
        "id",
        "nbytes",
        "shape",
    )

    id: str | bytes
    """The id of the object."""
    dtype: str | None
    """The name of the element type in numpy and torch; `None` if unknown."""
    shape: tuple[int, ...] | None
    """The shape; `None` if unknown."""
    nbytes: int | None
    """The size in bytes; `None` if unknown."""
    cluster: str | None
    """The cluster of the object; `None` if unknown. Stores of other clusters refuse the handle."""

    def __init__(
        self,
        id: str | bytes,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        nbytes: int | None = None,
        cluster: str | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        if not isinstance(id, (str, bytes)):
            raise TypeError(f"an id is a str or bytes, not {type(id).__name__}")
        self.id, self.dtype, self.shape, self.nbytes, self.cluster = (
            id,
            dtype,
            shape,
            nbytes,
            cluster,
        )
        self._client = client
        self._owner: weakref.finalize[[_native.Client, str | bytes, int], Ref[Any]] | None = None
        self._owner_process = 0

    @property
    def client(self) -> Client:
        """The client for the methods: the client that made the handle, or `hoplite.init()`.

        Examples:
            >>> hoplite.Ref("weights").client is hoplite.init()
            True
        """
        client = self._client
        if client is None or client._process != os.getpid():
            from hoplite._node import init

            return init()
        return client

    @property
    def __hoplite_id__(self) -> str | bytes:
        return self.id

    @property
    def __hoplite_cluster__(self) -> str | None:
        return self.cluster

    @overload
    def get(
        self,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> T_co: ...
    @overload
    def get(
        self,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any: ...
    def get(
        self,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any:
        """Gets the object; see `Client.get`. Blocks.

        Examples:
            >>> client.put("seven", 7).get()
            7
        """
        return self.client.get(
            self, timeout, copy, framework, allow_stale=allow_stale, progress=progress
        )

    def delete(self, timeout: TimeLimit = "default") -> None:
        """Deletes the object, if it exists. Blocks until all copies are gone.

        Examples:
            >>> ref = client.put("short", b"1", confirm=True)
            >>> ref.delete()
            >>> client.contains(ref)
            False
        """
        self.disown()
        self.client.delete([self], timeout=timeout)

    def own(self) -> Self:
        """Deletes the object when nothing refers to this handle any more, or when the program ends.

        Returns the handle. Deletes in the background, even after the client is closed, but not if
        the process is killed.

        Raises:
            ClusterMismatch: The handle belongs to another cluster than the client.

        Examples:
            >>> ref = client.put(None, np.ones(3)).own()
            >>> ref.owned
            True
        """
        if not self.owned:
            client = self.client
            if self.cluster not in (None, client.cluster):
                raise ClusterMismatch(
                    f"the handle is of object {self.id!r} of the cluster {self.cluster!r}, "
                    f"and this client's store is of the cluster {client.cluster!r}",
                    id=self.id,
                    ref_cluster=self.cluster,
                    store_cluster=client.cluster,
                )
            connection = client._outlived()
            _reaper.start()
            self._owner_process = os.getpid()
            self._owner = weakref.finalize(
                self, _reaper.delete_later, connection, self.id, self._owner_process
            )
        return self

    def disown(self) -> Self:
        """Keeps the object when the handle is gone. Returns the handle.

        Examples:
            >>> ref = client.put(None, np.ones(3)).own().disown()
            >>> ref.owned
            False
        """
        if self._owner is not None:
            self._owner.detach()
            self._owner = None
        return self

    @property
    def owned(self) -> bool:
        """`True` if the object is deleted together with the handle. A forked child owns nothing.

        Examples:
            >>> client.put("kept", b"1").owned
            False
        """
        return self._owner is not None and self._owner_process == os.getpid()

    def __enter__(self) -> Self:
        return self.own()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.delete()

    def __reduce__(self) -> tuple[type[Ref[Any]], tuple[Any, ...]]:
        return Ref, (self.id, self.dtype, self.shape, self.nbytes, self.cluster)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref) or key(self.id) != key(other.id):
            return False
        # A handle made without a store does not know its cluster.
        return self.cluster == other.cluster or None in (self.cluster, other.cluster)

    def __hash__(self) -> int:
        return hash(key(self.id))

    def __repr__(self) -> str:
        what = "" if self.dtype is None else f", {self.dtype}{list(self.shape or ())}"
        return f"hoplite.Ref({self.id!r}{what})"


def key(id: str | bytes | Ref[Any]) -> bytes:
    if isinstance(id, Ref):
        id = id.id
    return id.encode() if isinstance(id, str) else id


class _Reaper:
    """Deletes objects in a thread: owning handles may be garbage-collected anywhere, even in a
    call."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[_native.Client, str | bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = False
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Starts the thread. `delete_later` cannot, because it runs in the garbage collector."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hoplite-reaper", daemon=True)
            self._thread.start()

    def delete_later(self, client: _native.Client, id: str | bytes, process: int) -> None:
        """Queues a delete without locks or waiting."""
        if process != os.getpid():
            return
        if self._ending:
            self._delete([(client, id)])
        else:
            self._queue.put((client, id))

    def _run(self) -> None:
        while True:
            entry = self._queue.get()
            batch = []
            while entry is not None:
                batch.append(entry)
                if len(batch) == _BATCH or self._queue.empty():
                    break
                entry = self._queue.get()
            self._delete(batch)
            if entry is None:
                return

    @staticmethod
    def _delete(batch: list[tuple[_native.Client, str | bytes]]) -> None:
        for client in {client for client, _ in batch}:
            ids = [id for owner, id in batch if owner is client]
            try:
                client.delete(ids, _DELETE_TIMEOUT)
            except Exception as error:
                logger.debug("%d objects without an owner were not deleted: %s", len(ids), error)

    def _end(self) -> None:
        self._ending = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(2 * _DELETE_TIMEOUT)

    def _forget(self) -> None:
        self._queue = SimpleQueue()
        self._thread = None


_reaper = _Reaper()
