"""The page "Hoplite with Ray", run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

import hoplite
import hoplite.ray
from hoplite.ray import _place

PAGE = Path(__file__).parents[3] / "docs" / "start" / "ray.md"


def test_all_of_the_page_runs(two_nodes: Cluster, stores: list[hoplite.ray.Node], tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text(
        # Where it hangs, if it does.
        "import faulthandler; faulthandler.dump_traceback_later(1140)\n"
        + "".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    )
    environment = {**os.environ, "RAY_ADDRESS": two_nodes.address}
    subprocess.run([sys.executable, program], env=environment, check=True)
    # It has stopped the stores.
    assert not _place.here().exists
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.ray.put(1)
