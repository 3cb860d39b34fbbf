"""How a state dict is got, whole. See `docs/howto/broadcast-weights.md`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, NamedTuple

import torch

import hoplite
from hoplite._timeouts import Deadline, TimeLimit
from hoplite.errors import HopliteError
from hoplite.torch._opened import opened
from hoplite.torch._state import (
    Entry,
    Leaves,
    Part,
    Path,
    Shape,
    copy_overlap,
    dtype_of,
    flatten,
    is_in_place,
    named,
    overlap,
    part_of,
    unflatten,
)
from hoplite.torch._versions import Fetched, Turn, Version, VersionLost, Versions, Wanted

#: How many names an error lists.
_LISTED = 5


class StateDictMismatch(HopliteError, ValueError):
    """A version and the state dict that it is to be copied into are not alike; nothing of that was changed."""


class Weights(NamedTuple):
    """What `get_state_dict` returns."""

    version: Version
    state_dict: Any


def get_state_dict(
    name: str,
    into: Any = None,
    *,
    version: Version | None = None,
    newer_than: Version | None = None,
    strict: bool = True,
    client: hoplite.Client | None = None,
    timeout: TimeLimit = "default",
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
        timeout: how long to wait for it, in seconds; None for ever; by default as every call of `hoplite.Client`.
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
    check_filled({path: (filled[path], tensor.numel()) for path, tensor in tensors.items()}, about)
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


def check_filled(counts: dict[Path, tuple[int, int]], about: str) -> None:
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
        check_filled({path: (n, self._parts[path].local.numel()) for path, n in counts.items()}, about)
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
