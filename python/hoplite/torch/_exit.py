"""Leaves open groups at exit, and waits while other ranks use the private store of this process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import time
from multiprocessing import util
from typing import TYPE_CHECKING, NamedTuple

import hoplite
from hoplite import _node
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from hoplite.torch._member import Member

_logger = logging.getLogger(__name__)

#: Seconds to wait for other ranks: until a log message, and in all.
_WAIT_IN_SILENCE = 10.0
_WAIT_AT_MOST = 60.0


class Departed(NamedTuple):
    """A group that this rank has left, but whose other ranks use its private store."""

    mark: str
    """The id of an object that the last rank to leave deletes."""
    processes: list[int]


still_open: set[Member] = set()
_departed: list[Departed] = []


def depart(socket: str, group: Departed) -> None:
    store = _node._state.store
    if store is not None and store.socket == socket:
        _departed.append(group)


def _at_exit() -> None:
    for backend in list(still_open):
        with contextlib.suppress(Exception):
            backend.abandon()
    if _departed and _node._state.store is not None:
        with contextlib.suppress(HopliteError):
            _wait_for_others(_node.init(start=False))


def _wait_for_others(client: hoplite.Client) -> None:
    began = time.monotonic()
    has_said = False
    for group in _departed:
        while client.contains(group.mark) and any(map(_is_running, group.processes)):
            waited = time.monotonic() - began
            if waited > _WAIT_AT_MOST:
                return
            if waited > _WAIT_IN_SILENCE and not has_said:
                _logger.warning(
                    "waiting for other ranks to leave a group, because they use the store of this process"
                )
                has_said = True
            time.sleep(0.005)


def _is_running(process: int) -> bool:
    try:
        exit = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(exit, select.POLLIN)
        return not poll.poll(0)
    finally:
        os.close(exit)


# Runs before `hoplite` stops the private store.
atexit.register(_at_exit)


def prepare_exit() -> None:
    """Calls `_at_exit` also in forked children of multiprocessing, which skip `atexit`."""
    global _prepared
    if _prepared != os.getpid():
        _prepared = os.getpid()
        util.Finalize(None, _at_exit, exitpriority=100)


_prepared: int | None = None
