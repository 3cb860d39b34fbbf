"""Leases: files that show which processes live, and which objects they made and need.

A *lease* is a file of the node, locked until the process that made it ends. The lease's name, the
*token*, is part of the ids of the process's objects. A directory beside it has a file for each
*claim*: another process's object that this one needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hoplite.ray._place import Place, here

_UNFINISHED = ".new"
_CLAIMS = ".claims"

PREFIX = "p-"


class Lease:
    """This process's lease, until its end or `close`. Raises `FileNotFoundError` without a store."""

    def __init__(self, place: Place, token: str) -> None:
        self.place = place
        self.token = token
        self._path = place.leases / token
        self._claims = self._path.with_suffix(_CLAIMS)
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        unfinished = self._path.with_suffix(_UNFINISHED)
        # A POSIX lock, because forked children do not inherit it.
        self._file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._claims.mkdir(mode=0o700, exist_ok=True)
        os.rename(unfinished, self._path)

    @property
    def prefix(self) -> str:
        return f"{self.place.prefix}{self.token}/"

    def claim(self, id: str) -> None:
        """Keeps another process's object after that process ends. Each call needs a `drop`."""
        with self._lock:
            self._counts[id] += 1
            if self._counts[id] == 1:
                with contextlib.suppress(OSError):
                    os.close(
                        os.open(self._file_of(id), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    )

    def drop(self, id: str) -> None:
        """Ends a claim. The garbage collector may call this anywhere."""
        with self._lock:
            self._counts[id] -= 1
            if self._counts[id] <= 0:
                del self._counts[id]
                with contextlib.suppress(OSError):
                    os.unlink(self._file_of(id))

    @property
    def is_held(self) -> bool:
        """`True` until Hoplite stops on the node."""
        return self._path.exists()

    def close(self) -> None:
        os.close(self._file)

    def _file_of(self, id: str) -> Path:
        return self._claims / id.replace("/", ":")


@dataclass(frozen=True)
class Found:
    token: str
    is_alive: bool
    claims: frozenset[str]


def look(place: Place) -> Iterator[Found]:
    for path in sorted(place.leases.iterdir()):
        if path.suffix:
            continue
        with contextlib.suppress(FileNotFoundError):
            is_alive = _is_locked(path)
            names = os.listdir(path.with_suffix(_CLAIMS))
            yield Found(path.name, is_alive, frozenset(name.replace(":", "/") for name in names))


def forget(place: Place, token: str) -> None:
    path = place.leases / token
    shutil.rmtree(path.with_suffix(_CLAIMS), ignore_errors=True)
    path.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lease: Lease | None = None


_state = _State()


def _forget() -> None:
    global _state
    _state = _State()


os.register_at_fork(after_in_child=_forget)


def of_process() -> Lease:
    with _state.lock:
        place = here()
        if _state.lease is None or _state.lease.place != place or not _state.lease.is_held:
            _state.lease = Lease(place, f"{PREFIX}{secrets.token_hex(8)}")
        return _state.lease
