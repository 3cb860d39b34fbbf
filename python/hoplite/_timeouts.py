"""Timeouts of calls: seconds, None for ever, or the default."""

from __future__ import annotations

import time
from typing import Literal

from hoplite import _native

#: None waits for ever; "default" is `$HOPLITE_TIMEOUT`, or else 5 minutes.
TimeLimit = float | Literal["default"] | None


class Deadline:
    __slots__ = ("_ends",)

    def __init__(self, timeout: TimeLimit) -> None:
        seconds = _native.default_timeout() if timeout == "default" else timeout
        if seconds is not None and not seconds >= 0:
            raise ValueError(
                'a timeout is a number of seconds from 0 up, None for ever, or "default"'
            )
        self._ends = None if seconds is None else time.monotonic() + float(seconds)

    def left(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def pause(self, longest: float) -> float:
        left = self.left()
        return longest if left is None else min(left, longest)
