"""One rank of a group: the order and timeouts of its operations, and the end of the group.

All ranks perform the same collectives in the same order. If one fails on one rank, it and all later
ones fail on every rank. A rank that fails, leaves, or sees another die puts an *end*: an object
that names the last collective that the rank completed. All ranks read the numbered ends in order; a
later end may name an earlier collective. Messages between ranks may complete in any order.

The last rank to leave deletes all objects, because slower ranks may need them until then. A failed
group may have no last rank: each rank waits for a second, puts another end, and deletes its
objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from hoplite._group.channels import Channels
from hoplite._group.discards import DISCARD_BYTES, Discards
from hoplite._group.ledger import Ledger
from hoplite._group.link import Link
from hoplite._group.marks import GONE, LEAVE_TIMEOUT, End, Marks
from hoplite._group.operation import Operation
from hoplite._group.round import Round
from hoplite._group.schedules import meet
from hoplite.errors import (
    ConnectionLost,
    HopliteError,
    ObjectLost,
    ShuttingDown,
    Timeout,
)

#: Seconds to wait for a failed group's ranks, which may be dead.
PEERS_TIMEOUT = 1.0
#: Seconds to wait, after a timeout, for the missing rank's reason: all ranks time out together.
REASON_TIMEOUT = 1.0
PEERS_INTERVAL = 0.02
HELLO_TIMEOUT = 20.0


class Group:
    """A rank's view of its group. Private methods run in the thread of the link only."""

    def __init__(
        self,
        link: Link,
        prefixes: Sequence[str],
        name: str,
        rank: int,
        failed: Callable[[str, BaseException | None], Exception],
        neighbours: Mapping[int, int] | None = None,
    ) -> None:
        """Joins the group.

        Args:
            prefixes: of each rank's object ids.
            failed: makes an error from a message and its cause.
            neighbours: process ids of other ranks on this machine, whose end is noticed at once.
        """
        self.link = link
        self.neighbours = list((neighbours or {}).values())
        self.rank = rank
        self.size = len(prefixes)
        self._client = link.client
        self._prefixes = prefixes
        self._marks = Marks(self._client, prefixes)
        self.done_mark = self._marks.id("done", rank)
        self._name = name
        self._failed = failed
        self._channels = Channels(prefixes)
        #: By tag; the oldest pending receive from any rank holds the lock.
        self._first_of_any: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ledger = Ledger()
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._is_running = False
        self._sequence = 0
        self._messages: dict[asyncio.Task[None], Operation] = {}
        self._discards = Discards(link)
        #: Known end that names the earliest collective.
        self._end: End | None = None
        self._has_heard = asyncio.Event()
        self._heard = 0
        self._has_failed = False
        self._gone: set[int] = set()
        self._reasons: dict[int, str] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._exits: list[int] = []
        self._is_closed = False
        link.run(self._open(neighbours or {}))

    def submit(self, operation: Operation) -> None:
        self.link.check_process()
        self.link.loop.call_soon_threadsafe(self._enqueue, operation)

    def submit_message(self, operation: Operation) -> None:
        self.link.check_process()
        self.link.loop.call_soon_threadsafe(self._start, operation)

    def id_of_sent(self, destination: int, tag: int) -> str:
        return self._channels.take(self.rank, destination, tag)

    def id_of_received(self, source: int, tag: int) -> str:
        return self._channels.take(source, self.rank, tag)

    async def match(self, round: Round, operation: Operation) -> int:
        """Reserves a message from any rank, and returns its source."""
        async with self._first_of_any[operation.tag]:
            while True:
                round.awaited = self._upcoming(operation.tag)
                there = await self._client.wait(list(round.awaited.values()), 1, round.left())
                for source, id in [list(round.awaited.items())[index] for index in there]:
                    if self._channels.claim(id):
                        operation.message = id
                        return source
                if round.left() == 0.0:
                    raise Timeout("timeout: no rank has sent anything")

    def _upcoming(self, tag: int) -> dict[int, str]:
        sources = [rank for rank in range(self.size) if rank != self.rank]
        return {source: self._channels.upcoming(source, self.rank, tag) for source in sources}

    def _fail_message(self, operation: Operation, error: Exception) -> None:
        if operation.message:
            self._channels.give_back(operation.message)
        operation.finish(error)

    def hello(self, timeout: float) -> None:
        """Checks that rank 0's objects are visible; else raises the error of `failed`."""
        self.link.run(self._hello(timeout))

    def close(self) -> None:
        """Completes collectives and sends, cancels receives, and leaves the group."""
        if self.link.run(self._close()):
            self.link.release()

    def abort(self, reason: str) -> None:
        """Fails all pending operations, and leaves."""
        self.link.run(self._give_up(reason))
        self.close()

    def abandon(self, reason: str) -> None:
        """Leaves the group, which fails if operations are pending."""
        self.link.run(self._abandon(reason))
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
                self._discards.add(self._ledger.met(sequence), DISCARD_BYTES)
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
                self._discards.add(self._ledger.met(sequence), operation.nbytes)
            else:
                self._ledger.passed(operation.nbytes)

    def _round(self, name: str, timeout: float) -> Round:
        deadline = time.monotonic() + timeout
        return Round(
            self._client, [f"{prefix}{name}/" for prefix in self._prefixes], self.rank, deadline
        )

    # Messages

    def _start(self, operation: Operation) -> None:
        task = self.link.loop.create_task(self._pass(operation))
        self._messages[task] = operation
        task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[None]) -> None:
        operation = self._messages.pop(task, None)
        if operation is not None and task.cancelled():
            self._fail_message(operation, self._ended(operation))

    async def _pass(self, operation: Operation) -> None:
        round = self._round("m", operation.timeout)
        try:
            if not await self._may_pass(operation):
                self._fail_message(operation, self._ended(operation))
                return
            await operation.run(round)
        except BaseException as cause:
            # `_give_up_messages` must not cancel this task any more.
            self._messages.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            self._fail_message(operation, await self._failure(operation, "", round, cause))
        else:
            operation.finish(None)
            if operation.source is not None:
                self._discards.add([operation.message], operation.nbytes)

    async def _may_pass(self, operation: Operation) -> bool:
        """Returns `True` if the message may still come: a possible sender has not left, or left
        after sending."""
        if self.rank in self._gone:
            return False
        if operation.message or operation.source is None:
            sources, ids = [operation.source], [operation.message]
        else:
            upcoming = self._upcoming(operation.tag)
            sources, ids = list(upcoming), list(upcoming.values())
        if any(source not in self._gone for source in sources):
            return True
        return bool(await self._client.wait(ids, 1, 0.0))

    async def _give_up_messages(self) -> None:
        for task, operation in list(self._messages.items()):
            with contextlib.suppress(*GONE):
                if await self._may_pass(operation):
                    continue
            if task in self._messages:
                task.cancel()

    # Failures

    async def _failure(
        self, operation: Operation, which: str, round: Round, cause: BaseException
    ) -> Exception:
        if isinstance(cause, asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return self._ended(operation)
        if isinstance(cause, ObjectLost):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_heard.wait(), PEERS_TIMEOUT)
            if self._end is not None:
                return self._ended(operation)
        what = f"{operation.name}{which} of {self._described()}"
        if isinstance(cause, Timeout):
            refused = f"; {', '.join(cause.peers)}: {cause.reason}" if cause.reason else ""
            missing = await self._missing(round)
            reason = await self._reason_of(missing) if which else ""
            absent = (
                f"; nothing has come from rank {', '.join(map(str, missing))}" if missing else ""
            )
            message = (
                f"{what} failed: timeout after {operation.timeout:g} s{absent}{reason}{refused}"
            )
        else:
            message = f"{what} failed: {_lost(cause)}"
        error = self._failed(message, cause)
        error.__cause__ = cause
        return error

    async def _missing(self, round: Round) -> list[int]:
        with contextlib.suppress(*GONE):
            return await round.missing()
        return []

    async def _reason_of(self, missing: list[int]) -> str:
        deadline = time.monotonic() + REASON_TIMEOUT
        while missing and time.monotonic() < deadline:
            for rank in missing:
                if rank in self._reasons:
                    return f": {self._reasons[rank]}"
            await asyncio.sleep(PEERS_INTERVAL)
        return ""

    def _ended(self, operation: Operation) -> Exception:
        reason = "it was closed" if self._end is None else self._end.reason
        return self._failed(
            f"{operation.name} cannot be done in {self._described()}: {reason}", None
        )

    def _described(self) -> str:
        return f"group {self._name!r}"

    # The end

    async def _open(self, neighbours: Mapping[int, int]) -> None:
        if self.size == 1:
            return
        self._watcher = self.link.loop.create_task(self._watch())
        for rank, process in neighbours.items():
            # Without pidfds, timeouts reveal a death.
            with contextlib.suppress(OSError):
                exit = os.pidfd_open(process)
                self._exits.append(exit)
                self.link.loop.add_reader(exit, self._exited, exit, rank, process)

    async def _hello(self, timeout: float) -> None:
        id = f"{self._prefixes[0]}hello"
        timeout = min(timeout, HELLO_TIMEOUT)
        if self.rank == 0:
            self._ledger.making(0, [id])
            await self._client.put(id, [b""], "opaque", None, b"", timeout, False)
            return
        try:
            await self._client.get(id, timeout)
        except Timeout as cause:
            raise self._failed(
                f"rank {self.rank} of {self._described()} does not see the objects of rank 0: "
                "do their stores have the same --directory?",
                cause,
            ) from None

    async def _watch(self) -> None:
        try:
            while True:
                view = await self._client.get(self._marks.end_id(self._heard), None)
                self._heard += 1
                await self._hear(End(**json.loads(view.tobytes())))
        except HopliteError as error:
            await self._hear(End(self.rank, -1, _lost(error)))

    async def _hear(self, end: End) -> None:
        self._gone.add(end.rank)
        if self._end is None or end.after < self._end.after:
            self._end = end
        self._has_heard.set()
        self._has_failed |= end.is_failure
        if end.is_failure:
            self._reasons.setdefault(end.rank, end.reason)
        if self._runner is not None and self._is_running and self._sequence > self._end.after:
            self._runner.cancel()
        await self._give_up_messages()

    def _exited(self, exit: int, rank: int, process: int) -> None:
        self.link.loop.remove_reader(exit)
        self._announce(self._announce_death(rank, process))

    async def _announce_death(self, rank: int, process: int) -> None:
        with contextlib.suppress(*GONE):
            if await self._client.contains(self._marks.id("done", rank)):
                # The rank left in order. Only the first rank that leaves puts an end.
                self._gone.add(rank)
                await self._give_up_messages()
                return
            await self._client.put(
                self._marks.id("dead", rank), [b""], "opaque", None, b"", LEAVE_TIMEOUT, True
            )
        end = End(rank, -1, f"rank {rank} is gone: its process {process} has ended")
        self._announce(self._put_end(end))
        await self._hear(end)

    def _leave(self, after: int, reason: str, *, is_failure: bool = True) -> None:
        if self._end is None or after < self._end.after:
            self._gone.add(self.rank)
            self._end = End(self.rank, after, reason, is_failure)
            self._has_failed |= is_failure
            self._announce(self._put_end(self._end))

    def _announce(self, saying: Coroutine[Any, Any, None]) -> None:
        """Runs `saying`, which tells other ranks of an end. Only `_close` waits for it."""
        task = self.link.loop.create_task(saying)
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _put_end(self, end: End) -> None:
        if self.size == 1:
            return
        await self._marks.put_end(end, self._heard)

    async def _close(self) -> bool:
        if self._is_closed:
            return False
        self._is_closed = True
        for task, operation in list(self._messages.items()):
            if operation.source is not None:
                task.cancel()
        while self._messages or self._runner is not None:
            await asyncio.wait([*self._messages, *filter(None, [self._runner])])
        self._leave(self._sequence, f"rank {self.rank} has left", is_failure=False)
        for exit in self._exits:
            self.link.loop.remove_reader(exit)
            os.close(exit)
        # Ends all announcements, which may start others, before the deletion.
        while self._announcing:
            await asyncio.wait(self._announcing)
        if self._watcher is not None:
            self._watcher.cancel()
        with contextlib.suppress(*GONE):
            await self._clean_up()
        return True

    async def _clean_up(self) -> None:
        # Confirmed, so that the last rank sees all marks.
        await self._client.put(self.done_mark, [b""], "opaque", None, b"", LEAVE_TIMEOUT, True)
        left = await self._marks.left()
        if self._has_failed and len(left) < self.size:
            left = await self._wait_for_others()
        if len(left) == self.size:
            for prefix in set(self._prefixes):
                await self._marks.remove_all(prefix)

    async def _wait_for_others(self) -> set[int]:
        assert self._end is not None
        deadline = time.monotonic() + PEERS_TIMEOUT
        # If the group ended before its first collective, no rank needs the objects.
        while self._end.after > 0 and time.monotonic() < deadline:
            await asyncio.sleep(PEERS_INTERVAL)
            left = await self._marks.left()
            if len(left) == self.size or self.rank not in left:
                return left
        if self._end.after > 0:
            await self._put_end(End(self.rank, -1, self._end.reason))
        ids = [*self._ledger.everything(), *self._discards.ids]
        # Omits ids of missing objects: a restarted directory would delay their deletes.
        there = await self._client.wait(ids, len(ids), 0.0)
        await self._client.delete([ids[index] for index in there], "default")
        return await self._marks.left()

    async def _abandon(self, reason: str) -> None:
        if self._runner is not None or self._messages:
            await self._give_up(reason)
        elif not self._is_closed:
            self._leave(self._sequence, reason, is_failure=False)

    async def _give_up(self, reason: str) -> None:
        if self._is_closed:
            return
        self._leave(self._sequence - self._is_running, reason)
        assert self._end is not None
        await self._hear(self._end)
        for task in list(self._messages):
            task.cancel()


def _lost(error: BaseException) -> str:
    return (
        f"the store is gone: {error}"
        if isinstance(error, (ConnectionLost, ShuttingDown))
        else str(error)
    )
