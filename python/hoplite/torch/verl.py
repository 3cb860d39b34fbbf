"""Weights from the trainer of verl to its rollouts: a checkpoint engine called "hoplite".

    actor_rollout_ref.rollout.checkpoint_engine.backend=hoplite
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=hoplite.torch.verl

Rank 0 of the trainer puts tensors one after the other, and rollouts get each as it arrives.
Replicas may come and go between two updates.

Written for verl 0.9.1. A version without its base classes is refused with `ImportError`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

import torch

import hoplite
from hoplite.torch._needed import needed
from hoplite.torch._weights import delete_state_dict, put_tensors, stream_state_dict

try:
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
except ImportError as error:
    raise needed("verl", "verl", "the checkpoint engines of verl 0.9", error) from error

__all__ = ["HopliteCheckpointEngine"]

#: Seconds.
RECEIVE_TIMEOUT = 600.0


@CheckpointEngineRegistry.register("hoplite")
class HopliteCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Sends in the first rank of the trainer, and receives in the rollouts.

    Args:
        bucket_size: Ignored: nothing is allocated.
        device: The device of the tensors in the rollouts.
        rollout_dtype: The dtype of sent floating-point tensors; `None` for their own.
        is_master: Ignored.
    """

    def __init__(
        self,
        bucket_size: int = 0,
        device: str = "cuda",
        rollout_dtype: torch.dtype | None = torch.bfloat16,
        is_master: bool = False,
    ) -> None:
        self._device = torch.device(device)
        self._dtype = rollout_dtype
        self._name = f"verl-{secrets.token_hex(8)}"
        self._update = 0
        self._rank = -1

    def prepare(self) -> dict[str, Any]:
        hoplite.init()
        self._update += 1
        return {"name": f"{self._name}-{self._update}"}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        name = metadata[0]["name"]
        return (
            {
                "rank": [0] + [-1] * (actor_wg_world_size - 1),
                "name": [name] * actor_wg_world_size,
            },
            {
                "rank": list(range(1, rollout_world_size + 1)),
                "name": [name] * rollout_world_size,
            },
        )

    def init_process_group(self, rank: int, name: str) -> None:
        """Begins the update `name`. Rank 0 sends; rank -1 only gathers tensors."""
        self._rank, self._sent = rank, name

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        if self._rank != 0:
            for _ in weights:
                pass
            return
        put_tensors(
            self._sent, ((name, self._as_sent(tensor)) for name, tensor in weights), version="sent"
        )

    def _as_sent(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._dtype is None or not tensor.is_floating_point():
            return tensor
        return tensor.to(self._dtype)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        is_here = self._device.type == "cpu"
        begin = partial(
            stream_state_dict, self._sent, version="sent", copy=is_here, timeout=RECEIVE_TIMEOUT
        )
        with await asyncio.to_thread(begin) as tensors:
            while (item := await asyncio.to_thread(next, tensors, None)) is not None:
                yield item[0], item[1].to(self._device)

    def finalize(self) -> None:
        """Deletes the update after all rollouts have it."""
        if self._rank == 0:
            delete_state_dict(self._sent)
