"""Weights for the workers of vLLM: engines of its weight transfer, called "hoplite".

Call `hoplite.torch.vllm.register()` in every process, before it makes an engine. Then use
`WeightTransferConfig(backend="hoplite")` in the inference workers, and in the trainer

    engine = WeightTransferTrainerFactory.trainer_init(
        HopliteTrainerInitInfo(rank=rank), client=client, source=ModuleSource(model)
    )
    engine.send_weights()

Any number of workers load each tensor as it arrives. A worker that starts later takes part from
the next update on.

Written for vLLM 0.33. A version without its base classes is refused with `ImportError`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import hoplite
from hoplite.torch._needed import needed
from hoplite.torch._weights import delete_state_dict, put_tensors, stream_state_dict

if TYPE_CHECKING:
    from typing import Self

try:
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
except ImportError as error:
    raise needed("vllm", "vLLM", "the weight transfer of vLLM 0.33", error) from error

__all__ = [
    "HopliteInitInfo",
    "HopliteTrainerEngine",
    "HopliteTrainerInitInfo",
    "HopliteUpdateInfo",
    "HopliteWeightEngine",
    "register",
]

NAME = "hoplite"
#: Seconds.
RECEIVE_TIMEOUT = 600.0


@dataclass
class HopliteInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    name: str
    """The name of the weights in the stores."""


@dataclass
class HopliteUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    version: int


@dataclass
class HopliteTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    backend: ClassVar[str] = NAME
    name: str = ""
    """The name of the weights in the stores; random by default."""


class HopliteWeightEngine(WeightTransferEngine[HopliteInitInfo, HopliteUpdateInfo]):  # type: ignore[misc]
    """The engine of an inference worker. `receive_weights` blocks until all tensors are loaded."""

    init_info_cls = HopliteInitInfo
    update_info_cls = HopliteUpdateInfo

    _name: str | None = None

    def init_transfer_engine(self, init_info: HopliteInitInfo) -> None:
        self._name = init_info.name
        hoplite.init()

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: HopliteUpdateInfo) -> None:
        if self._name is None:
            raise RuntimeError("call init_transfer_engine before receive_weights")
        # Tensors for other devices need no copy here.
        is_here = self.device.type == "cpu"
        with stream_state_dict(
            self._name, version=update_info.version, copy=is_here, timeout=RECEIVE_TIMEOUT
        ) as tensors:
            self.model.load_weights((name, tensor.to(self.device)) for name, tensor in tensors)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._name = None


class HopliteTrainerEngine(TrainerWeightTransferEngine[HopliteTrainerInitInfo]):  # type: ignore[misc]
    """The engine of a trainer. Its rank 0 sends."""

    init_info_cls = HopliteTrainerInitInfo

    def __init__(self, *, name: str, **about: Any) -> None:
        super().__init__(**about)
        self._name = name
        # Versions of an earlier trainer may still exist.
        self._version = secrets.randbits(48)

    @classmethod
    def trainer_init(
        cls, init_info: HopliteTrainerInitInfo, *, client: Any, source: Any = None
    ) -> Self:
        if source is None or not source.implements_iter_full():
            raise TypeError(
                "the engine hoplite sends full tensors: it needs a WeightSource with iter_full()"
            )
        name = init_info.name or f"vllm-{secrets.token_hex(8)}"
        engine = cls(
            name=name,
            client=client,
            source=source,
            is_sender=init_info.is_sender,
            rank=init_info.rank,
        )
        if engine.is_sender:
            client.init_weight_transfer_engine({"name": name})
        return engine

    def send_weights(self) -> None:
        """Sends a new version. Blocks until the workers have loaded it."""
        tensors: Iterator[tuple[str, torch.Tensor]] = self.source.iter_full()
        if not self.is_sender:
            # Gathering a tensor is a collective of all ranks.
            for _ in tensors:
                pass
            return
        self._version += 1
        self.client.start_weight_update()
        with ThreadPoolExecutor(1, thread_name_prefix="hoplite-vllm") as pool:
            loading = pool.submit(self.client.update_weights, {"version": self._version})
            put_tensors(self._name, tensors, version=self._version)
            loading.result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self.is_sender:
            delete_state_dict(self._name)


def register() -> None:
    """Registers the engines with vLLM. It may be called several times."""
    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, HopliteWeightEngine)
    if NAME not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(NAME, HopliteTrainerEngine)
