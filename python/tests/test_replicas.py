from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hoplite
from stores import LONG_GRACE, Cluster, retry


def test_a_value_with_replicas_survives_its_store(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, memory="64MiB", node_grace=LONG_GRACE) as cluster:
        value = np.arange(100_000)
        with hoplite.connect(cluster.sockets[0]) as client:
            client.put("array", value, replicas=2)
            known = retry(client.stat, "array")
            assert known is not None
            assert (known.replicas, known.creator) == (2, "node-0")
            client.put("small", {"step": 1}, replicas=2)
            client.put_many({f"part/{k}": np.full(2, k) for k in range(3)}, replicas=2)
            assert {info.replicas for info in client.list("part/")} == {2}
            client.reduce("sum", ["part/0", "part/1", "part/2"], replicas=3)
            total = retry(client.stat, "sum")
            assert total is not None
            assert total.replicas == 3
            with pytest.raises(hoplite.NotEnoughNodes) as caught:
                client.put("many", value, replicas=4)
            assert (caught.value.wanted, caught.value.present) == (4, 3)
            with pytest.raises(hoplite.LimitExceeded):
                client.put("too many", value, replicas=65)
            with pytest.raises(hoplite.InvalidRequest):
                client.put("more than all", value, replicas=2, confirm=3)
        cluster.store(0).kill()
        with hoplite.connect(cluster.sockets[1]) as client:
            assert (client.get("array") == value).all()
            assert client.get("small") == {"step": 1}
            assert (client.get("sum") == [3, 3]).all()


def test_a_put_may_return_after_the_first_copy(
    cluster: Cluster, client: hoplite.Client, fresh: str
) -> None:
    client.put(fresh + "x", np.zeros(100_000), replicas=3, confirm=1)
    client.put(fresh + "y", np.zeros(100_000), replicas=3, confirm=2)
