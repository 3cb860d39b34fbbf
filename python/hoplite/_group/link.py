"""Thread that performs this process's collectives, and its connections to stores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from hoplite import _native
from hoplite._calls import CONNECT_TIMEOUT
from hoplite.errors import ForkedChild, HopliteError

T = TypeVar("T")


class Link:
    """A connection to a store, with an event loop and thread, for all groups of the store."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, socket: str, program: str
    ) -> None:
        self.socket = socket
        self.loop = loop
        self._thread = thread
        self._process = os.getpid()
        self._users = 0
        self.client = self.run(_connect(socket, program))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        self.check_process(work)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_process(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        current = os.getpid()
        if current != self._process:
            if work is not None:
                work.close()
            raise ForkedChild(
                f"the process group belongs to process {self._process}, from which this one, {current}, was forked",
                connected=self._process,
                current=current,
            )

    def check_not_inside(self, name: str) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"{name} cannot be waited for by the thread that performs it")

    def is_alive(self) -> bool:
        """Returns `True` if the store answers a request: an idle connection misses its end."""
        with contextlib.suppress(HopliteError):
            self.run(_probe(self.client))
        return self.client.usable

    def release(self) -> None:
        with _process.lock:
            self._users -= 1
            if self._users == 0:
                self.client.close()
                if _process.links.get(self.socket) is self:
                    del _process.links[self.socket]


def acquire(socket: str, program: str) -> Link:
    """Returns the shared link to a store, which logs the name `program`. Raises `ConnectFailed`."""
    thread = event_loop()
    with _process.lock:
        link = _process.links.get(socket)
        if link is None or not link.is_alive():
            link = _process.links[socket] = Link(*thread, socket, program)
        link._users += 1
        return link


def event_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _process.lock:
        if _process.running is None:
            loop = asyncio.new_event_loop()
            # A daemon thread does not delay the program's end.
            thread = threading.Thread(target=loop.run_forever, name="hoplite-group", daemon=True)
            thread.start()
            _process.running = loop, thread
        return _process.running


class _Process:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.links: dict[str, Link] = {}
        self.running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


_process = _Process()


def _forget() -> None:
    global _process
    _inherited.append(_process)
    _process = _Process()


#: State from before a fork. A child keeps it, because the parent still uses its connections.
_inherited: list[_Process] = []
os.register_at_fork(after_in_child=_forget)


async def _connect(socket: str, program: str) -> _native.AsyncClient:
    # Does not reconnect, because a group ends with its store.
    return await _native.connect_async(socket, CONNECT_TIMEOUT, program, False)


async def _probe(client: _native.AsyncClient) -> None:
    await client.contains("hoplite")
