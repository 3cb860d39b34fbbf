"""One class for each kind of error, all of them under `HopliteError`.

Some derive from a class of Python: a `Timeout` is a `TimeoutError`. Errors can be pickled. The
native half makes them (`src/errors.rs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AlreadyExists",
    "BufferTooSmall",
    "ClusterMismatch",
    "ConnectFailed",
    "ConnectionLost",
    "Deleted",
    "Draining",
    "DuplicateId",
    "ForkedChild",
    "HopliteError",
    "InternalError",
    "InvalidId",
    "InvalidMetadata",
    "InvalidName",
    "InvalidRequest",
    "LimitExceeded",
    "Malformed",
    "NodeIdInUse",
    "NotEnoughNodes",
    "ObjectLost",
    "ObjectTooLarge",
    "PermissionDenied",
    "PickleRefused",
    "PutConflict",
    "QuotaExceeded",
    "RanksMissing",
    "ShardListMismatch",
    "ShuttingDown",
    "SizeMismatch",
    "SpillFailed",
    "StoreFull",
    "Superseded",
    "Timeout",
    "TypeMismatch",
    "Unavailable",
    "UnknownReference",
    "VersionMismatch",
]


class HopliteError(Exception):
    """The base class of all errors of Hoplite.

    Attributes:
        id: The object of the call: `str` if the id is UTF-8, else `bytes`; `None` for no object,
            or several.
        retryable: `True` if the same call may succeed later.

    Examples:
        >>> try:
        ...     client.get("absent", timeout=0.1)
        ... except hoplite.HopliteError as error:
        ...     print(error.id)
        absent
    """

    id: str | bytes | None = None
    retryable: bool = False

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)


class InvalidId(HopliteError, ValueError):
    """An id is empty, or longer than 255 bytes.

    Examples:
        >>> client.put("", b"1")
        Traceback (most recent call last):
        hoplite.errors.InvalidId: ...
    """

    length_bytes: int


class InvalidName(HopliteError, ValueError):
    """The name of a node or a cluster contains forbidden characters."""

    name: str


class InvalidMetadata(HopliteError, ValueError):
    """The dtype, shape and size of an object do not match, or its header is too large or
    unknown."""

    reason: str


class InvalidRequest(HopliteError, ValueError):
    """A call makes no sense, such as a wait for more objects than it names.

    Examples:
        >>> client.wait(["a"], num=2)
        Traceback (most recent call last):
        hoplite.errors.InvalidRequest: ...
    """

    reason: str


class AlreadyExists(HopliteError):
    """The id names another object. Choose another id, or delete it first.

    Examples:
        >>> ref = client.put("taken", b"1")
        >>> client.put("taken", b"2")
        Traceback (most recent call last):
        hoplite.errors.AlreadyExists: ...
    """

    id: str | bytes


class PutConflict(HopliteError):
    """An accepted put has lost to a put of the same id on the other side of a network split.

    The lost put's client gets this once, from its next get, put, stat or delete of the id. Repeat
    that call.

    Examples:
        >>> def publish(id: str, value: object) -> object:
        ...     client.put(id, value)
        ...     try:
        ...         return client.get(id)
        ...     except hoplite.PutConflict:
        ...         return client.get(id)    # the value of the other side
        >>> publish("elected", 7)
        7
    """

    id: str | bytes


class ObjectTooLarge(HopliteError):
    """The object can never fit into the store.

    Examples:
        >>> try:
        ...     client.put("huge", np.empty(1 << 30, np.uint8))
        ... except hoplite.ObjectTooLarge as error:
        ...     print(error.size_bytes > error.limit_bytes)
        True
    """

    id: str | bytes
    size_bytes: int
    limit_bytes: int


class StoreFull(HopliteError):
    """There was no room before the timeout.

    Attributes:
        holders: The use of the memory, and programs that hold objects, in words; may be empty.

    Examples:
        >>> refs = [client.put(f"big/{k}", np.empty(24 << 20, np.uint8)) for k in range(2)]
        >>> try:
        ...     client.put("big/2", np.empty(24 << 20, np.uint8), timeout=0.2)
        ... except hoplite.StoreFull as error:
        ...     print(error.free_bytes < error.needed_bytes)
        True
    """

    needed_bytes: int
    free_bytes: int
    capacity_bytes: int
    holders: str = ""


class QuotaExceeded(HopliteError):
    """The put or reduce did not fit a quota before the timeout, or is larger than the quota.

    Attributes:
        user: The number of the limited user; `None` for a quota of a prefix or of each client.
        prefix: The start of the limited ids; `None` for a quota of a user or of each client.
        resource: The exceeded limit: `"memory"`, in bytes, or `"objects"`.
        needed: The bytes or objects that the put needs.
        used: The bytes or objects in use.
        limit: The limit in bytes or objects.

    Examples:
        >>> def keep(id: str, value: object) -> bool:
        ...     try:
        ...         client.put(id, value, timeout=10)
        ...     except hoplite.QuotaExceeded as error:
        ...         print(f"{error.used} of {error.limit} {error.resource}: {error.needed} more")
        ...         return False
        ...     return True
        >>> keep("result", np.ones(4))
        True
    """

    user: int | None = None
    prefix: str | bytes | None = None
    resource: str
    needed: int
    used: int
    limit: int


class Timeout(HopliteError, TimeoutError):
    """The call did not complete before its timeout.

    Attributes:
        operation: The call: `"get"`, `"put"`, `"reduce"` and so on.
        waited: Seconds.
        missing: The call waited for the `"object"`, `"sources"`, `"participants"`,
            `"coordinator"`, `"stores"`, `"seal"`, `"bytes"`, `"peer"`, `"shard"`, `"answer"` or
            `"replicas"`; `None` if unknown.
        missing_ids: At most 8 missing objects; for missing participants, their sources.
        missing_ranks: At most 8 missing participants.
        peers: At most 8 missing stores or directory shards.
        reason: Why the store cannot reach a missing peer, in words.

    Examples:
        >>> try:
        ...     client.reduce("sum", ["absent"], timeout=0.1)
        ... except hoplite.Timeout as error:
        ...     print(error.operation, error.missing, error.missing_ids)
        reduce sources ['absent']
    """

    operation: str
    waited: float
    missing: str | None = None
    missing_ids: Sequence[str | bytes] = ()
    missing_ranks: Sequence[int] = ()
    peers: Sequence[str] = ()
    reason: str | None = None


class RanksMissing(HopliteError, TimeoutError):
    """Some participants of a barrier or an all_to_all did not come in time.

    Attributes:
        ranks: The missing participants.
        waited: Seconds.

    Examples:
        >>> try:
        ...     client.barrier("meeting", 3, 0, timeout=0.2)
        ... except hoplite.RanksMissing as error:
        ...     print(error.ranks)
        [1, 2]
    """

    id: str | bytes
    ranks: list[int]
    waited: float


class ObjectLost(HopliteError):
    """Every copy is gone, or the writer died before the object was complete.

    Examples:
        >>> def newest():
        ...     try:
        ...         return client.get("model/2", timeout=0.1)
        ...     except (hoplite.ObjectLost, hoplite.Timeout):
        ...         return None    # compute and put it again
        >>> newest() is None
        True
    """

    id: str | bytes


class Superseded(HopliteError):
    """A target is being reduced again after a loss of a source: the bytes read so far are wrong."""

    id: str | bytes


class Deleted(HopliteError):
    """The object was deleted during the call.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool:
        ...     waiting = pool.submit(client.reduce, "target", ["absent"], timeout=10)
        ...     while not waiting.done():
        ...         deleted = client.delete("target")
        ...     print(type(waiting.exception()).__name__)
        Deleted
    """

    id: str | bytes


class PickleRefused(HopliteError):
    """The value is or needs a pickle, and this client refuses pickles.

    See `hoplite.connect`. A put raises this error before it sends anything.

    Examples:
        >>> ref = client.put("settings", {"lr": 0.1})
        >>> hoplite.connect(allow_pickle=False).get("settings")
        Traceback (most recent call last):
        hoplite.errors.PickleRefused: ...
    """

    id: str | bytes


class TypeMismatch(HopliteError, TypeError):
    """The dtype or shape of an object differs from the needed one.

    Examples:
        >>> refs = [client.put("a", np.ones(3)), client.put("b", np.ones(4))]
        >>> client.reduce("sum", refs)
        Traceback (most recent call last):
        hoplite.errors.TypeMismatch: ...
    """

    id: str | bytes
    reason: str


class DuplicateId(HopliteError, ValueError):
    """A call names an object twice.

    Examples:
        >>> client.reduce("sum", ["a", "a"])
        Traceback (most recent call last):
        hoplite.errors.DuplicateId: ...
    """

    id: str | bytes


class LimitExceeded(HopliteError):
    """A count or a size exceeds a limit; see `docs/reference/limits.md`.

    Attributes:
        what: The name of the limited count or size.
        maximum: The limit.

    Examples:
        >>> client.reduce("sum", [f"source/{k}" for k in range(70_000)])
        Traceback (most recent call last):
        hoplite.errors.LimitExceeded: ...
    """

    what: str
    maximum: int


class UnknownReference(HopliteError):
    """The store and this client disagree on the objects to which the client refers."""

    reference: int


class NodeIdInUse(HopliteError):
    """Another live store of the cluster has the name of this node."""

    node: str


class ClusterMismatch(HopliteError):
    """The peer, or a handle, belongs to another cluster.

    Attributes:
        ref_cluster: The cluster of the handle; `None` if the error is about no handle.
        store_cluster: The cluster of the store.

    Examples:
        >>> client.get(hoplite.Ref("model", cluster="another"))
        Traceback (most recent call last):
        hoplite.errors.ClusterMismatch: ...
    """

    ref_cluster: str | None = None
    store_cluster: str | None = None


class PermissionDenied(HopliteError):
    """This process is not allowed to make this call; see `docs/reference/security.md`."""

    reason: str


class ShardListMismatch(HopliteError):
    """The list of directory shards differs between this store and others."""

    refused: str
    in_use: str


class VersionMismatch(HopliteError):
    """The store speaks another version of the protocol."""

    ours: int
    theirs: int


class Malformed(HopliteError):
    """A peer sent a message that violates the protocol."""

    plane: str
    reason: str


class Unavailable(HopliteError):
    """A store or a directory shard cannot be reached now."""

    what: str


class ShuttingDown(HopliteError):
    """The store is stopping."""


class NotEnoughNodes(HopliteError):
    """A put wants more replicas than there are stores that can keep one.

    Attributes:
        wanted: The replicas of the put.
        present: The connected stores that do not drain.

    Examples:
        >>> try:
        ...     client.put("safe", b"1", replicas=2)
        ... except hoplite.NotEnoughNodes as error:
        ...     print(error.wanted, error.present)
        2 1
    """

    wanted: int
    present: int


class Draining(HopliteError):
    """The store moves its objects to other stores before it stops, and accepts no new ones."""


class SpillFailed(HopliteError):
    """The store has the object only in a spill file on disk, and cannot read it.

    If the file is damaged, the copy is lost, and later gets raise `ObjectLost`. Otherwise, retry.

    Attributes:
        reason: The file and the failure, in words.
    """

    id: str | bytes
    reason: str


class ConnectFailed(HopliteError, ConnectionError):
    """There is no store to connect to.

    Attributes:
        path: The socket.
        reason: `"NoSuchSocket"`, `"NotListening"`, `"ClosedEarly"`, `"NotASocket"`,
            `"PermissionDenied"`, `"PathTooLong"`, `"TimedOut"`, `"NotAStore"`, `"Refused"`,
            `"Arena"` or `"System"`; `"UntrustedPlace"` if another user could replace the socket;
            `"UntrustedDaemon"` if the store runs as neither this process's user, root, nor
            `HOPLITE_DAEMON_USER`.
        untrusted: The directory, link or socket that makes the place untrusted; else `None`.
        owner: The user id of its owner, or of the untrusted daemon; else `None`.

    Examples:
        >>> try:
        ...     hoplite.connect("/nowhere/store.sock")
        ... except hoplite.ConnectFailed as error:
        ...     print(error.reason)
        NoSuchSocket
    """

    path: str
    reason: str
    untrusted: str | None = None
    owner: int | None = None


class ConnectionLost(HopliteError, ConnectionError):
    """The connection to the store broke during the call.

    Arrays stay readable, and the next call connects again. `retryable` is `False` if the store
    may have performed the call, as for a delete, a reduce or a collective.

    Examples:
        >>> def get(id):
        ...     while True:
        ...         try:
        ...             return client.get(id)
        ...         except hoplite.ConnectionLost as error:
        ...             if not error.retryable:
        ...                 raise
        >>> ref = client.put("steady", 1)
        >>> get(ref)
        1
    """

    path: str
    reason: str


class ForkedChild(HopliteError, RuntimeError):
    """This process was forked from the one that made the client: make another client.

    Examples:
        >>> import os
        >>> child = os.fork()
        >>> if child == 0:
        ...     try:
        ...         client.contains("a")
        ...     except hoplite.ForkedChild:
        ...         os._exit(7)
        >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        7
    """

    connected: int
    current: int


class BufferTooSmall(HopliteError, ValueError):
    """The object does not fit into the buffer.

    Examples:
        >>> ref = client.put("ten", bytes(10))
        >>> client.get_into(ref, bytearray(9))
        Traceback (most recent call last):
        hoplite.errors.BufferTooSmall: ...
    """

    needed_bytes: int
    given_bytes: int


class SizeMismatch(HopliteError, ValueError):
    """The number of bytes written differs from the announced size."""

    size_bytes: int
    written_bytes: int


class InternalError(HopliteError, RuntimeError):
    """A bug in this package. Please report it."""
