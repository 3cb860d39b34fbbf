"""An estimate of the remaining time of a run."""

import time
from collections import defaultdict

from .results import Measurement

_ROUND_S = 0.1
_MIB_S = 0.004
# Assumed ratio of a cell's time to its limit.
_GUESS = 1.6
# The guess weighs as much as a measurement of this time.
_GUESS_S = 30.0


class Forecast:
    """Estimates the time of cells from their limit and each system's measured ratio."""

    def __init__(self, rounds: int, cell_s: float, least_rounds: int = 1) -> None:
        self._rounds = rounds
        self._least_rounds = min(rounds, least_rounds)
        self._cell_s = cell_s
        self._left_s: defaultdict[str, float] = defaultdict(float)
        self._done_s: defaultdict[str, float] = defaultdict(float)
        self._took_s: defaultdict[str, float] = defaultdict(float)
        self._last = time.monotonic()

    def add(self, cells: list[Measurement]) -> None:
        for cell in cells:
            self._left_s[cell.system] += self._weight_s(cell)
        self._last = time.monotonic()

    def done(self, cell: Measurement) -> None:
        weight_s = self._weight_s(cell)
        self._left_s[cell.system] -= weight_s
        self._done_s[cell.system] += weight_s
        now = time.monotonic()
        self._took_s[cell.system] += now - self._last
        self._last = now

    def left_s(self) -> float:
        return sum(
            left_s * (self._took_s[system] + _GUESS * _GUESS_S) / (self._done_s[system] + _GUESS_S)
            for system, left_s in self._left_s.items()
        )

    def left(self) -> str:
        minutes = self.left_s() / 60
        return "under 1 min left" if minutes < 1 else f"{minutes:.0f} min left"

    def _weight_s(self, cell: Measurement) -> float:
        round_s = cell.limit_s + _ROUND_S + cell.hosts * cell.size_bytes / (1 << 20) * _MIB_S
        return max(self._least_rounds * round_s, min(self._cell_s, (self._rounds + 1) * round_s))
