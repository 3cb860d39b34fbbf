"""A real Ray cluster of two nodes on this machine, with small object stores, for the tests in this folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hoplite
import hoplite.ray
import pytest
import ray
from ray.cluster_utils import Cluster

from ray_cluster import eventually, objects, start_stores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Ray takes seconds to start, and each worker that imports torch; minutes, on a machine that is busy.
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Cluster]:
    """Two nodes of Ray: one with the resource "first", one with "second"."""
    before = dict(os.environ)
    # Not for Ray: nobody's store is to be attached to.
    os.environ["HOPLITE_SOCKET"] = "/nonexistent/store.sock"
    common = {"num_cpus": 8, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**common, "resources": {"first": 100}})
    try:
        cluster.add_node(**common, resources={"second": 100})
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
        yield cluster
        hoplite.ray.stop_on_all_nodes()
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
