"""Which objects are to be deleted, since nobody can need them any more. Decides, and does nothing.

Ray tells the process that made an RDT object when nobody refers to it any more, and only that process. If it was killed,
somebody else has to find out. There are two rules:

* *The producer is gone*: what it made is deleted, but for what the owners claim that are alive. An owner is the process that
  called the method; it claims the object from the moment when it hears of it, until Ray has no reference to it any more. So
  that what is just on its way to its owner is not deleted, this begins a while after the producer is gone.
* *The owner is gone*: what it claimed is deleted. Ray lets nobody have an object whose owner is gone.

The keeper of a node sees to the leases of its node. Those of a node that is gone are adopted by the keeper of another one,
which knows them by the objects that are left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hoplite.ray._leases import PREFIX, Found

#: How long what a dead process made is left alone, in seconds: far longer than its answers take to arrive.
GRACE = 5.0


@dataclass(frozen=True)
class Due:
    """What is to be done now about leases whose holders are gone."""

    claimed: frozenset[str] = frozenset()
    """Objects to delete whose owners are gone."""
    producers: tuple[str, ...] = ()
    """Tokens of which all objects are to be deleted that no living owner claims."""

    def __bool__(self) -> bool:
        return bool(self.claimed or self.producers)


@dataclass
class Reclaimer:
    """Remembers since when who is gone."""

    grace: float = GRACE
    _gone_since: dict[str, float] = field(default_factory=dict)
    _adopted: set[str] = field(default_factory=set)

    def adopt(self, tokens: Iterable[str]) -> None:
        """Treats leases of which nobody knows anything any more like those whose holders are gone."""
        self._adopted.update(tokens)

    def forget(self, token: str) -> None:
        """Nothing is left that depends on a lease."""
        self._adopted.discard(token)

    def look(self, leases: Iterable[Found], now: float) -> Due:
        """Says what is due, given all leases of the node."""
        gone = [lease for lease in leases if not lease.is_alive]
        gone += [Found(token, False, frozenset()) for token in sorted(self._adopted)]
        self._gone_since = {lease.token: self._gone_since.get(lease.token, now) for lease in gone}
        return Due(
            claimed=frozenset[str]().union(*(lease.claims for lease in gone)),
            producers=tuple(
                lease.token for lease in gone if now - self._gone_since[lease.token] >= self.grace
            ),
        )


def unknown(ids: Iterable[str], known: Iterable[str]) -> set[str]:
    """The tokens in the ids of objects that are not those of known leases."""
    tokens = {part for id in ids for part in id.split("/")[2:3] if part.startswith(PREFIX)}
    return tokens - set(known)


def claims_on(token: str, leases: Iterable[Found]) -> set[str]:
    """The objects that a process made, by its token, and that living processes claim."""
    part = f"/{token}/"
    return {id for lease in leases if lease.is_alive for id in lease.claims if part in id}
