"""Steers `preload.c`, which daemons load."""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab import system

_SOURCE: Final = Path(__file__).with_suffix(".c")
_NUMBER_BYTES: Final = 8
KINDS: Final = ("flip-bytes", "truncate-bytes", "clock-jump")


class Faults:
    def __init__(self, path: Path) -> None:
        size = 2 * len(KINDS) * _NUMBER_BYTES
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")

    def set(self, kind: str, setting: int) -> None:
        self._numbers[KINDS.index(kind)] = setting

    def count(self, kind: str) -> int:
        return int(self._numbers[len(KINDS) + KINDS.index(kind)])


class Preload:
    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self._paths = {host: directory / f"{host}.faults" for host in hosts}
        self.faults = {host: Faults(path) for host, path in self._paths.items()}
        self._library = directory / "preload.so"
        system.compile_library(_SOURCE, self._library)

    def environment(self, host: str) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "HOPLITE_FAULTS": str(self._paths[host])}
