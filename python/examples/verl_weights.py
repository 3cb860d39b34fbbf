"""A training with verl whose weights go from the trainer to the rollouts through Hoplite.

    ray start --head                                          # and on the other nodes, as for any such training
    python verl_weights.py data.train_files=... actor_rollout_ref.rollout.nnodes=1 ...

What follows the name is what you give to `verl.trainer.main_ppo` when its trainer and its rollouts have nodes of their own.
This starts a store on each node of the Ray cluster, adds what has verl use them, and starts verl.

The real thing needs verl 0.9.1, Ray 2.60 and accelerators. The extras of verl 0.9.1 pin torch 2.11, and this version of
Hoplite refuses all but torch 2.15: until both agree, that takes an installation of verl with torch 2.15. This program was
run with a package that stands for verl, which the tests have; never with a training.
"""

from __future__ import annotations

import sys

import ray

import hoplite.ray

#: What is different from a training without Hoplite.
ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
OVERRIDES = [
    # Where trainer and rollouts share their accelerators, verl needs no engine, and takes none.
    "trainer.v1.trainer_mode=separate_async",
    f"{ENGINE}.backend=hoplite",
    f"{ENGINE}.custom_backend_module=hoplite.torch.verl",
    # In each process that verl starts, this says where the store of its node listens.
    "+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook=hoplite.ray.register",
]


def start_stores() -> None:
    """They stay when this ends, as other trainings may use them: `hoplite.ray.stop_on_all_nodes()` ends them."""
    ray.init(address="auto", log_to_driver=False)
    # On several machines, the environment names a token or certificates: HOPLITE_TOKEN_FILE, say.
    for node in hoplite.ray.start_on_all_nodes():
        print(f"node {node.node_id}: a store at {node.socket}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    from verl.trainer.main_ppo import main

    start_stores()
    sys.argv += OVERRIDES
    main()
