"""Converts pages, the descriptions of a state dict's objects, to JSON, which is safe to read.

Tuples, bytes, dtypes and arrays become dicts of one item, whose key is the kind. Other values, such
as enum members, turn the page into a pickle, which a reader must allow.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from hoplite._headers import BadHeader, array_header, check_size, parse_array
from hoplite._pickles import check_pickle
from hoplite.errors import InvalidMetadata
from hoplite.torch._state import Entry, Page, Path, dtype_of

TAG_JSON = b"py1:page"
TAG_PICKLE = b"py1:page-pickle"


class _NotPlain(Exception):
    """Raised for a value that JSON cannot represent."""


def encode(page: Page) -> tuple[bytes, bytes]:
    try:
        _check_keys(entry.path for entry in page.entries)
        _check_keys(page.values)
        _check_keys(page.empty)
        told = {
            "entries": page.entries,
            "values": [[path, _told(value)] for path, value in page.values.items()],
            "empty": [[path, about] for path, about in page.empty.items()],
        }
        return TAG_JSON, json.dumps(told, separators=(",", ":")).encode()
    except (_NotPlain, RecursionError, ValueError):
        contents = (list(map(tuple, page.entries)), page.values, page.empty)
        return TAG_PICKLE, pickle.dumps(contents, protocol=5)


def decode(user: bytes, contents: bytes, allow_pickle: bool, id: str) -> Page:
    """Raises:
    InvalidMetadata: if the bytes are malformed.
    PickleRefused: for a refused pickle.
    """
    if user == TAG_PICKLE:
        check_pickle(allow_pickle, id)
        entries, values, empty = pickle.loads(contents)
        return Page([Entry(*entry) for entry in entries], values, empty)
    try:
        if user != TAG_JSON:
            raise BadHeader(f"the page is from another version of this package: {user[:32]!r}")
        told = json.loads(contents)
        return Page(
            [_entry(entry) for entry in told["entries"]],
            {_path(path): _heard(value) for path, value in told["values"]},
            {_path(path): _empty(about) for path, about in told["empty"]},
        )
    except Exception as error:
        # Malformed bytes cause arbitrary exceptions.
        reason = f"{type(error).__name__}: {error}"
        raise InvalidMetadata(
            f"object {id!r} is no page of a state dict: {reason}", id=id, reason=reason
        ) from None


def _check_keys(paths: Iterable[Path]) -> None:
    if not all(type(key) in (str, int, bool) for path in paths for _, key in path):
        raise _NotPlain


def _told(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_told(item) for item in value]
    if kind is dict:
        return {"dict": [[_told(key), _told(item)] for key, item in value.items()]}
    for name, (python, tell, _) in _KINDS.items():
        if kind is python or (python is np.generic and isinstance(value, np.generic)):
            return {name: tell(value)}
    raise _NotPlain


def _heard(told: Any) -> Any:
    if isinstance(told, list):
        return [_heard(item) for item in told]
    if not isinstance(told, dict):
        return told
    ((name, inside),) = told.items()
    if name == "dict":
        return {_heard(key): _heard(item) for key, item in inside}
    return _KINDS[name][2](inside)


def _told_items(value: Any) -> list[Any]:
    return [_told(item) for item in value]


def _told_array(value: Any) -> list[str]:
    array = np.asarray(value)
    header = array_header(b"", array.dtype, array.shape)
    if header is None:
        raise _NotPlain
    return [header.decode(), base64.b64encode(array.tobytes()).decode()]


def _heard_array(told: Any) -> Any:
    header, text = told
    dtype, shape = parse_array(header.strip().encode())
    contents = base64.b64decode(text, validate=True)
    check_size(dtype.itemsize, shape, len(contents))
    return np.frombuffer(contents, dtype).reshape(shape).copy()


def _heard_scalar(told: Any) -> Any:
    array = _heard_array(told)
    if array.shape != ():
        raise BadHeader("a scalar has no dimensions")
    return array[()]


_Telling = tuple[type, Callable[[Any], Any], Callable[[Any], Any]]
_KINDS: dict[str, _Telling] = {
    "tuple": (tuple, _told_items, lambda told: tuple(map(_heard, told))),
    "set": (set, _told_items, lambda told: set(map(_heard, told))),
    "frozenset": (frozenset, _told_items, lambda told: frozenset(map(_heard, told))),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), lambda told: base64.b64decode(told, validate=True)),
    "complex": (complex, lambda value: [value.real, value.imag], lambda told: complex(*map(float, told))),
    "dtype": (torch.dtype, lambda value: str(value).removeprefix("torch."), lambda told: dtype_of(told)),
    "device": (torch.device, str, lambda told: torch.device(str(told))),
    "array": (np.ndarray, _told_array, _heard_array),
    "scalar": (np.generic, _told_array, _heard_scalar),
}  # fmt: skip


# Checks of decoded pages


def _path(told: Any) -> Path:
    path = tuple((kind, key) for kind, key in told)
    for kind, key in path:
        if kind not in ("d", "l", "t") or not isinstance(key, (str, int) if kind == "d" else int):
            raise BadHeader(f"{told!r:.80} is no path")
    return path


def _extents(told: Any) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(
        isinstance(extent, int) and 0 <= extent < 2**63 for extent in told
    ):
        raise BadHeader(f"{told!r:.80} is no shape")
    return tuple(told)


def _empty(told: Any) -> tuple[str, tuple[int, ...]]:
    dtype, shape = told
    return _named(dtype), _extents(shape)


def _named(dtype: Any) -> str:
    if not isinstance(dtype, str):
        raise BadHeader(f"{dtype!r:.80} is no name of a dtype")
    return dtype


def _entry(told: Any) -> Entry:
    path, dtype, *extents = told
    shape, offsets, sizes = map(_extents, extents)
    if any(a + n > whole for a, n, whole in zip(offsets, sizes, shape, strict=True)):
        raise BadHeader(f"a part of {sizes} at {offsets} is not within {shape}")
    return Entry(_path(path), _named(dtype), shape, offsets, sizes)
