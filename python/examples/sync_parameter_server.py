"""A synchronous parameter server.

In every step, the server sends the weights to all workers, and waits for all gradients. The
slowest worker determines the speed; `async_parameter_server.py` avoids that.

With Hoplite, the server puts the weights once, and one `reduce` adds the gradients while they
arrive.

    python sync_parameter_server.py --seconds 10 --plot sync.png
    python sync_parameter_server.py --workers 7 --parameters 16M --delay 0 --compare

See the Hoplite paper, section 6.2.
"""

from __future__ import annotations

import argparse

import numpy as np

import digits
import hoplite
from harness import Crew, Progress, Report, WorkerLost, hoplite_crew, main, options, ray_crew

#: Seconds before a check for dead workers.
WAIT_LIMIT = 5.0


class Worker(digits.Trainer):
    def step(self, weights: str, gradient: str) -> None:
        client = hoplite.init()
        client.put(gradient, self.gradient(client.get(weights)))


def train_hoplite(args: argparse.Namespace) -> Report:
    model = digits.Model(args.seed, args.parameters)
    worker_options = (args.workers, args.seed, args.parameters, args.delay)
    with hoplite_crew(args, Worker, *worker_options, object_bytes=model.weights.nbytes) as crew:
        client = hoplite.init()
        finished: list[str] = []  # the objects of the previous step
        with Progress(args, "accuracy") as progress:
            progress.score(model.accuracy)
            for step in progress:
                if step == args.kill_after:
                    crew.kill(crew.size - 1)
                weights, total = f"{crew.run}/weights/{step}", f"{crew.run}/total/{step}"
                gradients = [f"{crew.run}/gradient/{step}/{worker}" for worker in range(crew.size)]
                client.put(weights, model.weights)
                for worker, gradient in enumerate(gradients):
                    crew.tell(worker, "step", weights, gradient)
                # Deletes while the workers compute.
                client.delete(finished)
                reduce_all(client, total, gradients, crew)
                model.descend(client.get(total), crew.size)
                finished = [weights, total, *gradients]
                progress.score(model.accuracy)
            progress.score(model.accuracy, now=True)
        return progress.report(parameters=args.parameters)


def reduce_all(client: hoplite.Client, total: str, gradients: list[str], crew: Crew) -> None:
    """Reduces all gradients into `total`. Raises if a worker has died."""
    wait_limit = WAIT_LIMIT
    while True:
        if lost := crew.lost():
            raise WorkerLost(f"cannot go on without these workers: {lost}")
        try:
            client.reduce(total, gradients, timeout=wait_limit)
            return
        except hoplite.Timeout:
            # A worker has died, or the workers need more time.
            wait_limit *= 2


def train_ray(args: argparse.Namespace) -> Report:
    model = digits.Model(args.seed, args.parameters)
    worker_options = (args.workers, args.seed, args.parameters, args.delay)
    with ray_crew(args, Worker, *worker_options, object_bytes=model.weights.nbytes) as crew:
        import ray

        with Progress(args, "accuracy") as progress:
            progress.score(model.accuracy)
            for step in progress:
                if step == args.kill_after:
                    crew.kill(crew.size - 1)
                weights = ray.put(model.weights)
                gradients = [actor.gradient.remote(weights) for actor in crew.actors]
                total = np.zeros_like(model.weights)
                try:
                    for gradient in ray.get(gradients):
                        total += gradient
                except ray.exceptions.RayActorError as error:
                    raise WorkerLost(f"cannot go on without a worker: {error}") from None
                model.descend(total, crew.size)
                progress.score(model.accuracy)
            progress.score(model.accuracy, now=True)
        return progress.report(parameters=args.parameters)


if __name__ == "__main__":
    parser = options(__doc__)
    digits.add_options(parser)
    main(parser, {"hoplite": train_hoplite, "ray": train_ray})
