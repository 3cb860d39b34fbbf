"""An operation in flight, for torch.

torch 2.15 wraps a backend's `Work` (`PyWorkHolder`), and forwards only `wait` and `get_future`;
`forward_from_wrapper` adds others.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from hoplite._group.link import Link

_NO_TIMEOUT = timedelta(0)

#: Callbacks may wait for operations with further callbacks.
_callbacks = ThreadPoolExecutor(max_workers=256, thread_name_prefix="hoplite-torch-callback")


class Work(dist.Work):
    """An operation, which owns its tensors until it is done."""

    def __init__(
        self, name: str, results: list[torch.Tensor], link: Link, source: int | None = None
    ) -> None:
        super().__init__()
        self.source = source
        self._name = name
        self._results = results
        self._link = link
        self._done = threading.Event()
        self._lock = threading.Lock()
        # torch propagates only callbacks' exceptions, so `_future` is derived from `_settled`.
        self._settled: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._error: Exception | None = None

    def finish(self, error: Exception | None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
            settled = self._settled
        if settled is not None:
            _callbacks.submit(settled.set_result, None)

    def _outcome(self, _settled: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._results

    # Methods that torch calls

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits, by default for the operation's own timeout.

        Raises:
            DistBackendError: if the operation failed, or the timeout passed.
        """
        if not self._done.is_set():
            self._link.check_not_inside(self._name)
            seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
            if not self._done.wait(seconds):
                raise dist.DistBackendError(f"{self._name} was not done within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if _query.is_active:
            _query.answer = self
            return _query.nothing
        with self._lock:
            if self._settled is None:
                self._settled = torch.futures.Future()
                self._future = self._settled.then(self._outcome)
                if self._done.is_set():
                    self._settled.set_result(None)
            assert self._future is not None
            return self._future

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._results

    def _source_rank(self) -> int:
        if self.source is None:
            raise RuntimeError(f"{self._name} has no source rank, or not yet")
        return self.source

    def source_rank(self) -> int:
        return self._source_rank()

    def synchronize(self) -> None:
        self.wait()


# Forwarding from torch's wrapper


class _Query(threading.local):
    """During a query, `get_future` stores the wrapped `Work` here."""

    def __init__(self) -> None:
        self.is_active = False
        self.answer: Work | None = None
        self.nothing: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()


_query = _Query()
_FORWARDED = ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank")


def forward_from_wrapper() -> None:
    """Patches torch's `Work`, the wrapper. Idempotent."""
    global _is_forwarding
    if not _is_forwarding:
        _is_forwarding = True
        for name in _FORWARDED:
            setattr(dist.Work, name, _forwarding(name, getattr(dist.Work, name)))


_is_forwarding = False


def _forwarding(name: str, original: Callable[[dist.Work], Any]) -> Callable[[dist.Work], Any]:
    @functools.wraps(original)
    def answer(work: dist.Work) -> Any:
        own = _inside(work)
        return original(work) if own is None else getattr(own, name)()

    return answer


def _inside(work: dist.Work) -> Work | None:
    if type(work) is not dist.Work:
        return None
    _query.is_active, _query.answer = True, None
    try:
        # Operations of other backends may have no future.
        with contextlib.suppress(RuntimeError):
            work.get_future()
        return _query.answer
    finally:
        _query.is_active, _query.answer = False, None
