"""A rank's objects for its group, and when it can delete them.

Once all ranks have begun collective k, each may delete its objects of earlier collectives. A
collective *meets* if its result depends on every rank, as in an allreduce: its end proves that all
have begun it. In a broadcast, for example, a rank can get ahead. Before it gets too far ahead, all
ranks perform an extra collective that meets.
"""

from __future__ import annotations

from collections import deque

MAX_AHEAD = 16
MAX_AHEAD_BYTES = 32 << 20


class Ledger:
    def __init__(self) -> None:
        self._made: deque[tuple[int, list[str]]] = deque()
        self._ahead = 0
        self._ahead_bytes = 0

    def making(self, sequence: int, ids: list[str]) -> None:
        self._made.append((sequence, ids))

    def passed(self, nbytes: int) -> None:
        """Counts a collective that does not meet. All ranks must pass the same `nbytes`."""
        self._ahead += 1
        self._ahead_bytes += nbytes

    def must_meet(self) -> bool:
        return self._ahead >= MAX_AHEAD or self._ahead_bytes >= MAX_AHEAD_BYTES

    def met(self, sequence: int) -> list[str]:
        """Returns ids of objects that no rank needs once all have begun collective `sequence`."""
        self._ahead = self._ahead_bytes = 0
        unneeded: list[str] = []
        while self._made and self._made[0][0] < sequence:
            unneeded += self._made.popleft()[1]
        return unneeded

    def everything(self) -> list[str]:
        return [id for _, ids in self._made for id in ids]

    def __len__(self) -> int:
        return sum(len(ids) for _, ids in self._made)
