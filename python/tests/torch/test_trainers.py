from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import torch.distributed as dist  # noqa: E402
from ranks import Setting, run  # noqa: E402

SIZE = 2
EPOCHS = 3
BATCH = 16
SAMPLES = 237


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32, bias=False),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 1),
    )


def samples() -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    targets = inputs.square().sum(1, keepdim=True) + inputs[:, :1]
    return torch.utils.data.TensorDataset(inputs, targets)


def weights(trained: Any) -> dict[str, Any]:
    return {name: tensor.detach().numpy() for name, tensor in trained.state_dict().items()}


def compare(train: Callable[..., Any], *arguments: Any) -> None:
    outcomes = {
        backend: run(SIZE, train, backend, *arguments, setting=Setting(is_launched=True))
        for backend in ("hoplite", "gloo")
    }
    for (metrics, trained), (expected_metrics, expected) in zip(*outcomes.values(), strict=True):
        assert metrics == pytest.approx(expected_metrics, rel=1e-5)
        torch.testing.assert_close(trained, expected)
    (_, first), (_, second) = outcomes["hoplite"]
    for name, untrained in model().named_parameters():
        assert (first[name] == second[name]).all(), f"{name} is the same on all ranks"
        assert (first[name] != untrained.detach().numpy()).any(), f"{name} was trained"


def train_with_lightning(
    rank: int, backend: str, directory: Path
) -> tuple[dict[str, float], dict[str, Any]]:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
    from pytorch_lightning.strategies import DDPStrategy

    class Regression(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch: Any, index: int) -> Any:
            inputs, targets = batch
            loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            self.log("largest", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            inputs, targets = batch
            self.log(
                "val_loss",
                torch.nn.functional.mse_loss(self.model(inputs), targets),
                sync_dist=True,
            )

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    lightning.seed_everything(2, verbose=False)
    regression = Regression()
    best = ModelCheckpoint(directory / backend, monitor="val_loss")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=SIZE,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=EPOCHS,
        callbacks=[best, EarlyStopping("val_loss", patience=EPOCHS)],
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    shuffled, in_order = (
        torch.utils.data.DataLoader(samples(), BATCH, shuffle=shuffle) for shuffle in (True, False)
    )
    trainer.fit(regression, shuffled, in_order)
    assert dist.get_backend() == backend
    assert (trainer.world_size, trainer.global_rank) == (SIZE, rank)
    count = trainer.strategy.reduce(torch.tensor(2 - 5 * rank), reduce_op="mean")
    assert count.item() == 0, "the average of 2 and -3 is truncated toward zero"
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert metrics.keys() == {"loss", "largest", "val_loss"}
    saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert saved.keys() == regression.state_dict().keys()
    return metrics, weights(regression.model)


def test_lightning_trains_as_with_gloo(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    compare(train_with_lightning, tmp_path)


def train_with_accelerate(rank: int, backend: str) -> tuple[dict[str, float], dict[str, Any]]:
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    # Accelerate makes only Gloo on CPUs, but uses an existing group.
    dist.init_process_group(backend)
    set_seed(2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert (accelerator.num_processes, accelerator.process_index) == (SIZE, rank)
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(samples(), BATCH, shuffle=True)
    wrapped, optimizer, loader = accelerator.prepare(trained, optimizer, loader)
    assert isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(wrapped):
                loss = torch.nn.functional.mse_loss(wrapped(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    assert dist.get_backend() == backend
    seen = accelerator.gather_for_metrics([rank] * (rank + 1), use_gather_object=True)
    assert seen == [0, 1, 1]
    padded = accelerator.pad_across_processes(torch.ones(rank + 1), dim=0)
    assert accelerator.gather(padded).tolist() == [1.0, 0.0, 1.0, 1.0]
    accelerator.wait_for_everyone()
    mean = accelerator.reduce(torch.stack(losses).mean(), reduction="mean")
    state = accelerator.unwrap_model(wrapped)
    return {"loss": float(mean)}, weights(state)


def test_accelerate_trains_as_with_gloo() -> None:
    pytest.importorskip("accelerate")
    compare(train_with_accelerate)
