"""Reinforcement learning with many actors (A3C), whose episodes differ in length.

Each worker plays episodes with its weights, and computes a gradient. In every step, the trainer
reduces the first half of the gradients (`num_objects`), and sends new weights to their workers.

    python reinforcement_learning.py --seconds 20 --plot learned.png
    python reinforcement_learning.py --workers 7 --parameters 16M --compare

See the Hoplite paper, section 6.4, and arXiv:1602.01783.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import cartpole
import hoplite
from harness import Crew, Progress, Report, WorkerLost, hoplite_crew, main, options, ray_crew

#: Seconds before a check for dead workers.
WAIT_LIMIT = 5.0


class Worker(cartpole.Player):
    def step(self, weights: str, gradient: str) -> None:
        client = hoplite.init()
        client.put(gradient, self.gradient(client.get(weights)))


def train_hoplite(args: argparse.Namespace) -> Report:
    model = cartpole.Model(args.seed, args.parameters)
    with hoplite_crew(
        args, Worker, args.seed, args.parameters, object_bytes=model.weights.nbytes
    ) as crew:
        client = hoplite.init()
        running: dict[
            str, tuple[int, str]
        ] = {}  # pending gradient -> its worker, and the worker's weights
        versions: set[str] = set()  # ids of weights that exist
        gradients = 0

        def give_weights(step: int, workers: list[int]) -> None:
            weights = f"{crew.run}/weights/{step}"
            client.put(weights, model.weights)
            versions.add(weights)
            for worker in workers:
                gradient = f"{crew.run}/gradient/{step}/{worker}"
                crew.tell(worker, "step", weights, gradient)
                running[gradient] = worker, weights

        give_weights(0, list(range(crew.size)))
        with Progress(args, "return") as progress:
            for step in progress:
                if step == args.kill_after:
                    crew.kill(crew.size - 1)
                total = f"{crew.run}/total/{step}"
                done = reduce_first_half(client, total, running, crew)
                model.descend(client.get(total), len(done))
                gradients += len(done)
                give_weights(step + 1, [running.pop(gradient)[0] for gradient in done])
                unused = versions - {weights for _, weights in running.values()}
                versions -= unused
                client.delete([total, *done, *unused])
                progress.score(model.mean_return)
            progress.score(model.mean_return, now=True)
        return report(progress, model, crew.lost(), gradients)


def reduce_first_half(
    client: hoplite.Client, total: str, running: dict[str, tuple[int, str]], crew: Crew
) -> list[str]:
    """Returns the ids of the added gradients. Drops dead workers."""
    wait_limit = WAIT_LIMIT
    while True:
        lost = crew.lost()
        for gradient in [gradient for gradient, (worker, _) in running.items() if worker in lost]:
            del running[gradient]
        if not running:
            raise WorkerLost(f"all workers are lost: {lost}")
        try:
            return client.reduce(total, running, num_objects=half(len(running)), timeout=wait_limit)
        except hoplite.Timeout:
            # Too many workers have died, or they need more time.
            wait_limit *= 2


def train_ray(args: argparse.Namespace) -> Report:
    model = cartpole.Model(args.seed, args.parameters)
    with ray_crew(
        args, Worker, args.seed, args.parameters, object_bytes=model.weights.nbytes
    ) as crew:
        import ray

        running: dict[Any, int] = {}  # pending gradient -> its worker
        lost: dict[int, str] = {}
        gradients = 0

        def give_weights(workers: list[int]) -> None:
            weights = ray.put(model.weights)
            for worker in workers:
                running[crew.actors[worker].gradient.remote(weights)] = worker

        give_weights(list(range(crew.size)))
        with Progress(args, "return") as progress:
            for step in progress:
                if step == args.kill_after:
                    crew.kill(crew.size - 1)
                total = np.zeros(args.parameters + cartpole.STATISTICS, np.float32)
                done: list[int] = []
                while not done:
                    if not running:
                        raise WorkerLost(f"all workers are lost: {lost}")
                    ready, _ = ray.wait(list(running), num_returns=half(len(running)))
                    for gradient in ready:
                        worker = running.pop(gradient)
                        try:
                            total += ray.get(gradient)
                        except ray.exceptions.RayActorError:
                            lost[worker] = "its actor died"
                        else:
                            done.append(worker)
                model.descend(total, len(done))
                gradients += len(done)
                give_weights(done)
                progress.score(model.mean_return)
            progress.score(model.mean_return, now=True)
        return report(progress, model, lost, gradients)


def half(workers: int) -> int:
    return (workers + 1) // 2


def report(
    progress: Progress, model: cartpole.Model, lost: dict[int, str], gradients: int
) -> Report:
    return progress.report(
        lost=lost, gradients=gradients, episodes=model.episodes, parameters=len(model.weights)
    )


if __name__ == "__main__":
    parser = options(__doc__)
    cartpole.add_options(parser)
    main(parser, {"hoplite": train_hoplite, "ray": train_ray})
