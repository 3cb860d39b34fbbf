"""Reinforcement learning with many actors (A3C), which play as long as it takes.

Each worker plays some episodes with the weights that it has, and computes from them a gradient. In every step the trainer
takes the first half of the gradients to be ready, updates the weights, and gives them to the workers that those came from.
An episode may last for 10 steps of the world or for 500: who makes up a step is not known before, and nobody waits for
the others.

With Hoplite that is one `reduce` over the gradients that are under way, with `num_objects`: they are added up in the stores,
on their way, and the trainer receives one array. The new weights are put once, and the workers that get them serve
each other. `--backend ray` does the same with `ray.wait`, `ray.get` and `ray.put`, through Ray's own object store.

    python reinforcement_learning.py --seconds 20 --plot learned.png
    python reinforcement_learning.py --workers 7 --parameters 16M --compare

After section 6.4 of "Hoplite: Efficient and Fault-Tolerant Collective Communication for Task-Based Distributed Systems", and
"Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import cartpole
import hoplite
from harness import Crew, Progress, Report, WorkerLost, hoplite_crew, main, options, ray_crew

#: How long to wait, in seconds, before asking whether the workers still live.
PATIENCE = 5.0


class Worker(cartpole.Player):
    """One of the workers, in its own process. `gradient(weights)` plays and computes."""

    def step(self, weights: str, gradient: str) -> None:
        """With Hoplite: gets the weights, in place, and puts the gradient. Both are known by their ids."""
        client = hoplite.init()
        client.put(gradient, self.gradient(client.get(weights)))


def train_hoplite(args: argparse.Namespace) -> Report:
    """The trainer, with Hoplite."""
    model = cartpole.Model(args.seed, args.parameters)
    with hoplite_crew(args, Worker, args.seed, args.parameters, object_bytes=model.weights.nbytes) as crew:
        client = hoplite.init()
        running: dict[
            str, tuple[int, str]
        ] = {}  # the gradient to come -> the worker, and the weights that it has
        versions: set[str] = set()  # of the weights, those that were not deleted yet
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
                # The workers play again: time to tidy up. Weights go when the last worker has finished with them.
                unused = versions - {weights for _, weights in running.values()}
                versions -= unused
                client.delete([total, *done, *unused])
                progress.score(model.mean_return)
            progress.score(model.mean_return, now=True)
        return report(progress, model, crew.lost(), gradients)


def reduce_first_half(
    client: hoplite.Client, total: str, running: dict[str, tuple[int, str]], crew: Crew
) -> list[str]:
    """Adds up the first half of the gradients to be ready, and returns their ids. Forgets the workers that have died."""
    patience = PATIENCE
    while True:
        lost = crew.lost()
        for gradient in [gradient for gradient, (worker, _) in running.items() if worker in lost]:
            del running[gradient]
        if not running:
            raise WorkerLost(f"all workers are lost: {lost}")
        try:
            return client.reduce(total, running, num_objects=half(len(running)), timeout=patience)
        except hoplite.Timeout:
            # Either too many have died, or they play longer than we thought.
            patience *= 2


def train_ray(args: argparse.Namespace) -> Report:
    """The trainer, with Ray's own object store. Objects end when nobody refers to them."""
    model = cartpole.Model(args.seed, args.parameters)
    with ray_crew(args, Worker, args.seed, args.parameters, object_bytes=model.weights.nbytes) as crew:
        import ray

        running: dict[Any, int] = {}  # the gradient to come -> the worker
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
    """How many gradients make a step."""
    return (workers + 1) // 2


def report(progress: Progress, model: cartpole.Model, lost: dict[int, str], gradients: int) -> Report:
    """What came of it."""
    return progress.report(
        lost=lost, gradients=gradients, episodes=model.episodes, parameters=len(model.weights)
    )


if __name__ == "__main__":
    parser = options(__doc__)
    cartpole.add_options(parser)
    main(parser, {"hoplite": train_hoplite, "ray": train_ray})
