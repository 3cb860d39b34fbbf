"""Reports of a store, which notebooks show as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite._html import age, size, table

if TYPE_CHECKING:
    from hoplite._info import ObjectInfo


class Status(dict[str, Any]):
    """The counters of a store, by name."""

    def _repr_html_(self) -> str:
        rows = [
            (name, size(value) if name.endswith("_bytes") else value)
            for name, value in self.items()
            if not isinstance(value, list)
        ]
        shards = [
            (shard["address"], shard["connected"], shard["objects"], shard["nodes"])
            for shard in self["shards"]
        ]
        tables = [
            table(f"Store of node {self['node']}", ("counter", "value"), rows),
            table("Directory", ("shard", "connected", "objects", "nodes"), shards),
        ]
        if self["troubles"]:
            tables.append(table("Troubles", ("trouble",), [(line,) for line in self["troubles"]]))
        return "".join(tables)


class Objects:
    """Iterates over objects. A notebook shows the first ones, without advancing the iterator."""

    def __init__(self, page: Callable[[bytes], tuple[list[ObjectInfo], bytes | None]]) -> None:
        self._page = page
        self._objects = self._walk()

    def _walk(self) -> Iterator[ObjectInfo]:
        after: bytes | None = b""
        while after is not None:
            objects, after = self._page(after)
            yield from objects

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self

    def __next__(self) -> ObjectInfo:
        return next(self._objects)

    def __repr__(self) -> str:
        return "<hoplite.Objects: iterate over them, or make a list>"

    def _repr_html_(self) -> str:
        objects, rest = self._page(b"")
        title = f"{len(objects)} objects" if rest is None else f"The first {len(objects)} objects"
        return table(title, OBJECT_HEADINGS, map(object_row, objects))


@dataclass(frozen=True, slots=True)
class Link:
    """The link from a store to another store, as transfers measured it.

    Examples:
        >>> hoplite.Link("node-b", 120.0, 1e9, is_slow=False).node
        'node-b'
    """

    node: str
    """The name of the other node."""
    round_trip_us: float
    bytes_per_second: float
    is_slow: bool
    """`True` if the link is much slower than most links of this store."""
    lanes: int | None = None
    """The number of connections that the last trial chose for all transfers to the node together.
    `None` before a trial."""


class Topology(tuple[Link, ...]):
    """The links of a store, the slowest first.

    Examples:
        >>> isinstance(client.topology(), hoplite.Topology)
        True
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = (
            (
                link.node,
                f"{link.round_trip_us:.1f} us",
                f"{size(link.bytes_per_second)}/s",
                "" if link.lanes is None else link.lanes,
                "slow" if link.is_slow else "",
            )
            for link in self
        )
        return table("Links of this node", ("node", "round trip", "rate", "connections", ""), rows)


OBJECT_HEADINGS = ("id", "size", "kind", "type", "shape", "age", "creator", "nodes", "available")


def object_row(info: ObjectInfo) -> tuple[object, ...]:
    shape = "" if info.shape is None else list(info.shape)
    nodes = ", ".join(f"{location.node} ({location.state})" for location in info.locations)
    described = info.id, size(info.nbytes), info.kind or "", info.dtype or "", shape
    return (
        *described,
        "" if info.age is None else age(info.age),
        info.creator or "",
        nodes,
        info.available,
    )


def topology(status: Mapping[str, Any]) -> Topology:
    return Topology(Link(**link) for link in status["links"])
