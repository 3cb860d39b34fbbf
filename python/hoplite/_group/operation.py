from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hoplite._group.round import Round

#: Source of a receive from any rank.
ANY = -1


@dataclass
class Operation:
    name: str
    run: Callable[[Round], Awaitable[None]]
    finish: Callable[[Exception | None], None]
    timeout: float
    meets: bool = False
    """For collectives: `True` if the result depends on every rank."""
    nbytes: int = 0
    """Approximate bytes that stay in the stores. All ranks must pass the same number, unless
    `meets`."""
    message: str = ""
    """For sends and receives: the object's id; empty until a receive from `ANY` has a match."""
    source: int | None = None
    """For receives: the source, or `ANY`."""
    tag: int = 0
