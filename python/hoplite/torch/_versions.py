"""Versions of a state dict in the stores.

| object | content |
| --- | --- |
| `weights/NAME/turn/N` | the announcement of version number N: its name, token, and number of writing ranks |
| `weights/NAME/done/TOKEN/RANK` | a mark: a rank has put its part |
| `weights/NAME/failed/TOKEN` | the reason of a failure; readers stop waiting |
| `weights-data/TOKEN/RANK/page/I` | the description of object I of a rank; without entries, the end of the rank's objects |
| `weights-data/TOKEN/RANK/I` | tensors and their parts |

Tokens are unique: readers never mix versions, even if another writer takes over. A version can be
read while it is written, because each page precedes its object. Waiting readers poll for the
failure of their version, and for a newer complete one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from hoplite import _native
from hoplite._calls import PAGE
from hoplite._timeouts import Deadline
from hoplite.errors import (
    AlreadyExists,
    Deleted,
    HopliteError,
    InvalidMetadata,
    ObjectLost,
    Timeout,
    Unavailable,
)
from hoplite.torch import _pages
from hoplite.torch._state import Entry, Page, starts

Version = int | str

ANNOUNCE_TIMEOUT = 30.0
#: Seconds between polls, which cost the directory less than a millisecond.
LOOK_INTERVAL = 1.0
#: Concurrent gets, which keep links busy with small objects.
MAX_FETCHES = 8
#: Keeps ids below 255 bytes.
MAX_NAME_BYTES = 160
#: Keeps errors readable.
MAX_REASON_BYTES = 500


class VersionLost(HopliteError):
    """A version was deleted, or failed, while it was read.

    Examples:
        >>> def load(replica):
        ...     while True:
        ...         try:
        ...             with hoplite.torch.stream_state_dict("policy") as tensors:
        ...                 return dict(tensors)
        ...         except hoplite.torch.VersionLost:
        ...             pass    # start again with the next version
        >>> hoplite.torch.put_state_dict("policy", {"weight": torch.ones(2)})
        1
        >>> load({})
        {'weight': tensor([1., 1.])}
    """

    retryable = True
    version: Version


class Turn(NamedTuple):
    number: int
    version: Version
    token: str
    ranks: int


@dataclass
class Known:
    begun: list[Turn]
    complete: list[Turn]
    failed: dict[str, str]
    """The reasons of failed versions, by token."""

    def under_way(self) -> list[Turn]:
        return [turn for turn in self.begun if turn.token not in self.failed]


class Wanted(NamedTuple):
    version: Version | None = None
    """None for the newest."""
    newer_than: Version | None = None
    """Excludes this version and those announced before it."""
    is_complete: bool = False
    """`True` excludes unfinished versions."""

    def among(self, turns: list[Turn]) -> list[Turn]:
        if self.newer_than is not None:
            seen = [index for index, turn in enumerate(turns) if turn.version == self.newer_than]
            turns = turns[seen[-1] + 1 :] if seen else turns
        return [turn for turn in turns if self.version is None or turn.version == self.version]

    def choose(self, known: Known) -> Turn | None:
        for turns in (known.complete,) if self.is_complete else (known.complete, known.under_way()):
            if found := self.among(turns):
                return found[-1]
        return None


class Versions:
    """The versions of one state dict. Methods run in the thread of the link."""

    def __init__(
        self,
        client: _native.AsyncClient,
        name: str,
        kind: str = "weights",
        allow_pickle: bool = False,
    ) -> None:
        quoted = quote(name, safe="")
        if not name or len(quoted) > MAX_NAME_BYTES:
            raise ValueError(f"a name has 1 to {MAX_NAME_BYTES} characters, not {name!r}")
        self.name = name
        self.allow_pickle = allow_pickle
        self._client = client
        self._base = f"{kind}/{quoted}/"

    def _turn_id(self, number: int) -> str:
        return f"{self._base}turn/{number:012}"

    def _done_id(self, turn: Turn, rank: int) -> str:
        return f"{self._base}done/{turn.token}/{rank}"

    def _failed_id(self, turn: Turn) -> str:
        return f"{self._base}failed/{turn.token}"

    async def known(self) -> Known:
        begun: list[Turn] = []
        done: dict[str, int] = {}
        failed: dict[str, str] = {}
        async for id, about in self._listed(self._base):
            kind, _, rest = id.removeprefix(self._base).partition("/")
            if kind == "turn" and about["user"]:
                begun.append(Turn(int(rest), **json.loads(about["user"])))
            elif kind == "done":
                token = rest.partition("/")[0]
                done[token] = done.get(token, 0) + 1
            elif kind == "failed":
                failed[rest] = bytes(about["user"] or b"").decode(errors="replace")
        complete = [t for t in begun if t.token not in failed and done.get(t.token) == t.ranks]
        return Known(begun, complete, failed)

    async def _listed(self, prefix: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        after: bytes | None = b""
        while after is not None:
            page, after = await self._client.list(prefix.encode(), after, PAGE)
            for about in page:
                if about["exists"]:
                    yield about["id"], about

    # Writing

    async def announce(self, version: Version | None, ranks: int) -> Turn:
        known = await self.known()
        number = known.begun[-1].number + 1 if known.begun else 1
        while True:
            turn = Turn(number, number if version is None else version, secrets.token_hex(8), ranks)
            about = json.dumps({"version": turn.version, "token": turn.token, "ranks": ranks})
            try:
                # Fails if another writer has taken the number.
                await self._tell(self._turn_id(number), [turn.token.encode()], about.encode())
                return turn
            except AlreadyExists:
                number += 1

    async def _tell(self, id: str, pieces: list[Any], user: bytes = b"") -> None:
        await self._client.put(id, pieces, "opaque", None, user, ANNOUNCE_TIMEOUT, True)

    async def put_page(self, turn: Turn, rank: int, index: int, page: Page) -> None:
        """Puts an object's description. A page without entries follows a rank's last object."""
        user, contents = _pages.encode(page)
        await self.put(f"{object_id(turn, rank)}page/{index}", [contents], ANNOUNCE_TIMEOUT, user)

    async def put(
        self, id: str, pieces: list[Any], timeout: float | None, user: bytes = b""
    ) -> None:
        await self._client.put(id, pieces or [b""], "opaque", None, user, timeout, False)

    async def get(self, id: str, timeout: float | None) -> _native.View:
        return await self._client.get(id, timeout)

    async def finish(self, turn: Turn, rank: int) -> None:
        await self._tell(self._done_id(turn, rank), [b""])

    async def fail(self, turn: Turn, reason: str) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._tell(
                self._failed_id(turn), [turn.token.encode()], reason.encode()[:MAX_REASON_BYTES]
            )

    async def forget_old(self, keep: int) -> None:
        """Keeps the `keep` newest complete versions, and later unfinished ones."""
        known = await self.known()
        if known.complete:
            newest = known.complete[-1].number
            kept = {turn.number for turn in known.complete[-keep:]}
            for turn in known.begun:
                if turn.number < newest and turn.number not in kept:
                    await self.delete(turn)

    async def delete(self, turn: Turn) -> None:
        marks = [
            self._turn_id(turn.number),
            *(self._done_id(turn, rank) for rank in range(turn.ranks)),
        ]
        await self._client.delete([*marks, self._failed_id(turn)], ANNOUNCE_TIMEOUT)
        await self.delete_data(turn)

    async def delete_data(self, turn: Turn, rank: int = 0, pages: int = 0) -> None:
        """Deletes a version's objects, also `pages` that the directory may not list yet."""
        own = object_id(turn, rank)
        ids = [f"{own}{part}{index}" for part in ("page/", "") for index in range(pages)]
        ids += [id async for id, _ in self._listed(f"weights-data/{turn.token}/")]
        for begin in range(0, len(ids), PAGE):
            await self._client.delete(ids[begin : begin + PAGE], ANNOUNCE_TIMEOUT)

    # Reading

    async def find(self, wanted: Wanted, deadline: Deadline) -> Turn:
        """Waits for a version. Raises `VersionLost`; `Timeout` with the existing versions; or
        `Unavailable` if the directory cannot be reached at the deadline."""
        while True:
            try:
                known = await self.known()
            except Unavailable:
                if deadline.left() == 0.0:
                    raise
                await asyncio.sleep(deadline.pause(LOOK_INTERVAL))
                continue
            turn = wanted.choose(known)
            if turn is not None:
                return turn
            if wanted.version is not None and (failed := wanted.among(known.begun)):
                raise self._lost(failed[-1], known)
            if deadline.left() == 0.0:
                raise Timeout(
                    f"timeout: {self._described(wanted)} has not come; {_versions(known)}"
                )
            number = known.begun[-1].number + 1 if known.begun else 1
            try:
                await self._client.get(self._turn_id(number), deadline.pause(LOOK_INTERVAL))
            except Timeout:
                continue

    def _described(self, wanted: Wanted) -> str:
        which = "a version" if wanted.version is None else f"version {wanted.version!r}"
        newer = "" if wanted.newer_than is None else f" newer than {wanted.newer_than!r}"
        return f"{which} of {self.name!r}{newer}"

    async def read(
        self, turn: Turn, wanted: Wanted, use: Callable[[Fetched], bool], deadline: Deadline
    ) -> AsyncIterator[Fetched]:
        """Yields a version's objects that `use` accepts, as they arrive.

        Raises:
            VersionLost: if the version was deleted or has failed.
            Timeout: if the deadline passed.
            ObjectLost: if the only copy of an object is gone.
        """
        queue: asyncio.Queue[Fetched | BaseException | None] = asyncio.Queue(MAX_FETCHES)
        tasks = [
            asyncio.ensure_future(self._fetch(turn, rank, use, queue)) for rank in range(turn.ranks)
        ]
        tasks.append(asyncio.ensure_future(self._look(turn, wanted, queue)))
        try:
            running = turn.ranks
            while running:
                try:
                    async with asyncio.timeout(deadline.left()):
                        item = await queue.get()
                except TimeoutError:
                    known = await self.known()
                    raise Timeout(
                        f"timeout: version {turn.version!r} of {self.name!r} has not come; {_versions(known)}"
                    ) from None
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            await _ended(tasks)

    async def _fetch(
        self, turn: Turn, rank: int, use: Callable[[Fetched], bool], queue: asyncio.Queue[Any]
    ) -> None:
        coming: asyncio.Queue[tuple[Fetched, asyncio.Task[_native.View] | None] | None]
        coming = asyncio.Queue(MAX_FETCHES)
        tasks: set[asyncio.Task[Any]] = set()
        paging = asyncio.ensure_future(self._begin(turn, rank, use, coming, tasks))
        try:
            while (item := await coming.get()) is not None:
                fetched, get = item
                if get is not None:
                    fetched.view = await get
                    tasks.discard(get)
                await queue.put(fetched)
            await paging
            await queue.put(None)
        except (Deleted, ObjectLost) as error:
            try:
                known = await self.known()
                # In an unfinished version, an object is lost with its store; in a finished one, by
                # a delete.
                is_lost = isinstance(error, ObjectLost) and turn in known.under_way()
                await queue.put(error if is_lost else self._lost(turn, known))
            except HopliteError as failure:
                await queue.put(failure)
        except Exception as error:
            await queue.put(error)
        finally:
            await _ended([paging, *tasks])

    async def _begin(
        self,
        turn: Turn,
        rank: int,
        use: Callable[[Fetched], bool],
        coming: asyncio.Queue[Any],
        tasks: set[asyncio.Task[Any]],
    ) -> None:
        try:
            for index in count():
                fetched = await self._page(turn, rank, index)
                get = None
                if fetched.page.entries and use(fetched):
                    get = asyncio.ensure_future(self.get(f"{object_id(turn, rank)}{index}", None))
                    tasks.add(get)
                await coming.put((fetched, get))
                if not fetched.page.entries:
                    return
        finally:
            await coming.put(None)

    async def _page(self, turn: Turn, rank: int, index: int) -> Fetched:
        id = f"{object_id(turn, rank)}page/{index}"
        view = await self.get(id, None)
        return Fetched(_pages.decode(view.user, view.tobytes(), self.allow_pickle, id))

    async def _look(self, turn: Turn, wanted: Wanted, queue: asyncio.Queue[Any]) -> None:
        """Polls the directory. Queues an error when the version fails or is deleted, or a newer one
        is complete."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                known = await self.known()
            except Unavailable:
                continue
            except HopliteError as error:
                await queue.put(error)
                return
            if turn in known.complete:
                continue
            if turn not in known.under_way():
                await queue.put(self._lost(turn, known))
                return
            better = wanted.choose(known)
            if better is not None and better.number > turn.number and better in known.complete:
                what = f"version {turn.version!r} of {self.name!r}"
                reason = f"{what} was not finished, and {better.version!r} has taken its place"
                await queue.put(VersionLost(reason, version=turn.version))
                return

    def _lost(self, turn: Turn, known: Known) -> VersionLost:
        what = f"version {turn.version!r} of {self.name!r}"
        reason = known.failed.get(turn.token)
        end = "was deleted while it was read" if reason is None else f"could not be put: {reason}"
        return VersionLost(f"{what} {end}", version=turn.version)


class Fetched:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.view: _native.View | None = None
        """None for an unneeded object."""

    def contents(self) -> Iterator[tuple[Entry, Any]]:
        if self.view is None:
            return
        view: Any = self.view
        whole: Any = np.frombuffer(view, np.uint8) if self.view.nbytes else np.empty(0, np.uint8)
        for entry, start in zip(self.page.entries, starts(self.page.entries), strict=False):
            part = whole[start : start + entry.nbytes]
            if part.nbytes != entry.nbytes:
                reason = f"{part.nbytes} bytes are there of a part of {entry.nbytes}"
                raise InvalidMetadata(
                    f"an object of a state dict is too short: {reason}", reason=reason
                )
            yield entry, part


def object_id(turn: Turn, part: int | str) -> str:
    return f"weights-data/{turn.token}/{part}/"


def _versions(known: Known) -> str:
    complete = ", ".join(repr(turn.version) for turn in known.complete)
    unfinished = [repr(turn.version) for turn in known.under_way() if turn not in known.complete]
    there = f"there is {complete}" if complete else "there is none that is complete"
    return there + (f", and {', '.join(unfinished)} is not finished" if unfinished else "")


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
