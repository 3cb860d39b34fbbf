"""Numbers messages between two ranks with the same tag, and makes their ids."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Sequence


class Channels:
    """A rank's message numbers. Threads may share an instance."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes
        self._numbers: Counter[str] = Counter()
        self._returned: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def take(self, source: int, destination: int, tag: int) -> str:
        with self._lock:
            return self._take(self._channel(source, destination, tag))

    def upcoming(self, source: int, destination: int, tag: int) -> str:
        with self._lock:
            return self._upcoming(self._channel(source, destination, tag))

    def claim(self, id: str) -> bool:
        """Reserves a message for this receive. Returns `False` if another receive has it."""
        channel = id.rpartition("/")[0]
        with self._lock:
            return self._upcoming(channel) == id and self._take(channel) == id

    def give_back(self, id: str) -> None:
        """Frees the number of a failed operation, so that sender and receiver number messages
        alike."""
        channel, _, number = id.rpartition("/")
        with self._lock:
            heapq.heappush(self._returned.setdefault(channel, []), int(number))

    def _channel(self, source: int, destination: int, tag: int) -> str:
        return f"{self._prefixes[source]}m/{source}/{destination}/{tag}"

    def _upcoming(self, channel: str) -> str:
        returned = self._returned.get(channel)
        return f"{channel}/{returned[0] if returned else self._numbers[channel] + 1}"

    def _take(self, channel: str) -> str:
        if returned := self._returned.get(channel):
            return f"{channel}/{heapq.heappop(returned)}"
        self._numbers[channel] += 1
        return f"{channel}/{self._numbers[channel]}"
