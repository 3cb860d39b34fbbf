"""How long a run still takes, as far as one can say."""

import time

from .results import Measurement

# What a round takes beside the run itself: making objects, comparing them, deleting them.
_ROUND_S = 0.1
_MIB_S = 0.02
# What the systems that were seen take of the limit, on average over all cells; until it is known from the run itself.
_TIMES_LIMIT = 1.6
# For so long, weighed at the limit, the guess counts as much as what was seen.
_GUESS_S = 60.0


class Forecast:
    """Weighs cells by the time that they take at the limit, and learns how much longer they really take."""

    def __init__(self, rounds: int, cell_s: float) -> None:
        """For cells of so many rounds, of which none begins after `cell_s`."""
        self._rounds = rounds
        self._cell_s = cell_s
        self._left_s = 0.0
        self._done_s = 0.0
        self._begun = time.monotonic()

    def add(self, cells: list[Measurement]) -> None:
        """Adds cells that are to be measured."""
        self._left_s += sum(map(self._weight_s, cells))

    def done(self, cell: Measurement) -> None:
        """Takes one off that was measured."""
        weight_s = self._weight_s(cell)
        self._left_s -= weight_s
        self._done_s += weight_s

    def left(self) -> str:
        """The time that is left, for people. It is measured from the first time that cells were added."""
        elapsed_s = time.monotonic() - self._begun
        # At first the guess counts, then more and more what was seen.
        factor = (elapsed_s + _TIMES_LIMIT * _GUESS_S) / (self._done_s + _GUESS_S)
        minutes = self._left_s * factor / 60
        return "under 1 min left" if minutes < 1 else f"{minutes:.0f} min left"

    def _weight_s(self, cell: Measurement) -> float:
        round_s = cell.limit_s + _ROUND_S + cell.hosts * cell.size_bytes / (1 << 20) * _MIB_S
        return max(round_s, min(self._cell_s, (self._rounds + 1) * round_s))
