from __future__ import annotations

import re
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from hoplite._group import link as links
from hoplite._group import schedules
from hoplite._group.member import Group
from hoplite._group.operation import Operation
from hoplite._group.round import Buffer
from stores import PATIENCE, Cluster


def test_who_leaves_a_group_that_failed_does_not_wait_for_the_directory(tmp_path: Path) -> None:
    # The directory delays deletes of unknown ids.
    with Cluster(tmp_path, nodes=1, memory="64MiB", node_grace="1h") as cluster:
        members = [
            Group(links.acquire(cluster.sockets[0], "test"), ["g/"] * 2, "g", rank, _failed)
            for rank in range(2)
        ]
        failed: Future[Exception | None] = Future()
        buffer = Buffer(np.zeros(1 << 20, np.uint8), "u8", (1 << 20,))
        members[0].submit(
            Operation(
                "allreduce",
                lambda round: schedules.allreduce(round, buffer, "sum"),
                failed.set_result,
                0.1,
            )
        )
        assert re.search(r"nothing has come from rank (0, )?1\b", str(failed.result(PATIENCE)))
        leaving = threading.Thread(target=members[0].close)
        leaving.start()
        # A delete at the directory takes 300 s.
        leaving.join(PATIENCE / 2)
        assert not leaving.is_alive()
        members[1].close()
        with cluster.connect() as client:
            assert list(client.list("g/")) == []


def test_all_ranks_are_told_whose_store_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the reason comes late.
    monkeypatch.setattr("hoplite._group.member.REASON_TIMEOUT", PATIENCE)
    with Cluster(tmp_path, nodes=3, memory="64MiB") as cluster, cluster.connect(1) as client:
        client.put("kept", np.zeros(50 << 20, np.uint8))
        members = [
            Group(links.acquire(cluster.sockets[rank], "test"), ["g/"] * 3, "g", rank, _failed)
            for rank in range(3)
        ]
        buffer = Buffer(np.zeros(16 << 20, np.uint8), "u8", (16 << 20,))
        all_failed: list[Future[Exception | None]] = [Future() for _ in members]
        for member, failed in zip(members, all_failed, strict=True):
            member.submit(
                Operation(
                    "allreduce",
                    lambda round: schedules.allreduce(round, buffer, "sum"),
                    failed.set_result,
                    2.0,
                )
            )
        for failed in all_failed:
            assert "store is full" in str(failed.result(PATIENCE))
        for member in members:
            member.close()
        client.delete("kept")


def _failed(message: str, cause: BaseException | None) -> Exception:
    return RuntimeError(message)
