from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_cluster import MEMORY, NODE, PATIENCE, eventually, objects, on, processes, start_stores

import hoplite
import hoplite.ray
import stores as daemons
from hoplite._programs import program
from hoplite.ray import _nodes
from hoplite.ray._labels import place_labels
from hoplite.ray._place import here, place
from hoplite.ray._supervisor import ACTORS, Settings, Supervisor, name_of

hoplite.ray.register()

Nodes = list[hoplite.ray.Node]


def pid_of(path: str | Path, name: str) -> int:
    (pid,) = [pid for pid, known in processes(path).items() if known.startswith(name)]
    return pid


def round_trip() -> bool:
    @ray.remote
    def get(ref: hoplite.ray.Ref) -> float:
        return float(hoplite.ray.get(ref, timeout=PATIENCE)[0])

    with hoplite.ray.put(np.full(100_000, 3.0)) as ref:
        return ray.get([get.options(**on(node)).remote(ref) for node in ("first", "second")]) == [
            3.0,
            3.0,
        ]


@pytest.fixture
def running(two_nodes: Cluster) -> Nodes:
    return start_stores()


def test_to_start_again_changes_nothing(running: Nodes) -> None:
    before = processes(here().directory.parent)
    assert len(before) == 4
    assert start_stores() == running == hoplite.ray.refresh()
    assert processes(here().directory.parent) == before
    assert {node.state for node in running} == {"running"}
    assert round_trip()


def test_another_size_of_running_stores_is_a_warning(
    running: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    assert start_stores() == running
    assert "has no effect" not in caplog.text
    assert hoplite.ray.start_on_all_nodes(memory="100MiB") == running
    assert "memory=100MiB has no effect on stores that run already" in caplog.text
    caplog.clear()
    assert hoplite.ray.refresh() == running
    assert "has no effect" not in caplog.text


def test_a_store_that_is_killed_comes_back(running: Nodes) -> None:
    lost = hoplite.ray.put(np.ones(100_000))
    kill_and_await(here().socket, "hoplite-store")
    with pytest.raises((hoplite.ObjectLost, hoplite.Timeout)):
        lost.get(timeout=0.5)
    lost.delete()


def round_trip_again() -> bool:
    try:
        return round_trip()
    except (hoplite.HopliteError, ray.exceptions.RayTaskError):
        return False


def kill_and_await(path: str | Path, name: str) -> None:
    victim = pid_of(path, name)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in processes(path) and name in processes(path).values())
    eventually(round_trip_again)


@ray.remote(num_cpus=0)
class Member:
    def join(self, rank: int) -> None:
        from ray.util import collective

        collective.init_collective_group(2, rank, "hoplite", "group")

    def total(self) -> float:
        from ray.util import collective

        array = np.ones(10)
        collective.allreduce(array, "group")
        return float(array[0])

    def leave(self) -> None:
        from ray.util import collective

        collective.destroy_collective_group("group")


def test_a_group_is_made_anew_after_a_store_was_killed(running: Nodes) -> None:
    members = [Member.options(**on(node)).remote() for node in ("first", "second")]
    for _ in range(2):
        ray.get([member.join.remote(rank) for rank, member in enumerate(members)])
        assert ray.get([member.total.remote() for member in members]) == [2.0, 2.0]
        kill_and_await(here().socket, "hoplite-store")
        ray.get([member.leave.remote() for member in members])
    for member in members:
        ray.kill(member)
    eventually(lambda: not objects(hoplite.ray.client()))


def test_a_directory_that_is_killed_comes_back_where_it_was(running: Nodes) -> None:
    kept = hoplite.ray.put(np.ones(100_000))
    cluster = f"ray-{here().cluster}"
    kill_and_await(cluster, "hoplite-directo")
    assert kept.get(timeout=PATIENCE)[0] == 1.0
    kept.delete()


def test_a_launcher_that_is_killed_is_replaced(running: Nodes) -> None:
    launcher = int((here().directory / "launcher.lock").read_text())
    os.kill(launcher, signal.SIGKILL)
    eventually(
        lambda: (
            launcher not in processes(here().directory) and len(processes(here().directory)) == 2
        )
    )
    eventually(round_trip_again)


def test_a_supervisor_that_is_killed_goes_on(running: Nodes) -> None:
    before = processes(here().directory)
    supervisor = ray.get_actor(name_of(running[0].node_id), ACTORS)
    ray.kill(supervisor, no_restart=False)
    eventually(lambda: refreshed() == running)
    assert processes(here().directory) == before


def refreshed() -> Nodes | None:
    try:
        return hoplite.ray.refresh()
    except (ray.exceptions.RayError, RuntimeError):
        return None


@ray.remote(num_cpus=0)
class Producer:
    @ray.method(tensor_transport="hoplite_numpy")
    def make(self, ref: hoplite.ray.Ref) -> np.ndarray:
        return ref.get(timeout=PATIENCE) + 1

    @ray.method(tensor_transport="hoplite_numpy")
    def echo(self, array: np.ndarray) -> np.ndarray:
        return array

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
    producer = Producer.options(**on("third")).remote()
    with hoplite.ray.put(np.ones(100_000)) as ref:
        tensor = producer.make.remote(ref)
        assert ray.get(consumer.total.remote(tensor)) == 200_000.0
    (made,) = objects(client)
    node_id = ray.get(producer.node_id.remote())
    assert {known.node_id for known in hoplite.ray.refresh()} == {
        known.node_id for known in running
    } | {node_id}
    third = place(ray.get_runtime_context().get_session_name(), node_id)
    assert len(processes(third.directory)) == 2
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
    producer = Producer.options(**on("second")).remote()
    assert ray.get(producer.echo.remote(np.ones(3))).sum() == 3.0
    assert os.environ["HOPLITE_SOCKET"] == str(here().socket)
    cluster = here().directory.parent
    hoplite.ray.stop_on_all_nodes()
    assert not cluster.exists()
    eventually(lambda: not processes(cluster) and not processes(f"ray-{here().cluster}"))
    assert "HOPLITE_SOCKET" not in os.environ
    with pytest.raises(hoplite.ConnectFailed, match="start_on_all_nodes"):
        hoplite.ray.put(1)
    with pytest.raises(hoplite.ConnectFailed, match="start_on_all_nodes"):
        ray.get(producer.echo.remote(np.ones(3)))
    hoplite.ray.stop_on_all_nodes()
    with pytest.raises(RuntimeError, match="start_on_all_nodes"):
        hoplite.ray.refresh()
    start_stores()
    assert round_trip()


START = """
import sys
import ray, hoplite.ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ready", flush=True)
sys.stdin.readline()
nodes = hoplite.ray.start_on_all_nodes(memory=sys.argv[2])
assert hoplite.ray.put(b"theirs").get() == b"theirs"
print([node.node_id for node in nodes])
"""


def test_jobs_that_start_the_stores_at_once(two_nodes: Cluster) -> None:
    hoplite.ray.stop_on_all_nodes()
    command = [sys.executable, "-c", START, two_nodes.address, MEMORY]
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        for job in jobs:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("go\n")
            job.stdin.flush()
        said = {job.communicate()[0] for job in jobs}
    assert [job.returncode for job in jobs] == [0, 0]
    assert said == {f"{[node.node_id for node in start_stores()]}\n"}
    assert len(processes(here().directory.parent)) == 4
    assert round_trip()


def test_a_store_that_cannot_start_says_why(two_nodes: Cluster) -> None:
    hoplite.ray.stop_on_all_nodes()
    with pytest.raises(RuntimeError, match="--no-such-flag"):
        hoplite.ray.start_on_all_nodes(store_options=["--no-such-flag"])
    hoplite.ray.stop_on_all_nodes()
    start_stores()
    assert round_trip()


def test_daemons_that_share_a_secret(two_nodes: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of the tests")
    token.chmod(0o600)
    hoplite.ray.stop_on_all_nodes()
    options = ["--no-prefault"]
    hoplite.ray.start_on_all_nodes(memory=MEMORY, store_options=options, token_file=str(token))
    assert round_trip()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(token)]
    assert sum(f"--token-file\0{token}".encode() in command for command in commands) == 3, (
        "the directory too"
    )
    hoplite.ray.stop_on_all_nodes()
    start_stores()
    assert round_trip()


def test_daemons_with_certificates(two_nodes: Cluster, tmp_path: Path) -> None:
    (address,) = {node["NodeManagerAddress"] for node in ray.nodes()}
    subprocess.run(
        [program("hoplite"), "certs", tmp_path, f"node,{address}"], check=True, capture_output=True
    )
    hoplite.ray.stop_on_all_nodes()
    files = {"tls_cert": "node.pem", "tls_key": "node-key.pem", "tls_ca": "ca.pem"}
    hoplite.ray.start_on_all_nodes(
        memory=MEMORY,
        store_options=["--no-prefault"],
        **{name: str(tmp_path / file) for name, file in files.items()},
    )
    assert round_trip()
    hoplite.ray.stop_on_all_nodes()
    start_stores()
    assert round_trip()


SECURITY = {
    "token_file": "/s/token",
    "tls_cert": "/s/node.pem",
    "tls_key": "/s/key.pem",
    "tls_ca": "/s/ca.pem",
    "tls_name": "hoplite.internal",
}


def settings_of(monkeypatch: pytest.MonkeyPatch, **said: Any) -> Settings:
    told: list[Settings] = []
    monkeypatch.setattr(_nodes, "alive_nodes", list)
    monkeypatch.setattr(
        _nodes, "_attach_or_start", lambda _nodes, settings, _timeout: told.append(settings) or []
    )
    hoplite.ray.start_on_all_nodes(**said)
    return told[0]


def test_what_the_caller_says_about_security_reaches_both_daemons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in SECURITY:
        monkeypatch.delenv(f"HOPLITE_{name.upper()}", raising=False)
    assert not settings_of(monkeypatch).on_network
    settings = settings_of(monkeypatch, **SECURITY)
    assert settings.on_network
    for name, value in SECURITY.items():
        monkeypatch.setenv(f"HOPLITE_{name.upper()}", value)
    assert settings_of(monkeypatch) == settings
    other = Settings(None, False, None, (), token_file="/other")
    assert settings_of(monkeypatch, token_file="/other") == other, (
        "not with the certificates of another cluster"
    )

    place = SimpleNamespace(cluster="c", node="n", socket="/s/store.sock")
    supervisor = cast("Supervisor", SimpleNamespace(_place=place, _raylet=1))
    spec = Supervisor._spec(supervisor, settings, "10.0.0.1", None, {})
    for command in (spec["store"], spec["directory"]):
        said = dict(itertools.pairwise(command))
        assert {name: said.get(f"--{name.replace('_', '-')}") for name in SECURITY} == SECURITY
        assert "--insecure" not in command


def test_certificates_are_enough_for_the_network() -> None:
    assert Settings(None, False, None, (), tls_cert="/s/node.pem").on_network


def test_several_machines_need_to_be_trusted() -> None:
    nodes = [
        {"NodeManagerAddress": address, "Resources": {}} for address in ("10.0.0.1", "10.0.0.2")
    ]
    with pytest.raises(ValueError, match="insecure=True"):
        _nodes._start(nodes, [], Settings(None, False, None, ()), 1.0)


def test_stores_know_where_their_nodes_are(running: Nodes) -> None:
    command = [program("hoplite"), "status", "--json"]
    environment = {**os.environ, "HOPLITE_SOCKET": running[0].socket}
    said = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=PATIENCE
    ).stdout
    assert json.loads(said)["shards"][0]["place_keys"] == [{"keys": ["rack"], "nodes": 2}]


def test_labels_of_nodes_that_say_where_they_are() -> None:
    def found(
        labels: dict[str, str], chosen: dict[str, str] | None = None, *options: str
    ) -> dict[str, str]:
        return place_labels({"Labels": labels}, Settings(None, False, None, options, labels=chosen))

    assert place_labels({}, Settings(None, False, None, ())) == {}
    labels = {
        "ray.io/node-id": "1",
        "ray.io/availability-zone": "a",
        "example.com/rack": "7",
        "shelf": "3",
        "pod": "",
    }
    assert found(labels) == {"zone": "a", "rack": "7"}
    assert found({**labels, "example.com/zone": "b", "rack": "8"}) == {"zone": "b", "rack": "8"}, (
        "the shortest name"
    )
    assert found(labels, {"host": "shelf", "rack": "none"}) == {"host": "3"}
    assert found(labels, {}) == {}
    assert found(labels, None, "--labels=rack=9") == found(labels, None, "--labels", "rack=9") == {}


def test_labels_have_keys_that_stores_know() -> None:
    with pytest.raises(ValueError, match="not row"):
        hoplite.ray.start_on_all_nodes(labels={"row": "example.com/row"})


@pytest.fixture
def foreign(two_nodes: Cluster, tmp_path: Path) -> Iterator[daemons.Cluster]:
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


def test_the_store_of_somebody_else_is_started_anew(
    foreign: daemons.Cluster, tmp_path: Path
) -> None:
    socket = foreign.sockets[0]
    nodes = hoplite.ray.start_on_all_nodes(socket=socket)
    assert round_trip()
    foreign.store(0).kill()
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.ray.put(1)
    assert not processes(here().directory)
    directory = foreign.directory
    options = [
        "--node-id",
        "node-0",
        "--socket",
        socket,
        "--memory",
        "64MiB",
        "--no-prefault",
        "--print-addresses",
    ]
    again = daemons.Daemon(
        tmp_path / "again.log", "hoplite-store", "--directory", directory, *options
    )
    foreign.daemons.append(again)
    eventually(round_trip_again)
    assert hoplite.ray.refresh() == nodes


def test_there_is_no_store_where_one_was_said_to_be(foreign: daemons.Cluster) -> None:
    with pytest.raises(hoplite.ConnectFailed, match="nowhere"):
        hoplite.ray.start_on_all_nodes(socket="/tmp/nowhere.sock")


def test_what_another_ray_has_left_in_the_store_of_somebody_else_is_deleted(
    foreign: daemons.Cluster,
) -> None:
    gone = place("a session that is over", "its-node")
    gone.create()
    # No process can have this id.
    (gone.directory / "raylet.pid").write_text(str(2**22 + 1))
    with foreign.connect() as other:
        other.put(f"{gone.prefix}p-1/left", b"left")
        hoplite.ray.start_on_all_nodes(socket=foreign.sockets[0])
        eventually(lambda: objects(other) == set())
    assert not gone.exists
