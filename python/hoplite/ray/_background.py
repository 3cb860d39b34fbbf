"""Cancellable calls in the background."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import hoplite
import hoplite.aio
from hoplite._group import link as links
from hoplite.ray import _objects

T = TypeVar("T")


def begin(call: Callable[[hoplite.aio.Client], Awaitable[T]]) -> Future[T]:
    """Runs `call` in an event loop. Cancelling the returned future cancels the call."""
    # Ray may not know the event loop's thread. Starts a missing store.
    socket = _objects.client().socket
    return asyncio.run_coroutine_threadsafe(_perform(call, socket), links.event_loop()[0])


async def _perform(call: Callable[[hoplite.aio.Client], Awaitable[T]], socket: str) -> T:
    try:
        return await call(await _connected(socket))
    except (hoplite.ConnectFailed, hoplite.ConnectionLost) as error:
        if not error.retryable:
            raise
        return await call(await _connected(socket))


async def _connected(socket: str) -> hoplite.aio.Client:
    async with _state.connecting:
        known = _state.client
        if known is None or not known[1].usable or known[0] != socket:
            known = _state.client = (socket, await hoplite.aio.connect(socket))
        return known[1]


class _State:
    def __init__(self) -> None:
        self.connecting = asyncio.Lock()
        self.client: tuple[str, hoplite.aio.Client] | None = None


_state = _State()


def _forget() -> None:
    global _state
    _state = _State()


os.register_at_fork(after_in_child=_forget)
