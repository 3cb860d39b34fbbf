"""All uses of undocumented parts of Ray."""

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

_PICKLE_PROTOCOL = 5
_Pickling = Callable[[Any], Any]


def check_is_running() -> None:
    if not ray.is_initialized():
        raise RuntimeError("Ray is not running in this process: call ray.init() first")


def is_managed_here(object_id: str) -> bool:
    """`True` if this process owns or borrows the RDT (Ray Direct Transport) object. Avoids Ray's
    lock, which the caller may hold.
    """
    return object_id in global_worker.rdt_manager._managed_rdt_metadata


def can_receive(actor: Any) -> bool:
    """`True` if Ray runs a receiver thread for tensors."""
    return bool(getattr(actor, "_ray_enable_tensor_transport", True))


def alive_nodes() -> list[dict[str, Any]]:
    check_is_running()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))


def ended_jobs() -> set[str]:
    return {str(job["JobID"]) for job in state.jobs() if job["IsDead"]}  # type: ignore[no-untyped-call]


def raylet_pid() -> int | None:
    """The process id of the raylet, which ends with its node; None outside workers."""
    parent = os.getppid()
    try:
        is_raylet = Path(f"/proc/{parent}/comm").read_text().strip() == "raylet"
    except OSError:
        return None
    return parent if is_raylet else None


class _Reducer:
    """Pickles a type as Ray's transports do, but only during sends."""

    def __init__(self, context: Any, by_ray: _Pickling, before: _Pickling | None) -> None:
        self._context = context
        self.by_ray = by_ray
        self.before = before

    def __call__(self, value: Any) -> Any:
        if getattr(self._context._thread_local, "use_external_transport", False):
            return self.by_ray(value)
        return value.__reduce_ex__(_PICKLE_PROTOCOL) if self.before is None else self.before(value)


def keep_serializers(transports: Collection[str]) -> None:
    """Limits the transports' pickling of their types to values that they send. Call it once.

    Else Ray, on first use, replaces a type's serializer also for its own store: a put takes 16
    times as long, and each get copies.
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
