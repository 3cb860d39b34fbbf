"""Decides which objects of ended processes to delete. Performs no I/O.

Ray tells only the producer of an RDT object (Ray Direct Transport) when the last reference is gone.
If a process was killed:

* *The producer has ended*: after a grace period for metadata in flight, its objects are deleted,
  unless the owner, the process that called the method, still claims them.
* *The owner has ended*: the objects that it claimed are deleted: Ray denies access to them.

A supervisor checks the leases of its node. One supervisor also takes over the leases of ended
nodes, which it finds through their remaining objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hoplite.ray._leases import PREFIX, Found

#: Seconds after a producer's end. Its last metadata reaches the owner much faster.
GRACE = 5.0


@dataclass(frozen=True)
class Due:
    claimed: frozenset[str] = frozenset()
    """Objects that processes had claimed before they ended."""
    producers: tuple[str, ...] = ()
    """Tokens of ended producers. Their objects are due unless a living owner claims them."""

    def __bool__(self) -> bool:
        return bool(self.claimed or self.producers)


@dataclass
class Reclaimer:
    grace: float = GRACE
    _gone_since: dict[str, float] = field(default_factory=dict)
    _adopted: set[str] = field(default_factory=set)

    def adopt(self, tokens: Iterable[str]) -> None:
        self._adopted.update(tokens)

    def forget(self, token: str) -> None:
        self._adopted.discard(token)

    def look(self, leases: Iterable[Found], now: float) -> Due:
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
    tokens = {part for id in ids for part in id.split("/")[2:3] if part.startswith(PREFIX)}
    return tokens - set(known)


def claims_on(token: str, leases: Iterable[Found]) -> set[str]:
    part = f"/{token}/"
    return {id for lease in leases if lease.is_alive for id in lease.claims if part in id}
