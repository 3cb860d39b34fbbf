from __future__ import annotations

import json

import pytest
from example_runs import Place


def test_replicas_get_the_state(place: Place) -> None:
    pytest.importorskip("torchft", reason="torchft is optional")
    size = ("--replicas", "2", "--megabytes", "8", "--rounds", "2")
    done = place.run("torchft_recovery", *size, "--compare", "--json")
    assert done.code == 0, done.err
    reports = [json.loads(line) for line in done.out.splitlines()]
    assert [report["backend"] for report in reports] == ["hoplite", "torchft's HTTP"]
    assert all(report["replicas"] == 2 and report["median_s"] > 0 for report in reports)
    assert reports[0]["left"] == 0
