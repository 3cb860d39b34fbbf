from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")
datasets = pytest.importorskip(
    "sklearn.datasets", reason="scikit-learn brings the handwritten digits"
)

from ranks import Setting, run  # noqa: E402

SIZE = 2


def digits() -> tuple[Any, Any]:
    images, labels = datasets.load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )


def train(rank: int, wrapped: Any, epochs: int = 6, batch: int = 64) -> float:
    images, labels = digits()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.2, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()
    for _ in range(epochs):
        for start in range(0, len(images) - SIZE * batch + 1, SIZE * batch):
            own = slice(start + rank * batch, start + (rank + 1) * batch)
            optimizer.zero_grad()
            loss(wrapped(images[own]), labels[own]).backward()
            optimizer.step()
    wrapped.eval()
    with torch.no_grad():
        return float((wrapped(images).argmax(1) == labels).float().mean())


def train_with_ddp(rank: int) -> tuple[float, list[Any]]:
    wrapped = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.005)
    accuracy = train(rank, wrapped)
    return accuracy, [parameter.detach().numpy() for parameter in wrapped.parameters()]


def test_ddp_learns_digits_as_with_gloo() -> None:
    ours = run(SIZE, train_with_ddp)
    theirs = run(SIZE, train_with_ddp, setting=Setting(backend="gloo"))
    for accuracy, parameters in ours:
        assert accuracy > 0.9
        for own, other, reference in zip(parameters, ours[0][1], theirs[0][1], strict=True):
            assert (own == other).all()
            torch.testing.assert_close(own, reference)


def train_with_hook(rank: int) -> float:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    wrapped = torch.nn.parallel.DistributedDataParallel(model())
    state = power.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, power.powerSGD_hook)
    return train(rank, wrapped)


def test_ddp_with_a_hook_that_waits_in_callbacks() -> None:
    assert min(run(SIZE, train_with_hook)) > 0.9


def train_with_fsdp(rank: int) -> float:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (sharded[0], sharded[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return train(rank, sharded)


def test_fsdp_learns_digits() -> None:
    assert min(run(SIZE, train_with_fsdp)) > 0.9


def train_with_first_fsdp(rank: int) -> float:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    sharded = FullyShardedDataParallel(
        model(), device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear})
    )
    return train(rank, sharded)


def test_the_first_fsdp_learns_digits() -> None:
    assert min(run(SIZE, train_with_first_fsdp)) > 0.9
