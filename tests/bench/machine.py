"""The machine that measures: how busy its processors are, and what it is."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# The kernel counts in ticks of 10 ms; of shorter times nothing is said.
_LEAST_TICKS: Final = 20
BUSY: Final = 0.9
"""From which part on the processors, not the links, may have been the limit."""


class Processor:
    """How busy all processors together were between two moments."""

    def __init__(self) -> None:
        self._before = self._after = (0, 0)

    def start(self) -> None:
        """Notes the first moment."""
        self._before = _ticks()

    def stop(self) -> None:
        """Notes the second one."""
        self._after = _ticks()

    def busy(self) -> float | None:
        """The part of the processor time in between that was not idle; None if it was too short to say."""
        total = self._after[1] - self._before[1]
        return None if total < _LEAST_TICKS * _processors() else (self._after[0] - self._before[0]) / total


def _ticks() -> tuple[int, int]:
    """Ticks that all processors were busy, and all ticks, since the machine was started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _processors() -> int:
    return os.cpu_count() or 1


def describe() -> dict[str, str]:
    """What this machine is."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    pages_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": f"{_processors()} x {models[0] if models else platform.machine()}",
        "memory": f"{pages_kib / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", "?"),
        "python": platform.python_version(),
    }


def load() -> float:
    """The processes that want to run, averaged over the last minute."""
    return os.getloadavg()[0]


def commit(root: Path) -> str:
    """The commit that is checked out, and whether files differ from it."""
    name = output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{name or 'unknown'}{' with changes' if changed else ''}"


def output(command: Sequence[str], timeout_s: float = 20) -> str:
    """What a command prints; empty if it fails or is not there."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def now() -> str:
    """The date and time, for people."""
    return time.strftime("%Y-%m-%d %H:%M %z")
