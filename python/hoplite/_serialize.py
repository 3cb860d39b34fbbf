"""What the bytes of an object mean to a Python program.

| value put | dtype and shape of the object | metadata of the application | what a get returns |
| --- | --- | --- | --- |
| array of a dtype that reduce knows | those of the array | none | array, read-only, in place |
| array of another dtype | none | `py1:ndarray`, dtype and shape | array, read-only, in place |
| torch tensor | those of the tensor | `py1:torch`, and dtype and shape if reduce knows no such | tensor, private |
| bytes | none | `py1:bytes` | bytes |
| bytearray, memoryview of bytes | none | none | memoryview, read-only, in place |
| anything else | none | `py1:pickle` | an equal value, with arrays in place |

So an array has no more about it than what other languages know too, and what they put is an array here.

Only `py1:pickle` reaches the unpickler, and only if the reader allows it. `_headers` checks the other headers.

A pickled object is a pickle (protocol 5) and the buffers that it left out (PEP 574):

    u64 count of buffers, u64 length of the pickle, u64 length of each buffer; pickle; buffers

little-endian, the pickle and each buffer at the next multiple of 64 bytes.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from hoplite._headers import (
    BadHeader,
    array_header,
    check_size,
    parse_array,
    parse_tensor,
    torch_dtype,
)
from hoplite.errors import InvalidMetadata, ObjectTooLarge, PickleRefused

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    #: An array of bytes. On Python 3.11, its type does not say that it is a buffer.
    Bytes = Any

#: Which library an array comes as; None for the one that it was put from.
Framework = Literal["numpy", "torch"] | None

TAG_BYTES = b"py1:bytes"
TAG_PICKLE = b"py1:pickle"
TAG_TENSOR = b"py1:torch"
TAG_ARRAY = b"py1:ndarray"

#: Where a buffer of a pickle may begin: a cache line, and what vector instructions like.
ALIGNMENT = 64
#: The devices of DLPack whose memory is the host's: kDLCPU, kDLCUDAHost.
_HOST_DEVICES = (1, 3)

_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
_NAMES_OF_TORCH = {torch_name: name for name, torch_name in _TORCH_NAMES.items()}


class Encoded(NamedTuple):
    """What is put for a value."""

    pieces: list[Any]
    """Contiguous buffers; the object is the memory of one after the other."""
    dtype: str
    shape: tuple[int, ...] | None
    user: bytes

    @property
    def nbytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.pieces)


class Described(Protocol):
    """What is known of an object without its bytes: a `_native.View` or `_native.Reader`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def user(self) -> bytes: ...


class View(Described, Protocol):
    """The bytes of an object where the store keeps them: a `_native.View`. It is a buffer, too."""

    def tobytes(self) -> bytes: ...


class Layout(NamedTuple):
    """What an object is to this program."""

    kind: Literal["array", "tensor", "bytes", "buffer", "pickle"]
    dtype: Any = None
    """Of an array, the dtype; of a tensor, its name."""
    shape: tuple[int, ...] = ()


class Destination(NamedTuple):
    """Private memory for an object that still arrives, and what makes the value of it."""

    room: Any
    finish: Callable[[], Any]


#: A limit that no object reaches.
UNLIMITED = sys.maxsize


# Values in


def encode(value: object, id: str | bytes = "", limit: int = UNLIMITED) -> Encoded:
    """Returns what is to be put for `value`. Copies only what is not contiguous.

    Args:
        id: of the object, for errors.
        limit: the size of the largest object that the store can hold. What is larger is refused before it is copied.
    Raises:
        ObjectTooLarge: for a value of more than `limit` bytes that would have to be copied.
        TypeError: for a tensor that is not in the memory of the host, and for what cannot be pickled.
    """
    try:
        return _encode(value, limit)
    except _TooLarge as error:
        raise ObjectTooLarge(
            f"object {id!r} of {error.size_bytes} bytes or more is larger than the limit of {limit} bytes",
            id=id,
            size_bytes=error.size_bytes,
            limit_bytes=limit,
        ) from None


class _TooLarge(Exception):
    """A value has more bytes than any object may have."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


def _check_fits(size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise _TooLarge(size_bytes)


def _encode(value: object, limit: int) -> Encoded:
    if type(value) is np.ndarray:
        return _encode_array(value, limit)
    if type(value) is bytes:
        return Encoded([value], "opaque", None, TAG_BYTES)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _encode_tensor(value, torch, limit)
    if isinstance(value, np.memmap):
        return _encode_array(np.asarray(value), limit)
    if isinstance(value, np.generic) and _is_number(value):
        return _encode_array(np.asarray(value), limit)
    if isinstance(value, (bytes, str, np.ndarray, np.generic)):
        # Subclasses, which only a pickle brings back.
        return _encode_pickle(value, limit)
    for way in (_encode_dlpack, _encode_buffer):
        if (encoded := way(value, limit)) is not None:
            return encoded
    try:
        return _encode_pickle(value, limit)
    except _TooLarge:
        raise
    except Exception as error:
        if not hasattr(type(value), "__dlpack__"):
            raise
        # An array of another library that cannot be pickled: numpy may convert it.
        with contextlib.suppress(Exception):
            array = np.asarray(value)
            if not array.dtype.hasobject:
                return _encode_array(array, limit)
        try:
            np.from_dlpack(value)  # type: ignore[arg-type]
        except Exception as refusal:
            name = type(value).__name__
            raise TypeError(f"{name} cannot be put: {refusal}; and it cannot be pickled: {error}") from error
        raise


def _is_number(scalar: np.generic[Any]) -> bool:
    return isinstance(scalar, (np.number, np.bool_)) or type(scalar).__module__ == "ml_dtypes"


def _encode_array(array: npt.NDArray[Any], limit: int) -> Encoded:
    name = _NAMES.get(array.dtype)
    if name is not None and name != "bf16" and array.ndim > 0 and array.flags.c_contiguous:
        # What most arrays are, without the steps below, which take longer than the copy of a small one. Of ml_dtypes
        # they have no buffer, and without dimensions one that Rust does not take.
        return Encoded([array], name, array.shape, b"")
    # What follows may copy it.
    _check_fits(array.nbytes, limit)
    array = _in_a_byte_order_that_lasts(array)
    dtype = array.dtype
    name = _NAMES.get(dtype) or _learn_bfloat16(dtype)
    if name is not None:
        return Encoded([raw(array)], name, array.shape, b"")
    user = array_header(TAG_ARRAY, dtype, array.shape)
    if user is None:
        return _encode_pickle(array, limit)
    return Encoded([raw(array)], "opaque", None, user)


def _encode_tensor(tensor: torch.Tensor, torch: Any, limit: int) -> Encoded:
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device} cannot be put; move it to the CPU first")
    if not _is_plain(tensor, torch):
        return _encode_pickle(tensor, limit)
    _check_fits(tensor.numel() * tensor.element_size(), limit)
    torch_name = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    name = _NAMES_OF_TORCH.get(torch_name)
    if name is not None:
        return Encoded([_raw_tensor(tensor, torch)], name, shape, TAG_TENSOR)
    header = TAG_TENSOR + b" " + repr((torch_name, shape)).encode()
    return Encoded([_raw_tensor(tensor, torch)], "opaque", None, header)


def _encode_dlpack(value: Any, limit: int) -> Encoded | None:
    """Returns what is to be put for an array of another library; None if that way loses something of it.

    Each library refuses what DLPack does not know with an exception of its own.
    """
    if not hasattr(type(value), "__dlpack__"):
        return None
    try:
        device, _ = value.__dlpack_device__()
        device = int(device)
    except Exception:
        return None
    if device not in _HOST_DEVICES:
        where = getattr(value, "device", device)
        raise TypeError(f"an array on the device {where} cannot be put; move it to the host first")
    try:
        array = np.from_dlpack(value)
    except Exception:
        # Its dtype is one that DLPack, or numpy, does not know. Only an array of the same dtype says the same.
        try:
            array, dtype = np.asarray(value), getattr(value, "dtype", None)
            if dtype is None or array.dtype.hasobject or array.dtype != dtype:
                return None
        except Exception:
            return None
    return _encode_array(array, limit)


def _encode_buffer(value: Any, limit: int) -> Encoded | None:
    """Returns what is to be put for a buffer; None if `value` is none, or one of elements that numpy does not know."""
    try:
        view = memoryview(value)
    except Exception:
        return None
    if view.format == "B" and view.ndim == 1:
        if view.contiguous:
            return Encoded([view], "opaque", None, b"")
        _check_fits(view.nbytes, limit)
        return Encoded([view.tobytes()], "opaque", None, b"")
    try:
        array = np.asarray(view)
    except Exception:
        return None
    return _encode_array(array, limit)


def _encode_pickle(value: object, limit: int) -> Encoded:
    buffers: list[pickle.PickleBuffer] = []
    file = _Bounded(limit)
    pickler = _Pickler(file, protocol=5, buffer_callback=buffers.append)
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
        # One copy of a little costs less than each piece.
        pieces = [b"".join(pieces)]
    return Encoded(pieces, "opaque", None, TAG_PICKLE)


class _Bounded(BytesIO):
    """The memory of a pickle, and the size of the object so far, of which buffers are a part."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._bytes = 0

    def check(self, size_bytes: int) -> None:
        """Checks that so many bytes more may be copied."""
        _check_fits(self._bytes + size_bytes, self._limit)

    def add(self, size_bytes: int) -> None:
        """Counts bytes of a buffer, or of the pickle itself."""
        self._bytes += size_bytes
        self.check(0)

    def write(self, contents: Any) -> int:
        self.add(memoryview(contents).nbytes)
        return super().write(contents)


class _Pickler(pickle.Pickler):
    """Leaves out of the pickle what torch, and for some dtypes numpy, would put into it."""

    bounded: _Bounded

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return self._reduce_array(value)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self._reduce_tensor(value, torch)
        return NotImplemented

    def _reduce_array(self, array: npt.NDArray[Any]) -> Any:
        self.bounded.check(array.nbytes)
        array = _in_a_byte_order_that_lasts(array)
        dtype = array.dtype
        is_exported = not (dtype.kind in "mM" or dtype.type.__module__ == "ml_dtypes")
        # Of what is not contiguous, numpy also loses the byte order.
        is_contiguous = array.flags.c_contiguous or array.flags.f_contiguous
        if dtype.hasobject or (is_exported and is_contiguous):
            return NotImplemented
        self.bounded.add(array.nbytes)
        return rebuild_array, (pickle.PickleBuffer(raw(array)), dtype, array.shape)

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.device.type != "cpu" or not _is_plain(tensor, torch):
            return NotImplemented
        self.bounded.add(tensor.numel() * tensor.element_size())
        contents = pickle.PickleBuffer(_raw_tensor(tensor, torch))
        name = str(tensor.dtype).removeprefix("torch.")
        return rebuild_tensor, (contents, name, tuple(tensor.shape), tensor.requires_grad)


def encode_alike(values: Iterable[object], id: str | bytes = "", limit: int = UNLIMITED) -> list[Encoded]:
    """Encodes values so that all have the same dtype, shape and metadata: as pickles, if they differ in these."""
    values = list(values)
    encoded = [encode(value, id, limit) for value in values]
    if len({(one.dtype, one.shape, one.user) for one in encoded}) > 1:
        encoded = [_encode_pickle(value, limit) for value in values]
    return encoded


def needs_pickle(array: npt.NDArray[Any]) -> bool:
    """Returns True if an array can only be put as a pickle. Looks at its dtype, and copies nothing."""
    dtype = array.dtype
    if dtype in _NAMES or dtype.name == "bfloat16":
        return False
    return array_header(TAG_ARRAY, dtype, array.shape) is None


# Values out


def layout(described: Described, framework: Framework, id: str | bytes = "") -> Layout:
    """Returns what an object is, once its header was checked.

    Raises:
        InvalidMetadata: if its header is not one that this package makes, or belongs to other bytes.
        TypeError: if it cannot be had as an array of `framework`, or was put by a later version of this package.
    """
    try:
        return _layout(described, framework)
    except BadHeader as error:
        reason = str(error)
        raise InvalidMetadata(f"object {id!r} cannot be read: {reason}", id=id, reason=reason) from None


def _layout(described: Described, framework: Framework) -> Layout:
    user, dtype, shape = described.user, described.dtype, described.shape
    if not user.startswith(b"py1:"):
        if dtype == "opaque" and shape is None:
            return Layout("buffer")
        return _typed(described, framework or "numpy")
    if user == TAG_PICKLE:
        return Layout("pickle")
    if user == TAG_BYTES:
        return Layout("bytes")
    if user == TAG_TENSOR:
        return _typed(described, framework or "torch")
    tag, _, header = user.partition(b" ")
    if tag == TAG_ARRAY and framework != "torch":
        known, extents = parse_array(header)
        check_size(known.itemsize, extents, described.nbytes)
        return Layout("array", known, extents)
    if tag == TAG_TENSOR and framework != "numpy":
        name, extents = parse_tensor(header)
        check_size(torch_dtype(name, _import_torch()).itemsize, extents, described.nbytes)
        return Layout("tensor", name, extents)
    if tag in (TAG_ARRAY, TAG_TENSOR):
        shown = header.decode(errors="backslashreplace")
        raise TypeError(f"{framework} has no arrays of such a dtype: {shown}")
    raise TypeError(f"the object was put by a later version of this package: {user[:32]!r}")


def _typed(described: Described, framework: Literal["numpy", "torch"]) -> Layout:
    dtype = "u8" if described.dtype == "opaque" else described.dtype
    if framework == "torch":
        torch = _import_torch()
        name = _TORCH_NAMES[dtype]
        return Layout("tensor", name, _extents(described, torch_dtype(name, torch).itemsize))
    known = _DTYPES.get(dtype) or _bfloat16()
    return Layout("array", known, _extents(described, known.itemsize))


def _extents(described: Described, itemsize: int) -> tuple[int, ...]:
    """Returns the shape of an object of so large elements."""
    if (shape := described.shape) is None:
        return (described.nbytes // itemsize,)
    check_size(itemsize, shape, described.nbytes)
    return shape


def decode(
    view: View,
    copy: bool | None,
    framework: Framework,
    allow_pickle: bool = False,
    id: str | bytes = "",
) -> Any:
    """Makes a value of a complete object.

    Args:
        view: its bytes.
        copy: True for a private value; False for one in place, whatever that means for its safety; None for one in place
            if it can be made read-only, which is all but tensors and `bytes`.
        framework: as what arrays come.
        allow_pickle: False refuses a value that was stored as a pickle. Nothing else reaches the unpickler.
        id: of the object, for errors.
    Raises:
        PickleRefused, and what `layout` raises.
    """
    contents: Any = view
    known = None if framework == "torch" or view.user else _DTYPES.get(view.dtype)
    if known is not None and not copy and (extents := view.shape) is not None:
        # What most objects are, without the steps below, which take longer than this one.
        with contextlib.suppress(ValueError):
            return np.ndarray(extents, known, contents)
    kind, dtype, shape = layout(view, framework, id)
    if kind == "array":
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, contents)
        return array.copy() if copy else array
    if kind == "tensor":
        return rebuild_tensor(contents, dtype, shape, in_place=copy is False)
    if kind == "pickle":
        check_pickle(allow_pickle, id)
        if copy:
            private: Bytes = np.frombuffer(contents, np.uint8).copy()
            return _unpickle(memoryview(private), tensors_in_place=True)
        return _unpickle(memoryview(contents), tensors_in_place=copy is False)
    if copy or (kind == "bytes" and copy is None):
        return view.tobytes()
    return memoryview(contents)


def destination(
    described: Described, framework: Framework, allow_pickle: bool = False, id: str | bytes = ""
) -> Destination:
    """Makes room for a private copy of an object that still arrives. Arguments and errors are those of `decode`."""
    kind, dtype, shape = layout(described, framework, id)
    if kind == "pickle":
        check_pickle(allow_pickle, id)
    if kind == "array":
        array: npt.NDArray[Any] = np.empty(shape, dtype)
        return Destination(raw(array), lambda: array)
    if kind == "tensor":
        torch = _import_torch()
        tensor = torch.empty(shape, dtype=torch_dtype(dtype, torch))
        return Destination(_raw_tensor(tensor, torch), lambda: tensor)
    room: Bytes = np.empty(described.nbytes, np.uint8)
    if kind == "pickle":
        return Destination(room, lambda: _unpickle(memoryview(room), tensors_in_place=True))
    return Destination(room, room.tobytes)


def check_pickle(allow_pickle: bool, id: str | bytes) -> None:
    """Checks that a value which was stored as a pickle may be read.

    Raises:
        PickleRefused
    """
    if not allow_pickle:
        raise PickleRefused(
            f"object {id!r} was stored as a pickle, which can run any code when it is read: this client refuses pickles "
            "(allow_pickle=False or HOPLITE_ALLOW_PICKLE=0)",
            id=id,
        )


def _unpickle(contents: memoryview, *, tensors_in_place: bool) -> Any:
    try:
        (count,) = struct.unpack_from("<Q", contents)
        # Each buffer has a length in the head: a count that does not fit names memory that is not there.
        lengths = struct.unpack_from(f"<{min(count, len(contents) // 8) + 1}Q", contents, 8)
    except struct.error as error:
        raise ValueError("the object says that it is a pickle, but is none") from error
    end = 8 * (2 + count)
    parts = []
    for length in lengths:
        if length:
            end += -end % ALIGNMENT
        parts.append(contents[end : end + length])
        end += length
    if end != len(contents):
        raise ValueError("the object says that it is a pickle, but has another size")
    outer = _context.tensors_in_place
    _context.tensors_in_place = tensors_in_place
    try:
        return pickle.loads(parts[0], buffers=parts[1:])
    finally:
        _context.tensors_in_place = outer


class _Context(threading.local):
    """What those know who are called by a pickle."""

    tensors_in_place = False


_context = _Context()


def rebuild_array(contents: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Makes an array of its bytes. Pickles name this function: it stays where it is, and takes what it takes."""
    return np.ndarray(shape, dtype, contents)


def rebuild_tensor(
    contents: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool = False,
    *,
    in_place: bool | None = None,
) -> torch.Tensor:
    """Makes a tensor of its bytes. Pickles name this function: it stays where it is, and takes what it takes."""
    torch = _import_torch()
    in_place = _context.tensors_in_place if in_place is None else in_place
    source = np.frombuffer(contents, np.uint8) if memoryview(contents).nbytes else np.empty(0, np.uint8)
    known = torch_dtype(dtype, torch)
    if in_place and source.nbytes:
        # torch warns, once, that it cannot keep anybody from writing to it.
        tensor = torch.from_numpy(source).view(known).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=known)
        _raw_tensor(tensor, torch)[:] = source
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor  # type: ignore[no-any-return]


# Bytes of arrays


def raw(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of an array in C order: its own memory if it is contiguous."""
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


def _raw_tensor(tensor: Any, torch: Any) -> Bytes:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return memory_of(tensor, torch)


def memory_of(tensor: Any, torch: Any) -> Bytes:
    """The bytes of a contiguous tensor, in place, to be read and written."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    # The stride of a dimension of one element may be anything, such as 0.
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    # `Tensor.numpy` keeps the storage from being resized for ever, which FSDP does when nobody uses it. But before numpy
    # 2.1, and of a torch that does not tell numpy whether it may be written to, what comes by DLPack is read-only.
    lent = np.from_dlpack(flat)
    return lent if lent.flags.writeable else flat.numpy()


def _is_plain(tensor: Any, torch: Any) -> bool:
    """Whether a tensor is no more than its elements, and these are no more than bytes."""
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_known and tensor.layout is torch.strided and not tensor.is_quantized


# Dtypes


def dtype_name(name: str) -> str | None:
    """How numpy and torch call a dtype; None for bytes."""
    return _TORCH_NAMES.get(name)


def _learn_bfloat16(dtype: np.dtype[Any]) -> str | None:
    if dtype.name != "bfloat16":
        return None
    _NAMES[dtype] = "bf16"
    _DTYPES["bf16"] = dtype
    return "bf16"


def _in_a_byte_order_that_lasts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of the dtypes of ml_dtypes, numpy can neither pickle nor describe the other byte order."""
    dtype = array.dtype
    if dtype.isnative or dtype.type.__module__ != "ml_dtypes":
        return array
    return array.astype(dtype.newbyteorder("="))


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            'numpy needs the package ml_dtypes for bfloat16; or get it as framework="torch"'
        ) from error
    return _DTYPES.setdefault("bf16", np.dtype(ml_dtypes.bfloat16))


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            'this needs torch, which is not installed; framework="numpy" makes arrays of numpy'
        ) from error
    return torch


def as_room(out: object) -> tuple[Any, Layout]:
    """The memory of `out`, which is to be filled, and what it is.

    Raises:
        TypeError: if it cannot be written to, is not contiguous, or not in the memory of the host.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        if out.device.type != "cpu" or not _is_plain(out, torch) or not out.is_contiguous():
            raise TypeError("only a contiguous tensor in the memory of the host can be filled")
        if out.is_conj() or out.is_neg():
            raise TypeError("a view of a tensor that conjugates or negates it cannot be filled")
        return _raw_tensor(out, torch), Layout(
            "tensor", str(out.dtype).removeprefix("torch."), tuple(out.shape)
        )
    if isinstance(out, np.ndarray):
        if not out.flags.writeable or not out.flags.c_contiguous or out.dtype.hasobject:
            raise TypeError("only a contiguous array that can be written to can be filled")
        return raw(out.view(np.ndarray)), Layout("array", out.dtype, out.shape)
    try:
        view = memoryview(out)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{type(out).__name__} is no buffer, array or tensor") from None
    if view.readonly or not view.c_contiguous:
        raise TypeError("only a contiguous buffer that can be written to can be filled")
    return (view if view.nbytes == 0 else view.cast("B")), Layout("buffer")
