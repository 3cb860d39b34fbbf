from __future__ import annotations

from typing import Any, ClassVar


class _Factory:
    _registry: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        cls._registry = {}

    @classmethod
    def register_engine(cls, name: str, engine: Any) -> None:
        assert name not in cls._registry
        cls._registry[name] = lambda: engine


class WeightTransferEngineFactory(_Factory):
    @classmethod
    def create_engine(cls, config: Any, vllm_config: Any, device: Any, model: Any) -> Any:
        return cls._registry["hoplite"]()(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        return cls._registry[init_info.backend]().trainer_init(
            init_info=init_info, client=client, source=source
        )
