"""A trainer that sends its weights to any number of vLLM servers, which load tensors as they
arrive.

It needs vLLM 0.33, built with torch 2.15, transformers and accelerators. The tests run this
program with stand-ins for vLLM's classes; it has never run with a real vLLM.

Each node needs a store: see docs/start/cluster.md. On each server, with this file in PYTHONPATH:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "hoplite"}' \\
        --worker-extension-cls vllm_weights.KnowsHoplite

On the trainer: `python vllm_weights.py MODEL http://one:8000 http://two:8000 --steps 100`
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import vllm.distributed.weight_transfer as transfer

import hoplite.torch.vllm

hoplite.torch.vllm.register()


class KnowsHoplite:
    """A class for `--worker-extension-cls`: importing it registers the engine."""


class Servers:
    def __init__(self, urls: list[str]) -> None:
        self._clients = [transfer.HTTPVLLMWeightSyncClient(url) for url in urls]
        self._pool = ThreadPoolExecutor(len(urls))

    def _tell(self, method: str, *about: Any) -> None:
        list(self._pool.map(lambda client: getattr(client, method)(*about), self._clients))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._tell("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._tell("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._tell("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._tell("finish_weight_update", weight_version)


def train(model: torch.nn.Module, urls: list[str], steps: int) -> None:
    # With FSDP, each rank has its own number.
    about = hoplite.torch.vllm.HopliteTrainerInitInfo(rank=0)
    source = transfer.ModuleSource(model)
    engine = transfer.WeightTransferTrainerFactory.trainer_init(
        about, client=Servers(urls), source=source
    )
    for step in range(steps):
        with (
            torch.no_grad()
        ):  # Replace this with your step: rollouts from the servers, a loss, an optimizer.
            for parameter in model.parameters():
                parameter.mul_(0.5)
        engine.send_weights()
        print(f"step {step}: {len(urls)} servers have the weights", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="as transformers and the servers call it")
    parser.add_argument("urls", nargs="+", metavar="url", help="of a server")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    train(AutoModelForCausalLM.from_pretrained(args.model), args.urls, args.steps)
