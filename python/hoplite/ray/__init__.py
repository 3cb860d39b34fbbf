"""Hoplite with Ray: stores, handles for tasks, tensor transports, and a collective backend.

    import ray
    import hoplite.ray

    ray.init(runtime_env={"worker_process_setup_hook": "hoplite.ray.register"})
    hoplite.ray.register()
    hoplite.ray.start_on_all_nodes()

    weights = hoplite.ray.put(array)                       # a small handle, for tasks
    results = [work.remote(weights) for _ in range(100)]   # each calls hoplite.ray.get(weights)

See `docs/start/ray.md` and `docs/reference/ray.md`.
"""

import ray

from hoplite._supported import check

check(ray)

from hoplite.ray._nodes import refresh, start_on_all_nodes, stop_on_all_nodes  # noqa: E402
from hoplite.ray._objects import Ref, client, delete, get, new_ref, put, reduce, wait  # noqa: E402
from hoplite.ray._register import register  # noqa: E402
from hoplite.ray._supervisor import Node  # noqa: E402

__all__ = [
    "Node",
    "Ref",
    "client",
    "delete",
    "get",
    "new_ref",
    "put",
    "reduce",
    "refresh",
    "register",
    "start_on_all_nodes",
    "stop_on_all_nodes",
    "wait",
]
