"""What a cluster knows of an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hoplite import _arrow, _serialize
from hoplite._html import table
from hoplite._reports import OBJECT_HEADINGS, object_row

#: What a value was in the program that put it.
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
    """A copy of an object."""

    node: str
    state: Literal["producing", "partial", "complete"]
    """Whether it is being put there, being fetched from elsewhere, or all there."""
    pinned: bool
    """Whether it stays until the object is deleted; others go when their node needs the room."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Who was told to fetch an object from whom, and why."""

    receiver: str
    sender: str
    reason: str
    outcome: str | None
    """None while it goes on."""


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """How far the store is, as a member of the session that makes an object.

    It is told once the directory knows of the object; `hoplite stat` tells it before, too.
    """

    member: int
    """Which one, in the order of the schedule, from 0."""
    members: int
    stage: str
    """What it does, or how it ended."""
    final_bytes: int
    nbytes: int
    node: str
    """Where it is, in `positions`."""


@dataclass(frozen=True, slots=True)
class ReduceInfo:
    """How a reduce was done that made an object."""

    op: str
    plan: str
    """Which schedule was chosen, and why."""
    reduced: int
    sources: int
    hops: int
    elapsed_us: int
    mendings: int
    restarts: int
    is_running: bool
    position: MemberPosition | None
    positions: tuple[MemberPosition, ...]
    """Of all members of a session, while it goes on."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object."""

    id: str | bytes
    """`str` where it is UTF-8, else `bytes`."""
    nbytes: int
    dtype: str | None
    """The name of the element type as numpy and torch say it; None for bytes."""
    shape: tuple[int, ...] | None
    kind: Kind | None
    """What it was in the program that put it; None for an array, and for what another language put."""
    locations: tuple[Location, ...]
    inline: bool
    """Whether the directory has the bytes too."""
    lost: bool
    put_id: int
    """Which put made it: another one if the id was deleted and put again."""
    grants: tuple[Grant, ...] = ()
    """The latest decisions on who fetches it from whom. Not in listings."""
    reduce: ReduceInfo | None = None
    """How it was reduced, if it was, by the store that was asked."""

    def _repr_html_(self) -> str:
        return table("Object", OBJECT_HEADINGS, [object_row(self)])

    @property
    def available(self) -> bool:
        """Whether all bytes are somewhere."""
        return self.inline or any(location.state == "complete" for location in self.locations)


def object_info(known: Mapping[str, Any]) -> ObjectInfo | None:
    """What the native half says of an object; None if it knows of none."""
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
        grants=tuple(Grant(**grant) for grant in known.get("grants", ())),
        reduce=None if reduce is None else _reduce_info(reduce),
    )


def _reduce_info(known: Mapping[str, Any]) -> ReduceInfo:
    position = known["position"]
    positions = tuple(MemberPosition(**position) for position in known["positions"])
    position = None if position is None else MemberPosition(**position)
    return ReduceInfo(**{**known, "position": position, "positions": positions})
