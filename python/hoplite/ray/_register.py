"""Registers Hoplite with Ray in a process."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np
import ray
from ray.experimental import register_tensor_transport

from hoplite.ray import _late
from hoplite.ray._place import here

if TYPE_CHECKING:
    from hoplite.ray.transport import HopliteTransport

#: Two transports, because Ray allows one type of tensor for each.
TENSORS, ARRAYS = "HOPLITE", "HOPLITE_NUMPY"
COLLECTIVE = "HOPLITE"

_lock = threading.Lock()
_is_registered = False


def register() -> None:
    """Registers the tensor transports and the collective backend with Ray, in this process.

    The driver calls this, and each worker process when it starts:

        ray.init(runtime_env={"worker_process_setup_hook": "hoplite.ray.register"})

    It may be called several times, also before Ray is initialized, and in another hook. It does
    not block.

    Examples:
        >>> hoplite.ray.register()
        >>> hoplite.ray.register()
    """
    global _is_registered
    with _lock:
        if not _is_registered:
            from hoplite.ray.transport import NumpyTransport

            _register_transport(ARRAYS, NumpyTransport, np.ndarray)
            _late.when_imported("torch", _register_torch)
            _late.when_imported("ray.util.collective", _register_collective)
            _is_registered = True
    if ray.is_initialized():
        here().export()


def _register_torch() -> None:
    import torch

    from hoplite.ray.transport import TorchTransport

    _register_transport(TENSORS, TorchTransport, torch.Tensor)


def _register_transport(name: str, transport: type[HopliteTransport], data_type: type) -> None:
    with contextlib.suppress(ValueError):
        register_tensor_transport(name, ["cpu"], transport, data_type)


def _register_collective() -> None:
    from ray.util.collective import register_collective_backend

    from hoplite.ray.collective import HopliteGroup

    register_collective_backend(COLLECTIVE, HopliteGroup)
