"""Targets of Hoplite, for S bytes on n hosts with links of B bytes per second.

| what | target |
| --- | --- |
| broadcast and reduce of 64 MiB | within 3% of S/B and the latency of the chain |
| broadcast and reduce of 1 MiB on 16 hosts | at most 50 ms and 48 ms on links of 200 Mbit/s |
| allreduce of 1, 32 and 64 MiB | within 3% of 2S(n-1)/n/B; 1 MiB on 16 hosts within 6% |
| allgather, reduce_scatter of 64 MiB | within 3% of S(n-1)/n/B |
| all_to_all of 64 MiB | within 5% of S(n-1)/n/B |
| gather of 64 MiB | within 2% of (n-1)S/B |
| late arrivals | done within 5% of S/B after the last arrival |
| allreduce, late sources | within 5% of 2S(n-1)/n/B or S/B after the last arrival, the lesser, and S/nB |
| from 1 MiB on | ahead of every peer, or level with a peer at the limit |
| below 1 MiB | at most twice the best peer; round trip of 1 KiB 3, allreduce of 32 KiB on 16 hosts 2.5 times |
| synchronous parameter server | ahead of every peer, or level with the best one |
| allreduce of 64 MiB on 8 and 16 hosts | at most 1.3 times the processor time of Gloo |
"""

from dataclasses import dataclass
from typing import Final

from .results import Measurement, Results
from .workloads import WORKLOADS

DEFINITION: Final = "[targets.py](../../tests/bench/targets.py) defines the targets."

_SYSTEM: Final = "hoplite"
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_AHEAD_FROM_BYTES: Final = _MIB
# The smallest size with a target, and the largest ratio to the limit.
_NEAR_LIMIT: Final = {
    "broadcast": (64 * _MIB, 1.03),
    "reduce": (64 * _MIB, 1.03),
    "allreduce": (_MIB, 1.03),
    "allgather": (64 * _MIB, 1.03),
    "reduce_scatter": (64 * _MIB, 1.03),
    "all_to_all": (64 * _MIB, 1.05),
    "gather": (64 * _MIB, 1.02),
}
_NEAR_LIMIT_OF: Final = {("allreduce", _MIB, 16): 1.06}
# In seconds, on links of 200 Mbit/s.
_SECONDS_OF: Final = {("broadcast", _MIB, 16): 0.050, ("reduce", _MIB, 16): 0.048}
_SECONDS_AT_BITS_S: Final = 200_000_000
_CHAINS: Final = frozenset({"broadcast", "reduce"})
_LATE: Final = 1.05
_PEER_AT_LIMIT: Final = 1.03
_LEVEL: Final = 1.02
_LEVEL_IS_ENOUGH: Final = frozenset({"ps_sync"})
_SMALL: Final = 2.0
_SMALL_OF: Final = {("round_trip", _KIB, 2): 3.0, ("allreduce", 32 * _KIB, 16): 2.5}

LEAN_PEER: Final = "gloo"
"""The peer whose processor time is the reference."""
_LEAN: Final = 1.3
_LEAN_OF: Final = frozenset({("allreduce", 64 * _MIB, 8), ("allreduce", 64 * _MIB, 16)})


@dataclass(frozen=True)
class Verdict:
    """Targets that a measurement meets; None without such a target.

    Attributes:
        peer: the best of the other systems, or None.
        is_lean: `True` if the target for the processor time is met.
    """

    cell: Measurement
    peer: Measurement | None
    is_near_limit: bool | None
    is_near_peers: bool | None
    is_lean: bool | None

    @property
    def is_ahead(self) -> bool:
        if self.cell.median_s is None or self.peer is None or self.peer.median_s is None:
            return False
        return self.cell.median_s < self.peer.median_s


def verdicts(results: Results) -> list[Verdict]:
    if _SYSTEM not in results.systems:
        return []
    title = results.systems[_SYSTEM]["title"]
    found = []
    for workload in WORKLOADS:
        for like in results.cells(workload):
            cell = results.best(title, like)
            if cell is not None:
                peer = _best_peer(results, title, like)
                is_near_limit, is_near_peer = (
                    _is_near_limit(results, cell),
                    _is_near_peer(cell, peer),
                )
                found.append(
                    Verdict(cell, peer, is_near_limit, is_near_peer, _is_lean(results, cell))
                )
    return found


def processor_ratio(results: Results, cell: Measurement) -> float | None:
    title = results.systems.get(LEAN_PEER, {}).get("title", "")
    peer = results.best(title, cell)
    own_s, peer_s = cell.processor_s, peer.processor_s if peer is not None else None
    return own_s / peer_s if own_s is not None and peer_s else None


def _best_peer(results: Results, title: str, like: Measurement) -> Measurement | None:
    cells = [results.best(other, like) for other in results.titles() if other != title]
    measured = [cell for cell in cells if cell is not None and cell.median_s is not None]
    return min(measured, key=lambda cell: cell.median_s or 0, default=None)


def _late_allreduce_s(results: Results, cell: Measurement) -> float:
    transfer_s = cell.size_bytes / results.payload_bytes_s
    last_s = (cell.hosts - 1) * cell.interval_s
    together_s = last_s + WORKLOADS["allreduce"].limit_factor(cell.hosts) * transfer_s
    composed_s = max(2 * transfer_s, last_s + transfer_s)
    return min(together_s, composed_s) + transfer_s / cell.hosts


def _key(cell: Measurement) -> tuple[str, int, int]:
    return cell.workload, cell.size_bytes, cell.hosts


def _is_near_limit(results: Results, cell: Measurement) -> bool | None:
    if cell.workload == "allreduce_late":
        return cell.median_s is not None and cell.median_s <= _LATE * _late_allreduce_s(
            results, cell
        )
    if WORKLOADS[cell.workload].is_late:
        after_last_s = cell.median_after_last_s
        return (
            after_last_s is not None
            and after_last_s <= _LATE * cell.size_bytes / results.payload_bytes_s
        )
    if results.rate_bits_s == _SECONDS_AT_BITS_S and _key(cell) in _SECONDS_OF:
        return cell.median_s is not None and cell.median_s <= _SECONDS_OF[_key(cell)]
    from_bytes, factor = _NEAR_LIMIT.get(cell.workload, (None, 0.0))
    if from_bytes is None or cell.size_bytes < from_bytes:
        return None
    factor = _NEAR_LIMIT_OF.get(_key(cell), factor)
    chain_s = (
        (cell.hosts - 1) * results.limits[cell.hosts]["round_trip_s"] / 2
        if cell.workload in _CHAINS
        else 0
    )
    return cell.median_s is not None and cell.median_s <= factor * cell.limit_s + chain_s


def _is_near_peer(cell: Measurement, peer: Measurement | None) -> bool | None:
    if peer is None or peer.median_s is None:
        return None
    if cell.median_s is None:
        return False
    if cell.size_bytes < _AHEAD_FROM_BYTES:
        return cell.median_s <= _SMALL_OF.get(_key(cell), _SMALL) * peer.median_s
    is_enough = cell.workload in _LEVEL_IS_ENOUGH or peer.median_s <= _PEER_AT_LIMIT * peer.limit_s
    return cell.median_s < peer.median_s or (is_enough and cell.median_s <= _LEVEL * peer.median_s)


def _is_lean(results: Results, cell: Measurement) -> bool | None:
    ratio = processor_ratio(results, cell)
    return ratio <= _LEAN if ratio is not None and _key(cell) in _LEAN_OF else None
