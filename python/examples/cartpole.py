"""What the example of reinforcement learning learns: to balance a pole on a cart, with an actor and a critic in numpy.

The world is gymnasium's CartPole-v1: four numbers say where cart and pole are, two actions push left or right, and each step
is worth 1 until the pole falls, at most 500. Who pushes at random gets about 22. The actor says how likely each action is to
be taken, the critic how much is still to come. Both are networks of one hidden layer. Their weights are one flat array, as
is a gradient, so that each is one object. `parameters` makes them larger, by zeros at the end that nobody computes with:
then moving them is what takes time, as with a large model.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

OBSERVED, HIDDEN, ACTIONS = 4, 64, 2
ACTOR = [(OBSERVED, HIDDEN), (HIDDEN,), (HIDDEN, ACTIONS), (ACTIONS,)]
CRITIC = [(OBSERVED, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
#: Where the parts of the flat array end.
ENDS = np.cumsum([math.prod(shape) for shape in ACTOR + CRITIC])
#: How many numbers the networks have that are computed with.
WEIGHTS = int(ENDS[-1])
#: What follows a gradient in its array: the sum of the returns of the episodes, and how many there were. A reduce so adds
#: up both.
STATISTICS = 2
#: A gradient is of at least so many steps of the world: as many whole episodes as that takes. So workers are ready at
#: different times.
STEPS = 200
#: How much less a step is worth for each that is between, and an estimate: generalized advantage estimation,
#: arXiv:1506.02438, within the ranges that it finds best for this task.
DISCOUNT, TRUST = 0.99, 0.95
#: What uncertainty about the action is worth, lest the actor is certain too early: A3C, arXiv:1602.01783.
ENTROPY = 0.01
#: Of Adam, arXiv:1412.6980, but for the rate with the values that it recommends.
LEARNING_RATE, MOMENTUM, SMOOTHING, TINY = 0.003, 0.9, 0.999, 1e-8
#: How many steps of the training the mean return is taken over.
RECENT = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the training."""
    training = parser.add_argument_group("what is trained")
    training.add_argument(
        "--parameters",
        type=count,
        default=WEIGHTS,
        metavar="N",
        help=f"make the model so large, as in 16M: 64 MB [{WEIGHTS}]",
    )


def count(text: str) -> int:
    """A number of parameters, as in 16M; at least those of the networks."""
    factor = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1:].upper(), 1)
    number = int(float(text[:-1]) * factor) if factor > 1 else int(text)
    if number < WEIGHTS:
        raise argparse.ArgumentTypeError(f"the networks have {WEIGHTS} parameters already")
    return number


class Model:
    """The weights, and how well they do. This is what the trainer has."""

    def __init__(self, seed: int, parameters: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = np.zeros(parameters, np.float32)
        actor, critic = layers(self.weights)
        for matrix in (actor[0], critic[0], critic[2]):
            matrix[...] = rng.normal(0, 1 / np.sqrt(len(matrix)), matrix.shape)
        # The matrix of the actor's outputs stays zero: at first, it prefers no action.
        self._mean, self._square = np.zeros(WEIGHTS, np.float32), np.zeros(WEIGHTS, np.float32)
        self._updates = 0
        self._returns: deque[Array] = deque(maxlen=RECENT)
        self.episodes = 0
        """How many were played."""

    def descend(self, total: Array, gradients: int) -> None:
        """Makes a step against the mean of so many gradients, of which `total` is the sum; keeps their statistics."""
        gradient = total[:WEIGHTS] / gradients
        self._updates += 1
        self._mean += (1 - MOMENTUM) * (gradient - self._mean)
        self._square += (1 - SMOOTHING) * (gradient**2 - self._square)
        mean = self._mean / (1 - MOMENTUM**self._updates)
        square = self._square / (1 - SMOOTHING**self._updates)
        self.weights[:WEIGHTS] -= LEARNING_RATE * mean / (np.sqrt(square) + TINY)
        self._returns.append(total[-STATISTICS:].copy())
        self.episodes += int(total[-1])

    def mean_return(self) -> float:
        """How much an episode was worth lately: 500 at most."""
        returned, episodes = np.sum(self._returns, axis=0)
        return float(returned / episodes)


@dataclass
class Episode:
    """What a worker has seen and done, from one start to the end."""

    observations: Array
    """One for each action; and one more if the time was over, from where it would have gone on."""
    actions: npt.NDArray[np.int64]


class Player:
    """Plays episodes, and computes from them how the weights should change. This is what a worker has."""

    def __init__(self, worker: int, seed: int, parameters: int) -> None:
        self._world: gymnasium.Env[Array, int] = gymnasium.make("CartPole-v1")
        self._rng = np.random.default_rng([seed, worker])
        self._world.reset(seed=int(self._rng.integers(2**31)))
        self._gradient = np.zeros(parameters + STATISTICS, np.float32)

    def gradient(self, weights: Array) -> Array:
        """The gradient of some episodes, and their statistics; in an array that the next call uses again."""
        episodes: list[Episode] = []
        while sum(len(episode.actions) for episode in episodes) < STEPS:
            episodes.append(self.play(weights))
        self._gradient[:WEIGHTS] = gradient(weights, episodes)
        returns = [len(episode.actions) for episode in episodes]
        self._gradient[-STATISTICS:] = sum(returns), len(returns)
        return self._gradient

    def play(self, weights: Array) -> Episode:
        """Plays an episode, with actions as likely as the actor says."""
        (into, bias, out, out_bias), _ = layers(weights)
        # How likely one of two actions is depends only on the difference.
        prefer, prefer_bias = out[:, 1] - out[:, 0], float(out_bias[1] - out_bias[0])
        observation, _ = self._world.reset()
        observations, actions = [observation], []
        while True:
            preference = float(np.tanh(observation @ into + bias) @ prefer) + prefer_bias
            action = int(self._rng.random() * (1 + math.exp(-preference)) < 1)
            observation, _, fell, is_over, _ = self._world.step(action)
            actions.append(action)
            if not fell:
                observations.append(observation)
            if fell or is_over:
                return Episode(np.array(observations), np.array(actions))


def gradient(weights: Array, episodes: list[Episode]) -> Array:
    """The gradient of the loss of the actor and of the critic: the means over all steps of the episodes."""
    actor, critic = layers(weights)
    estimates = [estimate(weights, episode) for episode in episodes]
    advantages = np.concatenate([advantages for advantages, _ in estimates])
    returns = np.concatenate([returns for _, returns in estimates])
    actions = np.concatenate([episode.actions for episode in episodes])
    observations = np.concatenate([episode.observations[: len(episode.actions)] for episode in episodes])

    # The actor: what turned out better than was expected is to become more likely.
    advantages = (advantages - advantages.mean()) / (advantages.std() + TINY)
    hidden, preferences = forward(actor, observations)
    logs = preferences - np.logaddexp(preferences[:, :1], preferences[:, 1:])
    chances = np.exp(logs)
    entropies = -np.sum(chances * logs, axis=1, keepdims=True)
    taken = np.eye(ACTIONS)[actions]
    error = (chances - taken) * advantages[:, None] + ENTROPY * chances * (logs + entropies)
    parts = backward(actor, observations, hidden, error / len(actions))
    # The critic: half of the squared error.
    hidden, expected = forward(critic, observations)
    parts += backward(critic, observations, hidden, (expected - returns[:, None]) / len(actions))
    return np.concatenate([part.ravel() for part in parts])


def estimate(weights: Array, episode: Episode) -> tuple[Array, Array]:
    """For each step: how much better it turned out than the critic expected, and what it should have expected.

    A step counts as `1 - DISCOUNT`, so that what is expected is between 0 and 1.
    """
    _, critic = layers(weights)
    expected = forward(critic, episode.observations)[1][:, 0]
    steps = len(episode.actions)
    advantages = np.zeros(steps, np.float32)
    # Nothing comes after a fall; but much would come after the end of the time.
    after, advantage = (expected[steps] if len(expected) > steps else 0.0), 0.0
    for step in reversed(range(steps)):
        surprise = (1 - DISCOUNT) + DISCOUNT * after - expected[step]
        advantage = surprise + DISCOUNT * TRUST * advantage
        advantages[step], after = advantage, expected[step]
    return advantages, advantages + expected[:steps]


def forward(network: list[Array], inputs: Array) -> tuple[Array, Array]:
    """What the hidden layer says, and the outputs."""
    into, bias, out, out_bias = network
    hidden: Array = np.tanh(inputs @ into + bias)
    return hidden, hidden @ out + out_bias


def backward(network: list[Array], inputs: Array, hidden: Array, error: npt.NDArray[Any]) -> list[Array]:
    """The gradients of the parts of a network, from that of its outputs."""
    hidden_error = (error @ network[2].T) * (1 - hidden**2)
    return [inputs.T @ hidden_error, hidden_error.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def layers(flat: Array) -> tuple[list[Array], list[Array]]:
    """The matrices and biases of actor and critic that a flat array consists of: views, not copies."""
    parts = np.split(flat[:WEIGHTS], ENDS[:-1])
    shaped = [part.reshape(shape) for part, shape in zip(parts, ACTOR + CRITIC, strict=True)]
    return shaped[: len(ACTOR)], shaped[len(ACTOR) :]
