from __future__ import annotations

import json

from example_runs import Place


def test_workers_join_leave_and_die(place: Place) -> None:
    size = ("--workers", "4", "--megabytes", "8", "--versions", "4")
    done = place.run("weights", *size, "--interval", "0.5", "--json", "--compare")
    assert done.code == 0, done.err
    report, gloo = map(json.loads, done.out.splitlines())
    assert gloo.pop("slowest_s") >= gloo.pop("median_s") > 0
    assert gloo == {"backend": "gloo", "workers": 4, "megabytes": 8, "versions": 4}
    assert report["ends"] == {
        "leaves": "code 0",
        "dies": "killed",
        "stays": "code 0",
        "joins": "code 0",
    }
    assert report["have_last"] == 2
    assert report["kept"] == [3, 4]
    assert 0 < report["median_s"] <= report["slowest_s"]


def test_mistakes_in_the_command_line(place: Place) -> None:
    done = place.run("weights", "--workers", "3")
    assert done.code == 2
    assert "at least 4 workers" in done.err
