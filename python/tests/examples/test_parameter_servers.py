from __future__ import annotations

import itertools
import os
from signal import Signals

import pytest
from example_runs import Place, complaints, is_png

from stores import PATIENCE, await_that

SERVERS = ("sync_parameter_server", "async_parameter_server")
#: Accuracy of a trained model. Random answers reach 0.1.
LEARNED = 0.6
QUICK = ("--delay", "0.002", "--json")
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "ray", "torch", "tqdm"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
"""
SEED = os.environ.get("HOPLITE_SEED", "0")


@pytest.mark.parametrize("server", SERVERS)
def test_it_learns_and_says_how(place: Place, server: str) -> None:
    plot = place.directory / "plot.png"
    report = place.run(
        server, "--workers", "3", "--steps", "150", "--seed", SEED, "--plot", str(plot), *QUICK
    ).report
    assert report["accuracy"] > LEARNED, f"with seed {SEED}"
    samples = report["samples"]
    assert report["accuracy"] == samples[-1]["score"] > samples[0]["score"]
    assert (samples[0]["seconds"], samples[0]["steps"], samples[-1]["steps"]) == (0, 0, 150)
    assert all(
        before["seconds"] < after["seconds"] for before, after in itertools.pairwise(samples)
    )
    assert samples[-2]["seconds"] <= report["seconds"] <= samples[-1]["seconds"]
    told = {
        "example": server,
        "backend": "hoplite",
        "workers": 3,
        "nodes": 4,
        "steps": 150,
        "lost": {},
    }
    assert {name: report[name] for name in told} == told
    assert report["steps_per_second"] == pytest.approx(report["steps"] / report["seconds"])
    assert is_png(plot)


def test_a_step_is_of_the_first_half(place: Place) -> None:
    report = place.run("async_parameter_server", "--workers", "4", "--steps", "10", *QUICK).report
    assert report["gradients"] == 10 * 2


def test_a_large_model_learns_as_well(place: Place) -> None:
    options = ("--workers", "2", "--steps", "80", "--parameters", "1M", "--seed", SEED)
    report = place.run("sync_parameter_server", *options, *QUICK).report
    assert report["parameters"] == 1_000_000
    assert report["accuracy"] > LEARNED, f"with seed {SEED}"


def test_it_needs_only_numpy_and_scikit_learn(place: Place) -> None:
    (place.directory / "sitecustomize.py").write_text(WITHOUT)
    place.environment["PYTHONPATH"] = str(place.directory)
    done = place.run("async_parameter_server", "--seconds", "1", "--workers", "2", "--seed", SEED)
    assert done.code == 0, done.err
    assert "steps/s, accuracy 0." in done.out
    assert complaints(done.err) == []


def test_the_asynchronous_one_goes_on_without_a_worker(place: Place) -> None:
    options = ("--workers", "3", "--steps", "150", "--kill-after", "20", "--seed", SEED)
    report = place.run("async_parameter_server", *options, *QUICK).report
    assert report["lost"] == {"2": "killed by SIGKILL"}
    assert report["steps"] == 150
    assert report["accuracy"] > LEARNED, f"with seed {SEED}"


@pytest.mark.parametrize(
    ("server", "workers"), [("sync_parameter_server", "3"), ("async_parameter_server", "1")]
)
def test_it_says_who_died_if_it_cannot_go_on(place: Place, server: str, workers: str) -> None:
    done = place.run(server, "--workers", workers, "--steps", "1000", "--kill-after", "5", *QUICK)
    assert done.code == 1
    assert f"{int(workers) - 1}: 'killed by SIGKILL'" in done.err
    assert len(complaints(done.err)) == 1
    assert done.out == ""


def test_nothing_runs_on_when_it_is_killed(place: Place) -> None:
    code, _ = ended_by(Signals.SIGKILL, place)
    assert code == -Signals.SIGKILL
    await_that("all else ends as well", lambda: place.processes() == [])


def test_ctrl_c_ends_all_of_it(place: Place) -> None:
    assert ended_by(Signals.SIGINT, place) == (130, [])
    assert place.processes() == []
    assert place.directories() == []


@pytest.mark.parametrize(
    "mistake", ["--plot=x.jpg", "--workers=0", "--seconds=inf", "--parameters=10", "--parameters=M"]
)
def test_what_makes_no_sense_is_refused(place: Place, mistake: str) -> None:
    done = place.run("async_parameter_server", mistake)
    assert done.code == 2
    assert mistake.partition("=")[0] in done.err
    assert "Traceback" not in done.err


def ended_by(signal: Signals, place: Place) -> tuple[int, list[str]]:
    with place.start("async_parameter_server", "--workers", "2", "--seconds", "600") as process:
        try:
            await_that(
                "workers, stores, a directory", lambda: len(place.processes()) >= 1 + 2 + 3 + 1
            )
            process.send_signal(signal)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    return process.returncode, complaints(err)


def test_through_rays_store_one_goes_on_without_a_worker_too(place: Place) -> None:
    options = (
        "--backend",
        "ray",
        "--workers",
        "3",
        "--nodes",
        "2",
        "--steps",
        "150",
        "--kill-after",
        "20",
    )
    report = place.run("async_parameter_server", *options, "--seed", SEED, *QUICK).report
    assert report["backend"] == "ray"
    assert report["lost"] == {"2": "its actor died"}
    assert report["accuracy"] > LEARNED, f"with seed {SEED}"


def test_workers_on_ray_use_hoplite(place: Place) -> None:
    options = (
        "--ray-address",
        "local",
        "--workers",
        "3",
        "--nodes",
        "2",
        "--steps",
        "150",
        "--kill-after",
        "20",
    )
    report = place.run("async_parameter_server", *options, "--seed", SEED, *QUICK).report
    assert report["backend"] == "hoplite"
    assert list(report["lost"]) == ["2"]
    assert report["accuracy"] > LEARNED, f"with seed {SEED}"


def test_both_backends_are_compared_on_the_same(place: Place) -> None:
    plot = place.directory / "plot.png"
    options = (
        "--compare",
        "--compare-workers",
        "2",
        "--nodes",
        "2",
        "--steps",
        "60",
        "--delay",
        "0.002",
    )
    done = place.run("sync_parameter_server", *options, "--seed", SEED, "--plot", str(plot))
    assert done.code == 0, done.err
    head, _, row = done.out.splitlines()
    values = dict(zip(head.split("|")[1:-1], row.split("|")[1:-1], strict=True))
    found = {name.strip(): float(value) for name, value in values.items()}
    assert found["workers"] == 2
    rounding = 0.005
    ours, rays = found["hoplite, steps/s"], found["ray, steps/s"]
    assert found["ratio"] >= (ours - rounding) / (rays + rounding) - rounding
    assert found["ratio"] <= (ours + rounding) / (rays - rounding) + rounding
    assert found["accuracy, hoplite"] == pytest.approx(found["accuracy, ray"], abs=0.02)
    assert is_png(plot)
