from __future__ import annotations

import json

from example_runs import Place


def test_both_give_the_array_to_all(place: Place) -> None:
    done = place.run(
        "dask_broadcast", "--workers", "2", "--megabytes", "8", "--rounds", "2", "--json"
    )
    assert done.code == 0, done.err
    reports = [json.loads(line) for line in done.out.splitlines()]
    assert [report["backend"] for report in reports] == ["dask", "hoplite"]
    assert all(report["workers"] == 2 and report["median_s"] > 0 for report in reports)
