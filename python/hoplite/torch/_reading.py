"""Gets a whole state dict. See `docs/howto/broadcast-weights.md`."""

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

_LISTED = 5


class StateDictMismatch(HopliteError, ValueError):
    """A version does not match `into`. Nothing was changed.

    Examples:
        >>> hoplite.torch.put_state_dict("policy", {"weight": torch.ones(3)})
        1
        >>> hoplite.torch.get_state_dict("policy", into={"weight": torch.ones(4)})
        Traceback (most recent call last):
        hoplite.torch.StateDictMismatch: ...
    """


class Weights(NamedTuple):
    """The name of a version, and the state dict.

    Examples:
        >>> hoplite.torch.put_state_dict("policy", {"weight": torch.ones(3)})
        1
        >>> version, state_dict = hoplite.torch.get_state_dict("policy")
        >>> version, state_dict["weight"]
        (1, tensor([1., 1., 1.]))
    """

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
    """Gets one version of a state dict, completely or not at all.

    Takes the newest complete version, or else the one that is being put, and the next one if its
    writer dies. Blocks until all tensors are here.

    Args:
        into: A state dict whose tensors are filled, on any device, after all bytes have arrived; of
            a `DTensor`, this rank's part, whatever the writer's mesh.
        version: Only this version.
        newer_than: Waits for a version that was begun after this one; for any version if this one
            is unknown.
        strict: With `into`, `True` requires the same tensors and values; `False` fills the
            tensors that both have.
        client: `None` for that of `hoplite.init`. Its store needs room for the version.
        timeout: Seconds to wait; `None` waits for ever.

    Returns:
        The version, and the state dict with the tensors of `into`, or new ones in host memory.

    Raises:
        Timeout: Names the existing versions.
        Unavailable: The directory cannot be reached at the deadline.
        StateDictMismatch: Lists the differences.
        TypeError: This torch lacks a dtype.
        VersionLost: The named version is gone.
        ObjectLost: The only copy of a tensor is gone.

    Examples:
        >>> model, replica = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        >>> hoplite.torch.put_state_dict("policy", model.state_dict())
        1
        >>> hoplite.torch.get_state_dict("policy", into=replica.state_dict()).version
        1
        >>> torch.equal(model.weight, replica.weight)
        True
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
        _assembled(fetched, empty, about)
        if target is None
        else target.fill(fetched, empty, about, strict)
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


def _assembled(
    fetched: list[Fetched], empty: dict[Path, tuple[str, Shape]], about: str
) -> dict[Path, Any]:
    tensors: dict[Path, torch.Tensor] = {}
    for entry in (entry for item in fetched for entry in item.page.entries):
        if entry.path not in tensors:
            tensors[entry.path] = torch.empty(
                entry.shape, dtype=dtype_of(entry.dtype), device="cpu"
            )

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


def _on_threads(
    fetched: list[Fetched], copy: Callable[[Entry, Any], int]
) -> Iterator[tuple[Path, int]]:
    """Copies on several threads, because one cannot use the full memory bandwidth."""

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
        there = {
            entry.path: (entry.dtype, entry.shape)
            for item in fetched
            for entry in item.page.entries
        }
        there.update(empty)
        values = {path for item in fetched for path in item.page.values}
        self._check(there, values, about, strict)
        counts = dict.fromkeys((path for path in self._parts if path in there), 0)
        for item in fetched:
            for entry in item.page.entries:
                if self.needs(entry):
                    counts[entry.path] += _common(entry, self._parts[entry.path].entry)
        check_filled(
            {path: (n, self._parts[path].local.numel()) for path, n in counts.items()}, about
        )
        apart = self._apart()
        for _ in _on_threads(
            fetched, lambda *item: self._copy(*item) if item[0].path in apart else 0
        ):
            pass
        for entry, contents in (found for item in fetched for found in item.contents()):
            if entry.path not in apart:
                self._copy(entry, contents)
        return {
            path: tensor for path, tensor in self._tensors.items() if path in there or not strict
        }

    def _apart(self) -> set[Path]:
        plain = [
            (part.local.data_ptr(), part)
            for part in self._parts.values()
            if is_in_place(part.local)
        ]
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
        # Each thread has a separate gradient mode.
        with torch.no_grad():
            return copy_overlap(entry, contents, part.entry, part.local)

    def _check(
        self, there: dict[Path, tuple[str, Shape]], values: Iterable[Path], about: str, strict: bool
    ) -> None:
        problems = []
        if strict:
            missing = [path for path in self._tensors if path not in there]
            problems += _problem(
                "is not in this version",
                missing + [path for path in self._values if path not in values],
            )
            problems += _problem(
                "is only in this version", [path for path in there if path not in self._tensors]
            )
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
        for a, m, b, n in zip(
            source.offsets, source.sizes, target.offsets, target.sizes, strict=True
        )
    )
