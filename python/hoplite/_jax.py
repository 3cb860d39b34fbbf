"""Converts between arrays of JAX and bytes in host memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite._headers import is_narrow

if TYPE_CHECKING:
    import numpy.typing as npt


def host_array(value: object) -> npt.NDArray[Any] | None:
    """Returns an array's elements, in place if one host device has all of them; None for other
    values, tracers and random keys.

    Raises:
        TypeError: for an array that is not in host memory.
    """
    jax = sys.modules.get("jax")
    array_type = getattr(jax, "Array", None)
    if jax is None or array_type is None or not isinstance(value, array_type):
        return None
    if isinstance(value, jax.core.Tracer) or not isinstance(value.dtype, np.dtype):
        return None
    elsewhere = sorted(str(device) for device in value.devices() if device.platform != "cpu")
    if elsewhere:
        raise TypeError(
            f"an array on the device {elsewhere[0]} cannot be put; move it to the host first"
        )
    return np.asarray(value)


def from_host(array: npt.NDArray[Any]) -> Any:
    """Makes an array on JAX's default device. On a CPU device, it shares memory that is aligned to
    64 bytes, and JAX never writes to it.

    Raises:
        TypeError: for a dtype that this version of JAX cannot store.
    """
    jax = import_jax()
    try:
        with jax.enable_x64(True):
            return jax.device_put(array, may_alias=True)
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("INVALID_ARGUMENT"):
            raise
        raise TypeError(f"this version of JAX has no arrays of {array.dtype}") from error


def has(dtype: np.dtype[Any]) -> bool:
    sizes = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
    return is_narrow(dtype) or (dtype.isnative and dtype.itemsize <= sizes.get(dtype.kind, 0))


def import_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise ImportError(
            'this needs jax, which is not installed; framework="numpy" makes arrays of numpy'
        ) from error
    return jax


def rebuild_jax(array: npt.NDArray[Any]) -> Any:
    """Stored pickles name this function: keep its name and arguments."""
    return from_host(array)
