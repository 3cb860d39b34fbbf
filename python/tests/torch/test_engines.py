"""Engines for vLLM and verl, with stand-ins: see stand_ins/README.md."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hoplite
from stores import Cluster

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import hoplite.torch  # noqa: E402

STAND_INS = Path(__file__).parent.parent / "stand_ins"


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Iterator[None]:
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[0])
    monkeypatch.syspath_prepend(str(STAND_INS))
    hoplite.shutdown()
    yield
    hoplite.shutdown()
    for name in list(sys.modules):
        if name.split(".")[0] in ("vllm", "verl") or name in (
            "hoplite.torch.vllm",
            "hoplite.torch.verl",
        ):
            del sys.modules[name]


def test_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    lost: list[Exception] = []
    reload = import_module("vllm.model_executor.model_loader.reload")
    monkeypatch.setattr(reload, "initialize_layerwise_reload", lambda model: calls.append("start"))
    monkeypatch.setattr(
        reload, "finalize_layerwise_reload", lambda model, config: calls.append("finish")
    )
    transfer = import_module("vllm.distributed.weight_transfer")
    model = import_module("vllm.model_executor.models").Model
    engines = import_module("hoplite.torch.vllm")
    engines.register()
    engines.register()
    workers = [
        transfer.WeightTransferEngineFactory.create_engine(None, None, torch.device("cpu"), model())
        for _ in range(3)
    ]
    with pytest.raises(RuntimeError, match="call init_transfer_engine before"):
        workers[0].receive_weights(engines.HopliteUpdateInfo(1))

    class Client:
        def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
            for worker in workers:
                worker.init_transfer_engine(worker.init_info_cls(**info))

        def start_weight_update(self) -> None:
            for worker in workers:
                worker.start_weight_update()

        def update_weights(self, info: dict[str, Any]) -> None:
            with ThreadPoolExecutor() as pool:
                try:
                    list(
                        pool.map(
                            lambda worker: worker.receive_weights(worker.update_info_cls(**info)),
                            workers,
                        )
                    )
                except hoplite.torch.VersionLost as error:
                    lost.append(error)
                    raise

        def finish_weight_update(self) -> None:
            for worker in workers:
                worker.finish_weight_update()

    trained = model()
    source = transfer.ModuleSource(trained)
    trainer = transfer.WeightTransferTrainerFactory
    with pytest.raises(TypeError, match="needs a WeightSource"):
        trainer.trainer_init(engines.HopliteTrainerInitInfo(rank=0), client=Client())
    sender, helper = (
        trainer.trainer_init(
            engines.HopliteTrainerInitInfo(rank=rank), client=Client(), source=source
        )
        for rank in range(2)
    )
    for _ in range(2):
        with torch.no_grad():
            trained.weight.add_(1)
        helper.send_weights()
        sender.send_weights()
        assert all(torch.equal(worker.model.weight, trained.weight) for worker in workers)
        assert all(torch.equal(worker.model.bias, trained.bias) for worker in workers)
    assert calls == (["start"] * 3 + ["finish"] * 3) * 2

    def failing() -> Iterator[tuple[str, Any]]:
        yield "weight", torch.zeros(1000, 600)
        raise ValueError("it cannot be gathered")

    source.iter_full = failing
    with pytest.raises(ValueError, match="it cannot be gathered"):
        sender.send_weights()
    (error,) = lost
    assert "could not be put: ValueError: it cannot be gathered" in str(error)
    calls.clear()
    del source.iter_full
    sender.send_weights()
    assert all(torch.equal(worker.model.weight, trained.weight) for worker in workers)
    sender.shutdown()
    assert not [info for info in hoplite.init().list("weights") if "vllm" in str(info.id)]


def test_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("vllm.distributed.weight_transfer.base"), "TrainerInitInfo")
    with pytest.raises(
        ImportError,
        match=r"hoplite .* needs the weight transfer of vLLM 0\.33, and vLLM is not installed",
    ):
        import_module("hoplite.torch.vllm")


def test_another_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("verl.checkpoint_engine.base"), "CheckpointEngineRegistry")
    with pytest.raises(
        ImportError,
        match=r"hoplite .* needs the checkpoint engines of verl 0\.9, and verl is not installed",
    ):
        import_module("hoplite.torch.verl")


def test_verl() -> None:
    import_module("hoplite.torch.verl")
    make = import_module("verl.checkpoint_engine.base").CheckpointEngineRegistry.get("hoplite")
    trainers = [make(bucket_size=1 << 20, device="cpu") for _ in range(2)]
    rollouts = [
        make(bucket_size=1 << 20, device="cpu", rollout_dtype=torch.bfloat16) for _ in range(3)
    ]

    async def received(rollout: Any) -> dict[str, Any]:
        return {name: tensor async for name, tensor in rollout.receive_weights(global_steps=1)}

    for step in range(2):
        metadata = [worker.prepare() for worker in (*trainers, *rollouts)]
        topologies = make.build_topology(2, len(rollouts), metadata)
        for workers, about in zip((trainers, rollouts), topologies, strict=True):
            for index, worker in enumerate(workers):
                worker.init_process_group(**{name: values[index] for name, values in about.items()})
        weights = {f"layer.{index}": torch.full((300_000,), float(step)) for index in range(5)}
        weights["count"] = torch.tensor([step])
        with ThreadPoolExecutor() as pool:
            coming = [
                pool.submit(lambda rollout=r: asyncio.run(received(rollout))) for r in rollouts
            ]
            for trainer in reversed(trainers):
                asyncio.run(trainer.send_weights(iter(weights.items()), global_steps=1))
            for got in coming:
                assert set(got.result()) == set(weights)
                for name, tensor in got.result().items():
                    assert tensor.dtype == (torch.int64 if name == "count" else torch.bfloat16)
                    assert torch.equal(tensor, weights[name].to(tensor.dtype))
        for worker in (*trainers, *rollouts):
            worker.finalize()
        rollouts = [*rollouts[1:], make(device="cpu"), make(device="cpu")]
    assert not [info for info in hoplite.init().list("weights") if "verl" in str(info.id)]
