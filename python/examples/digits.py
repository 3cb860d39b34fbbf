"""The model of the parameter servers: a small network in numpy that reads scikit-learn's digits.

`parameters` appends zeros, to simulate a larger model.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Array = npt.NDArray[np.float32]

INPUTS, HIDDEN, CLASSES = 64, 64, 10
WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
LEARNING_RATE = 0.2
BATCH = 32
TEST_SHARE = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    training = parser.add_argument_group("what is trained")
    training.add_argument(
        "--parameters",
        type=count,
        default=WEIGHTS,
        metavar="N",
        help=f"make the model so large, as in 16M: 64 MB [{WEIGHTS}]",
    )
    training.add_argument(
        "--delay",
        type=float,
        default=0.02,
        metavar="S",
        help="seconds that a gradient takes besides, on average; the workers differ by up to a factor of 3 [0.02]",
    )


def count(text: str) -> int:
    factor = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1:].upper(), 1)
    number = int(float(text[:-1]) * factor) if factor > 1 else int(text)
    if number < WEIGHTS:
        raise argparse.ArgumentTypeError(f"the network has {WEIGHTS} parameters already")
    return number


class Model:
    def __init__(self, seed: int, parameters: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = np.zeros(parameters, np.float32)
        w1, _, w2, _ = layers(self.weights)
        w1[...] = rng.normal(0, np.sqrt(2 / INPUTS), w1.shape)
        w2[...] = rng.normal(0, np.sqrt(2 / HIDDEN), w2.shape)
        self._step = np.empty_like(self.weights)
        _, (self._pictures, self._digits) = data(seed)

    def descend(self, total: Array, gradients: int) -> None:
        np.multiply(total, LEARNING_RATE / gradients, out=self._step)
        self.weights -= self._step

    def accuracy(self) -> float:
        """The share of correct test answers; chance is 0.1."""
        _, scores = forward(self.weights, self._pictures)
        return float(np.mean(scores.argmax(axis=1) == self._digits))


class Trainer:
    def __init__(self, worker: int, workers: int, seed: int, parameters: int, delay: float) -> None:
        (pictures, digits), _ = data(seed)
        self._pictures, self._digits = pictures[worker::workers], digits[worker::workers]
        self._rng = np.random.default_rng([seed, worker])
        self._delay = delay * (0.5 + worker / max(1, workers - 1))
        self._gradient = np.zeros(parameters, np.float32)

    def gradient(self, weights: Array) -> Array:
        """Returns a random batch's gradient. The next call overwrites the array."""
        batch = self._rng.integers(len(self._digits), size=BATCH)
        pictures, digits = self._pictures[batch], self._digits[batch]
        _, _, w2, _ = layers(weights)
        hidden, scores = forward(weights, pictures)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = scores / scores.sum(axis=1, keepdims=True)
        error[np.arange(BATCH), digits] -= 1
        error /= BATCH
        hidden_error = (error @ w2.T) * (hidden > 0)
        g1, c1, g2, c2 = layers(self._gradient)
        g1[...], c1[...] = pictures.T @ hidden_error, hidden_error.sum(axis=0)
        g2[...], c2[...] = hidden.T @ error, error.sum(axis=0)
        time.sleep(self._delay * self._rng.uniform(0.5, 1.5))
        return self._gradient


def forward(weights: Array, pictures: Array) -> tuple[Array, Array]:
    w1, b1, w2, b2 = layers(weights)
    hidden: Array = np.maximum(pictures @ w1 + b1, 0)
    return hidden, hidden @ w2 + b2


def layers(flat: Array) -> tuple[Array, Array, Array, Array]:
    ends = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])
    w1, b1, w2, b2, _ = np.split(flat, ends)
    return w1.reshape(INPUTS, HIDDEN), b1, w2.reshape(HIDDEN, CLASSES), b2


def data(
    seed: int,
) -> tuple[tuple[Array, npt.NDArray[np.int64]], tuple[Array, npt.NDArray[np.int64]]]:
    pictures, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    pictures, digits = pictures[order].astype(np.float32) / 16, digits[order]
    test = len(digits) // TEST_SHARE
    return (pictures[test:], digits[test:]), (pictures[:test], digits[:test])
