"""What is asked of Hoplite in section 12 of its design, and whether a run meets it.

| what | asked |
| --- | --- |
| broadcast and reduce of 64 MiB | within 3% of S/B and the latency of the chain |
| allreduce of 64 MiB | within 3% of 2S(n-1)/n/B |
| gather of 64 MiB | within 2% of (n-1)S/B |
| late arrivals | done within 5% of S/B after the last host came |
| from 1 MiB on | ahead of every peer, or level with one that is at the limit |
| below 1 MiB | at most twice the time of the best peer |
"""

from dataclasses import dataclass
from typing import Final

from .results import Measurement, Results
from .workloads import WORKLOADS

DEFINITION: Final = (
    "Asked for: broadcast, reduce and allreduce of 64 MiB within 3% of the limit (and of the latency of the chain, half "
    "of a round trip for each further host), gather within 2%, late arrivals done within 5% of S/B after the last one; "
    "from 1 MiB on ahead of every peer, or within 2% of one that is itself within 3% of the limit; below, at most twice "
    "the time of the best one. Training loops: ahead of every peer."
)

_SYSTEM: Final = "hoplite"
_LARGE_BYTES: Final = 64 << 20
_AHEAD_FROM_BYTES: Final = 1 << 20
_NEAR_LIMIT: Final = {"broadcast": 1.03, "reduce": 1.03, "allreduce": 1.03, "gather": 1.02}
_CHAINS: Final = frozenset({"broadcast", "reduce"})
_LATE: Final = 1.05
_PEER_AT_LIMIT: Final = 1.03
_LEVEL: Final = 1.02
_SMALL: Final = 2.0


@dataclass(frozen=True)
class Verdict:
    """What became of one cell.

    Attributes:
        cell: Hoplite's measurement.
        peer: the best one of all peers; None if no peer has one.
        is_near_limit: whether the target beside the limit is met; None if there is none.
        is_near_peers: the same beside the peers.
    """

    cell: Measurement
    peer: Measurement | None
    is_near_limit: bool | None
    is_near_peers: bool | None

    @property
    def is_ahead(self) -> bool:
        """Whether Hoplite is faster than every peer."""
        if self.cell.median_s is None or self.peer is None or self.peer.median_s is None:
            return False
        return self.cell.median_s < self.peer.median_s


def verdicts(results: Results) -> list[Verdict]:
    """One for each of Hoplite's cells, in the order of the tables."""
    if _SYSTEM not in results.systems:
        return []
    title = results.systems[_SYSTEM]["title"]
    found = []
    for workload in WORKLOADS:
        for like in results.cells(workload):
            cell = results.best(title, like)
            if cell is not None:
                peer = _best_peer(results, title, like)
                found.append(Verdict(cell, peer, _is_near_limit(results, cell), _is_near_peer(cell, peer)))
    return found


def _best_peer(results: Results, title: str, like: Measurement) -> Measurement | None:
    cells = [results.best(other, like) for other in results.titles() if other != title]
    measured = [cell for cell in cells if cell is not None and cell.median_s is not None]
    return min(measured, key=lambda cell: cell.median_s or 0, default=None)


def _is_near_limit(results: Results, cell: Measurement) -> bool | None:
    if WORKLOADS[cell.workload].is_late:
        after_last_s = cell.median_after_last_s
        return after_last_s is not None and after_last_s <= _LATE * cell.size_bytes / results.payload_bytes_s
    if cell.workload not in _NEAR_LIMIT or cell.size_bytes < _LARGE_BYTES:
        return None
    chain_s = (cell.hosts - 1) * results.limits[cell.hosts]["round_trip_s"] / 2 if cell.workload in _CHAINS else 0
    return cell.median_s is not None and cell.median_s <= _NEAR_LIMIT[cell.workload] * cell.limit_s + chain_s


def _is_near_peer(cell: Measurement, peer: Measurement | None) -> bool | None:
    if peer is None or peer.median_s is None:
        return None
    if cell.median_s is None:
        return False
    if cell.size_bytes < _AHEAD_FROM_BYTES:
        return cell.median_s <= _SMALL * peer.median_s
    is_level = peer.median_s <= _PEER_AT_LIMIT * peer.limit_s and cell.median_s <= _LEVEL * peer.median_s
    return cell.median_s < peer.median_s or is_level
