"""What a rank holds of an operation that is under way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from hoplite._group.link import Link

#: What torch passes for a wait without a limit of its own.
_NO_TIMEOUT = timedelta(0)

#: Callbacks of futures run here: one may wait for another operation, and so may the callback of that. Threads are only
#: started while all others are busy.
_callbacks = ThreadPoolExecutor(max_workers=256, thread_name_prefix="hoplite-torch-callback")


class Work(dist.Work):
    """An operation that was issued. Its tensors belong to it until it is done."""

    def __init__(self, name: str, results: list[torch.Tensor], link: Link) -> None:
        super().__init__()
        self._name = name
        self._results = results
        self._link = link
        self._done = threading.Event()
        self._lock = threading.Lock()
        # The one that others have is made of it: only what a callback raises is an error wherever torch passes it on to.
        self._settled: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._error: Exception | None = None

    def finish(self, error: Exception | None) -> None:
        """Called once, by the thread that performs the operations."""
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

    # What torch calls

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits until the operation is done; without a timeout, that is at the latest when its own has passed.

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

    def synchronize(self) -> None:
        self.wait()
