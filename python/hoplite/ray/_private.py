"""What is used of Ray that Ray does not document: all of it is here. Checked with Ray 2.60."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import cloudpickle
from ray._private import state
from ray._private.tensor_serialization_utils import zero_copy_tensors_reducer
from ray._private.worker import global_worker
from ray.experimental.rdt.util import get_transport_data_type

#: The protocol in which Ray pickles, which lets the bytes of arrays stay outside.
_PICKLE_PROTOCOL = 5
#: What pickles the types of the transports that this process has used.
_reducers: dict[type, Callable[[Any], Any]] = {}


def check_is_running() -> None:
    """Checks that this process is one of Ray.

    Raises:
        RuntimeError
    """
    if not ray.is_initialized():
        raise RuntimeError("Ray is not running in this process: call ray.init() first")


def is_managed_here(object_id: str) -> bool:
    """Whether Ray counts the references to this RDT object in this process, which owns or borrows it.

    Looks without Ray's lock: Ray may hold it where this is called. A look at a dict is atomic.
    """
    return object_id in global_worker.rdt_manager._managed_rdt_metadata


def can_receive(actor: Any) -> bool:
    """Whether Ray has a thread in an actor that receives tensors for it."""
    return bool(getattr(actor, "_ray_enable_tensor_transport", True))


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes of the Ray cluster, in a fixed order."""
    check_is_running()
    # It is documented, but has no types.
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))


def ended_jobs() -> set[str]:
    """The ids of the jobs that are over, however they ended, as far as Ray remembers them."""
    return {str(job["JobID"]) for job in state.jobs() if job["IsDead"]}  # type: ignore[no-untyped-call]


def raylet_pid() -> int | None:
    """The daemon of Ray that started this worker process, and does not outlive its node."""
    parent = os.getppid()
    try:
        is_raylet = Path(f"/proc/{parent}/comm").read_text().strip() == "raylet"
    except OSError:
        return None
    return parent if is_raylet else None


def pickle_as_before(transport: str) -> None:
    """Has Ray pickle as before what is of the type of a transport and goes another way.

    When a process sends something by a transport, Ray registers a serializer for the type, which from then on pickles also
    what goes through Ray's own store, with the bytes of arrays in the pickle: a put of 100 MiB takes 230 ms instead of 14,
    and each get makes a copy.
    """
    data_type = get_transport_data_type(transport)
    by_ray = cloudpickle.CloudPickler.dispatch[data_type]
    if by_ray is _reducers.get(data_type):
        return
    context = global_worker.get_serialization_context()  # type: ignore[no-untyped-call]
    # An option of Ray for tensors.
    is_zero_copy = context._zero_copy_tensors_enabled and data_type is not np.ndarray

    def reduce(value: Any) -> Any:
        if getattr(context._thread_local, "use_external_transport", False):
            return by_ray(value)
        return zero_copy_tensors_reducer(value) if is_zero_copy else value.__reduce_ex__(_PICKLE_PROTOCOL)

    _reducers[data_type] = cloudpickle.CloudPickler.dispatch[data_type] = reduce
