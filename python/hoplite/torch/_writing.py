"""Puts a state dict. See `docs/howto/broadcast-weights.md`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import hoplite
from hoplite._group import link as links
from hoplite.errors import HopliteError
from hoplite.torch._opened import opened
from hoplite.torch._state import (
    Bundle,
    Page,
    Part,
    bundled,
    bytes_of,
    flatten,
    has_distributed,
    is_distributed,
    is_first_copy,
    named,
    part_of,
)
from hoplite.torch._together import together
from hoplite.torch._versions import Turn, Version, object_id

if TYPE_CHECKING:
    from typing import Self

#: Seconds for an object: a gigabyte over a slow network.
PUT_TIMEOUT = 300.0
#: Concurrent puts: one object is copied while the next is announced.
MAX_PUTS = 4
#: Seconds for pending puts after a failure.
END_TIMEOUT = 5.0


def put_state_dict(
    name: str,
    state_dict: Any,
    *,
    version: Version | None = None,
    keep: int = 2,
    group: dist.ProcessGroup | None = None,
    client: hoplite.Client | None = None,
    timeout: float | None = PUT_TIMEOUT,
) -> Version:
    """Puts a new version of a state dict.

    Blocks until all tensors are in the stores; receivers get the first ones earlier. With
    `DTensor`s, all ranks of the group call this, and each puts its part. Pass `group` at all ranks
    if some have no `DTensor`; otherwise each puts its own version.

    Args:
        name: The name for receivers.
        state_dict: Nested dicts, lists and tuples of tensors of any dtype, shape and device,
            numbers and strings. It may change after the call.
        version: The name of this version, such as a training step; `None` for the next number.
            The version that begins last is the newest, whatever its name. A repeated name stands
            for its newest version.
        keep: The number of complete versions that stay, with this one.
        group: The ranks that call this, if not all.
        client: `None` for that of `hoplite.init`.
        timeout: Seconds for which each object may wait for room.

    Returns:
        The name of the version.

    Raises:
        TypeError: The state dict contains something else, at the named place.
        StoreFull: As for `hoplite.Client.put`, which has further errors.
        RankFailed: Another rank raised. This version does not exist, and its readers get
            `VersionLost` or the next version.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> hoplite.torch.put_state_dict("policy", model.state_dict(), version=7)
        7
    """
    if keep < 1:
        raise ValueError(f"keep is at least 1, not {keep}")
    is_shared = group is not None or has_distributed(state_dict)
    rank, size = (dist.get_rank(group), dist.get_world_size(group)) if is_shared else (0, 1)
    what = f"put_state_dict of {name!r}"
    with _Writing(name, client, rank, size) as writing:
        turn, *_ = together(what, group, size, lambda: writing.begin(state_dict, version))
        assert turn is not None
        writing.turn = turn
        together(what, group, size, lambda: writing.write(timeout))
        writing.forget_old(keep)
    return turn.version


def put_tensors(
    name: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    version: Version | None = None,
    keep: int = 2,
    client: hoplite.Client | None = None,
    timeout: float | None = PUT_TIMEOUT,
) -> Version:
    """Puts a new version of tensors that are made one after the other.

    Blocks until all are in the store. Each is put when the iterator yields it, so they need not
    be in memory together. Do not change a tensor before the call returns. Further arguments are as
    for `put_state_dict`.

    Args:
        tensors: Pairs of a key and a whole tensor with elements.

    Raises:
        TypeError: A tensor is a `DTensor`, or empty.

    Examples:
        >>> layers = ((f"layer.{k}", torch.full((2,), k)) for k in range(3))
        >>> hoplite.torch.put_tensors("policy", layers, version="first")
        'first'
    """
    if keep < 1:
        raise ValueError(f"keep is at least 1, not {keep}")

    def parts() -> Iterator[Part]:
        for key, tensor in tensors:
            part = part_of((("d", key),), tensor)
            if part is None or not part.entry.is_whole:
                raise TypeError(f"{key} is not a whole tensor: put_state_dict puts DTensors")
            if part.local.numel() == 0:
                raise TypeError(f"{key} has no elements: put_state_dict puts such tensors")
            yield part

    with _Writing(name, client, 0, 1) as writing:
        turn = writing.announce(version)
        writing.bundles = bundled(parts())
        writing.write(timeout)
        writing.forget_old(keep)
    return turn.version


class _Writing:
    """A put of one version, whose waiting readers are told of errors."""

    def __init__(self, name: str, client: hoplite.Client | None, rank: int, size: int) -> None:
        self._opened = opened(name, client)
        self._rank, self._size = rank, size
        self.turn: Turn | None = None
        self.bundles: Iterator[Bundle] = iter(())
        self._pages = 0
        self._last = Page([], {}, {})
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None and not self._is_finished:
                self._fail(error)
        finally:
            self._opened.__exit__()

    def begin(self, state_dict: Any, version: Version | None) -> Turn | None:
        leaves = flatten(state_dict)
        parts = [part_of(path, tensor) for path, tensor in leaves.tensors.items()]
        own = [
            part
            for part, tensor in zip(parts, leaves.tensors.values(), strict=True)
            if part is not None
            and part.local.numel()
            and is_first_copy(tensor)
            and (self._rank == 0 or is_distributed(tensor))
        ]
        self.bundles = bundled(own)
        if self._rank != 0:
            self._link, self._versions = self._opened.__enter__()
            return None
        empty = {
            path: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for path, tensor in leaves.tensors.items()
            if not tensor.numel()
        }
        self._last = Page([], leaves.values, empty)
        return self.announce(version)

    def announce(self, version: Version | None) -> Turn:
        self._link, self._versions = self._opened.__enter__()
        self.turn = self._link.run(self._versions.announce(version, self._size))
        return self.turn

    def write(self, timeout: float | None) -> None:
        assert self.turn is not None
        turn, versions = self.turn, self._versions

        async def put(index: int, page: Page, pieces: list[Any]) -> None:
            await versions.put_page(turn, self._rank, index, page)
            await versions.put(f"{object_id(turn, self._rank)}{index}", pieces, timeout)

        def puts() -> Iterator[Coroutine[Any, Any, None]]:
            for bundle in self.bundles:
                index = self._pages
                pieces = _pieces(bundle)
                self._pages += 1
                yield put(index, Page([part.entry for part in bundle.parts], {}, {}), pieces)
            self._pages += 1
            yield versions.put_page(turn, self._rank, self._pages - 1, self._last)

        try:
            at_once(self._link, puts(), self._tell)
            self._link.run(versions.finish(turn, self._rank))
        except BaseException as error:
            self._fail(error)
            raise

    def forget_old(self, keep: int) -> None:
        self._is_finished = True
        if self._rank == 0:
            self._link.run(self._versions.forget_old(keep))

    def _tell(self, error: BaseException) -> None:
        if self.turn is not None:
            with contextlib.suppress(HopliteError, ValueError):
                self._link.run(self._versions.fail(self.turn, f"{type(error).__name__}: {error}"))

    def _fail(self, error: BaseException) -> None:
        self._tell(error)
        if self.turn is not None:
            with contextlib.suppress(HopliteError, ValueError):
                self._link.run(self._versions.delete_data(self.turn, self._rank, self._pages))


def at_once(
    link: links.Link,
    calls: Iterable[Coroutine[Any, Any, None]],
    failed: Callable[[BaseException], None] = lambda _: None,
) -> None:
    """Runs calls with limited concurrency.

    After a failure, calls `failed`, and some seconds later cancels the calls in flight.
    """
    running: deque[Future[None]] = deque()
    try:
        for call in calls:
            running.append(asyncio.run_coroutine_threadsafe(call, link.loop))
            if len(running) >= MAX_PUTS:
                running.popleft().result()
        while running:
            running.popleft().result()
    except BaseException as error:
        failed(error)
        for future in wait(running, END_TIMEOUT).not_done:
            future.cancel()
        raise


def _pieces(bundle: Bundle) -> list[Any]:
    pieces: list[Any] = []
    end = 0
    for part, start in zip(bundle.parts, bundle.starts(), strict=False):
        if start > end:
            pieces.append(bytes(start - end))
        contents = bytes_of(part.local)
        if contents.nbytes != part.entry.nbytes:
            raise ValueError(
                f"{named(part.entry.path)} has {contents.nbytes} bytes here, not {part.entry.nbytes}"
            )
        pieces.append(contents)
        end = start + part.entry.nbytes
    return pieces
