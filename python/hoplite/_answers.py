"""Waits for the answers of native clients, and reports progress."""

from __future__ import annotations

from asyncio import Future, wait
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hoplite import _native

T = TypeVar("T")
#: Called with the bytes moved so far, and the total.
OnProgress = Callable[[int, int], object] | None

REPORT_INTERVAL = 0.1


def run(call: Coroutine[Any, None, T]) -> T:
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the native client has returned a future")


async def settled(answer: T | Future[T]) -> T:
    return await answer if isinstance(answer, Future) else answer


async def reported(answer: Future[T], progress: _native.Progress) -> T:
    """Reports progress until the call ends. An exception of the callback cancels the call."""
    try:
        while not answer.done():
            await wait((answer,), timeout=REPORT_INTERVAL)
            progress.report()
    except BaseException:
        if not answer.cancel() and not answer.cancelled():
            # asyncio warns about unretrieved exceptions.
            answer.exception()
        raise
    return answer.result()


async def followed(
    native: _native.Client | _native.AsyncClient,
    on_progress: OnProgress | _native.Progress,
    name: str,
    *arguments: Any,
) -> Any:
    if on_progress is None:
        return await settled(getattr(native, name)(*arguments))
    progress = (
        on_progress if isinstance(on_progress, _native.Progress) else _native.Progress(on_progress)
    )
    answer = getattr(native.tracked(progress), name)(*arguments)
    return await reported(answer, progress) if isinstance(answer, Future) else answer
