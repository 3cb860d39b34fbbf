"""A rank's part in a group: its operations in their order, their time limits, and what happens when a rank is gone.

Collectives are performed one after the other, in the order in which they were issued, as all ranks do. If one fails, so do
all after it, on all ranks: whoever fails, leaves, or sees another one die puts the *end* of the group, an object for which
all ranks wait. It says after which collective that rank takes part in no other one. Messages have no order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from hoplite._calls import DEFAULT_TIMEOUT
from hoplite.errors import ConnectionLost, HopliteError, ShuttingDown, Timeout
from hoplite.torch._collectives import Round, meet
from hoplite.torch._ledger import Ledger
from hoplite.torch._link import Link

#: How long a rank tries to tell the others that it is gone. If the directory is too, they learn of it by their own means.
GOODBYE_TIMEOUT = 5.0
#: How long a rank waits to see what another one has put, when they use different stores.
HELLO_TIMEOUT = 20.0
#: What is deleted at once: a delete takes the store as long as two small collectives, whatever it names.
DISCARD_OBJECTS = 64
DISCARD_BYTES = 1 << 20
#: How many objects are listed and deleted at once.
PAGE = 1000

#: What a client raises whose store is gone, or that was closed.
_GONE = (HopliteError, ValueError)


@dataclass
class Operation:
    """Something to be performed."""

    name: str
    run: Callable[[Round], Awaitable[None]]
    finish: Callable[[Exception | None], None]
    timeout: float
    meets: bool = False
    """Of a collective: whether its result depends on what every rank contributes."""
    nbytes: int = 0
    """About how much it leaves in the stores. Of a collective that does not meet, the same number on all ranks."""
    message: str = ""
    """Of a send or a receive: the id of the object."""
    source: int | None = None
    """Of a receive: from whom."""


@dataclass(frozen=True)
class End:
    """That a rank takes no more part."""

    rank: int
    after: int
    """The last collective that it has done its part of."""
    reason: str
    is_failure: bool = True
    """Or else it left in order."""


class Group:
    """One rank's view of a group. All but its public methods runs in the thread of the link."""

    def __init__(
        self, link: Link, prefix: str, name: str, rank: int, size: int, neighbours: dict[int, int]
    ) -> None:
        self.link = link
        #: The processes of the other ranks of this machine.
        self.neighbours = list(neighbours.values())
        #: Says that this rank has left, until all have.
        self.done_mark = f"{prefix}done/{rank}"
        self._client = link.client
        self._prefix = prefix
        self._name = name
        self.rank = rank
        self._size = size
        self._ledger = Ledger()
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._is_running = False
        #: The number of the collective that is being performed, or was last.
        self._sequence = 0
        self._messages: dict[asyncio.Task[None], Operation] = {}
        self._unneeded: list[str] = []
        self._unneeded_bytes = 0
        self._deleter: asyncio.Task[None] | None = None
        self._end: End | None = None
        self._has_failed = False
        self._announcing: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._exits: list[int] = []
        self._is_closed = False
        link.run(self._open(neighbours))

    def submit(self, operation: Operation) -> None:
        """Has a collective performed after those that were submitted before."""
        self.link.check_process()
        self.link.loop.call_soon_threadsafe(self._enqueue, operation)

    def submit_message(self, operation: Operation) -> None:
        """Has a send or a receive performed."""
        self.link.check_process()
        self.link.loop.call_soon_threadsafe(self._start, operation)

    def message_id(self, source: int, destination: int, tag: int, number: int) -> str:
        """The id of a message between two ranks."""
        return f"{self._prefix}m/{source}/{destination}/{tag}/{number}"

    def hello(self, timeout: float) -> None:
        """Makes sure that this rank sees what rank 0 puts.

        Raises:
            DistBackendError: if it does not.
        """
        self.link.run(self._hello(timeout))

    def close(self) -> None:
        """Performs what was submitted, but for receives, and leaves. The last one to leave removes all that is left."""
        if self.link.run(self._close()):
            self.link.release()

    def abort(self, reason: str) -> None:
        """Fails what was submitted, and leaves."""
        self.link.run(self._give_up(reason))
        self.close()

    # Collectives

    def _enqueue(self, operation: Operation) -> None:
        self._queue.append(operation)
        if self._runner is None:
            self._runner = self.link.loop.create_task(self._perform_all())

    async def _perform_all(self) -> None:
        try:
            while self._queue:
                await self._perform(self._queue.popleft())
        finally:
            self._runner = None

    async def _perform(self, operation: Operation) -> None:
        self._sequence += 1
        sequence = self._sequence
        if self._end is not None and sequence > self._end.after:
            operation.finish(self._ended(operation))
            return
        round = self._round(f"{sequence}", operation.timeout)
        self._is_running = True
        try:
            if not operation.meets and self._ledger.must_meet():
                meeting = self._round(f"{sequence}m", operation.timeout)
                self._ledger.making(sequence, meeting.made)
                await meet(meeting)
                self._discard(self._ledger.met(sequence), DISCARD_BYTES)
            self._ledger.making(sequence, round.made)
            await operation.run(round)
        except BaseException as cause:
            self._is_running = False
            error = await self._failure(operation, f" (collective {sequence})", round, cause)
            operation.finish(error)
            self._leave(sequence - 1, str(error))
        else:
            self._is_running = False
            operation.finish(None)
            if operation.meets:
                self._discard(self._ledger.met(sequence), operation.nbytes)
            else:
                self._ledger.passed(operation.nbytes)

    def _round(self, name: str, timeout: float) -> Round:
        deadline = time.monotonic() + timeout
        return Round(self._client, f"{self._prefix}{name}/", self.rank, self._size, deadline)

    # Messages

    def _start(self, operation: Operation) -> None:
        task = self.link.loop.create_task(self._pass(operation))
        self._messages[task] = operation
        task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[None]) -> None:
        operation = self._messages.pop(task, None)
        if operation is not None and task.cancelled():
            # Before it had begun.
            operation.finish(self._ended(operation))

    async def _pass(self, operation: Operation) -> None:
        round = self._round("m", operation.timeout)
        try:
            if not await self._may_pass(operation):
                operation.finish(self._ended(operation))
                return
            await operation.run(round)
        except BaseException as cause:
            # From here on it cannot be given up any more.
            self._messages.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            operation.finish(await self._failure(operation, "", round, cause))
        else:
            operation.finish(None)
            if operation.source is not None:
                self._discard([operation.message], operation.nbytes)

    async def _may_pass(self, operation: Operation) -> bool:
        """Whether there is still somebody for it: a message that was sent is there, though its sender is gone."""
        if self._end is None:
            return True
        if operation.source != self._end.rank:
            return self._end.rank != self.rank
        return await self._client.contains(operation.message)

    async def _give_up_messages(self) -> None:
        for task, operation in list(self._messages.items()):
            with contextlib.suppress(*_GONE):
                if await self._may_pass(operation):
                    continue
            if task in self._messages:
                task.cancel()

    # Failures

    async def _failure(
        self, operation: Operation, which: str, round: Round, cause: BaseException
    ) -> Exception:
        """What the caller is told."""
        if isinstance(cause, asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return self._ended(operation)
        what = f"{operation.name}{which} of {self._described()}"
        if isinstance(cause, Timeout):
            message = f"{what} failed: timeout after {operation.timeout:g} s{await self._missing(round)}"
        else:
            message = f"{what} failed: {_lost(cause)}"
        error = dist.DistBackendError(message)
        error.__cause__ = cause
        return error

    async def _missing(self, round: Round) -> str:
        """Says from whom nothing has come."""
        ranks, ids = list(round.awaited), list(round.awaited.values())
        try:
            there = await self._client.wait(ids, len(ids), 0.0)
        except _GONE:
            return ""
        missing = [str(rank) for index, rank in enumerate(ranks) if index not in there]
        return f"; nothing has come from rank {', '.join(missing)}" if missing else ""

    def _ended(self, operation: Operation) -> Exception:
        reason = "it was closed" if self._end is None else self._end.reason
        return dist.DistBackendError(f"{operation.name} cannot be done in {self._described()}: {reason}")

    def _described(self) -> str:
        return f"group {self._name!r}"

    # The end

    async def _open(self, neighbours: dict[int, int]) -> None:
        if self._size == 1:
            return
        self._watcher = self.link.loop.create_task(self._watch())
        for rank, process in neighbours.items():
            # Where the kernel has no such thing, or the process has ended, the others learn of it by their timeouts.
            with contextlib.suppress(OSError):
                exit = os.pidfd_open(process)
                self._exits.append(exit)
                self.link.loop.add_reader(exit, self._exited, exit, rank, process)

    async def _hello(self, timeout: float) -> None:
        id = f"{self._prefix}hello"
        timeout = min(timeout, HELLO_TIMEOUT)
        if self.rank == 0:
            self._ledger.making(0, [id])
            await self._client.put(id, [b""], "opaque", None, b"", timeout, False)
            return
        try:
            await self._client.get(id, timeout)
        except Timeout:
            raise dist.DistBackendError(
                f"rank {self.rank} of {self._described()} does not see what rank 0 puts: "
                "have their stores the same --directory?"
            ) from None

    async def _watch(self) -> None:
        """Waits until a rank is gone."""
        try:
            view = await self._client.get(f"{self._prefix}end", None)
            end = End(**json.loads(view.tobytes()))
        except HopliteError as error:
            end = End(self.rank, -1, _lost(error))
        await self._hear(end)

    async def _hear(self, end: End) -> None:
        if self._end is None or end.after < self._end.after:
            self._end = end
            self._has_failed |= end.is_failure
        if self._runner is not None and self._is_running and self._sequence > self._end.after:
            self._runner.cancel()
        await self._give_up_messages()

    def _exited(self, exit: int, rank: int, process: int) -> None:
        self.link.loop.remove_reader(exit)
        background(self.link.loop, self._mourn(rank, process))

    async def _mourn(self, rank: int, process: int) -> None:
        """The process of a rank of this machine has ended, perhaps without having left."""
        with contextlib.suppress(*_GONE):
            if await self._client.contains(self._id("done", rank)):
                return
            await self._client.put(self._id("dead", rank), [b""], "opaque", None, b"", GOODBYE_TIMEOUT, True)
        end = End(rank, -1, f"rank {rank} is gone: its process {process} has ended")
        self._announce(end)
        await self._hear(end)

    def _leave(self, after: int, reason: str, *, is_failure: bool = True) -> None:
        """This rank takes no part in what comes later."""
        if self._end is None:
            self._end = End(self.rank, after, reason, is_failure)
            self._has_failed = is_failure
            self._announce(self._end)

    def _announce(self, end: End) -> None:
        if self._size > 1 and self._announcing is None:
            self._announcing = self.link.loop.create_task(self._put_end(end))

    async def _put_end(self, end: End) -> None:
        text = json.dumps(asdict(end)).encode()
        # If there is one already, that one counts.
        with contextlib.suppress(*_GONE):
            await self._client.put(f"{self._prefix}end", [text], "opaque", None, b"", GOODBYE_TIMEOUT, False)

    def _id(self, what: str, rank: int) -> str:
        return f"{self._prefix}{what}/{rank}"

    async def _close(self) -> bool:
        """Returns whether it was open."""
        if self._is_closed:
            return False
        self._is_closed = True
        for task, operation in list(self._messages.items()):
            if operation.source is not None:
                task.cancel()
        while self._messages or self._runner is not None:
            await asyncio.wait([*self._messages, *filter(None, [self._runner])])
        self._leave(self._sequence, f"rank {self.rank} has left", is_failure=False)
        if self._announcing is not None:
            await self._announcing
        for exit in self._exits:
            self.link.loop.remove_reader(exit)
            os.close(exit)
        if self._watcher is not None:
            self._watcher.cancel()
        with contextlib.suppress(*_GONE):
            if self._has_failed:
                # Nobody else may come to be the last.
                await self._client.delete(self._ledger.everything(), DEFAULT_TIMEOUT)
            await self._remove_all_if_last()
        return True

    async def _remove_all_if_last(self) -> None:
        # Confirmed, so that of ranks that leave at the same time at least one sees all.
        await self._client.put(self.done_mark, [b""], "opaque", None, b"", GOODBYE_TIMEOUT, True)
        marks = [self._id(what, rank) for rank in range(self._size) for what in ("done", "dead")]
        there = await self._client.wait(marks, len(marks), 0.0)
        if len({index // 2 for index in there}) < self._size:
            return
        after: bytes | None = b""
        while after is not None:
            page, after = await self._client.list(self._prefix.encode(), after, PAGE)
            await self._client.delete([about["id"] for about in page], DEFAULT_TIMEOUT)

    async def _give_up(self, reason: str) -> None:
        if self._is_closed:
            return
        self._leave(self._sequence - self._is_running, reason)
        # Nothing is done any more, whatever the others still do.
        await self._hear(End(self.rank, -1, reason))
        for task in list(self._messages):
            task.cancel()

    # Deletions

    def _discard(self, ids: Iterable[str], nbytes: int) -> None:
        """Deletes what nobody needs, without anybody waiting for it; little by little, if it is little."""
        self._unneeded += ids
        self._unneeded_bytes += nbytes
        is_much = len(self._unneeded) >= DISCARD_OBJECTS or self._unneeded_bytes >= DISCARD_BYTES
        if is_much and self._deleter is None:
            self._deleter = self.link.loop.create_task(self._delete())

    async def _delete(self) -> None:
        try:
            while self._unneeded:
                ids, self._unneeded = self._unneeded, []
                self._unneeded_bytes = 0
                await self._client.delete(ids, DEFAULT_TIMEOUT)
        except _GONE:
            # They stay until the last rank leaves.
            pass
        finally:
            self._deleter = None


def _lost(error: BaseException) -> str:
    return f"the store is gone: {error}" if isinstance(error, (ConnectionLost, ShuttingDown)) else str(error)


#: Tasks that nobody waits for: the event loop itself would forget them.
_in_background: set[asyncio.Task[None]] = set()


def background(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Has something done that nobody waits for."""
    task = loop.create_task(work)
    _in_background.add(task)
    task.add_done_callback(_in_background.discard)
