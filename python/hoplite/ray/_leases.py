"""Who is alive, and which objects depend on it.

A process that makes objects for Ray, or owns some that others made, has a *lease* on its node: a file that it keeps locked.
The kernel unlocks it when the process ends, however it ends; so the keeper of the node knows, without anybody sending
anything. The name of the lease, its *token*, is in the ids of the objects that depend on it.

In a directory beside it, a lease has a file for each object that it *claims*: that another process made, and that is needed
as long as this process needs it.
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

#: What is not a lease yet: it is made under another name, and locked before it gets its own.
_UNFINISHED = ".new"
_CLAIMS = ".claims"

#: How all tokens begin.
PREFIX = "p-"


class Lease:
    """A lease of this process. It ends with the process, or when it is closed.

    Raises:
        FileNotFoundError: if there is no store on the node.
    """

    def __init__(self, place: Place, token: str) -> None:
        self.place = place
        self.token = token
        self._path = place.leases / token
        self._claims = self._path.with_suffix(_CLAIMS)
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        unfinished = self._path.with_suffix(_UNFINISHED)
        # Locks of this kind are not inherited by children, which may live longer.
        self._file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._claims.mkdir(mode=0o700, exist_ok=True)
        os.rename(unfinished, self._path)

    @property
    def prefix(self) -> str:
        """How the ids of all objects begin that depend on it."""
        return f"{self.place.prefix}{self.token}/"

    def claim(self, id: str) -> None:
        """Keeps an object that another process made, even if that ends. As often as it is called, it must be dropped."""
        with self._lock:
            self._counts[id] += 1
            if self._counts[id] == 1:
                # If the directory is gone, so is the store.
                with contextlib.suppress(OSError):
                    os.close(os.open(self._file_of(id), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def drop(self, id: str) -> None:
        """Ends a claim. May be called by the garbage collector, in whatever thread and place."""
        with self._lock:
            self._counts[id] -= 1
            if self._counts[id] <= 0:
                del self._counts[id]
                with contextlib.suppress(OSError):
                    os.unlink(self._file_of(id))

    @property
    def is_held(self) -> bool:
        """Whether the keeper can see it: not after the stores of the node were stopped."""
        return self._path.exists()

    def close(self) -> None:
        os.close(self._file)

    def _file_of(self, id: str) -> Path:
        return self._claims / id.replace("/", ":")


@dataclass(frozen=True)
class Found:
    """A lease of the node, as its keeper sees it."""

    token: str
    is_alive: bool
    claims: frozenset[str]
    """The ids of the objects that it claims."""


def look(place: Place) -> Iterator[Found]:
    """Looks at all leases of the node."""
    for path in sorted(place.leases.iterdir()):
        if path.suffix:
            continue
        with contextlib.suppress(FileNotFoundError):
            is_alive = _is_locked(path)
            names = os.listdir(path.with_suffix(_CLAIMS))
            yield Found(path.name, is_alive, frozenset(name.replace(":", "/") for name in names))


def forget(place: Place, token: str) -> None:
    """Removes a lease whose holder is gone, and its claims."""
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
    """The lease of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lease: Lease | None = None


_state = _State()


def _forget() -> None:
    # In a forked child: it is the parent's.
    global _state
    _state = _State()


os.register_at_fork(after_in_child=_forget)


def of_process() -> Lease:
    """The lease that ends with this process."""
    with _state.lock:
        place = here()
        if _state.lease is None or _state.lease.place != place or not _state.lease.is_held:
            _state.lease = Lease(place, f"{PREFIX}{secrets.token_hex(8)}")
        return _state.lease
