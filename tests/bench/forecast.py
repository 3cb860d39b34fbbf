"""How long a run still takes, as far as one can say."""

import time
from collections import defaultdict

from .results import Measurement

# What a round takes beside the run itself: making objects, comparing them, deleting them.
_ROUND_S = 0.1
_MIB_S = 0.004
# What a system takes of the time at the limit, on average over all cells, until it is known from the run itself.
_GUESS = 1.6
# For so long, weighed at the limit, the guess counts as much as what was seen.
_GUESS_S = 30.0


class Forecast:
    """Weighs cells by the time that they take at the limit, and learns how much longer each system really takes."""

    def __init__(self, rounds: int, cell_s: float, least_rounds: int = 1) -> None:
        """For cells of so many rounds, of which none but the least begins after `cell_s`."""
        self._rounds = rounds
        self._least_rounds = min(rounds, least_rounds)
        self._cell_s = cell_s
        # By system: weights of what is left and of what is done, and the time that the latter took.
        self._left_s: defaultdict[str, float] = defaultdict(float)
        self._done_s: defaultdict[str, float] = defaultdict(float)
        self._took_s: defaultdict[str, float] = defaultdict(float)
        self._last = time.monotonic()

    def add(self, cells: list[Measurement]) -> None:
        """Adds cells that are to be measured, from now on."""
        for cell in cells:
            self._left_s[cell.system] += self._weight_s(cell)
        self._last = time.monotonic()

    def done(self, cell: Measurement) -> None:
        """Takes one off that was measured since the last one."""
        weight_s = self._weight_s(cell)
        self._left_s[cell.system] -= weight_s
        self._done_s[cell.system] += weight_s
        now = time.monotonic()
        self._took_s[cell.system] += now - self._last
        self._last = now

    def left_s(self) -> float:
        """The time that is left."""
        return sum(
            left_s * (self._took_s[system] + _GUESS * _GUESS_S) / (self._done_s[system] + _GUESS_S)
            for system, left_s in self._left_s.items()
        )

    def left(self) -> str:
        """The time that is left, for people."""
        minutes = self.left_s() / 60
        return "under 1 min left" if minutes < 1 else f"{minutes:.0f} min left"

    def _weight_s(self, cell: Measurement) -> float:
        round_s = cell.limit_s + _ROUND_S + cell.hosts * cell.size_bytes / (1 << 20) * _MIB_S
        return max(self._least_rounds * round_s, min(self._cell_s, (self._rounds + 1) * round_s))
