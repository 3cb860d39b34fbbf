"""Steps that succeed on all ranks, or raise on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from hoplite.errors import HopliteError

T = TypeVar("T")


class RankFailed(HopliteError, RuntimeError):
    """Another rank failed, so no rank has a result. The message has rank and reason."""

    ranks: tuple[int, ...]
    """The failed ranks of the group."""


def together(
    what: str, group: dist.ProcessGroup | None, size: int, step: Callable[[], T]
) -> list[T]:
    """Returns the results of all ranks.

    Raises:
        RankFailed: if the step failed on other ranks only.
        Exception: the error of the step on this rank.
    """
    if size == 1:
        return [step()]
    outcome: tuple[T | None, str]
    failure: Exception | None = None
    try:
        outcome = step(), ""
    except Exception as error:
        failure = error
        outcome = None, f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [None] * size
    try:
        dist.all_gather_object(outcomes, outcome, group)
    finally:
        if failure is not None:
            raise failure
    failed = {rank: reason for rank, (_, reason) in enumerate(outcomes) if reason}
    if failed:
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in failed.items())
        raise RankFailed(f"{what} failed on {reasons}", ranks=tuple(failed))
    return [result for result, _ in outcomes]
