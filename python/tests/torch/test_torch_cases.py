"""torch's own tests of its backends."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stores import Cluster

pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")
pytest.importorskip("expecttest", reason="the tests of torch need it")

PROGRAM = Path(__file__).with_name("torch_cases.py")


@pytest.mark.timeout(600)
def test_cases_of_torch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two ranks and with three, at the same time: they wait more than they compute."""
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[0])
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(run, ("2", "3")))
    for done in runs:
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        ran = re.search(r"^Ran (\d+) tests", done.stdout, re.M)
        skipped = re.search(r"^OK \(skipped=(\d+)\)", done.stdout, re.M)
        assert ran is not None
        # That they were found, and not skipped all.
        assert int(ran[1]) - int(skipped[1] if skipped else 0) >= 75, done.stdout[-2_000:]


def run(world_size: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), world_size]
    return subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
