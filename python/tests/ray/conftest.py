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

os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="session")
def outer_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outer") / "store.sock"


@pytest.fixture(scope="session")
def sessions_of_ray() -> Iterator[Path]:
    # Paths of Ray's sockets may have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        os.environ["RAY_TMPDIR"] = directory
        yield Path(directory)
        eventually(lambda: not processes(directory))


@pytest.fixture(scope="session")
def two_nodes(outer_socket: Path, sessions_of_ray: Path) -> Iterator[Cluster]:
    before = dict(os.environ)
    os.environ["HOPLITE_SOCKET"] = str(outer_socket)
    noticing = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    head = {
        **NODE,
        "resources": {"first": 100},
        "labels": {RACK: "first"},
        "_system_config": noticing,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**NODE, resources={"second": 100}, labels={RACK: "second"})
        ray.init(
            address=cluster.address,
            runtime_env={
                "worker_process_setup_hook": "hoplite.ray.register",
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
    return start_stores()


@pytest.fixture
def client(stores: list[hoplite.ray.Node]) -> hoplite.Client:
    return hoplite.ray.client()


@pytest.fixture
def nothing_left(client: hoplite.Client) -> Iterator[None]:
    before = objects(client)
    yield
    gc.collect()
    eventually(lambda: objects(client) <= before)
