"""A connection to a store that may be started anew."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hoplite import Client, ClusterMismatch, ConnectFailed, ConnectionLost, connect

T = TypeVar("T")


class Connection:
    """The client of a store, made when it is needed, and made anew when its store did not come back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None

    def client(self, socket: Path) -> Client:
        """The client of the store that listens at `socket`.

        Raises:
            ConnectFailed
        """
        with self._lock:
            known = self._client
            if known is None or not known.usable or known.socket != str(socket):
                known = self._client = connect(socket)
            return known

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


_own = Connection()


def own() -> Connection:
    """That of this process to the store of its node."""
    return _own


def _forget() -> None:
    # In a forked child: it is the parent's.
    global _own
    _own = Connection()


os.register_at_fork(after_in_child=_forget)


def is_absent(error: ConnectFailed) -> bool:
    """Whether there is no store, rather than one that cannot be used."""
    return error.reason in ("NoSuchSocket", "NotListening")


def twice(client: Callable[[], Client], act: Callable[[Client], T]) -> T:
    """Performs `act`, once more if the store has ended and nothing was done, or may be done twice.

    The second time, `client` may have started a store that is missing.

    Raises:
        ConnectionLost: if the store ended in a call that it may have performed, such as a delete.
    """
    try:
        return act(client())
    except ConnectFailed:
        # Before anything was sent.
        return act(client())
    except ClusterMismatch:
        # Before anything was sent: the connection may be to a store that has ended, and whose place another one has taken.
        _own.close()
        return act(client())
    except ConnectionLost as error:
        if not error.retryable:
            raise
        return act(client())
