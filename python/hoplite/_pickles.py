"""Pickles with their arrays outside the stream.

A pickled object is a pickle (protocol 5) and its out-of-band buffers (PEP 574):

    u64 count of buffers, u64 length of the pickle, u64 length of each buffer; pickle; buffers

All integers are little-endian. The pickle and each buffer begin at a multiple of 64 bytes.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache
from io import BytesIO
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite._headers import torch_dtype
from hoplite._jax import host_array, rebuild_jax
from hoplite._memory import import_torch, in_a_byte_order_that_lasts, is_plain, raw, raw_tensor
from hoplite.errors import PickleRefused

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

ALIGNMENT = 64
#: Stored pickles name this module: keep it.
_NAMED_IN_PICKLES = "hoplite._serialize"
#: Array subclasses that override one of these have their own pickling.
_PICKLING = ("__reduce__", "__reduce_ex__", "__setstate__")


class TooLarge(Exception):
    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


def check_fits(size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise TooLarge(size_bytes)


def pieces_of(value: object, limit: int, *, by_value: bool = True) -> list[Any]:
    """Returns the buffers of a pickle, without copying contiguous arrays.

    With `by_value` and cloudpickle, it may contain lambdas, and functions and classes of
    `__main__`.

    Raises:
        TooLarge: for more than `limit` bytes.
        Exception: any exception of a value that cannot be pickled.
    """
    try:
        return _pickled(value, limit, _Pickler if by_value else _ByName)
    except TooLarge:
        raise
    except Exception as error:
        pickler = _pickler_by_value() if by_value else None
        if pickler is None:
            raise
        try:
            return _pickled(value, limit, pickler)
        except TooLarge:
            raise
        except Exception as last:
            raise (last if isinstance(error, _ByValue) else error) from None


def _pickled(value: object, limit: int, make: Callable[..., Any]) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    file = _Bounded(limit)
    pickler = make(file, protocol=5, buffer_callback=buffers.append)
    pickler.bounded = file
    pickler.dump(value)
    stream = file.getvalue()
    raws = [buffer.raw() for buffer in buffers]
    lengths = [len(stream), *(view.nbytes for view in raws)]
    head = struct.pack(f"<{1 + len(lengths)}Q", len(raws), *lengths)
    pieces: list[Any] = [head]
    end = len(head)
    for length, piece in zip(lengths, [stream, *raws], strict=True):
        if length == 0:
            continue
        if end % ALIGNMENT:
            pieces.append(bytes(-end % ALIGNMENT))
            end += -end % ALIGNMENT
        pieces.append(piece)
        end += length
    if len(pieces) > 1 and end < ALIGNMENT**2:
        pieces = [b"".join(pieces)]
    return pieces


class _Bounded(BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._bytes = 0

    def check(self, size_bytes: int) -> None:
        check_fits(self._bytes + size_bytes, self._limit)

    def add(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self.check(0)

    def write(self, contents: Any) -> int:
        self.add(memoryview(contents).nbytes)
        return super().write(contents)


class _Reducer:
    """Keeps arrays of torch, JAX and numpy out of the pickle."""

    bounded: _Bounded

    def reduce(self, value: Any) -> Any:
        """Returns a function and arguments that rebuild a value; `NotImplemented` by default."""
        kind = type(value)
        if kind is np.ndarray:
            return self._reduce_array(value)
        if isinstance(value, np.ndarray):
            return _reduce_subclass(value)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self._reduce_tensor(value, torch)
        if "jax" in sys.modules:
            with contextlib.suppress(TypeError):
                if (array := host_array(value)) is not None:
                    return rebuild_jax, (array,)
        return NotImplemented

    def _reduce_array(self, array: npt.NDArray[Any]) -> Any:
        self.bounded.check(array.nbytes)
        array = in_a_byte_order_that_lasts(array)
        dtype = array.dtype
        is_exported = not (dtype.kind in "mM" or dtype.type.__module__ == "ml_dtypes")
        # numpy copies all but exportable contiguous arrays, and loses the byte order of
        # non-contiguous ones.
        is_contiguous = array.flags.c_contiguous or array.flags.f_contiguous
        if dtype.hasobject or (is_exported and is_contiguous):
            return NotImplemented
        self.bounded.add(array.nbytes)
        return rebuild_array, (pickle.PickleBuffer(raw(array)), dtype, array.shape)

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.device.type != "cpu" or not is_plain(tensor, torch):
            return NotImplemented
        self.bounded.add(tensor.numel() * tensor.element_size())
        contents = pickle.PickleBuffer(raw_tensor(tensor, torch))
        name = str(tensor.dtype).removeprefix("torch.")
        return rebuild_tensor, (contents, name, tuple(tensor.shape), tensor.requires_grad)


class _ByName(_Reducer, pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return self.reduce(value)


class _Pickler(_ByName):
    """Raises `_ByValue` for a name in `__main__`, which cloudpickle can pickle by value."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)):
            if value.__module__ == "__main__" and _pickler_by_value() is not None:
                raise _ByValue
            return NotImplemented
        return self.reduce(value)


class _ByValue(Exception):
    """Raised for names of `__main__`, which other processes cannot import."""


@cache
def _pickler_by_value() -> Callable[..., Any] | None:
    try:
        import cloudpickle
    except ImportError:
        return None

    class ByValue(_Reducer, cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = self.reduce(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    return ByValue


def _reduce_subclass(array: npt.NDArray[Any]) -> Any:
    """Reduces an array subclass without its own pickling."""
    kind = type(array)
    if any(getattr(kind, name) is not getattr(np.ndarray, name) for name in _PICKLING):
        return NotImplemented
    return rebuild_subclass, (array.view(np.ndarray), kind)


def check_pickle(allow_pickle: bool, id: str | bytes) -> None:
    if not allow_pickle:
        raise PickleRefused(
            f"object {id!r} was stored as a pickle, which can run any code when it is read: this client refuses pickles "
            "(allow_pickle=False or HOPLITE_ALLOW_PICKLE=0)",
            id=id,
        )


def unpickle(contents: memoryview, *, tensors_in_place: bool) -> Any:
    try:
        (count,) = struct.unpack_from("<Q", contents)
        # Bounds a forged count.
        lengths = struct.unpack_from(f"<{min(count, len(contents) // 8) + 1}Q", contents, 8)
    except struct.error as error:
        raise ValueError("the object has the header of a pickle, but other contents") from error
    end = 8 * (2 + count)
    parts = []
    for length in lengths:
        if length:
            end += -end % ALIGNMENT
        parts.append(contents[end : end + length])
        end += length
    if end != len(contents):
        raise ValueError("the size of the object does not match its header of a pickle")
    outer = _context.tensors_in_place
    _context.tensors_in_place = tensors_in_place
    try:
        return pickle.loads(parts[0], buffers=parts[1:])
    finally:
        _context.tensors_in_place = outer


class _Context(threading.local):
    tensors_in_place = False


_context = _Context()


# Stored pickles name the functions below: keep their names and arguments.


def rebuild_array(contents: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, contents)


def rebuild_subclass(array: npt.NDArray[Any], kind: type[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return array.view(kind)


def rebuild_tensor(
    contents: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool = False,
    *,
    in_place: bool | None = None,
) -> torch.Tensor:
    torch = import_torch()
    in_place = _context.tensors_in_place if in_place is None else in_place
    source = (
        np.frombuffer(contents, np.uint8) if memoryview(contents).nbytes else np.empty(0, np.uint8)
    )
    known = torch_dtype(dtype, torch)
    if in_place and source.nbytes:
        # torch warns once that the memory is read-only.
        tensor = torch.from_numpy(source).view(known).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=known)
        raw_tensor(tensor, torch)[:] = source
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor  # type: ignore[no-any-return]


rebuild_array.__module__ = rebuild_tensor.__module__ = _NAMED_IN_PICKLES
