from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite
from stores import Cluster, complaints

PACKAGE = Path(hoplite.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def calls(source: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]


def test_nothing_is_printed_or_warned() -> None:
    for source in SOURCES:
        for call in calls(source):
            name = ast.unparse(call.func)
            if name == "warnings.warn" and "StaleWarning" in map(ast.unparse, call.args):
                continue  # what a caller requests with allow_stale
            assert name not in ("print", "warnings.warn", "sys.stdout.write", "sys.stderr.write"), (
                source
            )


def test_all_loggers_are_below_that_of_the_package() -> None:
    named = [(source, ast.unparse(call.args[0])) for source in SOURCES for call in calls(source)
             if ast.unparse(call.func) in ("logging.getLogger", "getLogger")]  # fmt: skip
    assert named
    assert {name for _, name in named} <= {"__name__", "'hoplite'"}
    for source in SOURCES:
        assert not any(ast.unparse(call.func).startswith("logging.") and ast.unparse(call.func).split(".")[1] in
                       ("warning", "info", "debug", "error", "basicConfig") for call in calls(source))  # fmt: skip


def run(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )


def test_a_program_that_sets_nothing_up_hears_of_the_private_store_only(tmp_path: Path) -> None:
    program = "import hoplite; hoplite.init().put('x', 1); print(hoplite.init().get('x')); hoplite.shutdown()"
    done = run(program, HOPLITE_SOCKET="", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.stdout == "1\n"
    assert done.stderr.startswith("no store listens at ")
    assert complaints(done.stderr) == ""


def test_a_program_chooses_what_it_hears(tmp_path: Path) -> None:
    for level, heard in (
        ("DEBUG", ["WARNING", "DEBUG", "INFO"]),
        ("INFO", ["WARNING", "INFO"]),
        ("ERROR", []),
    ):
        program = f"import logging; logging.basicConfig(level='{level}'); import hoplite; hoplite.init(); hoplite.shutdown()"
        done = run(program, HOPLITE_SOCKET="", XDG_RUNTIME_DIR=str(tmp_path))
        said = [line for line in done.stderr.splitlines() if "did not stop in" not in line]
        lines = [line for line in said if ":hoplite" in line]
        assert [line.partition(":")[0] for line in lines] == heard
        assert all(line.split(":")[1] == "hoplite" for line in lines)


def test_the_store_is_named(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "hoplite"), cluster.connect(1):
        pass
    assert "connected to the store of node node-1 of the cluster" in caplog.text
    assert cluster.sockets[1] in caplog.text


def test_the_logger_has_no_handler() -> None:
    assert logging.getLogger("hoplite").handlers == []
    assert logging.getLogger("hoplite").level == logging.NOTSET
    assert logging.getLogger("hoplite").propagate
