from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
from example_runs import EXAMPLES, Place, is_png

EXAMPLE = "reinforcement_learning"
AT_RANDOM = 25
ENOUGH = ("--workers", "3", "--steps", "150", "--json")
SEED = os.environ.get("HOPLITE_SEED", "0")


def learned(report: dict[str, Any]) -> bool:
    returns = [sample["score"] for sample in report["samples"]]
    return bool(
        returns[0] < 2 * AT_RANDOM and np.mean(returns[len(returns) // 2 :]) > 2 * returns[0]
    )


def test_it_learns_and_says_how(place: Place) -> None:
    plot = place.directory / "plot.png"
    report = place.run(EXAMPLE, *ENOUGH, "--seed", SEED, "--plot", str(plot)).report
    assert learned(report), f"with seed {SEED}"
    told = {
        "example": EXAMPLE,
        "backend": "hoplite",
        "workers": 3,
        "nodes": 4,
        "steps": 150,
        "lost": {},
    }
    assert {name: report[name] for name in told} == told
    assert report["return"] == report["samples"][-1]["score"]
    assert report["gradients"] == 2 * 150 <= report["episodes"]
    assert is_png(plot)


def test_it_goes_on_without_a_worker(place: Place) -> None:
    report = place.run(EXAMPLE, *ENOUGH, "--seed", SEED, "--kill-after", "20").report
    assert report["lost"] == {"2": "killed by SIGKILL"}
    assert report["gradients"] < 2 * 150
    assert learned(report), f"with seed {SEED}"


def test_a_large_model_learns_as_well(place: Place) -> None:
    report = place.run(EXAMPLE, *ENOUGH, "--seed", SEED, "--parameters", "1M").report
    assert report["parameters"] == 1_000_000
    assert learned(report), f"with seed {SEED}"


def test_through_rays_store_it_learns_too(place: Place) -> None:
    options = ("--backend", "ray", "--nodes", "2", "--kill-after", "20", "--seed", SEED)
    report = place.run(EXAMPLE, *ENOUGH, *options).report
    assert report["backend"] == "ray"
    assert report["lost"] == {"2": "its actor died"}
    assert learned(report), f"with seed {SEED}"


def test_workers_on_ray_use_hoplite(place: Place) -> None:
    options = ("--ray-address", "local", "--nodes", "2", "--kill-after", "20", "--seed", SEED)
    report = place.run(EXAMPLE, *ENOUGH, *options).report
    assert report["backend"] == "hoplite"
    assert list(report["lost"]) == ["2"]
    assert learned(report), f"with seed {SEED}"


@pytest.fixture
def cartpole(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import cartpole

    yield cartpole
    del sys.modules["cartpole"]


def test_the_gradient_is_that_of_the_loss(cartpole: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(int(SEED))
    weights = rng.normal(0, 0.3, cartpole.WEIGHTS).astype(np.float32)
    player = cartpole.Player(0, int(SEED), cartpole.WEIGHTS)
    episodes = [player.play(weights) for _ in range(5)]
    found = cartpole.gradient(weights, episodes)

    flat = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    parts = torch.split(flat, list(np.diff(cartpole.ENDS, prepend=0)))
    shaped = [
        part.reshape(shape)
        for part, shape in zip(parts, cartpole.ACTOR + cartpole.CRITIC, strict=True)
    ]
    actor, critic = shaped[:4], shaped[4:]

    def network(layers: Any, inputs: Any) -> Any:
        return torch.tanh(inputs @ layers[0] + layers[1]) @ layers[2] + layers[3]

    observations = torch.tensor(
        np.concatenate([episode.observations[: len(episode.actions)] for episode in episodes]),
        dtype=torch.float64,
    )
    actions = torch.tensor(np.concatenate([episode.actions for episode in episodes]))
    estimates = [cartpole.estimate(weights, episode) for episode in episodes]
    advantages = torch.tensor(np.concatenate([one for one, _ in estimates]), dtype=torch.float64)
    returns = torch.tensor(np.concatenate([one for _, one in estimates]), dtype=torch.float64)
    advantages = (advantages - advantages.mean()) / advantages.std(correction=0)
    policy = torch.distributions.Categorical(logits=network(actor, observations))
    loss = (
        -(policy.log_prob(actions) * advantages).mean() - cartpole.ENTROPY * policy.entropy().mean()
    )
    loss += (network(critic, observations)[:, 0] - returns).square().mean() / 2
    loss.backward()
    np.testing.assert_allclose(found, flat.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_what_is_expected_counts_after_the_time_is_over_but_not_after_a_fall(cartpole: Any) -> None:
    weights = np.zeros(cartpole.WEIGHTS, np.float32)
    weights[-1] = 0.5  # The critic estimates 0.5 everywhere.
    observations = np.zeros((3, cartpole.OBSERVED), np.float32)
    step, later = 1 - cartpole.DISCOUNT, cartpole.DISCOUNT
    cases = {
        2: [step - 0.5, step + later * 0.5 - 0.5],
        3: [step + later * 0.5 - 0.5] * 2,
    }
    for seen, surprises in cases.items():
        episode = cartpole.Episode(observations[:seen], np.zeros(2, np.int64))
        advantages, returns = cartpole.estimate(weights, episode)
        last, before = surprises
        expected = [before + later * cartpole.TRUST * last, last]
        np.testing.assert_allclose(advantages, expected, rtol=1e-5)
        np.testing.assert_allclose(returns, np.array(expected) + 0.5, rtol=1e-5)
