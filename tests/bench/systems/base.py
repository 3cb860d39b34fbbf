"""What a system is to the benchmark."""

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
"""Workloads whose participants are known only when they are there, which no fixed group of processes can express."""

SPLIT: Final = frozenset({"allgather", "reduce_scatter", "all_to_all"})
"""Collectives of parts."""

Processes: TypeAlias = list["subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Context:
    """Where things are, and how large they get.

    Attributes:
        programs: the directory of Hoplite's binaries.
        built: the directory of what `make bench-peers` builds and installs.
        most_bytes: the largest object.
        log: where the output of what is started goes.
    """

    programs: Path
    built: Path
    most_bytes: int
    log: Path


class System(ABC):
    """Starts workers in a lab.

    Attributes:
        name: on the command line and in results.
        title: for people; variants of one system have the same, and the better one counts.
        setting: what is special about this variant.
        omits: workloads that it cannot express, or does not do differently from another variant of the same system.
        most_hosts: on how many hosts it fits on this machine; None if that does not matter.
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
        """What this machine lacks, and how to get it; empty if nothing."""

    @abstractmethod
    def version(self) -> str:
        """Which version is measured."""

    @abstractmethod
    def start(self, lab: Lab, socket: Path) -> AbstractContextManager[Processes]:
        """Starts one worker on each host; each connects to the team's socket, and ends when that is closed.

        Returns a context manager for the processes whose end before that would be an error; it ends them when it is
        left.
        """


@contextmanager
def ending(processes: Processes, patience_s: float = _END_TIMEOUT_S) -> Iterator[Processes]:
    """Ends the processes at last: they have `patience_s` to end by themselves, are asked to, and are killed."""
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
