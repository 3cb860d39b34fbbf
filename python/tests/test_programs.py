from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hoplite
from hoplite import _programs
from stores import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["hoplite", "hoplite-store", "hoplite-directory"])
def test_console_scripts_become_the_programs(name: str) -> None:
    entry = name.replace("-", "_")
    code = f"import sys; from hoplite._programs import {entry}; sys.argv = [{name!r}, '--version']; {entry}()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name} {hoplite.__version__}\n"


def test_a_program_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_programs, "__file__", str(tmp_path / "_programs.py"))
    monkeypatch.delenv("HOPLITE_BINARIES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "hoplite"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    with pytest.raises(FileNotFoundError, match="hoplite is not in the package"):
        _programs.program("hoplite")
    with pytest.raises(SystemExit, match="hoplite: hoplite is not in the package"):
        _programs.hoplite()
    (tmp_path / "_bin").mkdir()
    script.rename(tmp_path / "_bin" / "hoplite")
    assert _programs.program("hoplite") == str(tmp_path / "_bin" / "hoplite")
    monkeypatch.setenv("HOPLITE_BINARIES", "/nowhere")
    assert _programs.program("hoplite") == str(tmp_path / "_bin" / "hoplite")


def test_the_types_of_the_native_half_are_those_it_has() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "hoplite._native"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
