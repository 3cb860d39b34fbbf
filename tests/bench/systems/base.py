"""Interface of a system."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from lab import Lab

_END_TIMEOUT_S: Final = 20

ASYNCHRONOUS: Final = frozenset({"ps_async", "rl_gradients", "rl_samples"})
"""Workloads whose participants are unknown in advance, so no fixed group can express them."""

SPLIT: Final = frozenset({"allgather", "reduce_scatter", "all_to_all"})
"""Collectives whose data consists of one part for each rank."""

Processes: TypeAlias = list["subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Context:
    """Attributes:
        built: the programs of `make bench-peers`.
        log: for the output of started processes.
        store_arguments: further arguments of Hoplite's stores.
    """

    programs: Path
    built: Path
    most_bytes: int
    log: Path
    store_arguments: tuple[str, ...] = ()


class System(ABC):
    """Starts workers in a lab.

    Attributes:
        title: for people. Variants of one system share it, and the better one counts.
        setting: the difference to other variants.
        omits: workloads that it cannot express, or that equal another variant's.
        most_hosts: the most that fit on this machine, or None.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    setting: ClassVar[str]
    omits: ClassVar[frozenset[str]] = frozenset()
    most_hosts: ClassVar[int | None] = None

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    def missing(self) -> str:
        """Returns the missing parts, and how to get them; empty if none."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def start(self, lab: Lab, socket: Path) -> AbstractContextManager[Processes]:
        """Starts a worker on each host, which ends when the team's socket is closed. The context
        manager holds the processes that must not end earlier.
        """


@contextmanager
def ending(processes: Processes, patience_s: float = _END_TIMEOUT_S) -> Iterator[Processes]:
    try:
        yield processes
    finally:
        for end, timeout_s in (
            (None, patience_s),
            (subprocess.Popen.terminate, _END_TIMEOUT_S),
            (subprocess.Popen.kill, _END_TIMEOUT_S),
        ):
            for process in processes:
                if end is not None and process.poll() is None:
                    end(process)
            deadline = time.monotonic() + timeout_s
            for process in processes:
                try:
                    process.wait(max(0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
