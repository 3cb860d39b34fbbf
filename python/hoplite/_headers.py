"""Headers of arrays whose dtype the stores do not know.

A header is the `repr` of the dtype's description (of torch, its name) and the shape. Because it may
be forged, readers use no `eval`, recursion or pickle, and accept only dtypes of plain bytes.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from functools import lru_cache
from typing import Any

import numpy as np

MAX_METADATA_BYTES = 4096
#: Limit of numpy.
MAX_DIMENSIONS = 64
#: Levels of lists in a header. A nested structured dtype takes two.
MAX_DEPTH = 32
_PLAIN_KINDS = frozenset("biufcSUVmM")
#: Quantized dtypes of torch need a scale.
_QUANTIZED = frozenset(("qint8", "quint8", "qint32", "quint4x2", "quint2x4"))
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<number>-?[0-9]{1,19})|(?P<mark>[()\[\],])|(?P<none>None))"""
)
_PAIRS = {")": "(", "]": "["}
_NARROW = re.compile(r"(float[0-9]+_e[0-9]+m[0-9]+[a-z0-9]*|bfloat16|u?int[124])")


class BadHeader(ValueError):
    """Raised for malformed headers."""


def array_header(tag: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes | None:
    """Returns the header; None if the array must be pickled."""
    try:
        if not is_plain(dtype):
            return None
        descr: Any = dtype.name if is_narrow(dtype) else np.lib.format.dtype_to_descr(dtype)
        header = tag + b" " + repr((descr, shape)).encode()
        fits = (
            len(header) <= MAX_METADATA_BYTES and parse_array(header.partition(b" ")[2])[0] == dtype
        )
    except (ValueError, TypeError, RecursionError):
        return None
    return header if fits else None


def is_plain(dtype: np.dtype[Any]) -> bool:
    if dtype.hasobject or dtype.itemsize == 0 or dtype.kind not in _PLAIN_KINDS:
        return False
    if dtype.subdtype is not None:
        return is_plain(dtype.subdtype[0])
    return dtype.fields is None or all(is_plain(field[0]) for field in dtype.fields.values())


@lru_cache(maxsize=256)
def parse_array(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns the dtype and shape in a header.

    Raises:
        BadHeader: if the header is malformed, or the dtype is not of plain bytes.
        ImportError: if ml_dtypes is missing.
    """
    descr, shape = _pair(header)
    try:
        dtype = _narrow_dtype(descr) or np.lib.format.descr_to_dtype(descr)
    except ImportError:
        raise
    except Exception as error:
        raise BadHeader(f"{_shown(descr)} describes no dtype: {error}") from None
    if dtype.subdtype is not None or not is_plain(dtype):
        raise BadHeader(f"the elements of {_shown(descr)} are not plain bytes")
    return dtype, _shape(shape)


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """True for dtypes of ml_dtypes, which numpy cannot describe."""
    return dtype.type.__module__ == "ml_dtypes"


def _narrow_dtype(name: object) -> np.dtype[Any] | None:
    if not isinstance(name, str) or _NARROW.fullmatch(name) is None:
        return None
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"numpy needs the package ml_dtypes for {name}") from error
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise BadHeader(f"this version of ml_dtypes, {ml_dtypes.__version__}, has no {name}")
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """Raises `ImportError` without ml_dtypes."""
    return np.dtype(name) if name in ("complex64", "complex128") else _narrow_dtype(name)


@lru_cache(maxsize=256)
def parse_tensor(header: bytes) -> tuple[str, tuple[int, ...]]:
    name, shape = _pair(header)
    if not isinstance(name, str):
        raise BadHeader(f"{_shown(name)} is no dtype of torch")
    return name, _shape(shape)


def torch_dtype(name: str, torch: Any) -> Any:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name in _QUANTIZED:
        raise BadHeader(
            f"this version of torch, {torch.__version__}, has no dtype {_shown(name)} of plain elements"
        )
    return dtype


def check_size(itemsize: int, shape: tuple[int, ...], nbytes: int) -> None:
    if math.prod(extent or 1 for extent in shape) * itemsize > sys.maxsize:
        raise BadHeader(f"the shape {_shown(shape)} is too large")
    if math.prod(shape) * itemsize != nbytes:
        raise BadHeader(
            f"the shape {_shown(shape)} of elements of {itemsize} bytes does not make {nbytes} bytes"
        )


def literal(text: str) -> Any:
    """Parses strings, integers, None, lists and tuples; else raises `BadHeader`."""
    stack: list[tuple[str, list[Any]]] = [("", [])]
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise BadHeader(f"{_shown(text[position:])} is no literal")
        position = token.end()
        mark = token["mark"]
        if mark is None:
            stack[-1][1].append(_scalar(token))
        elif mark in "([":
            if len(stack) > MAX_DEPTH:
                raise BadHeader(f"lists are more than {MAX_DEPTH} deep")
            stack.append((mark, []))
        elif mark in _PAIRS:
            opened, items = stack.pop()
            if opened != _PAIRS[mark]:
                raise BadHeader(f"{mark!r} closes nothing")
            stack[-1][1].append(tuple(items) if mark == ")" else items)
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise BadHeader(f"{_shown(text)} is no literal")
    return stack[0][1][0]


def _scalar(token: re.Match[str]) -> Any:
    if token["none"] is not None:
        return None
    if token["number"] is not None:
        return int(token["number"])
    try:
        return ast.literal_eval(token["text"])
    except (ValueError, SyntaxError) as error:
        raise BadHeader(f"{_shown(token['text'])} is no string: {error}") from None


def _pair(header: bytes) -> tuple[Any, Any]:
    try:
        text = header.decode()
    except UnicodeDecodeError as error:
        raise BadHeader(f"the header is not UTF-8: {error}") from None
    found = literal(text)
    if not isinstance(found, tuple) or len(found) != 2:
        raise BadHeader(f"{_shown(text)} is no pair of a dtype and a shape")
    return found


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        raise BadHeader(f"{_shown(shape)} is no shape")
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        raise BadHeader(f"{_shown(shape)} is no shape")
    return shape


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
