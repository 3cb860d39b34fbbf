"""Result of a delete."""

from __future__ import annotations

from collections.abc import Iterable


class Deletion(int):
    """The number of deleted objects.

    `absent` names lost nodes that may still have a copy, which they drop when they return.

    Examples:
        >>> ref = client.put("unwanted", 7)
        >>> deletion = client.delete(ref)
        >>> deletion == 1, deletion.absent, deletion.absent_count
        (True, (), 0)
    """

    absent: tuple[str, ...]
    """The names of some lost nodes."""

    absent_count: int
    """The number of all lost nodes."""

    def __new__(cls, count: int, absent: Iterable[str] = (), absent_count: int = 0) -> Deletion:
        self = super().__new__(cls, count)
        self.absent = tuple(absent)
        self.absent_count = absent_count
        return self

    def __repr__(self) -> str:
        count = super().__repr__()
        if not self.absent_count:
            return count
        return f"<hoplite.Deletion {count} absent={self.absent_count}: {', '.join(self.absent)}>"


def waits_for_all_nodes(wait: str) -> bool:
    if wait not in ("reachable", "all"):
        raise ValueError(f'wait must be "reachable" or "all", not {wait!r}')
    return wait == "all"
