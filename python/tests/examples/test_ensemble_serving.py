from __future__ import annotations

import os
from typing import Any

import pytest
from example_runs import Place, is_png

EXAMPLE = "ensemble_serving"
STEPS, KILL_AFTER = 120, 40
WORKERS = 4
SERVE = (
    "--workers",
    str(WORKERS),
    "--steps",
    str(STEPS),
    "--kill-after",
    str(KILL_AFTER),
    "--json",
)
CHANCE = 0.1
SEED = os.environ.get("HOPLITE_SEED", "0")


def check(report: dict[str, Any]) -> None:
    seed = f"with seed {SEED}"
    answers, accuracies = report["answers_by_votes"], report["accuracy_by_votes"]
    assert sum(answers.values()) == STEPS + 1
    assert set(answers) == {"4", "3"}
    assert answers["4"] >= KILL_AFTER + 1
    assert answers["3"] >= 1
    assert accuracies["4"] > accuracies["3"] > 5 * CHANCE, seed
    assert accuracies["3"] > report["accuracy_of_one_tree"] > 5 * CHANCE, seed
    scores = [sample["score"] for sample in report["samples"]]
    assert scores[0] == scores[-1] == report["accuracy"] == pytest.approx(accuracies["4"], abs=1e-4)
    assert report["median_ms"] <= report["slowest_ms"]


def test_no_query_is_lost_when_a_worker_is_killed(place: Place) -> None:
    plot = place.directory / "plot.png"
    report = place.run(EXAMPLE, *SERVE, "--seed", SEED, "--plot", str(plot)).report
    check(report)
    told = {"example": EXAMPLE, "backend": "hoplite", "workers": 4, "nodes": 5, "steps": STEPS}
    assert {name: report[name] for name in told} == told
    assert report["lost"] == {"3": "killed by SIGKILL"}
    assert is_png(plot)


def test_no_query_is_lost_when_the_only_worker_is_killed(place: Place) -> None:
    options = ("--workers", "1", "--steps", "20", "--kill-after", "10", "--json")
    report = place.run(EXAMPLE, *options, "--seed", SEED).report
    assert report["lost"] == {"0": "killed by SIGKILL"}
    assert report["answers_by_votes"] == {"1": 21}
    assert {sample["score"] for sample in report["samples"]} == {report["accuracy"]}


def test_nobody_is_lost_who_is_not_killed(place: Place) -> None:
    options = ("--workers", "2", "--steps", "20", "--pictures", "10K")
    report = place.run(EXAMPLE, *options, "--seed", SEED, "--json").report
    assert report["lost"] == {}
    assert report["answers_by_votes"] == {"2": 21}
    assert report["accuracy"] > 5 * CHANCE, f"with seed {SEED}"


def test_through_rays_store_no_query_is_lost_either(place: Place) -> None:
    report = place.run(EXAMPLE, *SERVE, "--backend", "ray", "--nodes", "2", "--seed", SEED).report
    check(report)
    assert report["backend"] == "ray"
    assert report["lost"] == {"3": "its actor died"}


def test_workers_on_ray_use_hoplite(place: Place) -> None:
    report = place.run(
        EXAMPLE, *SERVE, "--ray-address", "local", "--nodes", "2", "--seed", SEED
    ).report
    check(report)
    assert report["backend"] == "hoplite"
    assert list(report["lost"]) == ["3"]
