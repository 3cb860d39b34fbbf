"""The page on the backend: its example works as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

from ranks import is_installed

PAGE = Path(__file__).parents[3] / "docs" / "start" / "torch.md"


def test_the_example_of_the_page(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("the package was installed without its entry points")
    (program,) = re.findall(r"^```python\n# train.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "train.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"loss (\d\.\d+)\n", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 1


def test_the_page_on_weights(tmp_path: Path) -> None:
    """All of it is one program."""
    page = (PAGE.parents[1] / "howto" / "broadcast-weights.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 2]\n"
