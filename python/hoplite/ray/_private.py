"""What is used of Ray that Ray does not document: all of it is here. Checked with Ray 2.60."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
from ray._private import state
from ray._private.worker import global_worker


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
