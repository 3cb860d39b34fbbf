"""A connection to a store that may restart."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hoplite import Client, ClusterMismatch, ConnectFailed, ConnectionLost, connect

T = TypeVar("T")


class Connection:
    """A client made on first use, and again if its store did not come back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None

    def client(self, socket: Path) -> Client:
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
    return _own


def _forget() -> None:
    global _own
    _own = Connection()


os.register_at_fork(after_in_child=_forget)


def is_absent(error: ConnectFailed) -> bool:
    return error.reason in ("NoSuchSocket", "NotListening")


def twice(client: Callable[[], Client], act: Callable[[Client], T]) -> T:
    """Calls `act`, and once more if the store has ended and a repetition is safe. `client` may
    start a store.

    Raises:
        ConnectionLost: if the store may have performed an unrepeatable call.
    """
    try:
        return act(client())
    except ConnectFailed:
        return act(client())
    except ClusterMismatch:
        # A store of another cluster may have replaced the old one.
        _own.close()
        return act(client())
    except ConnectionLost as error:
        if not error.retryable:
            raise
        return act(client())
