"""State dicts in the stores: put by one trainer, or by its ranks, and got by any number of others. See `docs/weights.md`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

import hoplite
from hoplite._calls import Deadline
from hoplite._group import link as links
from hoplite._serialize import rebuild_tensor
from hoplite.errors import HopliteError
from hoplite.torch._state import (
    Bundle,
    Entry,
    Leaves,
    Part,
    Path,
    Shape,
    bundled,
    bytes_of,
    copy_overlap,
    dtype_of,
    flatten,
    has_distributed,
    is_distributed,
    is_first_copy,
    is_in_place,
    named,
    overlap,
    part_of,
    unflatten,
)
from hoplite.torch._together import together
from hoplite.torch._versions import Fetched, Page, Turn, Version, VersionLost, Versions, Wanted, object_id

if TYPE_CHECKING:
    from typing import Self

#: How long a put may take, unless it is said: as long as a gigabyte takes over a slow network.
PUT_TIMEOUT = 300.0
#: How many objects are put at once: while one is copied, the next is announced.
MAX_PUTS = 4
#: How long puts may still take when others have failed: longer, and they wait for room.
END_TIMEOUT = 5.0
#: How many names an error lists.
_LISTED = 5


class StateDictMismatch(HopliteError, ValueError):
    """A version and the state dict that it is to be copied into are not alike; nothing of that was changed."""


class Weights(NamedTuple):
    """What `get_state_dict` returns."""

    version: Version
    state_dict: Any


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
    """Puts a new version of a state dict. Others can get its tensors while the last of them are still being put.

    If there are `DTensor`s in it, all ranks of the group call this, and each puts its part of them. Else one process does.
    If some ranks have no `DTensor` in their part, all pass the `group`: else those would each put a version of their own.

    Args:
        name: what the readers call it.
        state_dict: dicts, lists and tuples of tensors, numbers, strings; nested as you like. It may be changed again when
            this returns.
        version: what this version is called, such as the number of a training step; None for the next number. Versions are
            in the order in which they were begun, whatever they are called.
        keep: how many complete versions stay, with this one; older ones are deleted. Whoever reads one of those begins anew.
        group: the ranks that call this, if it is not all of them.
        client: of the store that the tensors are put into; None for that of `hoplite.init`.
        timeout: how long each object may wait for room, in seconds.
    Returns:
        What the version is called.
    Raises:
        TypeError: for what a state dict cannot have.
        StoreFull, Timeout; and what `hoplite.Client.put` raises.
        RankFailed: if another rank raised. Then none has put it: who waits for it gets `VersionLost`, or the next version.
    """
    if keep < 1:
        raise ValueError(f"at least one version has to be kept, not {keep}")
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
    """Puts a new version, as `put_state_dict` does, of tensors that are made one after the other.

    Each is put when it comes, so that they need not be in memory all at once. It must not be changed until this returns.
    """
    if keep < 1:
        raise ValueError(f"at least one version has to be kept, not {keep}")

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
    """One rank's part in a version that is put. If that ends with an error, readers learn that they wait in vain."""

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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not self._is_finished:
                self._fail(error)
        finally:
            self._opened.__exit__()

    def begin(self, state_dict: Any, version: Version | None) -> Turn | None:
        """Prepares what this rank puts. The first one announces the version, for all."""
        leaves = flatten(state_dict)
        parts = [part_of(path, tensor) for path, tensor in leaves.tensors.items()]
        own = [
            part
            for part, tensor in zip(parts, leaves.tensors.values(), strict=True)
            if part is not None
            and part.local.numel()
            and is_first_copy(tensor)
            # Of what all ranks have, one puts it.
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
        """Puts what this rank has."""
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
        """The version is complete: the first rank deletes others."""
        self._is_finished = True
        if self._rank == 0:
            self._link.run(self._versions.forget_old(keep))

    def _tell(self, error: BaseException) -> None:
        """Tells the readers. They hear it before what they read disappears."""
        # The store may be what has failed.
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
    """Makes several calls, a few at a time.

    If one fails, or making the next one does, `failed` is told of it. Those that are under way then end by themselves, so
    that what they have done is known; but for those that wait for something.
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
    """The bytes of several parts, each at its place."""
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


def get_state_dict(
    name: str,
    into: Any = None,
    *,
    version: Version | None = None,
    newer_than: Version | None = None,
    strict: bool = True,
    client: hoplite.Client | None = None,
    timeout: float | None = None,
) -> Weights:
    """Gets a version of a state dict: all of it, or nothing.

    Without a version, it is the newest that is complete; or if there is none yet, the one that is being put, while it is
    put. If the version disappears or its writer dies meanwhile, the next one is taken.

    Args:
        into: a state dict whose tensors are filled, on whatever device they are. Of a `DTensor`, this rank's part is; it
            need not be divided as the trainer's is. They are filled when all has come, so they are never of two versions.
        version: only this one.
        newer_than: only one that was begun after this one: waits for it.
        strict: with `into`, whether the version has to have just the same tensors, and all other values of it; else the
            tensors that both have are filled.
        client: of the store that they come through, which needs room for all of it; None for that of `hoplite.init`.
        timeout: how long to wait for it, in seconds; None for ever.
    Returns:
        What the version is called, and the state dict: with the tensors of `into` or with new ones, in the host's memory.
    Raises:
        Timeout: says which versions there are, and which was not finished.
        StateDictMismatch: says what is missing, and which tensors are too many or have another shape or dtype.
        TypeError: for a dtype that this version of torch does not have.
        ObjectLost, and VersionLost if the version that was asked for is gone.
    """
    wanted = Wanted(version, newer_than)
    target = None if into is None else _Target(flatten(into))
    deadline = Deadline(timeout)
    with opened(name, client) as (link, versions):
        while True:
            turn = link.run(versions.find(wanted, deadline))
            try:
                fetched = link.run(_fetch_all(versions, turn, wanted, target, deadline))
                break
            except VersionLost:
                if version is not None:
                    raise
    about = f"version {turn.version!r} of {name!r}"
    values = {path: value for item in fetched for path, value in item.page.values.items()}
    empty = {path: about for item in fetched for path, about in item.page.empty.items()}
    tensors = (
        _assembled(fetched, empty, about) if target is None else target.fill(fetched, empty, about, strict)
    )
    return Weights(turn.version, unflatten({**tensors, **values}))


async def _fetch_all(
    versions: Versions, turn: Turn, wanted: Wanted, target: _Target | None, deadline: Deadline
) -> list[Fetched]:
    def use(fetched: Fetched) -> bool:
        return target is None or any(map(target.needs, fetched.page.entries))

    reading = versions.read(turn, wanted, use, deadline)
    async with contextlib.aclosing(reading):  # type: ignore[type-var]
        return [fetched async for fetched in reading]


def _assembled(fetched: list[Fetched], empty: dict[Path, tuple[str, Shape]], about: str) -> dict[Path, Any]:
    """Makes whole tensors."""
    tensors: dict[Path, torch.Tensor] = {}
    for entry in (entry for item in fetched for entry in item.page.entries):
        if entry.path not in tensors:
            tensors[entry.path] = torch.empty(entry.shape, dtype=dtype_of(entry.dtype), device="cpu")

    def copy(entry: Entry, contents: Any) -> int:
        whole = entry._replace(offsets=(0,) * len(entry.shape), sizes=entry.shape)
        return copy_overlap(entry, contents, whole, tensors[entry.path])

    filled = dict.fromkeys(tensors, 0)
    for path, copied in _on_threads(fetched, copy):
        filled[path] += copied
    _check_filled({path: (filled[path], tensor.numel()) for path, tensor in tensors.items()}, about)
    for path, (dtype, shape) in empty.items():
        tensors[path] = torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
    return dict(tensors)


def _on_threads(fetched: list[Fetched], copy: Callable[[Entry, Any], int]) -> Iterator[tuple[Path, int]]:
    """Copies what has come, on as many threads as torch uses: one does not use all of what memory can do."""

    def copy_all(item: Fetched) -> list[tuple[Path, int]]:
        return [(entry.path, copy(entry, contents)) for entry, contents in item.contents()]

    with ThreadPoolExecutor(torch.get_num_threads(), "hoplite-copy") as pool:
        for copied in pool.map(copy_all, fetched):
            yield from copied


def _check_filled(counts: dict[Path, tuple[int, int]], about: str) -> None:
    for path, (filled, needed) in counts.items():
        if filled != needed:
            raise StateDictMismatch(
                f"{named(path)} in {about} has {filled} of {needed} elements: did all ranks put their parts?"
            )


class _Target:
    """The tensors that are filled."""

    def __init__(self, leaves: Leaves) -> None:
        self._tensors = leaves.tensors
        self._values = leaves.values
        self._parts: dict[Path, Part] = {}
        for path, tensor in leaves.tensors.items():
            part = part_of(path, tensor)
            if part is not None:
                self._parts[path] = part

    def needs(self, entry: Entry) -> bool:
        part = self._parts.get(entry.path)
        return part is not None and _is_like(part.entry, entry) and overlap(entry, part.entry)

    def fill(
        self, fetched: list[Fetched], empty: dict[Path, tuple[str, Shape]], about: str, strict: bool
    ) -> dict[Path, Any]:
        """Copies what has come, if all fits."""
        there = {entry.path: (entry.dtype, entry.shape) for item in fetched for entry in item.page.entries}
        there.update(empty)
        values = {path for item in fetched for path in item.page.values}
        self._check(there, values, about, strict)
        counts = dict.fromkeys((path for path in self._parts if path in there), 0)
        for item in fetched:
            for entry in item.page.entries:
                if self.needs(entry):
                    counts[entry.path] += _common(entry, self._parts[entry.path].entry)
        _check_filled({path: (n, self._parts[path].local.numel()) for path, n in counts.items()}, about)
        apart = self._apart()
        for _ in _on_threads(fetched, lambda *item: self._copy(*item) if item[0].path in apart else 0):
            pass
        for entry, contents in (found for item in fetched for found in item.contents()):
            if entry.path not in apart:
                self._copy(entry, contents)
        return {path: tensor for path, tensor in self._tensors.items() if path in there or not strict}

    def _apart(self) -> set[Path]:
        """The tensors that any thread can fill at any time: to which bytes are copied, and which share none with others."""
        plain = [(part.local.data_ptr(), part) for part in self._parts.values() if is_in_place(part.local)]
        apart: set[Path] = set()
        last, end = None, 0
        for start, part in sorted(plain, key=lambda item: item[0]):
            if start >= end:
                last = part.entry.path
                apart.add(last)
            else:
                apart.discard(last)
            end = max(end, start + part.local.nbytes)
        return apart

    def _copy(self, entry: Entry, contents: Any) -> int:
        if not self.needs(entry):
            return 0
        part = self._parts[entry.path]
        # How torch treats gradients is said for each thread.
        with torch.no_grad():
            return copy_overlap(entry, contents, part.entry, part.local)

    def _check(
        self, there: dict[Path, tuple[str, Shape]], values: Iterable[Path], about: str, strict: bool
    ) -> None:
        problems = []
        if strict:
            missing = [path for path in self._tensors if path not in there]
            problems += _problem(
                "is missing in it", missing + [path for path in self._values if path not in values]
            )
            problems += _problem("is only in it", [path for path in there if path not in self._tensors])
        for path, (dtype, shape) in there.items():
            tensor = self._tensors.get(path)
            if tensor is None:
                continue
            own = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            if own != (dtype, shape):
                problems.append(
                    f"{named(path)} is {dtype}{list(shape)}, to be copied into {own[0]}{list(own[1])}"
                )
        if problems:
            more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
            raise StateDictMismatch(f"{about} does not fit: {'; '.join(problems[:_LISTED])}{more}")


def _problem(what: str, paths: list[Path]) -> list[str]:
    if not paths:
        return []
    listed = ", ".join(map(named, paths[:_LISTED]))
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return [f"{listed}{more} {what}"]


def _is_like(one: Entry, other: Entry) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _common(source: Entry, target: Entry) -> int:
    return prod(
        min(a + m, b + n) - max(a, b)
        for a, m, b, n in zip(source.offsets, source.sizes, target.offsets, target.sizes, strict=True)
    )


class stream_state_dict:
    """The tensors of one version, each with its name, as they come. All are of that version.

        with hoplite.torch.stream_state_dict("policy") as tensors:
            model.load_weights(tensors)

    Args:
        copy: whether the tensors are private. Else they are in the memory of the store, for as long as they are there, and
            **to write to one ends the process**.
    Other arguments, and what is raised: as for `get_state_dict`. If the version is lost on the way, the stream ends with
    `VersionLost`: what has come of it is of no use then.
    """

    version: Version
    """What the version is called."""

    def __init__(
        self,
        name: str,
        *,
        version: Version | None = None,
        newer_than: Version | None = None,
        copy: bool = True,
        client: hoplite.Client | None = None,
        timeout: float | None = None,
    ) -> None:
        self._about = name
        self._copy = copy
        self._opened = opened(name, client)
        self._link, versions = self._opened.__enter__()
        self._reading: Any = None
        try:
            wanted, deadline = Wanted(version, newer_than), Deadline(timeout)
            turn = self._link.run(versions.find(wanted, deadline))
            self.version = turn.version
            self._reading = versions.read(turn, wanted, lambda _: True, deadline)
            self._tensors = self._run()
        except BaseException:
            self.close()
            raise

    def _run(self) -> Iterator[tuple[str, torch.Tensor]]:
        started: dict[Path, tuple[torch.Tensor, int]] = {}
        while (item := self._link.run(_next(self._reading))) is not None:
            for entry, contents in item.contents():
                if entry.is_whole:
                    in_place = not self._copy
                    yield (
                        named(entry.path),
                        rebuild_tensor(contents, entry.dtype, entry.shape, in_place=in_place),
                    )
                    continue
                tensor, filled = started.pop(entry.path, (None, 0))
                if tensor is None:
                    tensor = torch.empty(entry.shape, dtype=dtype_of(entry.dtype), device="cpu")
                whole = entry._replace(offsets=(0,) * len(entry.shape), sizes=entry.shape)
                filled += copy_overlap(entry, contents, whole, tensor)
                if filled == tensor.numel():
                    yield named(entry.path), tensor
                else:
                    started[entry.path] = tensor, filled
            for path, (dtype, shape) in item.page.empty.items():
                yield named(path), torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
        about = f"version {self.version!r} of {self._about!r}"
        _check_filled({path: (n, tensor.numel()) for path, (tensor, n) in started.items()}, about)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        try:
            return next(self._tensors)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the transfer. Not needed when all has come."""
        if self._reading is not None:
            self._link.run(self._reading.aclose())
            self._reading = None
        self._opened.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(reading: Any) -> Fetched | None:
    try:
        fetched: Fetched = await anext(reading)
    except StopAsyncIteration:
        return None
    return fetched


def state_dict_versions(name: str, *, client: hoplite.Client | None = None) -> list[Version]:
    """The versions that are complete, oldest first."""
    with opened(name, client) as (link, versions):
        return [turn.version for turn in link.run(versions.known()).complete]


def delete_state_dict(
    name: str, version: Version | None = None, *, client: hoplite.Client | None = None
) -> None:
    """Deletes a version, or all of them, finished or not. Tensors that were got stay."""
    with opened(name, client) as (link, versions):
        for turn in link.run(versions.known()).begun:
            if version is None or turn.version == version:
                link.run(versions.delete(turn))


class opened:
    """The connection that a call uses."""

    def __init__(self, name: str, client: hoplite.Client | None, kind: str = "weights") -> None:
        self._name, self._client, self._kind = name, client, kind
        self._link: links.Link | None = None

    def __enter__(self) -> tuple[links.Link, Versions]:
        client = hoplite.init() if self._client is None else self._client
        self._link = links.acquire(client.socket, "hoplite.weights")
        try:
            return self._link, Versions(self._link.client, self._name, self._kind)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.release()
