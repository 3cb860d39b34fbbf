"""Workloads of the paper's figures 5 to 9 (section 6.1), their clocks, and their least times.

Every host first puts its sources. The clock runs from the first call of the collective until the
last receiving host has all its bytes. Elements are f32, the operation is the sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .loops import Loop

_MIB: Final = 1 << 20
_ELEMENT_BYTES: Final = 4


@dataclass(frozen=True)
class Need:
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True)
class Workload:
    """A collective that all systems perform.

    Attributes:
        definition: the start and the end of the clock.
        finishers: the ranks whose end stops the clock, by number of hosts.
        limit_factor: the least time as a multiple of S/B (bytes of an object, bytes per second of a
            link), for hosts that arrive together.
        needs: the bytes that each rank must receive and send, for a size and a number of hosts.
        is_split: `True` if each host gives or gets one of several equal parts.
        hosts: the only number of hosts, if fixed.
        loop: the training loop, which defines the least time.
    """

    name: str
    title: str
    figure: str
    definition: str
    finishers: Callable[[int], range]
    limit_factor: Callable[[int], float]
    needs: Callable[[int, int], Mapping[int, Need]]
    is_split: bool = False
    is_late: bool = False
    hosts: int | None = None
    loop: Loop | None = None

    def limit_s(
        self, hosts: int, size_bytes: int, payload_bytes_s: float, interval_s: float = 0
    ) -> float:
        if self.loop is not None:
            return self.loop.limit_s(hosts, size_bytes, payload_bytes_s)
        transfer_s = size_bytes / payload_bytes_s
        late_s = (hosts - 1) * interval_s + transfer_s if self.is_late else 0
        return max(late_s, self.limit_factor(hosts) * transfer_s)


def _root(_: int) -> range:
    return range(1)


def _others(hosts: int) -> range:
    return range(1, hosts)


def _broadcast_needs(size: int, hosts: int) -> Mapping[int, Need]:
    return {
        0: Need(sent_bytes=size),
        **{rank: Need(received_bytes=size) for rank in range(1, hosts)},
    }


def _reduce_needs(size: int, hosts: int) -> Mapping[int, Need]:
    return {
        0: Need(received_bytes=size),
        **{rank: Need(sent_bytes=size) for rank in range(1, hosts)},
    }


def _allreduce_factor(hosts: int) -> float:
    return 2 * (hosts - 1) / hosts


def _allreduce_needs(size: int, hosts: int) -> Mapping[int, Need]:
    return {
        rank: Need(size * (hosts - 1) // hosts, size * (hosts - 1) // hosts)
        for rank in range(hosts)
    }


def part_bytes(size: int, hosts: int) -> int:
    return size // _ELEMENT_BYTES // hosts * _ELEMENT_BYTES


def _split(name: str, title: str, definition: str, needs: Callable[[int, int], Need]) -> Workload:
    """Each host moves (n-1)S/n, all parts except its own."""
    return Workload(
        name=name,
        title=title,
        figure="",
        definition=definition,
        finishers=lambda hosts: range(hosts),
        limit_factor=lambda hosts: (hosts - 1) / hosts,
        needs=lambda size, hosts: dict.fromkeys(
            range(hosts), needs(part_bytes(size, hosts), hosts)
        ),
        is_split=True,
    )


def training(name: str, title: str, figure: str, definition: str, loop: Loop) -> Workload:
    return Workload(
        name=name,
        title=title,
        figure=figure,
        definition=f"{definition} {loop.describe()}",
        finishers=(lambda hosts: range(hosts)) if loop.is_synchronous else _root,
        limit_factor=lambda _: 0,
        needs=lambda size, hosts: {
            rank: Need(*counts) for rank, counts in loop.needs(size, hosts).items()
        },
        loop=loop,
    )


_ALL: Final = [
    Workload(
        name="round_trip",
        title="Round trip",
        figure="5",
        definition="h0 puts an object; h1, which waits for it, gets it and puts another, for which h0 waits. The time runs "
        "from h0's put to the end of its get.",
        finishers=_root,
        limit_factor=lambda _: 2,
        needs=lambda size, _: {0: Need(size, size), 1: Need(size, size)},
        hosts=2,
    ),
    Workload(
        name="broadcast",
        title="Broadcast",
        figure="6",
        definition="h0 has put an object; all others get it at the same time. The time runs until the last of "
        "them has it.",
        finishers=_others,
        limit_factor=lambda _: 1,
        needs=_broadcast_needs,
    ),
    Workload(
        name="gather",
        title="Gather",
        figure="6",
        definition="Every host has put an object; h0 gets all of them.",
        finishers=_root,
        limit_factor=lambda hosts: hosts - 1,
        needs=lambda size, hosts: {
            0: Need(received_bytes=(hosts - 1) * size),
            **{rank: Need(sent_bytes=size) for rank in range(1, hosts)},
        },
    ),
    Workload(
        name="reduce",
        title="Reduce",
        figure="6",
        definition="Every host has put an object; h0 reduces all of them, and gets the result.",
        finishers=_root,
        limit_factor=lambda _: 1,
        needs=_reduce_needs,
    ),
    Workload(
        name="allreduce",
        title="Allreduce",
        figure="6",
        definition="Every host has put an object; all begin an allreduce at the same time. The time runs until the "
        "last of them has the result.",
        finishers=lambda hosts: range(hosts),
        limit_factor=_allreduce_factor,
        needs=_allreduce_needs,
    ),
    _split(
        "allgather",
        "Allgather",
        "Every host has put one of n equal parts of the size; all get all of them. The time runs until the last "
        "host has all.",
        lambda part, hosts: Need(received_bytes=(hosts - 1) * part, sent_bytes=part),
    ),
    _split(
        "reduce_scatter",
        "Reduce-scatter",
        "Every host has put an object of the size; each gets another one of n equal parts of their sum. The time runs "
        "until the last host has its part.",
        lambda part, hosts: Need(received_bytes=part, sent_bytes=(hosts - 1) * part),
    ),
    _split(
        "all_to_all",
        "All-to-all",
        "Every host has n equal parts, together of the size, and gives one to each host. Hoplite puts them after the clock "
        "has started. The time runs until the last host has its part from every host.",
        lambda part, hosts: Need((hosts - 1) * part, (hosts - 1) * part),
    ),
    Workload(
        name="broadcast_late",
        title="Broadcast, late receivers",
        figure="7a",
        definition="h0 has put an object; the others get it one after the other, a fixed interval apart, beginning one "
        "interval after the clock starts. The time runs until the last of them has it. The limit supposes that a host that "
        "has not asked yet is sent nothing. MPI knows the hosts before, and can send ahead as much as the buffers of "
        "sockets hold.",
        finishers=_others,
        limit_factor=lambda _: 1,
        needs=_broadcast_needs,
        is_late=True,
    ),
    Workload(
        name="reduce_late",
        title="Reduce, late sources",
        figure="7b",
        definition="h0 puts an object and calls reduce when the clock starts; the others put their objects one after "
        "the other, a fixed interval apart. The time runs until h0 has the result.",
        finishers=_root,
        limit_factor=lambda _: 1,
        needs=_reduce_needs,
        is_late=True,
    ),
    Workload(
        name="allreduce_late",
        title="Allreduce, late sources",
        figure="",
        definition="All hosts begin an allreduce one after the other, a fixed interval apart: h0 when the clock starts. With "
        "Hoplite, each host puts its object when it begins. The time runs until the last host has the result.",
        finishers=lambda hosts: range(hosts),
        limit_factor=_allreduce_factor,
        needs=_allreduce_needs,
        is_late=True,
    ),
    training(
        "ps_sync",
        "Parameter server, synchronous",
        "8a",
        "In each step all hosts but h0, the server, compute a gradient; the sum of all gradients is reduced, and given to "
        "all hosts. That is an allreduce, but for Ray, which has none.",
        Loop(model_bytes=4 * _MIB, steps=8, compute_s=0.1, is_synchronous=True),
    ),
    training(
        "ps_async",
        "Parameter server, asynchronous",
        "8b",
        "In each step the server reduces the first gradients to be ready, those of half of the hosts, and gives the sum to "
        "those whose gradients it has; they go on with that, and the others go on computing.",
        Loop(model_bytes=4 * _MIB, steps=8, compute_s=0.1),
    ),
    training(
        "rl_gradients",
        "Reinforcement learning, gradients (A3C)",
        "9",
        "As the asynchronous parameter server, with the sizes and times of reinforcement learning.",
        Loop(model_bytes=_MIB, steps=16, compute_s=0.2),
    ),
    training(
        "rl_samples",
        "Reinforcement learning, samples (IMPALA)",
        "9",
        "In each step the trainer, h0, gets the first rollouts to be ready, those of half of the hosts, and gives a new "
        "model to these. A rollout is a quarter of the model.",
        Loop(model_bytes=_MIB, steps=16, compute_s=0.2, rollout_part=4),
    ),
]

WORKLOADS: Final = {workload.name: workload for workload in _ALL}
