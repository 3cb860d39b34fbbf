"""The model of the reinforcement learning example: an actor and a critic in numpy balance the pole
of gymnasium's CartPole-v1. Each step earns 1, at most 500.

`parameters` appends zeros, to simulate a larger model.
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
ENDS = np.cumsum([math.prod(shape) for shape in ACTOR + CRITIC])
WEIGHTS = int(ENDS[-1])
#: Numbers after a gradient: the episodes' total return, and their number.
STATISTICS = 2
#: The minimum of steps in a gradient. Workers play complete episodes, so they finish at different
#: times.
STEPS = 200
#: Gamma and lambda of generalized advantage estimation, arXiv:1506.02438.
DISCOUNT, TRUST = 0.99, 0.95
#: The weight of the entropy of actions: A3C, arXiv:1602.01783.
ENTROPY = 0.01
#: Adam, arXiv:1412.6980.
LEARNING_RATE, MOMENTUM, SMOOTHING, TINY = 0.003, 0.9, 0.999, 1e-8
RECENT = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    training = parser.add_argument_group("what is trained")
    training.add_argument(
        "--parameters",
        type=count,
        default=WEIGHTS,
        metavar="N",
        help=f"make the model so large, as in 16M: 64 MB [{WEIGHTS}]",
    )


def count(text: str) -> int:
    factor = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1:].upper(), 1)
    number = int(float(text[:-1]) * factor) if factor > 1 else int(text)
    if number < WEIGHTS:
        raise argparse.ArgumentTypeError(f"the networks have {WEIGHTS} parameters already")
    return number


class Model:
    def __init__(self, seed: int, parameters: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = np.zeros(parameters, np.float32)
        actor, critic = layers(self.weights)
        for matrix in (actor[0], critic[0], critic[2]):
            matrix[...] = rng.normal(0, 1 / np.sqrt(len(matrix)), matrix.shape)
        self._mean, self._square = np.zeros(WEIGHTS, np.float32), np.zeros(WEIGHTS, np.float32)
        self._updates = 0
        self._returns: deque[Array] = deque(maxlen=RECENT)
        self.episodes = 0

    def descend(self, total: Array, gradients: int) -> None:
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
        returned, episodes = np.sum(self._returns, axis=0)
        return float(returned / episodes)


@dataclass
class Episode:
    observations: Array
    """One for each action, and a final one if time ran out."""
    actions: npt.NDArray[np.int64]


class Player:
    def __init__(self, worker: int, seed: int, parameters: int) -> None:
        self._world: gymnasium.Env[Array, int] = gymnasium.make("CartPole-v1")
        self._rng = np.random.default_rng([seed, worker])
        self._world.reset(seed=int(self._rng.integers(2**31)))
        self._gradient = np.zeros(parameters + STATISTICS, np.float32)

    def gradient(self, weights: Array) -> Array:
        """Plays episodes. The next call overwrites the returned array."""
        episodes: list[Episode] = []
        while sum(len(episode.actions) for episode in episodes) < STEPS:
            episodes.append(self.play(weights))
        self._gradient[:WEIGHTS] = gradient(weights, episodes)
        returns = [len(episode.actions) for episode in episodes]
        self._gradient[-STATISTICS:] = sum(returns), len(returns)
        return self._gradient

    def play(self, weights: Array) -> Episode:
        (into, bias, out, out_bias), _ = layers(weights)
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
    actor, critic = layers(weights)
    estimates = [estimate(weights, episode) for episode in episodes]
    advantages = np.concatenate([advantages for advantages, _ in estimates])
    returns = np.concatenate([returns for _, returns in estimates])
    actions = np.concatenate([episode.actions for episode in episodes])
    observations = np.concatenate(
        [episode.observations[: len(episode.actions)] for episode in episodes]
    )

    advantages = (advantages - advantages.mean()) / (advantages.std() + TINY)
    hidden, preferences = forward(actor, observations)
    logs = preferences - np.logaddexp(preferences[:, :1], preferences[:, 1:])
    chances = np.exp(logs)
    entropies = -np.sum(chances * logs, axis=1, keepdims=True)
    taken = np.eye(ACTIONS)[actions]
    error = (chances - taken) * advantages[:, None] + ENTROPY * chances * (logs + entropies)
    parts = backward(actor, observations, hidden, error / len(actions))
    hidden, expected = forward(critic, observations)
    parts += backward(critic, observations, hidden, (expected - returns[:, None]) / len(actions))
    return np.concatenate([part.ravel() for part in parts])


def estimate(weights: Array, episode: Episode) -> tuple[Array, Array]:
    """Returns each step's advantage, and the critic's target from 0 to 1."""
    _, critic = layers(weights)
    expected = forward(critic, episode.observations)[1][:, 0]
    steps = len(episode.actions)
    advantages = np.zeros(steps, np.float32)
    # The last state's value: 0 after a fall, an estimate after a timeout.
    after, advantage = (expected[steps] if len(expected) > steps else 0.0), 0.0
    for step in reversed(range(steps)):
        surprise = (1 - DISCOUNT) + DISCOUNT * after - expected[step]
        advantage = surprise + DISCOUNT * TRUST * advantage
        advantages[step], after = advantage, expected[step]
    return advantages, advantages + expected[:steps]


def forward(network: list[Array], inputs: Array) -> tuple[Array, Array]:
    into, bias, out, out_bias = network
    hidden: Array = np.tanh(inputs @ into + bias)
    return hidden, hidden @ out + out_bias


def backward(
    network: list[Array], inputs: Array, hidden: Array, error: npt.NDArray[Any]
) -> list[Array]:
    hidden_error = (error @ network[2].T) * (1 - hidden**2)
    return [inputs.T @ hidden_error, hidden_error.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def layers(flat: Array) -> tuple[list[Array], list[Array]]:
    parts = np.split(flat[:WEIGHTS], ENDS[:-1])
    shaped = [part.reshape(shape) for part, shape in zip(parts, ACTOR + CRITIC, strict=True)]
    return shaped[: len(ACTOR)], shaped[len(ACTOR) :]
