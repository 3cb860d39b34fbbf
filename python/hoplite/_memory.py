"""Bytes of arrays and tensors, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    #: Arrays do not declare the buffer protocol on Python 3.11.
    Bytes = Any


def raw(array: npt.NDArray[Any]) -> Bytes:
    """Returns the bytes in C order; in place if contiguous."""
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


def raw_tensor(tensor: Any, torch: Any) -> Bytes:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return memory_of(tensor, torch)


def memory_of(tensor: Any, torch: Any) -> Bytes:
    """Returns the memory of a contiguous tensor, writable and in place."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    # The stride of a dimension of one element is arbitrary.
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    # After `Tensor.numpy`, FSDP cannot resize a tensor. After DLPack it can, but its arrays are
    # read-only before numpy 2.1 and with some versions of torch.
    lent = np.from_dlpack(flat)
    return lent if lent.flags.writeable else flat.numpy()


def is_plain(tensor: Any, torch: Any) -> bool:
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_known and tensor.layout is torch.strided and not tensor.is_quantized


def in_a_byte_order_that_lasts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Converts ml_dtypes to native byte order: numpy cannot store another one."""
    dtype = array.dtype
    if dtype.isnative or dtype.type.__module__ != "ml_dtypes":
        return array
    return array.astype(dtype.newbyteorder("="))


def import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            'this needs torch, which is not installed; framework="numpy" makes arrays of numpy'
        ) from error
    return torch
