"""The end of a process that has not destroyed its groups, or that keeps the store of others."""

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
    from hoplite.torch._backend import HopliteBackend

_logger = logging.getLogger(__name__)

#: How long a process that keeps the store of others waits for them when it ends, before it says so, and in all.
_WAIT_IN_SILENCE = 10.0
_WAIT_AT_MOST = 60.0


class Departed(NamedTuple):
    """A group that this process has left, of ranks that use the store which ends with it."""

    mark: str
    """An object that the last rank to leave deletes."""
    processes: list[int]
    """Those of the other ranks."""


#: The groups of this process that were not destroyed.
still_open: set[HopliteBackend] = set()
_departed: list[Departed] = []


def depart(socket: str, group: Departed) -> None:
    """This process has left a group that uses the store at `socket`."""
    store = _node._state.store
    if store is not None and store.socket == socket:
        _departed.append(group)


def _at_exit() -> None:
    """Leaves the groups that are left, and waits for those that still read what this process has put."""
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
                    "this process keeps the store of a group that others have not left yet: waiting for them"
                )
                has_said = True
            time.sleep(0.005)


def _is_running(process: int) -> bool:
    try:
        exit = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    except OSError:
        # The kernel has no such thing.
        return True
    try:
        poll = select.poll()
        poll.register(exit, select.POLLIN)
        return not poll.poll(0)
    finally:
        os.close(exit)


# After `hoplite` has registered the end of its store, so that this comes before.
atexit.register(_at_exit)


def prepare_exit() -> None:
    """A process that multiprocessing has forked ends without `atexit`."""
    global _prepared
    if _prepared != os.getpid():
        _prepared = os.getpid()
        util.Finalize(None, _at_exit, exitpriority=100)


_prepared: int | None = None
