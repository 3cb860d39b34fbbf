from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend

from hoplite._group import schedules
from hoplite._group.member import Group
from hoplite._group.operation import Operation
from hoplite._group.round import Round
from hoplite.torch import NAME
from hoplite.torch._exit import Departed, depart, prepare_exit, still_open
from hoplite.torch._work import Work, forward_from_wrapper

#: Value that torch passes for no timeout.
_UNSET = timedelta(milliseconds=-1)


class Member(C10DBackend):
    def __init__(self, group: Group | None, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._members = group
        self._rank = rank
        self._size = size
        self._options = C10DBackend.Options(NAME, timeout)
        self._issued = 0
        forward_from_wrapper()
        # Keeps this half alive: torch refers only to the C++ half.
        still_open.add(self)
        prepare_exit()

    @property
    def _group(self) -> Group:
        if self._members is None:
            raise dist.DistBackendError("the group has no members yet: reconfigure it first")
        return self._members

    # Queries by torch

    def getBackendName(self) -> str:
        return NAME

    @property
    def options(self) -> C10DBackend.Options:
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._issued

    def shutdown(self) -> None:
        """Leaves the group after its collectives, independently of other ranks."""
        if self._members is not None:
            self._members.close()
        self._departed()

    def abort(self) -> None:
        self.abort_with(f"rank {self._rank} has aborted it")

    def abort_with(self, reason: str) -> None:
        if self._members is not None:
            self._members.abort(reason)
        self._departed()

    def abandon(self) -> None:
        if self._members is not None:
            self._members.abandon(f"rank {self._rank} has ended without destroying the group")
        self._departed()

    def _departed(self) -> None:
        if self in still_open:
            still_open.discard(self)
            if (group := self._members) is not None:
                depart(group.link.socket, Departed(group.done_mark, group.neighbours))

    # Issuing

    def _issue(
        self,
        name: str,
        run: Callable[[Round], Awaitable[None]],
        results: list[torch.Tensor],
        options: Any,
        *,
        meets: bool = False,
        nbytes: int = 0,
    ) -> Work:
        if meets and not results and run is not schedules.meet and name != "barrier":
            # Without tensors, the collective would not depend on every rank.
            raise ValueError(f"{name} of no tensors")
        work = Work(name, results, self._group.link)
        timeout = self._timeout_of(options)
        self._issued += 1
        self._group.submit(
            Operation(name, run, work.finish, timeout.total_seconds(), meets=meets, nbytes=nbytes)
        )
        return work

    def _issue_message(
        self,
        name: str,
        run: Callable[[Round], Awaitable[None]],
        results: list[torch.Tensor],
        message: str,
        nbytes: int,
        source: int | None = None,
    ) -> Work:
        work = Work(name, results, self._group.link, source)
        timeout = self._options._timeout.total_seconds()
        self._group.submit_message(
            Operation(
                name, run, work.finish, timeout, nbytes=nbytes, message=message, source=source
            )
        )
        return work

    def _timeout_of(self, options: Any) -> timedelta:
        return self._options._timeout if options.timeout == _UNSET else options.timeout

    # Checks

    @staticmethod
    def _only(several: list[Any]) -> Any:
        if len(several) != 1:
            raise ValueError(f"expected one tensor of each rank, not {len(several)}")
        return several[0]

    def _for_each_rank(self, several: list[Any]) -> list[Any]:
        if len(several) != self._size:
            raise ValueError(
                f"expected a tensor for each of {self._size} ranks, not {len(several)}"
            )
        return several
