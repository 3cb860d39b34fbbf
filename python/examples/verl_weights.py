"""A training with verl that sends weights from the trainer to the rollouts through Hoplite.

    ray start --head                                          # and on the other nodes, as for any
    such training
    python verl_weights.py data.train_files=... actor_rollout_ref.rollout.nnodes=1 ...

Pass the arguments of `verl.trainer.main_ppo` for separate nodes of trainer and rollouts. This
program starts a store on each node of the Ray cluster, adds the settings for Hoplite, and starts
verl.

It needs verl 0.9.1, Ray 2.60 and accelerators. The extras of verl 0.9.1 pin torch 2.11, but this
version of Hoplite needs torch 2.15, so install verl with torch 2.15. The tests run this program
with a stand-in for verl; it has never run with a real training.
"""

from __future__ import annotations

import sys

import ray

import hoplite.ray

ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
OVERRIDES = [
    # If trainer and rollouts share accelerators, verl uses no engine.
    "trainer.v1.trainer_mode=separate_async",
    f"{ENGINE}.backend=hoplite",
    f"{ENGINE}.custom_backend_module=hoplite.torch.verl",
    # Tells each process of verl the socket of its node's store.
    "+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook=hoplite.ray.register",
]


def start_stores() -> None:
    """The stores stay for other trainings; `hoplite.ray.stop_on_all_nodes()` ends them."""
    ray.init(address="auto", log_to_driver=False)
    # On several machines, the environment must name a token or certificates, such as
    # HOPLITE_TOKEN_FILE.
    for node in hoplite.ray.start_on_all_nodes():
        print(f"node {node.node_id}: a store at {node.socket}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    from verl.trainer.main_ppo import main

    start_stores()
    sys.argv += OVERRIDES
    main()
