from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores import PATIENCE

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(
    tmp_path: Path, *arguments: str, program: str = "local", **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), **settings}
    command = [sys.executable, str(BENCHMARKS / f"{program}.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert list(tmp_path.glob("hoplite-*")) == [], "a socket, or what belongs to it"
    return done


def check_figures(figures: dict[str, Any], samples: int) -> None:
    assert figures["samples"] == samples
    assert 0 < figures["minimum"] <= figures["p50"] <= figures["maximum"]
    if figures["p99"] is not None:
        assert figures["p50"] <= figures["p99"] <= figures["maximum"]


def test_put_and_get_beside_rust_and_memcpy(tmp_path: Path) -> None:
    file = tmp_path / "local.json"
    counts = ("--sizes", "1KiB", "2MiB", "--rounds", "3", "--cold-samples", "2")
    done = run(tmp_path, *counts, "--without-ray", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "| 1 KiB | put | " in done.stdout
    assert "| 2 MiB | get | " in done.stdout
    assert done.stderr == "1 KiB ...\n2 MiB ...\n1 KiB after 20 ms of idling ...\n"

    report = json.loads(file.read_text())
    assert report["rounds"] == 3
    small, large = report["cells"]
    assert (small["nbytes"], large["nbytes"]) == (1 << 10, 2 << 20)
    for cell in (small, large):
        assert set(cell["put"]) == {"memcpy", "hoplite", "rust"}
        assert set(cell["get"]) == {"hoplite", "rust"}
    for call in ("put", "get"):
        check_figures(small[call]["hoplite"], samples=300)
        check_figures(large[call]["hoplite"], samples=48 if call == "put" else 96)
        assert small[call]["rust"]["p99"] is not None
    check_figures(large["put"]["memcpy"], samples=48)
    for call in ("put", "get"):
        assert set(report["cold"][call]) == {"round trip", "hoplite", "rust"}
        for figures in report["cold"][call].values():
            check_figures(figures, samples=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "1kB"], "'1kB' is not a size such as 64MiB"),
        (["--sizes", "0MiB"], "'0MiB' is not a size such as 64MiB"),
        (["--rounds", "0"], "0 is not at least 1"),
        (["--cold-samples", "-1"], "-1 is less than 0"),
    ],
)
def test_a_command_line_that_makes_no_sense(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError")
    done = run(tmp_path, "--sizes", "1KiB", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert (
        done.stderr
        == 'local.py: Ray is not there: `pip install "hoplite[ray]"`, or say --without-ray\n'
    )


def test_the_first_use_of_a_group_beside_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")
    done = run(tmp_path, "--ranks", "2", "--rounds", "2", "--json", program="first_use")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["ranks"], report["rounds"]) == (2, 2)
    assert set(report["seconds"]) == {"hoplite", "gloo"}
    for times in report["seconds"].values():
        assert set(times) == {"init_process_group", "first all_reduce", "second all_reduce"}
        for figures in times.values():
            assert 0 < figures["minimum"] <= figures["median"]


def test_tables_between_two_processes(tmp_path: Path) -> None:
    done = run(tmp_path, "--rows", "1000", "--rounds", "2", "--json", program="tables")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["rounds"]) == (1000, 2)
    assert {"numpy", "pandas", "arrow", "polars"} <= set(report["seconds"])
    for figures in report["seconds"].values():
        for call in ("put", "get"):
            assert 0 < figures[call]["minimum"] <= figures[call]["median"]
