"""The engines for vLLM and verl, on base classes that stand for theirs: those packages need accelerators.

They have the abstract methods and constructors of vLLM 0.33.0 and verl 0.9.1, as these were published.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import hoplite
from stores import Cluster

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import hoplite.torch  # noqa: E402

Info = TypeVar("Info")
Update = TypeVar("Update")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Iterator[Any]:
    """Makes modules that stand for a package; and `hoplite.init` finds a store."""
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[0])
    hoplite.shutdown()

    def make(name: str, **contents: Any) -> None:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            if parent not in sys.modules:
                module = ModuleType(parent)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, parent, module)
        vars(sys.modules[name]).update(contents)

    yield make
    hoplite.shutdown()
    for name in ("hoplite.torch.vllm", "hoplite.torch.verl"):
        sys.modules.pop(name, None)


class WeightTransferEngine(ABC, Generic[Info, Update]):
    init_info_cls: type[Info]
    update_info_cls: type[Update]

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.model_config, self.device, self.model = vllm_config, device, model

    @abstractmethod
    def init_transfer_engine(self, init_info: Info) -> None: ...
    @abstractmethod
    def start_weight_update(self) -> None: ...
    @abstractmethod
    def finish_weight_update(self) -> None: ...
    @abstractmethod
    def receive_weights(self, update_info: Update) -> None: ...
    @abstractmethod
    def shutdown(self) -> None: ...


class TrainerWeightTransferEngine(ABC, Generic[Info]):
    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True, rank: int = 0) -> None:
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Info, *, client: Any, source: Any = None) -> Any: ...
    @abstractmethod
    def send_weights(self) -> None: ...


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class Factory:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {}

    def register_engine(self, name: str, engine: Any) -> None:
        assert name not in self._registry
        self._registry[name] = engine


class Model(torch.nn.Linear):  # type: ignore[misc]
    def load_weights(self, weights: Any) -> None:
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                parameters[name].copy_(tensor)


def test_vllm(package: Any) -> None:
    calls: list[str] = []
    lost: list[Exception] = []
    package(
        "vllm.distributed.weight_transfer.base",
        WeightTransferEngine=WeightTransferEngine,
        TrainerWeightTransferEngine=TrainerWeightTransferEngine,
        TrainerInitInfo=TrainerInitInfo,
        WeightTransferInitInfo=object,
        WeightTransferUpdateInfo=object,
    )
    factories = Factory(), Factory()
    package(
        "vllm.distributed.weight_transfer.factory",
        WeightTransferEngineFactory=factories[0],
        WeightTransferTrainerFactory=factories[1],
    )
    package(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda model: calls.append("start"),
        finalize_layerwise_reload=lambda model, config: calls.append("finish"),
    )
    engines = importlib.import_module("hoplite.torch.vllm")
    engines.register()
    engines.register()
    engine = factories[0]._registry["hoplite"]
    workers = [engine(None, None, torch.device("cpu"), Model(300, 2000)) for _ in range(3)]
    with pytest.raises(RuntimeError, match="init_transfer_engine comes before"):
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
                            lambda worker: worker.receive_weights(worker.update_info_cls(**info)), workers
                        )
                    )
                except hoplite.torch.VersionLost as error:
                    lost.append(error)
                    raise

        def finish_weight_update(self) -> None:
            for worker in workers:
                worker.finish_weight_update()

    trained = Model(300, 2000)
    source = SimpleNamespace(implements_iter_full=lambda: True, iter_full=trained.named_parameters)
    trainer = factories[1]._registry["hoplite"]
    with pytest.raises(TypeError, match="needs a WeightSource"):
        trainer.trainer_init(engines.HopliteTrainerInitInfo(rank=0), client=Client())
    sender, helper = (
        trainer.trainer_init(engines.HopliteTrainerInitInfo(rank=rank), client=Client(), source=source)
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
        yield "weight", torch.zeros(2000, 300)
        raise ValueError("it cannot be gathered")

    source.iter_full = failing
    # The workers wait for this as long as the engine does, but for what they learn.
    with pytest.raises(ValueError, match="it cannot be gathered"):
        sender.send_weights()
    (error,) = lost
    assert "could not be put: ValueError: it cannot be gathered" in str(error)
    calls.clear()
    source.iter_full = trained.named_parameters
    sender.send_weights()
    assert all(torch.equal(worker.model.weight, trained.weight) for worker in workers)
    sender.shutdown()
    assert not [info for info in hoplite.init().list("weights") if "vllm" in str(info.id)]


def test_another_vllm_is_refused(package: Any) -> None:
    package("vllm.distributed.weight_transfer.base")
    with pytest.raises(
        ImportError, match=r"hoplite .* needs the weight transfer of vLLM 0\.33, and vLLM is not installed"
    ):
        importlib.import_module("hoplite.torch.vllm")


def test_another_verl_is_refused(package: Any) -> None:
    package("verl.checkpoint_engine.base", CheckpointEngine=object)
    with pytest.raises(
        ImportError, match=r"hoplite .* needs the checkpoint engines of verl 0\.9, and verl is not installed"
    ):
        importlib.import_module("hoplite.torch.verl")


def test_verl(package: Any) -> None:
    registry: dict[str, Any] = {}

    class Registry:
        @staticmethod
        def register(backend: str) -> Any:
            return lambda engine: registry.setdefault(backend, engine)

    package("verl.checkpoint_engine.base", CheckpointEngine=object, CheckpointEngineRegistry=Registry)
    importlib.import_module("hoplite.torch.verl")
    make = registry["hoplite"]
    trainers = [make(bucket_size=1 << 20, device="cpu") for _ in range(2)]
    rollouts = [make(bucket_size=1 << 20, device="cpu", rollout_dtype=torch.bfloat16) for _ in range(3)]

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
            coming = [pool.submit(lambda rollout=r: asyncio.run(received(rollout))) for r in rollouts]
            for trainer in reversed(trainers):
                asyncio.run(trainer.send_weights(iter(weights.items()), global_steps=1))
            for got in coming:
                assert set(got.result()) == set(weights)
                for name, tensor in got.result().items():
                    assert tensor.dtype == (torch.int64 if name == "count" else torch.bfloat16)
                    assert torch.equal(tensor, weights[name].to(tensor.dtype))
        for worker in (*trainers, *rollouts):
            worker.finalize()
        # Another one takes part in the next update.
        rollouts = [*rollouts[1:], make(device="cpu"), make(device="cpu")]
    assert not [info for info in hoplite.init().list("weights") if "verl" in str(info.id)]
