"""Some of torch's tests of backends. `make suites` runs all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stores import Cluster

pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")
pytest.importorskip("expecttest", reason="the tests of torch need it")

ROOT = Path(__file__).parents[2]
SELECTED = (
    "(all_gather or all_reduce or all_to_all or barrier or batch_isend_irecv_gloo or broadcast or gather or reduce "
    "or scatter or send_recv or destroy or get_rank or get_backend or Backend_enum_class or DistributedDataParallelCPU "
    "or grads_same or static_graph_api_cpu) "
    "and not ddp and not cuda and not nccl and not monitored and not (group and not full_group)"
)


def test_cases_of_torch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[0])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "suites"))
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(run, ("2", "3")))
    for done in runs:
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None
        assert int(passed[1]) >= 75, done.stdout[-2_000:]


def run(world_size: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "exclusions",
        "-p",
        "no:cacheprovider",
        "-k",
        SELECTED,
    ]
    command += ["--timeout", "1200", str(ROOT / "suites" / "torch_distributed.py")]
    environment = {**os.environ, "WORLD_SIZE": world_size}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
