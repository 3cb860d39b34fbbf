from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import EXAMPLES, Place
from example_runs import PATIENCE as WAIT

import hoplite
from stores import PATIENCE, Cluster, await_that

pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

STAND_INS = Path(__file__).parent.parent / "stand_ins"
ON_RAY = str(Path(__file__).parent / "on_ray.py")
STEPS = 3


def with_stand_ins(place: Place, **more: str) -> None:
    path = [str(STAND_INS), str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    place.environment |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **more}


def test_servers_of_vllm_have_the_weights_of_each_step(place: Place, cluster: Cluster) -> None:
    with_stand_ins(place, HOPLITE_SOCKET=cluster.sockets[0])
    command = [sys.executable, "-m", "vllm.serve", "vllm_weights.KnowsHoplite"]
    servers = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "PYTHONPATH": place.environment["PYTHONPATH"],
                "HOPLITE_SOCKET": socket,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for socket in cluster.sockets[1:]
    ]
    try:
        urls = []
        for server in servers:
            assert server.stdout is not None
            urls.append(server.stdout.readline().strip())
        done = place.run("vllm_weights", "some-model", *urls, "--steps", str(STEPS))
    finally:
        for server in servers:
            server.terminate()
        said = [server.communicate(timeout=PATIENCE)[0] for server in servers]
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        f"step {step}: 2 servers have the weights" for step in range(STEPS)
    ]
    sums = [[json.loads(line) for line in lines.splitlines()] for lines in said]
    assert sums[0] == sums[1]
    assert len(sums[0]) == STEPS
    for before, after in zip(sums[0], sums[0][1:], strict=False):
        assert after == pytest.approx([value / 2 for value in before])
    with hoplite.connect(cluster.sockets[0]) as client:
        assert not [info for info in client.list("weights") if "vllm-" in str(info.id)]


@pytest.mark.parametrize(
    ("example", "called"), [("vllm_weights", "vLLM"), ("verl_weights", "verl")]
)
def test_without_the_package_it_says_so(place: Place, example: str, called: str) -> None:
    done = place.run(example, "some-model", "http://127.0.0.1:1")
    assert done.code == 1
    assert "ModuleNotFoundError: No module named" in done.err
    assert called.lower() in done.err.splitlines()[-1]


def test_rollouts_of_verl_have_the_weights_of_each_step(place: Place) -> None:
    pytest.importorskip("ray", reason="Ray is an optional extra")
    with_stand_ins(place)
    command = [sys.executable, ON_RAY, str(EXAMPLES / "verl_weights.py"), f"steps={STEPS}"]
    done = subprocess.run(
        command,
        env=place.environment,
        cwd=place.directory,
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stderr
    nodes, steps = done.stdout.splitlines()[:2], done.stdout.splitlines()[2:]
    assert all(node.startswith("node ") for node in nodes)
    assert steps == [f"step {step}: 3 rollouts have the weights" for step in range(STEPS)]
    await_that("all processes have ended", lambda: place.processes() == [])
