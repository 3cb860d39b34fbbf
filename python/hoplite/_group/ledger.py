"""Which objects a rank has made for its group, and when nobody needs them any more.

A rank performs the collectives of its group one after the other. So when it has begun collective k, it is done with all
before; and whoever knows that all ranks have begun collective k may delete what it made for those before. A collective whose
result depends on every rank's contribution (allreduce, say) tells everybody just that: here it is said to *meet*. After
those that do not (broadcast, say) a rank may be several collectives ahead of another one; before that gets out of hand, all
of them meet for nothing else. They agree on when, since each counts the same collectives.
"""

from __future__ import annotations

from collections import deque

#: How many collectives a rank may be ahead of another one: enough that the meeting costs little beside them.
MAX_AHEAD = 16
#: How many bytes those may leave in the stores: enough that a meeting, of about a millisecond, costs little beside them.
MAX_AHEAD_BYTES = 32 << 20


class Ledger:
    """What one rank has made, by collective."""

    def __init__(self) -> None:
        self._made: deque[tuple[int, list[str]]] = deque()
        self._ahead = 0
        self._ahead_bytes = 0

    def making(self, sequence: int, ids: list[str]) -> None:
        """This rank makes objects for a collective, and adds their ids to this list as it goes."""
        self._made.append((sequence, ids))

    def passed(self, nbytes: int) -> None:
        """A collective is done that did not meet, and left so many bytes in the stores; for all ranks the same number."""
        self._ahead += 1
        self._ahead_bytes += nbytes

    def must_meet(self) -> bool:
        """Whether all ranks have to meet before they go on."""
        return self._ahead >= MAX_AHEAD or self._ahead_bytes >= MAX_AHEAD_BYTES

    def met(self, sequence: int) -> list[str]:
        """All ranks have begun this collective: returns what nobody needs any more."""
        self._ahead = self._ahead_bytes = 0
        unneeded: list[str] = []
        while self._made and self._made[0][0] < sequence:
            unneeded += self._made.popleft()[1]
        return unneeded

    def everything(self) -> list[str]:
        """All that this rank has made and has not been told to delete."""
        return [id for _, ids in self._made for id in ids]

    def __len__(self) -> int:
        return sum(len(ids) for _, ids in self._made)
