"""Descriptions of objects that `stat` and `list` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hoplite import _arrow, _serialize
from hoplite._html import table
from hoplite._reports import OBJECT_HEADINGS, object_row

Kind = Literal["bytes", "pickle", "torch", "ndarray", "jax", "arrow", "polars"]
_KINDS: dict[bytes, Kind] = {
    _serialize.TAG_BYTES: "bytes",
    _serialize.TAG_PICKLE: "pickle",
    _serialize.TAG_TENSOR: "torch",
    _serialize.TAG_ARRAY: "ndarray",
    _serialize.TAG_JAX: "jax",
    _arrow.TAG_ARROW: "arrow",
    _arrow.TAG_POLARS: "polars",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A copy of an object.

    Examples:
        >>> ref = client.put("grid", np.ones(4), confirm=True)
        >>> [location] = client.stat("grid").locations
        >>> location.state, location.pinned
        ('complete', True)
    """

    node: str
    state: Literal["producing", "partial", "complete"]
    """`"producing"` during a put, `"partial"` during a transfer, then `"complete"`."""
    pinned: bool
    """`True` if the copy stays until the object is deleted. Others are evicted when their node
    needs room."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision of the directory that one node fetches the object from another, and the reason.

    Examples:
        >>> ref = client.put("local", np.ones(4), confirm=True)
        >>> client.stat("local").grants    # no node fetched it
        ()
    """

    receiver: str
    sender: str
    reason: str
    outcome: str | None
    """The outcome of the transfer; `None` while it runs."""


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """The progress of a store that makes an object together with other stores.

    `Client.stat` has it once the directory knows the object, `hoplite stat` even before.

    Examples:
        >>> ref = client.put("plain", np.ones(4), confirm=True)
        >>> client.stat("plain").reduce is None    # no reduce made it, so no positions
        True
    """

    member: int
    """The index of the store among the members."""
    members: int
    stage: str
    """The present work of the member, or its outcome."""
    final_bytes: int
    nbytes: int
    node: str
    """The name of the store's node; set only in `ReduceInfo.positions`."""


@dataclass(frozen=True, slots=True)
class ReduceInfo:
    """The way in which a reduce made an object.

    Examples:
        >>> refs = [client.put(None, np.ones(4)) for _ in range(2)]
        >>> used = client.reduce("sum", refs)
        >>> info = client.stat("sum").reduce
        >>> info.op, info.reduced, info.sources, info.is_running
        ('sum', 2, 2, False)
    """

    op: str
    plan: str
    """The schedule, and the reason for its choice."""
    reduced: int
    sources: int
    hops: int
    elapsed_us: int
    mendings: int
    restarts: int
    is_running: bool
    position: MemberPosition | None
    positions: tuple[MemberPosition, ...]
    """The progress of each store that takes part, while the reduce runs."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The size, type, copies and history of an object.

    Examples:
        >>> ref = client.put("grid", np.ones((2, 2), np.float32), confirm=True)
        >>> info = client.stat("grid")
        >>> info.id, info.nbytes, info.dtype, info.shape, info.replicas
        ('grid', 16, 'float32', (2, 2), 1)
    """

    id: str | bytes
    """A `str` if the id is UTF-8, else `bytes`."""
    nbytes: int
    dtype: str | None
    """The name of the element type in numpy and torch; `None` for bytes."""
    shape: tuple[int, ...] | None
    kind: Kind | None
    """The kind of value that was put; `None` for a plain array, and for objects of other
    languages."""
    locations: tuple[Location, ...]
    inline: bool
    """`True` if the directory has the bytes, too."""
    lost: bool
    put_id: int
    """The number of the put. It changes if the id is deleted and put again."""
    replicas: int
    """The number of pinned copies that the put wants."""
    creator: str | None
    """The node that put the object, as far as the directory knows."""
    age: float | None
    """The seconds since the put."""
    unused: float | None
    """The seconds since a node last got the object from another node; `None` if none has."""
    grants: tuple[Grant, ...] = ()
    """The latest decisions on senders. Empty in listings."""
    reduce: ReduceInfo | None = None
    """The reduce that made the object, if the store of this client knows it."""
    owner: str | None = None
    """The name of the owner. The object is deleted after the owner has ended."""
    ttl: float | None = None
    """The time to live that the put has set, in seconds."""
    ttl_action: Literal["delete", "free"] | None = None
    expires_in: float | None = None
    """The rest of the time to live, in seconds, if the store of this client counts it. `None` in
    listings."""

    def _repr_html_(self) -> str:
        return table("Object", OBJECT_HEADINGS, [object_row(self)])

    @property
    def available(self) -> bool:
        """`True` if all bytes of the object are somewhere in the cluster.

        Examples:
            >>> ref = client.put("there", b"1", confirm=True)
            >>> client.stat("there").available
            True
        """
        return self.inline or any(location.state == "complete" for location in self.locations)


def object_info(known: Mapping[str, Any]) -> ObjectInfo | None:
    if not known["exists"]:
        return None
    reduce = known.get("reduce")
    return ObjectInfo(
        id=known["id"],
        nbytes=known["nbytes"],
        dtype=_serialize.dtype_name(known["dtype"]),
        shape=known["shape"],
        kind=_KINDS.get(known["user"].partition(b" ")[0]),
        locations=tuple(Location(**location) for location in known["locations"]),
        inline=known["inline"],
        lost=known["lost"],
        put_id=known["put_id"],
        **{name: known[name] for name in ("replicas", "creator", "age", "unused")},
        grants=tuple(Grant(**grant) for grant in known.get("grants", ())),
        reduce=None if reduce is None else _reduce_info(reduce),
        owner=known["owner"],
        ttl=known["ttl"],
        ttl_action=known["ttl_action"],
        expires_in=known.get("expires_in"),
    )


def _reduce_info(known: Mapping[str, Any]) -> ReduceInfo:
    position = known["position"]
    positions = tuple(MemberPosition(**position) for position in known["positions"])
    position = None if position is None else MemberPosition(**position)
    return ReduceInfo(**{**known, "position": position, "positions": positions})
