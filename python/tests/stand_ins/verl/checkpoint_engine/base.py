from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class CheckpointEngineRegistry:
    _registry: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def register(backend: str) -> Any:
        def wrapper(engine: Any) -> Any:
            CheckpointEngineRegistry._registry[backend] = engine
            return engine

        return wrapper

    @classmethod
    def get(cls, backend: str) -> Any:
        return cls._registry[backend]

    @classmethod
    def new(cls, backend: str, *args: Any, **kwargs: Any) -> Any:
        return cls.get(backend)(*args, **kwargs)


class CheckpointEngine(ABC):
    wire_format = "named_tensors"

    @abstractmethod
    def prepare(self) -> dict[str, Any]: ...
    @classmethod
    @abstractmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> Any: ...
    @abstractmethod
    def init_process_group(self, **kwargs: Any) -> None: ...
    @abstractmethod
    def finalize(self) -> None: ...
    @abstractmethod
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> Any: ...
    @abstractmethod
    def receive_weights(self, global_steps: int | None = None) -> Any: ...
