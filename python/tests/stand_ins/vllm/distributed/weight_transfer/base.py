from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch

Init = TypeVar("Init")
Update = TypeVar("Update")


@dataclass
class WeightTransferInitInfo(ABC):  # noqa: B024
    pass


@dataclass
class WeightTransferUpdateInfo(ABC):  # noqa: B024
    pass


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class ModuleSource:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def implements_iter_full(self) -> bool:
        return True

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._module.named_parameters()


class WeightTransferEngine(ABC, Generic[Init, Update]):
    init_info_cls: type[Init]
    update_info_cls: type[Update]

    def __init__(
        self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module
    ) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = None

    @abstractmethod
    def init_transfer_engine(self, init_info: Init) -> None: ...
    @abstractmethod
    def start_weight_update(self) -> None: ...
    @abstractmethod
    def finish_weight_update(self) -> None: ...
    @abstractmethod
    def receive_weights(self, update_info: Update) -> None: ...
    @abstractmethod
    def shutdown(self) -> None: ...


class TrainerWeightTransferEngine(ABC, Generic[Init]):
    def __init__(
        self, *, client: Any, source: Any = None, is_sender: bool = True, rank: int = 0
    ) -> None:
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Init, *, client: Any, source: Any = None) -> Any: ...
    @abstractmethod
    def send_weights(self) -> None: ...
    def shutdown(self) -> None:
        return None
