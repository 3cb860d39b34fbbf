"""A real Ray cluster of two nodes on this machine, with small object stores, for the tests in this folder."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray_cluster import NODE, RACK, eventually, objects, processes, start_stores

import hoplite
import hoplite.ray
from hoplite.ray._place import here

# The nodes are not to use a token of this user.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="session")
def outer_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Ray's nodes look for a store of somebody else. There is none, but for the tests that put one there."""
    return tmp_path_factory.mktemp("outer") / "store.sock"


@pytest.fixture(scope="session")
def sessions_of_ray() -> Iterator[Path]:
    """Where Ray keeps its sessions, apart from those of others: the tests find them by it, and then leave none."""
    # Ray's sockets are in there, and the path of one has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        os.environ["RAY_TMPDIR"] = directory
        yield Path(directory)
        eventually(lambda: not processes(directory))


@pytest.fixture(scope="session")
def two_nodes(outer_socket: Path, sessions_of_ray: Path) -> Iterator[Cluster]:
    """Two nodes of Ray: one with the resource "first", one with "second"."""
    before = dict(os.environ)
    os.environ["HOPLITE_SOCKET"] = str(outer_socket)
    # A node that was killed is noticed within seconds, not within a quarter of a minute.
    noticing = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    head = {**NODE, "resources": {"first": 100}, "labels": {RACK: "first"}, "_system_config": noticing}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**NODE, resources={"second": 100}, labels={RACK: "second"})
        ray.init(
            address=cluster.address,
            runtime_env={
                "worker_process_setup_hook": "hoplite.ray.register",
                # For what the tests send to the workers.
                "env_vars": {"PYTHONPATH": os.path.dirname(__file__)},
            },
            log_to_driver=False,
        )
        hoplite.ray.register()
        hoplites = here().directory.parent
        yield cluster
        hoplite.ray.stop_on_all_nodes()
        assert not hoplites.exists()
        eventually(lambda: not processes(hoplites))
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def stores(two_nodes: Cluster) -> list[hoplite.ray.Node]:
    """A store on each node."""
    return start_stores()


@pytest.fixture
def client(stores: list[hoplite.ray.Node]) -> hoplite.Client:
    return hoplite.ray.client()


@pytest.fixture
def nothing_left(client: hoplite.Client) -> Iterator[None]:
    """Checks that a test leaves no object behind, once it has let go of its own."""
    before = objects(client)
    yield
    gc.collect()
    eventually(lambda: objects(client) <= before)
