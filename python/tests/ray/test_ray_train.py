from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray_cluster import eventually, objects

import hoplite

pytest.importorskip("pandas", reason="Ray Train is an optional extra")
pytest.importorskip("pyarrow", reason="Ray Train is an optional extra")

from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

pytestmark = pytest.mark.usefixtures("stores")

SIZE = 2
EPOCHS = 3


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def trained(group: Any, backend: str) -> tuple[float, Any]:
    import torch.distributed as dist
    from ray.train.torch import prepare_data_loader, prepare_model

    assert (dist.get_backend(group), dist.get_world_size(group)) == (backend, SIZE)
    inputs = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    targets = inputs.square().sum(1, keepdim=True)
    loader = prepare_data_loader(
        torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(inputs, targets), 16, shuffle=True
        )
    )
    wrapped = prepare_model(model(), parallel_strategy_kwargs={"process_group": group})
    assert isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        losses = []
        for batch, expected in loader:
            loss = torch.nn.functional.mse_loss(wrapped(batch), expected)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean, group=group)
    return float(mean) / SIZE, wrapped.module


def train(_: dict[str, Any]) -> None:
    import torch.distributed as dist

    context = ray.train.get_context()
    assert dist.get_rank() == context.get_world_rank()
    loss, ours = trained(dist.group.WORLD, "hoplite")
    weights: list[Any] = [None] * SIZE
    dist.all_gather_object(weights, [*ours.parameters()])
    assert all(torch.equal(*of_ranks) for of_ranks in zip(*weights, strict=True))
    gloo_loss, theirs = trained(dist.new_group(backend="gloo"), "gloo")
    metrics = {"loss": loss, "gloo_loss": gloo_loss}
    if context.get_world_rank() != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as directory:
        torch.save([ours.state_dict(), theirs.state_dict()], f"{directory}/weights.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def test_ray_train_trains_as_with_gloo(tmp_path: Path, client: hoplite.Client) -> None:
    before = objects(client)
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="hoplite"),
        scaling_config=ScalingConfig(num_workers=SIZE),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    assert result.error is None
    with result.checkpoint.as_directory() as saved:
        ours, theirs = torch.load(f"{saved}/weights.pt", weights_only=True)
    assert result.metrics["loss"] == pytest.approx(result.metrics["gloo_loss"], rel=1e-5)
    torch.testing.assert_close(ours, theirs)
    assert not any(torch.equal(ours[name], tensor) for name, tensor in model().state_dict().items())
    eventually(lambda: objects(client) <= before)
