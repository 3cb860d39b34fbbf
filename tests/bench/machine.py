"""Measuring machine: its description, and the load of its processors."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# With fewer ticks of 10 ms per processor, no busy share is computed.
_LEAST_TICKS: Final = 20
BUSY: Final = 0.9
"""From this busy share on, the processors may limit a measurement instead of the links."""


class Processor:
    def __init__(self) -> None:
        self._before = self._after = (0, 0)

    def start(self) -> None:
        self._before = _ticks()

    def stop(self) -> None:
        self._after = _ticks()

    def busy(self) -> float | None:
        """The busy share; None if the time was too short."""
        total = self._after[1] - self._before[1]
        return (
            None
            if total < _LEAST_TICKS * _processors()
            else (self._after[0] - self._before[0]) / total
        )


def _ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _processors() -> int:
    return os.cpu_count() or 1


def describe() -> dict[str, str]:
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
    return os.getloadavg()[0]


def commit(root: Path) -> str:
    name = output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{name or 'unknown'}{' with changes' if changed else ''}"


def output(command: Sequence[str], timeout_s: float = 20) -> str:
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M %z")
