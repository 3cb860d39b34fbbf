"""The trainer that sends its weights goes on whatever becomes of its workers."""

from __future__ import annotations

from example_runs import Place


def test_workers_join_leave_and_die(place: Place) -> None:
    done = place.run(
        "weights", "--workers", "4", "--megabytes", "8", "--versions", "4", "--interval", "0.5", "--json"
    )
    report = done.report
    assert report["ends"] == {"leaves": "code 0", "dies": "killed", "stays": "code 0", "joins": "code 0"}
    assert report["have_last"] == 2
    assert report["kept"] == [3, 4]
    assert 0 < report["median_s"] <= report["slowest_s"]


def test_mistakes_in_the_command_line(place: Place) -> None:
    done = place.run("weights", "--workers", "3")
    assert done.code == 2
    assert "at least 4 workers" in done.err
