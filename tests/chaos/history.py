"""The writes of a campaign, and the values that a read may return.

Each key has one writer at a time, which numbers its values. The bytes contain the number. A put or
delete without an answer may take effect at any later time.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

HEADER_BYTES = 64


def contents(seed: int, key: str, version: int, size: int) -> bytes:
    """A readable header, then random bytes that depend on all arguments."""
    header = f"{key} {version} {size} ".encode().ljust(HEADER_BYTES, b".")
    return header + random.Random(f"{seed} {key} {version}").randbytes(size - HEADER_BYTES)


def version_of(value: bytes) -> tuple[str, int, int]:
    """Returns the key, the version and the size in the header."""
    key, version, size, _ = value[:HEADER_BYTES].split(b" ", 3)
    return key.decode(), int(version), int(size)


@dataclass
class Key:
    """Attributes:
        writer: the lock of the thread that puts or deletes.
        begun: the latest put's version.
        deleted: the latest version that an acknowledged delete has removed.
        present: the version that an acknowledged put has stored, until its delete begins.
        replicas: the copies of `present`.
        unanswered: the versions whose put got no answer.
        writes: the latest puts and deletes, with their times.
    """

    name: str
    writer: threading.Lock = field(default_factory=threading.Lock)
    begun: int = 0
    deleted: int = 0
    present: int | None = None
    replicas: int = 1
    unanswered: set[int] = field(default_factory=set)
    writes: deque[str] = field(default_factory=lambda: deque(maxlen=12))


class History:
    """Checks results against earlier writes, and counts operations. Safe for threads.

    `say` gets each violation at once, with its key's writes.
    """

    def __init__(self, seed: int, keys: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.seed = seed
        self.say = say
        self.began = time.monotonic()
        self.keys = [Key(f"k{number}") for number in range(keys)]
        self.names = [key.name for key in self.keys]
        self.expiring: set[str] = set()
        self.violations: list[str] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.longest_overrun_s = 0.0
        self._lock = threading.Lock()

    def violate(self, what: str, key: Key | None = None) -> None:
        with self._lock:
            self.violations.append(what)
            writes = list(key.writes) if key else []
        self.say("\n    ".join([f"VIOLATION: {what}", *writes]))

    def wrote(self, key: Key, began: float, what: str, done: bool) -> None:
        """Records a put or delete. `began` is a monotonic time."""
        begin_s, end_s = began - self.began, time.monotonic() - self.began
        outcome = "ok" if done else "failed"
        with self._lock:
            key.writes.append(f"{begin_s:.2f} to {end_s:.2f} s: {what}: {outcome}")

    def count(self, operation: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[operation, outcome] += 1

    def overrun(self, seconds: float) -> None:
        with self._lock:
            self.longest_overrun_s = max(self.longest_overrun_s, seconds)

    def check_read(self, key: Key, value: bytes, floor: int, where: str) -> None:
        """Checks the result of a read; `floor` is `key.deleted` before the call."""
        try:
            name, version, size = version_of(value)
        except ValueError:
            self.violate(
                f"wrong bytes: {key.name} on {where} begins with {value[:HEADER_BYTES]!r}",
                key,
            )
            return
        if name != key.name or value != contents(self.seed, name, version, size):
            self.violate(
                f"wrong bytes: {key.name} on {where} has the header {name} {version}, {len(value)} bytes",
                key,
            )
        elif version > key.begun:
            self.violate(
                f"value from nowhere: {key.name} version {version} on {where}, of {key.begun} puts",
                key,
            )
        elif version in key.unanswered and version <= floor:
            self.count("get", "value of a put without an answer")
        elif version <= floor:
            self.violate(
                f"old value: {key.name} version {version} on {where}, after the delete of version {floor}",
                key,
            )
