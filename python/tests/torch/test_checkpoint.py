from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest import TestCase

import pytest
import ranks
from ranks import Setting

import hoplite
from stores import Cluster, await_that

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

from hoplite.torch import checkpoint  # noqa: E402
from hoplite.torch.checkpoint import HopliteReader, HopliteWriter  # noqa: E402


@pytest.fixture
def name(client: hoplite.Client, fresh: str) -> Iterator[str]:
    before = {info.id for prefix in ("weights", "checkpoints") for info in client.list(prefix)}
    yield fresh
    checkpoint.delete(fresh, client=client)
    await_that("nothing is left", lambda: {i.id for i in client.list("checkpoints")} <= before)
    await_that("nothing is left", lambda: {i.id for i in client.list("weights")} <= before)


def state(value: float) -> dict[str, Any]:
    return {
        "model": {
            "weight": torch.full((40, 30), value),
            "bias": torch.full((3,), value, dtype=torch.float16),
        },
        "step": int(value),
        "scalar": torch.tensor(value),
    }


def test_one_process(client: hoplite.Client, name: str) -> None:
    for value in (1.0, 2.0):
        dcp.save(state(value), storage_writer=HopliteWriter(name, client=client), no_dist=True)
    into = state(0)
    into["model"]["bias"] = into["model"]["bias"].double()
    dcp.load(into, storage_reader=HopliteReader(name, client=client), no_dist=True)
    assert (into["model"]["weight"] == 2).all()
    assert torch.equal(into["model"]["bias"], torch.full((3,), 2.0).double())
    assert (into["step"], into["scalar"]) == (2, torch.tensor(2.0))


def test_one_that_is_not_there(client: hoplite.Client, name: str) -> None:
    with pytest.raises(
        dcp.api.CheckpointException, match="has not come; there is none that is complete"
    ):
        dcp.load(
            state(0), storage_reader=HopliteReader(name, client=client, timeout=0.1), no_dist=True
        )


def _save(rank: int, name: str) -> None:
    mesh = init_device_mesh("cpu", (3,))
    whole = torch.arange(70.0).reshape(7, 10)
    dcp.save(
        {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 3},
        storage_writer=HopliteWriter(name),
    )


def _load(rank: int, name: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    into = {"weight": distribute_tensor(torch.zeros(7, 10), mesh, [Shard(1)]), "step": 0}
    dcp.load(into, storage_reader=HopliteReader(name))
    assert torch.equal(into["weight"].full_tensor(), torch.arange(70.0).reshape(7, 10))
    assert into["step"] == 3


def test_ranks_that_divide_it_otherwise(
    cluster: Cluster, client: hoplite.Client, name: str
) -> None:
    setting = Setting(cluster.sockets)
    ranks.run(3, _save, name, setting=setting)
    ranks.run(2, _load, name, setting=setting)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_torchft(cluster: Cluster, is_in_place: bool, request: pytest.FixtureRequest) -> None:
    cases = pytest.importorskip(
        "torchft.checkpointing.transport_test", reason="torchft is optional"
    )
    from hoplite.torch.torchft import HopliteTransport

    device = torch.device("cpu")
    clients = [hoplite.connect(socket) for socket in cluster.sockets]
    request.addfinalizer(lambda: dist.is_initialized() and dist.destroy_process_group())

    def transport(rank: int, size: int) -> HopliteTransport:
        target = (lambda: cases.make_state_dict(device)) if is_in_place else None
        return HopliteTransport(timedelta(seconds=10), target, client=clients[rank])

    cases.run_multi_recovery_test(TestCase(), transport, device)
    assert [info.id for info in clients[0].list("weights") if "torchft" in str(info.id)] == []
    for client in clients:
        client.close()
