"""Serves an ensemble of models, while one of its workers is killed.

Each worker has a decision tree that reads digits. A query, a batch of pictures, goes to all
workers, and the front end adds their votes.

With Hoplite, the front end puts a query once, the workers' stores forward it, and the front end
gathers the votes.

After 500 queries (`--kill-after`), the last worker is killed. The front end answers with the
other votes, and starts another worker. No query is lost.

    python ensemble_serving.py --seconds 10 --plot served.png
    python ensemble_serving.py --pictures 64K --seconds 20 --compare
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeClassifier

import digits
import hoplite
from harness import Crew, Progress, Report, hoplite_crew, main, options, ray_crew

#: Seconds that a query waits for a dead worker.
WAIT_LIMIT = 0.05
KILL_AFTER = 500

Vote = npt.NDArray[np.float32]
#: Returns the votes, and the reasons of deaths, by worker.
Ask = Callable[[digits.Array, list[int]], tuple[dict[int, Vote], dict[int, str]]]


class Worker:
    def __init__(self, worker: int, seed: int) -> None:
        (pictures, shown), _ = digits.data(seed)
        # The replacement of a dead worker draws the same sample.
        rng = np.random.default_rng([seed, worker])
        sample = rng.integers(len(shown), size=len(shown))
        self._tree = DecisionTreeClassifier(
            max_features="sqrt", min_samples_leaf=3, random_state=int(rng.integers(2**31))
        )
        self._tree.fit(pictures[sample], shown[sample])

    def vote(self, pictures: digits.Array) -> Vote:
        vote: Vote = self._tree.predict_proba(pictures).astype(np.float32)
        return vote

    def answer(self, query: str, vote: str) -> None:
        client = hoplite.init()
        client.put(vote, self.vote(client.get(query)))


def serve_hoplite(args: argparse.Namespace) -> Report:
    queries = Queries(args.seed, args.pictures)
    with hoplite_crew(args, Worker, args.seed, object_bytes=queries.nbytes) as crew:
        client = hoplite.init()
        numbers = itertools.count()

        def ask(
            pictures: digits.Array, workers: list[int]
        ) -> tuple[dict[int, Vote], dict[int, str]]:
            number = next(numbers)
            query = f"{crew.run}/query/{number}"
            votes = {f"{crew.run}/vote/{number}/{worker}": worker for worker in workers}
            client.put(query, pictures)
            for vote, worker in votes.items():
                crew.tell(worker, "answer", query, vote)
            while True:
                here, missing = client.wait(votes, timeout=WAIT_LIMIT)
                lost = crew.lost()
                if all(votes[vote] in lost for vote in missing):
                    break
            gathered = dict(zip([votes[vote] for vote in here], client.gather(here), strict=True))
            client.delete([query, *votes])
            return gathered, lost

        return serve(args, crew, queries, ask)


def serve_ray(args: argparse.Namespace) -> Report:
    queries = Queries(args.seed, args.pictures)
    with ray_crew(args, Worker, args.seed, object_bytes=queries.nbytes) as crew:
        import ray

        def ask(
            pictures: digits.Array, workers: list[int]
        ) -> tuple[dict[int, Vote], dict[int, str]]:
            query = ray.put(pictures)
            votes = {worker: crew.actors[worker].vote.remote(query) for worker in workers}
            gathered, lost = {}, {}
            for worker, vote in votes.items():
                try:
                    gathered[worker] = ray.get(vote)
                except ray.exceptions.RayActorError:
                    lost[worker] = "its actor died"
            return gathered, lost

        return serve(args, crew, queries, ask)


def serve(args: argparse.Namespace, crew: Crew, queries: Queries, ask: Ask) -> Report:
    tally = Tally()
    lost: dict[int, str] = {}

    def answer() -> None:
        pictures, shown = queries.draw()
        began = time.monotonic()
        votes: dict[int, Vote] = {}
        while not votes:
            starting = crew.starting()
            while len(starting) == crew.size:
                starting = crew.starting(None)
            votes, died = ask(
                pictures, [worker for worker in range(crew.size) if worker not in starting]
            )
            for worker in died:
                crew.start(worker)
            lost.update(died)
        tally.add(time.monotonic() - began, votes, shown)

    with Progress(args, "accuracy") as progress:
        for step in progress:
            if step == args.kill_after:
                crew.kill(crew.size - 1)
            answer()
            progress.score(tally.last)
        while crew.starting(None):
            pass
        answer()
        progress.score(tally.last, now=True)
    return progress.report(lost=lost, **tally.found())


class Queries:
    """Pictures outside the training set, in random order."""

    def __init__(self, seed: int, pictures: int | None) -> None:
        _, (self._pictures, self._shown) = digits.data(seed)
        # Queries with the same pictures are equally hard.
        self._repeated = np.resize(np.arange(len(self._shown)), pictures or len(self._shown))
        self._rng = np.random.default_rng(seed)

    @property
    def nbytes(self) -> int:
        return len(self._repeated) * int(self._pictures[0].nbytes)

    def draw(self) -> tuple[digits.Array, npt.NDArray[np.int64]]:
        chosen = self._rng.permutation(self._repeated)
        return self._pictures[chosen], self._shown[chosen]


class Tally:
    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._accuracies: dict[
            int, list[float]
        ] = {}  # accuracies of answers, by their number of votes
        self._alone: list[float] = []
        self._last = 0.0

    def add(self, seconds: float, votes: dict[int, Vote], shown: npt.NDArray[np.int64]) -> None:
        self._last = accuracy(sum(votes.values()), shown)
        self._seconds.append(seconds)
        self._accuracies.setdefault(len(votes), []).append(self._last)
        self._alone.append(float(np.mean([accuracy(vote, shown) for vote in votes.values()])))

    def last(self) -> float:
        return self._last

    def found(self) -> dict[str, Any]:
        by_votes = sorted(self._accuracies.items(), reverse=True)
        return {
            "answers_by_votes": {votes: len(accuracies) for votes, accuracies in by_votes},
            "accuracy_by_votes": {
                votes: round(float(np.mean(accuracies)), 4) for votes, accuracies in by_votes
            },
            "accuracy_of_one_tree": float(np.mean(self._alone)),
            "median_ms": float(np.median(self._seconds)) * 1000,
            "slowest_ms": max(self._seconds) * 1000,
        }


def accuracy(vote: Any, shown: npt.NDArray[np.int64]) -> float:
    return float(np.mean(vote.argmax(axis=1) == shown))


def many(text: str) -> int:
    number = int(float(text[:-1]) * 1000) if text[-1:] in "kK" else int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


if __name__ == "__main__":
    parser = options(__doc__)
    parser.set_defaults(kill_after=KILL_AFTER)
    serving = parser.add_argument_group("what is served")
    serving.add_argument(
        "--pictures",
        type=many,
        metavar="N",
        help="in a query, of 256 bytes each, as in 64K: 16 MB [all there are to test with: 359]",
    )
    main(parser, {"hoplite": serve_hoplite, "ray": serve_ray})
