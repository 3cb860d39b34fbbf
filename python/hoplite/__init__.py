"""Hoplite: a distributed shared-memory object store with collective communication.

    import hoplite
    import numpy as np

    client = hoplite.init()
    client.put("gradient/0", np.ones(1000, np.float32))
    client.put("gradient/1", np.ones(1000, np.float32))
    client.reduce("gradient", ["gradient/0", "gradient/1"])
    print(client.get("gradient"))

`hoplite.aio` has the same for asyncio.
"""

from typing import TYPE_CHECKING, Any

from hoplite import _native
from hoplite._checks import Id, Op
from hoplite._client import Client, connect
from hoplite._deletion import Deletion
from hoplite._node import init, shutdown
from hoplite._reports import Link, Topology
from hoplite._stale import StaleWarning
from hoplite._trace import trace
from hoplite.errors import (
    AlreadyExists,
    BufferTooSmall,
    ClusterMismatch,
    ConnectFailed,
    ConnectionLost,
    Deleted,
    Draining,
    DuplicateId,
    ForkedChild,
    HopliteError,
    InternalError,
    InvalidId,
    InvalidMetadata,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    Malformed,
    NodeIdInUse,
    NotEnoughNodes,
    ObjectLost,
    ObjectTooLarge,
    PermissionDenied,
    PickleRefused,
    PutConflict,
    QuotaExceeded,
    RanksMissing,
    ShardListMismatch,
    ShuttingDown,
    SizeMismatch,
    SpillFailed,
    StoreFull,
    Superseded,
    Timeout,
    TypeMismatch,
    Unavailable,
    UnknownReference,
    VersionMismatch,
)
from hoplite.ref import Ref

if TYPE_CHECKING:
    from hoplite._info import Grant, Location, MemberPosition, ObjectInfo, ReduceInfo

__version__: str = _native.VERSION

__all__ = [
    "AlreadyExists",
    "BufferTooSmall",
    "Client",
    "ClusterMismatch",
    "ConnectFailed",
    "ConnectionLost",
    "Deleted",
    "Deletion",
    "Draining",
    "DuplicateId",
    "ForkedChild",
    "Grant",
    "HopliteError",
    "Id",
    "InternalError",
    "InvalidId",
    "InvalidMetadata",
    "InvalidName",
    "InvalidRequest",
    "LimitExceeded",
    "Link",
    "Location",
    "Malformed",
    "MemberPosition",
    "NodeIdInUse",
    "NotEnoughNodes",
    "ObjectInfo",
    "ObjectLost",
    "ObjectTooLarge",
    "Op",
    "PermissionDenied",
    "PickleRefused",
    "PutConflict",
    "QuotaExceeded",
    "RanksMissing",
    "ReduceInfo",
    "Ref",
    "ShardListMismatch",
    "ShuttingDown",
    "SizeMismatch",
    "SpillFailed",
    "StaleWarning",
    "StoreFull",
    "Superseded",
    "Timeout",
    "Topology",
    "TypeMismatch",
    "Unavailable",
    "UnknownReference",
    "VersionMismatch",
    "connect",
    "init",
    "shutdown",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Imports the classes of `stat` on first use, because their import is slow."""
    if name in ("Grant", "Location", "MemberPosition", "ObjectInfo", "ReduceInfo"):
        from hoplite import _info

        return getattr(_info, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
