"""Hoplite with Dask: the stores keep large arrays once, and every worker reads them in place.

    from dask.distributed import Client
    import hoplite.dask

    client = Client(...)
    hoplite.dask.install(client)
    model = hoplite.dask.scatter(array, client)           # a future of Dask, for tasks
    client.map(predict, parts, model=model)

`install` makes all workers send large arrays as handles. The first sender puts an array into its
store. Tasks get it read-only, in shared memory. See `docs/start/dask.md`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from distributed import Client, Future, SchedulerPlugin, WorkerPlugin, default_client
from distributed.protocol.serialize import dask_deserialize, dask_serialize

import hoplite
from hoplite._serialize import needs_pickle
from hoplite.errors import Deleted, HopliteError, ObjectLost, Timeout

__all__ = ["install", "scatter"]

logger = logging.getLogger(__name__)

#: Dask copies smaller arrays faster.
THRESHOLD_BYTES = 1 << 20
#: Seconds that an object outlives its worker's reference.
GRACE = 30.0
#: Seconds that a get waits; Dask waits as long for a connection.
GET_TIMEOUT = 300.0
#: Seconds that a put waits; after that, a copy by Dask is faster.
PUT_TIMEOUT = 2.0
#: The end of a mark's id. Dask copies the marked array, because gets of it failed.
_PLAIN = "/plain"
_MAX_FAILED_ONCE = 1000
_PREFIX = "dask/"
_KEY = "hoplite"
#: Arguments named `id` hide Python's `id`.
builtin_id = id


class _Handles:
    """The ids of arrays that this process has put or got, by Python's `id` of the array."""

    def __init__(self) -> None:
        self.prefix = f"{_PREFIX}{secrets.token_hex(8)}/"
        self.socket: str | None = None
        self.threshold = THRESHOLD_BYTES
        #: `True` in workers, which put arrays because these no longer change.
        self.puts = False
        self._ids: dict[int, str] = {}
        self._failed_once: dict[str, None] = {}
        self._lock = threading.Lock()
        self._count = 0

    def client(self) -> hoplite.Client:
        return hoplite.init(self.socket, start=False)

    def learn(self, array: Any, id: str, forgotten: Callable[[str], None] | None = None) -> None:
        at = builtin_id(array)
        with self._lock:
            self._ids[at] = id
        weakref.finalize(array, self._forget, at, id, forgotten).atexit = False

    def _forget(self, at: int, id: str, forgotten: Callable[[str], None] | None) -> None:
        self._ids.pop(at, None)
        if forgotten is not None:
            forgotten(id)

    def id_of(self, array: Any) -> str | None:
        """Returns the array's id, after a put if needed; None if Dask must copy it."""
        if not self.is_shared(array):
            return None
        known = self._ids.get(builtin_id(array))
        if known is not None:
            there, _ = self.client().wait([known, known + _PLAIN], 2, 0.0)
            if known + _PLAIN in there:
                return None
            if known in there:
                return known
        # Another process may have deleted the object.
        return self.put(array) if self.puts else None

    def is_shared(self, array: Any) -> bool:
        return (
            type(array) is np.ndarray
            and array.nbytes >= self.threshold
            # Dask sends repeated elements once; a put copies each.
            and 0 not in array.strides
            # The receiver may refuse pickles.
            and not needs_pickle(array)
        )

    def put(self, array: Any) -> str:
        with self._lock:
            self._count += 1
            id = f"{self.prefix}{self._count}"
        try:
            self.client().put(id, array, PUT_TIMEOUT)
        except Timeout:
            self._delete_later(id)
            raise
        self.learn(array, id, self._delete_later)
        return id

    def get_failed(self, id: str, error: Exception) -> None:
        """Makes Dask copy the array after a second loss, delete or timeout, or any other error."""
        if isinstance(error, (Deleted, ObjectLost, Timeout)) and id not in self._failed_once:
            self._failed_once[id] = None
            while len(self._failed_once) > _MAX_FAILED_ONCE:
                del self._failed_once[next(iter(self._failed_once))]
            return
        self._failed_once.pop(id, None)
        with contextlib.suppress(Exception):
            self.client().put(id + _PLAIN, b"", PUT_TIMEOUT, confirm=True)

    def _delete_later(self, id: str) -> None:
        timer = threading.Timer(GRACE, self._delete, [id])
        timer.daemon = True
        timer.start()

    def _delete(self, id: str) -> None:
        with contextlib.suppress(HopliteError, OSError), hoplite.connect(self.socket) as client:
            client.delete([id, id + _PLAIN])

    def get(self, id: str) -> Any:
        array = self.client().get(id, GET_TIMEOUT)
        self.learn(array, id)
        return array

    def delete_all(self) -> None:
        delete_all(self.client(), self.prefix)


def delete_all(client: hoplite.Client, prefix: str) -> None:
    ids = [info.id for info in client.list(prefix)]
    for begin in range(0, len(ids), 1000):
        client.delete(ids[begin : begin + 1000])


_handles = _Handles()
_plain: tuple[Callable[..., Any], Callable[..., Any]] | None = None


def _reset_in_child() -> None:
    global _handles
    inherited, _handles = _handles, _Handles()
    _handles.socket, _handles.threshold = inherited.socket, inherited.threshold


os.register_at_fork(after_in_child=_reset_in_child)


def _register() -> None:
    global _plain
    if _plain is None:
        _plain = dask_serialize.dispatch(np.ndarray), dask_deserialize.dispatch(np.ndarray)
        dask_serialize.register(np.ndarray)(_dumps)
        dask_deserialize.register(np.ndarray)(_loads)


def _dumps(array: Any, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
    assert _plain is not None
    try:
        id = _handles.id_of(array)
    except Exception as error:
        logger.warning(
            "Dask copies an array of %d bytes: %s: %s", array.nbytes, type(error).__name__, error
        )
        id = None
    if id is None:
        header, frames = _plain[0](array, context=context)
        return header, frames
    return {_KEY: id}, []


def _loads(header: dict[str, Any], frames: list[Any]) -> Any:
    assert _plain is not None
    id = header.get(_KEY)
    if id is None:
        return _plain[1](header, frames)
    try:
        return _handles.get(id)
    except Exception as error:
        _handles.get_failed(id, error)
        # Dask retries only after an OSError (dask/distributed#6705).
        raise ConnectionError(f"cannot get an array from the stores: {error}") from error


class HopliteWorker(WorkerPlugin):
    name = "hoplite"

    def __init__(self, socket: str, threshold: int) -> None:
        self._socket, self._threshold = socket, threshold

    def setup(self, worker: Any) -> None:
        _handles.socket = _socket_here(self._socket)
        _handles.threshold = self._threshold
        _handles.client()
        _handles.puts = True
        _register()
        worker.log_event(_PREFIX, {"address": worker.address, "prefix": _handles.prefix})

    def teardown(self, worker: Any) -> None:
        with contextlib.suppress(HopliteError, OSError):
            _handles.delete_all()


class HopliteScheduler(SchedulerPlugin):
    name = "hoplite"

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._prefixes: dict[str, str] = {}

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == _PREFIX:
            self._prefixes[msg["address"]] = msg["prefix"]

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        prefix = self._prefixes.pop(worker, None)
        if prefix is not None:
            timer = threading.Timer(GRACE, self._delete, [prefix])
            timer.daemon = True
            timer.start()

    def _delete(self, prefix: str) -> None:
        try:
            with hoplite.connect(_socket_here(self._socket)) as client:
                delete_all(client, prefix)
        except (HopliteError, OSError) as error:
            logger.warning(
                "cannot delete the objects of an ended worker, with the prefix %s: %s",
                prefix,
                error,
            )


def _socket_here(socket: str) -> str | None:
    """Returns `socket`; None if a worker must use `$HOPLITE_SOCKET` or the default."""
    if "HOPLITE_SOCKET" in os.environ or not os.path.exists(socket):
        return None
    return socket


def install(
    client: Client | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    threshold: int = THRESHOLD_BYTES,
) -> None:
    """Makes all workers of a Dask cluster, also later ones, send large arrays through Hoplite.

    Each program that uses the cluster calls this. Each node needs a store: at `$HOPLITE_SOCKET`, at
    this program's socket, or at the default one. Blocks until all workers are ready.

    Args:
        client: The client of Dask; `None` for the current one.
        socket: The store of this node; `None` for the store that `hoplite.init` finds or starts.
        threshold: In bytes; smaller arrays go through Dask.

    Raises:
        ConnectFailed: There is no store here, or on the node of a worker.
        ValueError: The threshold is not positive.

    Examples:
        >>> hoplite.dask.install(dask_client, threshold=1 << 20)
        >>> dask_client.submit(np.ones, 1_000_000).result().flags.writeable
        False
    """
    if threshold < 1:
        raise ValueError(f"a threshold is a number of bytes from 1 up, not {threshold}")
    client = default_client() if client is None else client
    _handles.socket = hoplite.init(socket).socket
    _handles.threshold = threshold
    _register()
    client.register_plugin(HopliteScheduler(_handles.socket))
    client.register_plugin(HopliteWorker(_handles.socket, threshold))


def scatter(
    data: Any, client: Client | None = None, *, broadcast: bool = True, **options: Any
) -> Any:
    """Puts arrays into the store of this node, and gives them to the workers.

    As `distributed.Client.scatter`, but a node's workers share the array. Blocks until they have
    it.

    Args:
        data: An array, or a list, tuple or dict. Arrays of numpy from `install`'s threshold on go
            through the store, other values through Dask.
        client: The client of Dask that `install` was given; `None` for the current one.
        broadcast: `True` for all workers, `False` for one.
        options: Further arguments of `distributed.Client.scatter`.

    Returns:
        A future of Dask, or several. The objects are deleted after their futures.

    Raises:
        RuntimeError: `install` was not called.

    Examples:
        >>> hoplite.dask.install(dask_client)
        >>> model = hoplite.dask.scatter(np.ones(1_000_000), dask_client)
        >>> float(dask_client.submit(np.sum, model).result())
        1000000.0
    """
    if _plain is None:
        raise RuntimeError("call hoplite.dask.install before hoplite.dask.scatter")
    client = default_client() if client is None else client
    is_several = type(data) in (list, tuple, dict)
    if isinstance(data, dict):
        stored: Any = {key: _stored(value) for key, value in data.items()}
    elif is_several:
        stored = type(data)(_stored(value) for value in data)
    else:
        stored = _stored(data)
    # Hashing takes as long as sending.
    options.setdefault("hash", False)
    futures = client.scatter(stored, broadcast=broadcast, **options)
    if isinstance(futures, dict):
        pairs = [(futures[key], stored[key]) for key in futures]
    else:
        pairs = list(zip(futures, stored, strict=True)) if is_several else [(futures, stored)]
    for future, value in pairs:
        id = _handles._ids.get(builtin_id(value))
        if isinstance(future, Future) and id is not None:
            weakref.finalize(future, _handles._delete_later, id).atexit = False
    return futures


def _stored(value: Any) -> Any:
    if not _handles.is_shared(value):
        return value
    with _handles._lock:
        _handles._count += 1
        id = f"{_handles.prefix}{_handles._count}"
    try:
        _handles.client().put(id, value, PUT_TIMEOUT)
        return _handles.get(id)
    except Exception as error:
        logger.warning(
            "Dask scatters an array of %d bytes: %s: %s",
            value.nbytes,
            type(error).__name__,
            error,
        )
        _handles._delete_later(id)
        return value
