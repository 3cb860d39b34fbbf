from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

import hoplite
import hoplite.ray
from hoplite.ray import _place

sys.path.append(str(Path(__file__).parents[1]))
import pages

SHOWN = [page for page in pages.all_pages() if page.uses_ray]


@pytest.mark.parametrize("page", SHOWN, ids=[page.name for page in SHOWN])
def test_page(page: pages.Page, two_nodes: Cluster, tmp_path: Path) -> None:
    pages.run(page, tmp_path, {"RAY_ADDRESS": two_nodes.address})
    assert not _place.here().exists
    with pytest.raises(hoplite.ConnectFailed):
        hoplite.ray.put(1)
