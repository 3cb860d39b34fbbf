"""Structure of a state dict, and a process's parts of tensors, without I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from hoplite._memory import memory_of

#: Each container's kind (dict, list or tuple), and key or index.
Path = tuple[tuple[Literal["d", "l", "t"], Any], ...]
Shape = tuple[int, ...]

_VALUES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.generic)
_CONTAINERS = (list, tuple, set, frozenset)


class Entry(NamedTuple):
    """A tensor, or a process's part of one. Stored as a tuple: keep its fields."""

    path: Path
    dtype: str
    shape: Shape
    """The shape of the whole tensor."""
    offsets: Shape
    """The position of the part in the tensor."""
    sizes: Shape
    """The shape of the part."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * dtype_of(self.dtype).itemsize

    @property
    def is_whole(self) -> bool:
        return self.sizes == self.shape


class Page(NamedTuple):
    """Describes one object. A rank's last page has no tensors, but all other values."""

    entries: list[Entry]
    values: dict[Path, Any]
    empty: dict[Path, tuple[str, Shape]]
    """The dtype and shape of tensors without elements."""


class Leaves(NamedTuple):
    tensors: dict[Path, torch.Tensor]
    values: dict[Path, Any]


def flatten(state: Any) -> Leaves:
    """Returns tensors and values by path. Raises `TypeError` for other objects."""
    leaves = Leaves({}, {})
    _flatten(state, (), leaves)
    return leaves


def _flatten(value: Any, path: Path, leaves: Leaves) -> None:
    if isinstance(value, torch.Tensor):
        leaves.tensors[path] = value
    elif isinstance(value, dict) and value:
        for key, item in value.items():
            if not isinstance(key, (str, int)):
                raise TypeError(f"{named(path)}: a key is a str or an int, not {key!r}")
            _flatten(item, (*path, ("d", key)), leaves)
    elif isinstance(value, (list, tuple)) and any(map(_has_tensors, value)):
        kind: Literal["l", "t"] = "l" if isinstance(value, list) else "t"
        for index, item in enumerate(value):
            _flatten(item, (*path, (kind, index)), leaves)
    else:
        _check_value(value, path)
        leaves.values[path] = value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensors, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _check_value(value: Any, path: Path) -> None:
    if isinstance(value, dict):
        items: Iterable[Any] = (*value.keys(), *value.values())
    elif isinstance(value, _CONTAINERS):
        items = value
    elif isinstance(value, _VALUES) or (
        isinstance(value, np.ndarray) and not value.dtype.hasobject
    ):
        return
    else:
        raise TypeError(
            f"{named(path)} has the type {type(value).__qualname__}, and a state dict has tensors, "
            "arrays of numpy, numbers, strings, and dicts, lists, tuples and sets of these"
        )
    for item in items:
        _check_value(item, path)


def unflatten(values: dict[Path, Any]) -> Any:
    if () in values:
        return values[()]
    branches: dict[Any, dict[Path, Any]] = {}
    kind: str = "d"
    for path, value in values.items():
        (kind, key), rest = path[0], path[1:]
        branches.setdefault(key, {})[rest] = value
    parts: dict[Any, Any] = {key: unflatten(branch) for key, branch in branches.items()}
    if kind == "d":
        return parts
    ordered = [parts[index] for index in sorted(parts)]
    return ordered if kind == "l" else tuple(ordered)


def named(path: Path) -> str:
    return ".".join(str(key) for _, key in path) or "the state dict"


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"this version of torch, {torch.__version__}, has no dtype {name!r}")
    return dtype


# A process's part of a tensor


def is_distributed(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def has_distributed(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_distributed, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_distributed, value))
    return isinstance(value, torch.Tensor) and is_distributed(value)


class Part(NamedTuple):
    entry: Entry
    local: torch.Tensor


def part_of(path: Path, tensor: torch.Tensor) -> Part | None:
    """Returns this rank's part; None outside the mesh. Raises `TypeError` unless the tensor is
    dense and plain."""
    name = str(tensor.dtype).removeprefix("torch.")
    if not is_distributed(tensor):
        _check_plain(path, tensor)
        shape = tuple(tensor.shape)
        return Part(Entry(path, name, shape, (0,) * len(shape), shape), tensor.detach())
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    distributed: Any = tensor
    if any(isinstance(placement, Partial) for placement in distributed.placements):
        raise TypeError(
            f"{named(path)} is a DTensor that is not reduced yet: redistribute it first"
        )
    local = distributed.to_local().detach()
    if not distributed.device_mesh._is_current_rank_part_of_mesh():
        return None
    _check_plain(path, local)
    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, distributed.device_mesh, distributed.placements
    )
    return Part(Entry(path, name, tuple(tensor.shape), tuple(offsets), tuple(sizes)), local)


def is_first_copy(tensor: torch.Tensor) -> bool:
    """Returns `True` unless an earlier rank of the mesh has the same part."""
    if not is_distributed(tensor):
        return True
    distributed: Any = tensor
    coordinate = distributed.device_mesh.get_coordinate()
    return coordinate is not None and all(
        at == 0
        for at, placement in zip(coordinate, distributed.placements, strict=True)
        if placement.is_replicate()
    )


def _check_plain(path: Path, tensor: torch.Tensor) -> None:
    what = None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        what = f"a {type(tensor).__qualname__}"
    elif tensor.layout is not torch.strided:
        what = "sparse"
    elif tensor.is_quantized:
        what = "quantized"
    elif tensor.device.type == "meta":
        what = "on the meta device"
    if what is not None:
        raise TypeError(
            f"{named(path)} is {what}: only dense tensors and DTensors of them can be put"
        )


def bytes_of(tensor: torch.Tensor) -> Any:
    return memory_of(tensor.cpu().resolve_conj().resolve_neg().contiguous(), torch)


# Copies between parts


def overlap(source: Entry, target: Entry) -> bool:
    return all(
        max(a, b) < min(a + m, b + n)
        for a, m, b, n in zip(
            source.offsets, source.sizes, target.offsets, target.sizes, strict=True
        )
    )


def is_in_place(out: torch.Tensor) -> bool:
    """`True` if a copy only moves bytes in host memory, as any thread may."""
    return out.device.type == "cpu" and out.is_contiguous() and not (out.is_conj() or out.is_neg())


def copy_overlap(source: Entry, contents: Any, target: Entry, out: torch.Tensor) -> int:
    is_same = (source.offsets, source.sizes) == (target.offsets, target.sizes)
    if is_same and is_in_place(out):
        memory_of(out, torch)[:] = contents
        return out.numel()
    item = np.dtype((np.void, dtype_of(source.dtype).itemsize))
    elements = np.ndarray(source.sizes, item, contents)
    taken, room = [], []
    for a, m, b, n in zip(source.offsets, source.sizes, target.offsets, target.sizes, strict=True):
        start, stop = max(a, b), min(a + m, b + n)
        taken.append(slice(start - a, stop - a))
        room.append(slice(start - b, stop - b))
    common = elements[tuple(taken)]
    if is_in_place(out):
        np.ndarray(target.sizes, item, memory_of(out, torch))[tuple(room)] = common
    else:
        part = torch.empty(common.shape, dtype=out.dtype, device="cpu")
        np.ndarray(common.shape, item, memory_of(part, torch))[...] = common
        out[tuple(room)] = part.to(out.device)
    return int(common.size)


# Bundles

#: Smaller parts share objects: an object costs as much time as about 1 MiB.
ALONE_BYTES = 1 << 20
#: Target size of a shared object.
BUNDLE_BYTES = 4 << 20
ALIGNMENT = 64


class Bundle(NamedTuple):
    parts: list[Part]

    def starts(self) -> list[int]:
        return starts([part.entry for part in self.parts])


def starts(entries: Iterable[Entry]) -> list[int]:
    """Returns each part's position in its object, and the last part's end."""
    found, end = [], 0
    for entry in entries:
        found.append(end)
        end += entry.nbytes
        end += -end % ALIGNMENT
    return [*found, end]


def bundled(parts: Iterable[Part]) -> Iterator[Bundle]:
    waiting: list[Part] = []
    nbytes = 0
    for part in parts:
        if part.entry.nbytes >= ALONE_BYTES:
            yield Bundle([part])
            continue
        waiting.append(part)
        nbytes += part.entry.nbytes + ALIGNMENT
        if nbytes >= BUNDLE_BYTES:
            yield Bundle(waiting)
            waiting, nbytes = [], 0
    if waiting:
        yield Bundle(waiting)
