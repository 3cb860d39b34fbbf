"""Objects that name departed ranks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from hoplite import _native
from hoplite.errors import AlreadyExists, HopliteError

#: Seconds for the put of an end.
LEAVE_TIMEOUT = 5.0
PAGE = 1000

GONE = (HopliteError, ValueError)


class End(NamedTuple):
    rank: int
    after: int
    """The last collective that the rank completes."""
    reason: str
    is_failure: bool = True
    """`False` if the rank left in order."""


class Marks:
    def __init__(self, client: _native.AsyncClient, prefixes: Sequence[str]) -> None:
        self._client = client
        self._prefixes = prefixes

    def end_id(self, number: int) -> str:
        return f"{self._prefixes[0]}end/{number}"

    def id(self, what: str, rank: int) -> str:
        return f"{self._prefixes[rank]}{what}/{rank}"

    async def put_end(self, end: End, first: int) -> None:
        text = json.dumps(end._asdict()).encode()
        with contextlib.suppress(*GONE):
            for number in count(first):
                with contextlib.suppress(AlreadyExists):
                    # Fails if this number is taken.
                    await self._client.put(
                        self.end_id(number), [text], "opaque", None, b"", LEAVE_TIMEOUT, True
                    )
                    return

    async def left(self) -> set[int]:
        marks = [
            self.id(what, rank) for rank in range(len(self._prefixes)) for what in ("done", "dead")
        ]
        there = await self._client.wait(marks, len(marks), 0.0)
        return {index // 2 for index in there}

    async def remove_all(self, prefix: str) -> None:
        after: bytes | None = b""
        while after is not None:
            page, after = await self._client.list(prefix.encode(), after, PAGE)
            await self._client.delete([about["id"] for about in page], "default")
