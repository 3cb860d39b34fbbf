"""Stores on the nodes of Ray: started, kept running, attached to, and stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_cluster import NODE, eventually, objects, on, processes, start_stores

import hoplite
import hoplite.ray
import stores as daemons
from hoplite.ray import _nodes
from hoplite.ray._keeper import ACTORS, Settings, name_of
from hoplite.ray._place import here, place

hoplite.ray.register()

Nodes = list[hoplite.ray.Node]


def pid_of(path: str | Path, name: str) -> int:
    (pid,) = [pid for pid, known in processes(path).items() if known.startswith(name)]
    return pid


def round_trip() -> bool:
    """Whether an object that was put here arrives on the other nodes."""

    @ray.remote
    def get(ref: hoplite.ray.Ref) -> float:
        return float(hoplite.ray.get(ref, timeout=10)[0])

    with hoplite.ray.put(np.full(100_000, 3.0)) as ref:
        return ray.get([get.options(**on(node)).remote(ref) for node in ("first", "second")]) == [3.0, 3.0]


@pytest.fixture
def running(two_nodes: Cluster) -> Nodes:
    return start_stores()


def test_to_start_again_changes_nothing(running: Nodes) -> None:
    before = processes(here().directory.parent)
    # Two guardians, two stores.
    assert len(before) == 4
    assert start_stores() == running == hoplite.ray.refresh()
    assert processes(here().directory.parent) == before
    assert {node.state for node in running} == {"running"}
    assert round_trip()


def test_a_store_that_is_killed_comes_back(running: Nodes) -> None:
    lost = hoplite.ray.put(np.ones(100_000))
    store = pid_of(here().socket, "hoplite-store")
    os.kill(store, signal.SIGKILL)
    eventually(
        lambda: store not in processes(here().socket) and "hoplite-store" in processes(here().socket).values()
    )
    eventually(round_trip_again)
    with pytest.raises((hoplite.ObjectLost, hoplite.Timeout)):
        lost.get(timeout=0.5)
    lost.delete()


def round_trip_again() -> bool:
    try:
        return round_trip()
    except (hoplite.HopliteError, ray.exceptions.RayTaskError):
        # The connections of the other processes may notice later.
        return False


def test_a_directory_that_is_killed_comes_back_where_it_was(running: Nodes) -> None:
    kept = hoplite.ray.put(np.ones(100_000))
    cluster = f"ray-{here().cluster}"
    directory = pid_of(cluster, "hoplite-directo")
    os.kill(directory, signal.SIGKILL)
    eventually(
        lambda: directory not in processes(cluster) and "hoplite-directo" in processes(cluster).values()
    )
    eventually(round_trip_again)
    assert kept.get(timeout=10)[0] == 1.0
    kept.delete()


def test_a_guardian_that_is_killed_is_replaced(running: Nodes) -> None:
    guardian = int((here().directory / "guardian.lock").read_text())
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: guardian not in processes(here().directory) and len(processes(here().directory)) == 2)
    eventually(round_trip_again)


def test_a_keeper_that_is_killed_goes_on(running: Nodes) -> None:
    before = processes(here().directory)
    keeper = ray.get_actor(name_of(running[0].node_id), ACTORS)
    ray.kill(keeper, no_restart=False)
    eventually(lambda: refreshed() == running)
    assert processes(here().directory) == before


def refreshed() -> Nodes | None:
    try:
        return hoplite.ray.refresh()
    except (ray.exceptions.RayError, RuntimeError):
        # Ray has not noticed yet that the node is gone, or the keeper is not there again yet.
        return None


@ray.remote(num_cpus=0)
class Producer:
    @ray.method(tensor_transport="hoplite_numpy")
    def make(self, ref: hoplite.ray.Ref) -> np.ndarray:
        return ref.get(timeout=30) + 1

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Consumer:
    def total(self, array: np.ndarray) -> float:
        return float(array.sum())


def test_a_node_that_joins_and_is_lost(two_nodes: Cluster, running: Nodes) -> None:
    client = hoplite.ray.client()
    node = two_nodes.add_node(**NODE, resources={"third": 100})
    consumer = Consumer.options(**on("second")).remote()
    # Nobody has said that there is another node: it gets its store when it needs one.
    producer = Producer.options(**on("third")).remote()
    with hoplite.ray.put(np.ones(100_000)) as ref:
        tensor = producer.make.remote(ref)
        assert ray.get(consumer.total.remote(tensor)) == 200_000.0
    (made,) = objects(client)
    node_id = ray.get(producer.node_id.remote())
    assert {known.node_id for known in hoplite.ray.refresh()} == {known.node_id for known in running} | {
        node_id
    }
    third = place(ray.get_runtime_context().get_session_name(), node_id)
    assert len(processes(third.directory)) == 2
    # It takes its store with it, but not what is elsewhere too.
    two_nodes.remove_node(node, allow_graceful=False)
    eventually(lambda: not processes(third.directory) and not third.exists)
    eventually(lambda: refreshed() == running)
    assert ray.get(consumer.total.remote(tensor)) == 200_000.0
    assert objects(client) == {made}
    del tensor
    eventually(lambda: not objects(client))
    ray.kill(consumer)


def test_nothing_is_left_after_a_stop(running: Nodes) -> None:
    assert round_trip()
    assert os.environ["HOPLITE_SOCKET"] == str(here().socket)
    cluster = here().directory.parent
    hoplite.ray.stop_on_all_nodes()
    assert not cluster.exists()
    eventually(lambda: not processes(cluster) and not processes(f"ray-{here().cluster}"))
    assert "HOPLITE_SOCKET" not in os.environ
    with pytest.raises(hoplite.ConnectFailed, match="start_on_all_nodes"):
        hoplite.ray.put(1)
    hoplite.ray.stop_on_all_nodes()
    with pytest.raises(RuntimeError, match="start_on_all_nodes"):
        hoplite.ray.refresh()
    start_stores()
    assert round_trip()


def test_a_store_that_cannot_start_says_why(two_nodes: Cluster) -> None:
    hoplite.ray.stop_on_all_nodes()
    with pytest.raises(RuntimeError, match="--no-such-flag"):
        hoplite.ray.start_on_all_nodes(store_options=["--no-such-flag"])
    hoplite.ray.stop_on_all_nodes()
    start_stores()
    assert round_trip()


def test_several_machines_need_to_be_trusted() -> None:
    nodes = [{"NodeManagerAddress": address, "Resources": {}} for address in ("10.0.0.1", "10.0.0.2")]
    with pytest.raises(ValueError, match="insecure=True"):
        _nodes._start(nodes, [], Settings(None, False, None, ()), 1.0)


@pytest.fixture
def foreign(two_nodes: Cluster, tmp_path: Path) -> Iterator[daemons.Cluster]:
    """A store that somebody else has started, and none of ours."""
    hoplite.ray.stop_on_all_nodes()
    with daemons.Cluster(tmp_path, nodes=2, memory="64MiB") as cluster:
        yield cluster
        hoplite.ray.stop_on_all_nodes()


def test_the_store_of_somebody_else_is_used_and_left_as_it_was(foreign: daemons.Cluster) -> None:
    socket = foreign.sockets[0]
    with foreign.connect() as other:
        other.put("theirs", b"kept")
        nodes = hoplite.ray.start_on_all_nodes(socket=socket)
        assert {node.state for node in nodes} == {"attached"}
        assert hoplite.ray.refresh() == nodes
        assert round_trip()
        mine = hoplite.ray.put(np.ones(100_000))
        assert mine.id in objects(other)
        hoplite.ray.stop_on_all_nodes()
        assert objects(other) == {"theirs"}
    assert not here().directory.parent.exists()


def test_the_store_of_somebody_else_is_found(foreign: daemons.Cluster, outer_socket: Path) -> None:
    outer_socket.symlink_to(foreign.sockets[1])
    try:
        assert {node.state for node in hoplite.ray.start_on_all_nodes()} == {"attached"}
        assert hoplite.ray.client().node == "node-1"
    finally:
        outer_socket.unlink()


def test_there_is_no_store_where_one_was_said_to_be(foreign: daemons.Cluster) -> None:
    with pytest.raises(hoplite.ConnectFailed, match="nowhere"):
        hoplite.ray.start_on_all_nodes(socket="/tmp/nowhere.sock")


def test_what_another_ray_has_left_in_the_store_of_somebody_else_is_deleted(foreign: daemons.Cluster) -> None:
    gone = place("a session that is over", "its-node")
    gone.create()
    # No process has this number: it is larger than the kernel gives.
    (gone.directory / "raylet.pid").write_text(str(2**22 + 1))
    with foreign.connect() as other:
        other.put(f"{gone.prefix}p-1/left", b"left")
        hoplite.ray.start_on_all_nodes(socket=foreign.sockets[0])
        eventually(lambda: objects(other) == set())
    assert not gone.exists
