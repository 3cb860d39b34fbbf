"""Converts between Python values and the bytes of objects.

| value put | dtype and shape of the object | metadata of the application | result of a get |
| --- | --- | --- | --- |
| array of a dtype that reduces support | the array's | none | array, read-only, in place |
| array of another dtype | none | `py1:ndarray`, dtype and shape | array, read-only, in place |
| torch tensor | the tensor's, if supported | `py1:torch`; else also dtype and shape | tensor on the CPU, private |
| array of JAX | the array's, if supported | `py1:jax`; else also dtype and shape | array of JAX, in place on a CPU |
| table or array of Arrow, frame of polars | none | `py1:arrow`, `py1:polars`, and a form: `_arrow` | the same, in place |
| bytes | none | `py1:bytes` | bytes |
| bytearray, memoryview of bytes | none | none | memoryview, read-only, in place |
| anything else | none | `py1:pickle` | an equal value, with arrays in place |

Arrays have no metadata, so programs in other languages can exchange them. Only `py1:pickle` reaches
the unpickler, if the client allows pickles. `_headers` checks other headers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from hoplite import _arrow, _cuda, _jax
from hoplite._dtypes import DTYPES, NAMES, NAMES_OF_TORCH, TORCH_NAMES, bfloat16, learn_bfloat16
from hoplite._headers import (
    BadHeader,
    array_header,
    check_size,
    is_narrow,
    numpy_dtype,
    parse_array,
    parse_tensor,
    torch_dtype,
)
from hoplite._html import size
from hoplite._memory import import_torch, in_a_byte_order_that_lasts, is_plain, raw, raw_tensor
from hoplite._pickles import (
    TooLarge,
    check_fits,
    check_pickle,
    pieces_of,
    rebuild_array,  # noqa: F401 (pickles look for it here)
    rebuild_tensor,
    unpickle,
)
from hoplite.errors import InvalidMetadata, ObjectTooLarge

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from hoplite._memory import Bytes

#: None selects the library of the put value.
Framework = Literal["numpy", "torch", "jax"] | None

TAG_BYTES = b"py1:bytes"
TAG_PICKLE = b"py1:pickle"
TAG_TENSOR = b"py1:torch"
TAG_ARRAY = b"py1:ndarray"
TAG_JAX = b"py1:jax"
#: Libraries of arrays whose dtype the stores know, by tag.
_OWN: dict[bytes, Literal["torch", "jax"]] = {TAG_TENSOR: "torch", TAG_JAX: "jax"}

#: kDLCPU and kDLCUDAHost, in host memory.
_HOST_DEVICES = (1, 3)


class Encoded(NamedTuple):
    pieces: Sequence[Any]
    """Contiguous buffers, which the object concatenates; or a `_cuda.OnDevice`."""
    dtype: str
    shape: tuple[int, ...] | None
    user: bytes

    @property
    def nbytes(self) -> int:
        return _cuda.size_of(self.pieces)


class Described(Protocol):
    """An object without its bytes: a `_native.View` or `_native.Reader`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def user(self) -> bytes: ...


class View(Described, Protocol):
    """Bytes in the store's memory: a `_native.View`, which is also a buffer."""

    def tobytes(self) -> bytes: ...


class Layout(NamedTuple):
    kind: Literal["array", "tensor", "jax", "arrow", "bytes", "buffer", "pickle"]
    dtype: Any = None
    """A dtype of numpy or JAX, a torch dtype's name, or a table's form."""
    shape: tuple[int, ...] = ()


class Destination(NamedTuple):
    room: Any
    finish: Callable[[], Any]


UNLIMITED = sys.maxsize


# Values in


def encode(value: object, id: str | bytes = "", limit: int = UNLIMITED) -> Encoded:
    """Encodes a value. Copies only values that are not contiguous.

    Args:
        id: for errors.
        limit: the maximum size.
    Raises:
        ObjectTooLarge: for a value above `limit`, before a copy.
        TypeError: for a tensor on an unknown device, or a value that cannot be pickled.
    """
    try:
        return _encode(value, limit)
    except TooLarge as error:
        sizes = [size(error.size_bytes), size(limit)]
        if sizes[0] == sizes[1]:
            sizes = [f"{error.size_bytes} B", f"{limit} B"]
        raise ObjectTooLarge(
            f"object {id!r} of {sizes[0]} or more is larger than the limit of {sizes[1]}, "
            "which --memory (in Python, memory=) and --max-object of the store set",
            id=id,
            size_bytes=error.size_bytes,
            limit_bytes=limit,
        ) from None


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
        # Only a pickle restores subclasses.
        return encode_pickle(value, limit)
    for way in (_encode_jax, _encode_arrow, _encode_dlpack, _encode_buffer):
        if (encoded := way(value, limit)) is not None:
            return encoded
    if not hasattr(type(value), "__dlpack__"):
        return encode_pickle(value, limit)
    try:
        return encode_pickle(value, limit, by_value=False)
    except TooLarge:
        raise
    except Exception as error:
        with contextlib.suppress(Exception):
            array = np.asarray(value)
            if not array.dtype.hasobject:
                return _encode_array(array, limit)
        try:
            np.from_dlpack(value)  # type: ignore[arg-type]
        except Exception as refusal:
            name = type(value).__name__
            raise TypeError(
                f"{name} cannot be put: {refusal}; and it cannot be pickled: {error}"
            ) from error
        raise


def _is_number(scalar: np.generic[Any]) -> bool:
    return isinstance(scalar, (np.number, np.bool_)) or type(scalar).__module__ == "ml_dtypes"


def _encode_array(array: npt.NDArray[Any], limit: int) -> Encoded:
    name = NAMES.get(array.dtype)
    if name is not None and name != "bf16" and array.ndim > 0 and array.flags.c_contiguous:
        # The fast path. Arrays of ml_dtypes are no buffers; Rust takes no arrays without
        # dimensions.
        return Encoded([array], name, array.shape, b"")
    # The next steps may copy the array.
    check_fits(array.nbytes, limit)
    array = in_a_byte_order_that_lasts(array)
    dtype = array.dtype
    name = NAMES.get(dtype) or learn_bfloat16(dtype)
    if name is not None:
        return Encoded([raw(array)], name, array.shape, b"")
    user = array_header(TAG_ARRAY, dtype, array.shape)
    if user is None:
        return encode_pickle(array, limit)
    return Encoded([raw(array)], "opaque", None, user)


def _encode_tensor(tensor: torch.Tensor, torch: Any, limit: int) -> Encoded:
    is_usual = is_plain(tensor, torch)
    if tensor.device.type not in (("cpu", "cuda") if is_usual else ("cpu",)):
        raise TypeError(f"a tensor on {tensor.device} cannot be put; move it to the CPU first")
    if not is_usual:
        return encode_pickle(tensor, limit)
    check_fits(tensor.numel() * tensor.element_size(), limit)
    torch_name = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    pieces = _cuda.pieces_of(tensor, torch)
    if (name := NAMES_OF_TORCH.get(torch_name)) is not None:
        return Encoded(pieces, name, shape, TAG_TENSOR)
    return Encoded(pieces, "opaque", None, TAG_TENSOR + b" " + repr((torch_name, shape)).encode())


def _encode_jax(value: object, limit: int) -> Encoded | None:
    array = _jax.host_array(value)
    if array is None:
        return None
    encoded = _encode_array(array, limit)
    if encoded.user == b"":
        return encoded._replace(user=TAG_JAX)
    return encoded._replace(user=encoded.user.replace(TAG_ARRAY, TAG_JAX, 1))


def _encode_arrow(value: object, limit: int) -> Encoded | None:
    found = _arrow.encode(value, limit)
    return None if found is None else Encoded(found[0], "opaque", None, found[1])


def _encode_dlpack(value: Any, limit: int) -> Encoded | None:
    """Encodes another library's array; returns None if DLPack and numpy would lose information.

    Each library raises other exceptions for unsupported arrays.
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
        # DLPack or numpy lacks the dtype; a conversion may keep it.
        try:
            array, dtype = np.asarray(value), getattr(value, "dtype", None)
            if dtype is None or array.dtype.hasobject or array.dtype != dtype:
                return None
        except Exception:
            return None
    return _encode_array(array, limit)


def _encode_buffer(value: Any, limit: int) -> Encoded | None:
    try:
        view = memoryview(value)
    except Exception:
        return None
    if view.format == "B" and view.ndim == 1:
        if view.contiguous:
            return Encoded([view], "opaque", None, b"")
        check_fits(view.nbytes, limit)
        return Encoded([view.tobytes()], "opaque", None, b"")
    try:
        array = np.asarray(view)
    except Exception:
        return None
    return _encode_array(array, limit)


def encode_alike(
    values: Iterable[object], id: str | bytes = "", limit: int = UNLIMITED
) -> list[Encoded]:
    """Encodes values; all as pickles if their dtypes, shapes or metadata differ."""
    values = list(values)
    encoded = [encode(value, id, limit) for value in values]
    if len({(one.dtype, one.shape, one.user) for one in encoded}) > 1:
        encoded = [encode_pickle(value, limit) for value in values]
    return encoded


def needs_pickle(array: npt.NDArray[Any]) -> bool:
    dtype = array.dtype
    if dtype in NAMES or is_narrow(dtype):
        return False
    return array_header(TAG_ARRAY, dtype, array.shape) is None


def encode_pickle(value: object, limit: int, *, by_value: bool = True) -> Encoded:
    return Encoded(pieces_of(value, limit, by_value=by_value), "opaque", None, TAG_PICKLE)


# Values out


def layout(described: Described, framework: Framework, id: str | bytes = "") -> Layout:
    """Checks an object's header, and returns its layout.

    Raises:
        InvalidMetadata: if the header is malformed, or contradicts the size.
        TypeError: if `framework` cannot represent the object, or a later version put it.
    """
    try:
        return _layout(described, framework)
    except BadHeader as error:
        raise _unreadable(id, error) from None


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
    if user in _OWN:
        return _typed(described, framework or _OWN[user])
    tag, _, header = user.partition(b" ")
    if tag in (_arrow.TAG_ARROW, _arrow.TAG_POLARS):
        return Layout("arrow", _arrow.parse(user))
    if tag == TAG_TENSOR:
        name, extents = parse_tensor(header)
        if framework in (None, "torch"):
            return _of_torch(name, extents, described.nbytes)
        known = numpy_dtype(name)
    elif tag in (TAG_ARRAY, TAG_JAX):
        known, extents = parse_array(header)
        if tag == TAG_JAX and not _jax.has(known):
            raise BadHeader(f"JAX has no arrays of {known}")
        framework = framework or ("jax" if tag == TAG_JAX else "numpy")
        if framework == "torch":
            if (of_torch := numpy_dtype(known.name)) is not None and of_torch == known:
                return _of_torch(known.name, extents, described.nbytes)
            known = None
        elif framework == "jax" and not _jax.has(known):
            known = None
    else:
        raise TypeError(f"the object was put by a later version of this package: {user[:32]!r}")
    if known is None:
        shown = header.decode(errors="backslashreplace")
        raise TypeError(f"{framework} has no arrays of such a dtype: {shown}")
    check_size(known.itemsize, extents, described.nbytes)
    return _of_numpy(known, extents, framework)


def _of_torch(name: str, extents: tuple[int, ...], nbytes: int) -> Layout:
    check_size(torch_dtype(name, import_torch()).itemsize, extents, nbytes)
    return Layout("tensor", name, extents)


def _of_numpy(dtype: np.dtype[Any], extents: tuple[int, ...], framework: Framework) -> Layout:
    return Layout("jax" if framework == "jax" else "array", dtype, extents)


def _typed(described: Described, framework: Literal["numpy", "torch", "jax"]) -> Layout:
    dtype = "u8" if described.dtype == "opaque" else described.dtype
    if framework == "torch":
        torch = import_torch()
        name = TORCH_NAMES[dtype]
        return Layout("tensor", name, _extents(described, torch_dtype(name, torch).itemsize))
    known = DTYPES.get(dtype) or bfloat16()
    return _of_numpy(known, _extents(described, known.itemsize), framework)


def _extents(described: Described, itemsize: int) -> tuple[int, ...]:
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
    """Makes a value from a complete object.

    Args:
        copy: True makes a private value; False makes one in place, even if a write to it ends the
            process. None makes one in place if it can be read-only; tensors and `bytes` cannot.
        allow_pickle: False refuses pickles.
    Raises:
        PickleRefused: for a refused pickle.
        InvalidMetadata, TypeError: as for `layout`.
    """
    contents: Any = view
    known = None if framework in ("torch", "jax") or view.user else DTYPES.get(view.dtype)
    if known is not None and not copy and (extents := view.shape) is not None:
        with contextlib.suppress(ValueError):
            return np.ndarray(extents, known, contents)
    kind, dtype, shape = layout(view, framework, id)
    if kind == "array":
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, contents)
        return array.copy() if copy else array
    if kind == "jax":
        elements: npt.NDArray[Any] = np.ndarray(shape, dtype, contents)
        return _jax.from_host(elements.copy() if copy else elements)
    if kind == "arrow":
        whole = memoryview(view.tobytes() if copy else contents)
        return _arrow_of(whole, dtype, allow_pickle, id)
    if kind == "tensor":
        return rebuild_tensor(contents, dtype, shape, in_place=copy is False)
    if kind == "pickle":
        check_pickle(allow_pickle, id)
        if copy:
            private: Bytes = np.frombuffer(contents, np.uint8).copy()
            return unpickle(memoryview(private), tensors_in_place=True)
        return unpickle(memoryview(contents), tensors_in_place=copy is False)
    if copy or (kind == "bytes" and copy is None):
        return view.tobytes()
    return memoryview(contents)


def destination(
    described: Described, framework: Framework, allow_pickle: bool = False, id: str | bytes = ""
) -> Destination:
    """Allocates private memory for an arriving object, and makes its value as `decode` does."""
    kind, dtype, shape = layout(described, framework, id)
    if kind == "pickle":
        check_pickle(allow_pickle, id)
    if kind in ("array", "jax"):
        array: npt.NDArray[Any] = np.empty(shape, dtype)
        return Destination(
            raw(array), (lambda: _jax.from_host(array)) if kind == "jax" else lambda: array
        )
    if kind == "tensor":
        torch = import_torch()
        tensor = torch.empty(shape, dtype=torch_dtype(dtype, torch))
        return Destination(raw_tensor(tensor, torch), lambda: tensor)
    room: Bytes = np.empty(described.nbytes, np.uint8)
    if kind == "pickle":
        return Destination(room, lambda: unpickle(memoryview(room), tensors_in_place=True))
    if kind == "arrow":
        return Destination(room, lambda: _arrow_of(memoryview(room), dtype, allow_pickle, id))
    return Destination(room, room.tobytes)


def _arrow_of(contents: memoryview, form: _arrow.Form, allow_pickle: bool, id: str | bytes) -> Any:
    """A client that allows pickles trusts all contents."""
    try:
        return _arrow.decode(contents, form, trusts=allow_pickle)
    except BadHeader as error:
        raise _unreadable(id, error) from None


def _unreadable(id: str | bytes, error: BadHeader) -> InvalidMetadata:
    reason = str(error)
    return InvalidMetadata(f"object {id!r} cannot be read: {reason}", id=id, reason=reason)


def dtype_name(name: str) -> str | None:
    return TORCH_NAMES.get(name)


def as_room(out: object, *, or_device: bool = False) -> tuple[Any, Layout]:
    """Returns the writable memory of `out`, or a `_cuda.OnDevice`, and the layout.

    Raises:
        TypeError: if `out` is read-only, not contiguous, or in other memory.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        device, devices = out.device.type, ("cpu", "cuda") if or_device else ("cpu",)
        if device not in devices or not is_plain(out, torch) or not out.is_contiguous():
            raise TypeError(f"only a contiguous tensor on {' or '.join(devices)} can be filled")
        if out.is_conj() or out.is_neg():
            raise TypeError("a view of a tensor that conjugates or negates it cannot be filled")
        room = raw_tensor(out, torch) if device == "cpu" else _cuda.OnDevice(out)
        return room, Layout("tensor", str(out.dtype).removeprefix("torch."), tuple(out.shape))
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
