"""What can go wrong: one class for every kind of error, all of them under `HopliteError`.

An error has what it is about as attributes: the id of the object, sizes in bytes, and so on. Where Python has a class for
the same kind of mistake, ours is derived from that too: a `Timeout` is a `TimeoutError`, a `TypeMismatch` a `TypeError`.

The native half makes the instances (`src/errors.rs`). They can be pickled.
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
    "ObjectLost",
    "ObjectTooLarge",
    "PermissionDenied",
    "PickleRefused",
    "RanksMissing",
    "ShardListMismatch",
    "ShuttingDown",
    "SizeMismatch",
    "StoreFull",
    "Superseded",
    "Timeout",
    "TypeMismatch",
    "Unavailable",
    "UnknownReference",
    "VersionMismatch",
]


class HopliteError(Exception):
    """Any error of Hoplite.

    Attributes:
        id: the object that the call was about: `str` if the id is UTF-8, else `bytes`; `None` if it was about none, or
            several.
        retryable: whether the same call may succeed later, with nothing changed by the caller.
    """

    id: str | bytes | None = None
    retryable: bool = False

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)


class InvalidId(HopliteError, ValueError):
    """An id has 1 to 255 bytes."""

    length_bytes: int


class InvalidName(HopliteError, ValueError):
    """A name of a node or a cluster has characters that are not allowed."""

    name: str


class InvalidMetadata(HopliteError, ValueError):
    """Dtype, shape and size do not fit together, or there is too much of it."""

    reason: str


class InvalidRequest(HopliteError, ValueError):
    """A call that makes no sense, such as waiting for more objects than were named."""

    reason: str


class AlreadyExists(HopliteError):
    """The id names another object already. Objects are immutable: delete it first, or choose another id."""

    id: str | bytes


class ObjectTooLarge(HopliteError):
    """The object can never fit into the store."""

    id: str | bytes
    size_bytes: int
    limit_bytes: int


class StoreFull(HopliteError):
    """There was no room before the timeout.

    Attributes:
        holders: why room is in use, in words, with the programs that hold references to objects which nobody else needs.
    """

    needed_bytes: int
    free_bytes: int
    capacity_bytes: int
    holders: str = ""


class Timeout(HopliteError, TimeoutError):
    """The timeout passed first.

    Attributes:
        operation: the call: "get", "put", "reduce" and so on.
        waited: how long it waited, in seconds.
        missing: what it waited for: "object", "sources", "participants", "coordinator", "stores", "seal", "bytes",
            "peer", "shard" or "answer"; None if nobody knows. The message says the same in words.
        missing_ids: the objects that it waited for, or the sources of the participants; at most 8 of them.
        missing_ranks: the participants that it waited for; at most 8 of them.
        peers: the stores or the directory shard that it waited for; at most 8 of them.
        reason: why such a peer cannot be asked: it refuses this store, or cannot be reached.
    """

    operation: str
    waited: float
    missing: str | None = None
    missing_ids: Sequence[str | bytes] = ()
    missing_ranks: Sequence[int] = ()
    peers: Sequence[str] = ()
    reason: str | None = None


class RanksMissing(HopliteError, TimeoutError):
    """Some participants of a collective did not do their part in time."""

    id: str | bytes
    ranks: list[int]
    waited: float


class ObjectLost(HopliteError):
    """Every copy is gone, or the producer died before the object was complete."""

    id: str | bytes


class Superseded(HopliteError):
    """The object is being reduced anew, from other sources, since one was lost: what was read of it is wrong."""

    id: str | bytes


class Deleted(HopliteError):
    """The object was deleted while the call was under way."""

    id: str | bytes


class PickleRefused(HopliteError):
    """The object was stored as a pickle, or could only be stored so, and this client refuses pickles.

    See `allow_pickle` of `hoplite.connect`.
    """

    id: str | bytes


class TypeMismatch(HopliteError, TypeError):
    """The object has another dtype or shape than is needed."""

    id: str | bytes
    reason: str


class DuplicateId(HopliteError, ValueError):
    """An object is named twice where each may be named once."""

    id: str | bytes


class LimitExceeded(HopliteError):
    """There are too many of something."""

    what: str
    maximum: int


class UnknownReference(HopliteError):
    """The store and this client disagree on what is in use."""

    reference: int


class NodeIdInUse(HopliteError):
    """Another store has this name."""

    node: str


class ClusterMismatch(HopliteError):
    """The peer, or the handle that a call was given, belongs to another cluster.

    Attributes:
        ref_cluster: the cluster that a handle names; None if the error is about no handle.
        store_cluster: the cluster of the store that was to be asked.
    """

    ref_cluster: str | None = None
    store_cluster: str | None = None


class PermissionDenied(HopliteError):
    """This process may not do that: see `docs/security.md`."""

    reason: str


class ShardListMismatch(HopliteError):
    """The store spells the list of directory shards in another way than the others of its cluster."""

    refused: str
    in_use: str


class VersionMismatch(HopliteError):
    """The store speaks another version of the protocol."""

    ours: int
    theirs: int


class Malformed(HopliteError):
    """Somebody sent what is not of the protocol."""

    plane: str
    reason: str


class Unavailable(HopliteError):
    """A daemon cannot be reached now."""

    what: str


class ShuttingDown(HopliteError):
    """The store is stopping."""


class ConnectFailed(HopliteError, ConnectionError):
    """There is no store to connect to.

    Attributes:
        reason: `"NoSuchSocket"`, `"NotListening"`, `"ClosedEarly"`, `"NotASocket"`, `"PermissionDenied"`,
            `"PathTooLong"`, `"TimedOut"`, `"NotAStore"`, `"Refused"`, `"Arena"` or `"System"`.
            `"UntrustedPlace"` if another user could replace the socket. `"UntrustedDaemon"` if the store runs as a user who
            is neither this one, nor root, nor `HOPLITE_DAEMON_USER`.
        untrusted: the directory, link or socket that makes the place untrusted; else None.
        owner: the user id that it belongs to, or as which the untrusted daemon runs; else None.
    """

    path: str
    reason: str
    untrusted: str | None = None
    owner: int | None = None


class ConnectionLost(HopliteError, ConnectionError):
    """The connection to the store broke while the call was in flight.

    Arrays stay readable. The next call connects again. `retryable` is True if the same call may be made again: it only
    reads, or a second time changes nothing more, as with a put. It is False if the store may have performed it, as with
    a delete, a reduce or a collective.
    """

    path: str
    reason: str


class ForkedChild(HopliteError, RuntimeError):
    """This process was forked from the one that made the client: make another one."""

    connected: int
    current: int


class BufferTooSmall(HopliteError, ValueError):
    """The object does not fit into the buffer."""

    needed_bytes: int
    given_bytes: int


class SizeMismatch(HopliteError, ValueError):
    """The bytes written do not make the object that was announced."""

    size_bytes: int
    written_bytes: int


class InternalError(HopliteError, RuntimeError):
    """A bug in this package."""
