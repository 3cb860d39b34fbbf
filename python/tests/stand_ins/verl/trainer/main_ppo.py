"""One update of weights, in the order of verl's `CheckpointEngineManager`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import ray

TRAINERS, ROLLOUTS = 2, 3
ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
HOOK = "+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook"


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, backend: str, module: str, **options: Any) -> None:
        from verl.checkpoint_engine.base import CheckpointEngineRegistry

        importlib.import_module(module)
        self.engine = CheckpointEngineRegistry.new(
            backend, bucket_size=1 << 20, device="cpu", rollout_dtype=None, **options
        )

    def call(self, method: str, **about: Any) -> Any:
        return getattr(self.engine, method)(**about)

    async def send(self, step: int) -> None:
        import torch

        await self.engine.send_weights(
            ((f"layer.{i}", torch.full((500_000,), float(i + step))) for i in range(4)),
            global_steps=step,
        )

    async def receive(self, step: int) -> dict[str, float]:
        return {
            name: float(tensor.mean())
            async for name, tensor in self.engine.receive_weights(global_steps=step)
        }


def main() -> None:
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    config = dict(argument.split("=", 1) for argument in sys.argv[1:])
    assert config["trainer.v1.trainer_mode"] == "separate_async"
    environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(
        runtime_env={**environment, "worker_process_setup_hook": config[HOOK]}, log_to_driver=False
    )
    backend, module = config[f"{ENGINE}.backend"], config[f"{ENGINE}.custom_backend_module"]
    importlib.import_module(module)
    trainers = [Worker.remote(backend, module, is_master=rank == 0) for rank in range(TRAINERS)]
    rollouts = [Worker.remote(backend, module) for _ in range(ROLLOUTS)]
    everybody = [*trainers, *rollouts]
    for step in range(int(config["steps"])):
        metadata = ray.get([worker.call.remote("prepare") for worker in everybody])
        topology = CheckpointEngineRegistry.get(backend).build_topology(
            TRAINERS, ROLLOUTS, metadata
        )
        for workers, about in zip((trainers, rollouts), topology, strict=True):
            ray.get(
                [
                    worker.call.remote(
                        "init_process_group", **{name: about[name][index] for name in about}
                    )
                    for index, worker in enumerate(workers)
                ]
            )
        results = ray.get(
            [worker.send.remote(step) for worker in trainers]
            + [worker.receive.remote(step) for worker in rollouts]
        )
        assert results[TRAINERS:] == [{f"layer.{i}": float(i + step) for i in range(4)}] * ROLLOUTS
        ray.get([worker.call.remote("finalize") for worker in everybody])
        print(f"step {step}: {ROLLOUTS} rollouts have the weights", flush=True)
