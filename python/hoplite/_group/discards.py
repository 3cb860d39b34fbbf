from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hoplite._group.link import Link
from hoplite._group.marks import GONE

#: Unneeded objects or bytes that start a delete, which costs two small collectives.
DISCARD_OBJECTS = 64
DISCARD_BYTES = 1 << 20


class Discards:
    def __init__(self, link: Link) -> None:
        self._link = link
        self.ids: list[str] = []
        self._nbytes = 0
        self._deleter: asyncio.Task[None] | None = None

    def add(self, ids: Iterable[str], nbytes: int) -> None:
        self.ids += ids
        self._nbytes += nbytes
        is_much = len(self.ids) >= DISCARD_OBJECTS or self._nbytes >= DISCARD_BYTES
        if is_much and self._deleter is None:
            self._deleter = self._link.loop.create_task(self._delete())

    async def _delete(self) -> None:
        try:
            while self.ids:
                ids, self.ids = self.ids, []
                self._nbytes = 0
                await self._link.client.delete(ids, "default")
        except GONE:
            pass
        finally:
            self._deleter = None
