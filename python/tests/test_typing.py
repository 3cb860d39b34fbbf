from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite
from stores import Cluster

HERE = Path(__file__).parent
SAMPLE, MISTAKES = HERE / "typing" / "sample.py", HERE / "typing" / "mistakes.py"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    cache = str(tmp_path_factory.mktemp("mypy"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", cache]
    environment = {"MYPYPATH": str(Path(hoplite.__file__).parent.parent), "PATH": ""}
    done = subprocess.run(
        [*command, SAMPLE.name, MISTAKES.name],
        capture_output=True,
        text=True,
        cwd=SAMPLE.parent,
        env=environment,
    )
    assert done.returncode == 1, done.stderr + done.stdout
    found: dict[str, set[int]] = {SAMPLE.name: set(), MISTAKES.name: set()}
    for program, line in re.findall(r"^(\w+\.py):(\d+): error:", done.stdout, re.MULTILINE):
        found[program].add(int(line))
    return found


def test_a_strict_checker_finds_nothing_in_a_program_that_is_right(
    errors: dict[str, set[int]],
) -> None:
    assert errors[SAMPLE.name] == set()


def test_it_finds_each_mistake(errors: dict[str, set[int]]) -> None:
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    assert errors[MISTAKES.name] == {number for number, line in lines if "# expected" in line}


def test_the_program_runs(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, str(SAMPLE), cluster.sockets[0]], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_handles_name_types_when_the_program_runs() -> None:
    assert re.fullmatch(r"hoplite\.ref\.Ref\[int\]", repr(hoplite.Ref[int]))
    assert hoplite.Ref[int]("x") == hoplite.Ref("x")
