from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

__all__ = [
    "HTTPVLLMWeightSyncClient",
    "ModuleSource",
    "WeightTransferEngineFactory",
    "WeightTransferTrainerFactory",
]
