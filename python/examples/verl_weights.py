"""A training with verl that sends weights from the trainer to the rollouts through Hoplite.

    ray start --head      # and on the other nodes
    python verl_weights.py data.train_files=... actor_rollout_ref.rollout.nnodes=1 ...

The arguments are as for `verl.trainer.main_ppo`. This program starts a store on each node of
the Ray cluster, and then verl.

It needs verl 0.9.1 with torch 2.15, Ray 2.60 and accelerators. The tests run this program with a
stand-in for verl; it has never run with a real training.
"""

from __future__ import annotations

import sys

import ray

import hoplite.ray

ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
OVERRIDES = [
    "trainer.v1.trainer_mode=separate_async",
    f"{ENGINE}.backend=hoplite",
    f"{ENGINE}.custom_backend_module=hoplite.torch.verl",
    "+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook=hoplite.ray.register",
]


def start_stores() -> None:
    ray.init(address="auto", log_to_driver=False)
    # Several machines need a token or certificates, such as HOPLITE_TOKEN_FILE.
    for node in hoplite.ray.start_on_all_nodes():
        print(f"node {node.node_id}: a store at {node.socket}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    from verl.trainer.main_ppo import main

    start_stores()
    sys.argv += OVERRIDES
    main()
