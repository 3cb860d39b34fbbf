"""What a rank holds of an operation that is under way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from hoplite.torch._link import Link

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
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._error: Exception | None = None

    def finish(self, error: Exception | None) -> None:
        """Called once, by the thread that performs the operations."""
        with self._lock:
            self._error = error
            self._done.set()
            future = self._future
        if future is not None:
            _callbacks.submit(self._settle, future)

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is None:
            future.set_result(self._results)
        else:
            future.set_exception(self._error)  # type: ignore[arg-type]

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
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done.is_set():
                    self._settle(self._future)
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
