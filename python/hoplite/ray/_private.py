"""What is used of Ray that Ray does not document: all of it is here. Checked with Ray 2.60."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray._private import state
from ray._private.serialization import SerializationContext
from ray._private.worker import global_worker
from ray.experimental.rdt.util import get_transport_data_type

#: The protocol in which Ray pickles, which lets the bytes of arrays stay outside.
_PICKLE_PROTOCOL = 5
_Pickling = Callable[[Any], Any]


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


class _Reducer:
    """Pickles a type as Ray's transports need it while they send, and else as it was pickled before."""

    def __init__(self, context: Any, by_ray: _Pickling, before: _Pickling | None) -> None:
        self._context = context
        self.by_ray = by_ray
        self.before = before

    def __call__(self, value: Any) -> Any:
        if getattr(self._context._thread_local, "use_external_transport", False):
            return self.by_ray(value)
        return value.__reduce_ex__(_PICKLE_PROTOCOL) if self.before is None else self.before(value)


def keep_serializers(transports: Collection[str]) -> None:
    """Has Ray pickle as before what is of the type of one of these transports and goes another way. To be called once.

    When a process first sends something by a transport, Ray registers a serializer for the type in the place of the one
    that is there, if any. From then on that pickles also what goes through Ray's own store, with the bytes of arrays in the
    pickle: a put of 100 MiB takes 230 ms instead of 14, and each get makes a copy. And Ray registers it once only: if
    somebody else registers one for the type later, the transport sends nothing any more.
    """
    contexts: Any = SerializationContext
    serialize = contexts.serialize_rdt_objects
    dispatch: Any = cloudpickle.CloudPickler.dispatch
    by_ray: dict[type, _Pickling] = {}

    @functools.wraps(serialize)
    def serialize_rdt_objects(context: Any, value: Any, tensor_transport: str) -> Any:
        if tensor_transport not in transports:
            return serialize(context, value, tensor_transport)
        data_type = get_transport_data_type(tensor_transport)
        found = dispatch.get(data_type)
        before = found.before if isinstance(found, _Reducer) else found
        if data_type in by_ray and not isinstance(found, _Reducer):
            dispatch[data_type] = _Reducer(context, by_ray[data_type], before)
        try:
            return serialize(context, value, tensor_transport)
        finally:
            registered = dispatch.get(data_type)
            if registered not in (None, found) and not isinstance(registered, _Reducer):
                by_ray[data_type] = registered
                dispatch[data_type] = _Reducer(context, registered, before)

    contexts.serialize_rdt_objects = serialize_rdt_objects
