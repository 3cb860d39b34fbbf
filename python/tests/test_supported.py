from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hoplite
from hoplite._supported import VERSIONS, span

PYTHON = Path(__file__).parent.parent


def run(directory: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", ["1.0", "2.1", "2.99.0a0+cpu"])
@pytest.mark.parametrize("name", VERSIONS)
def test_both_versions_are_named(tmp_path: Path, name: str, version: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(f"__version__ = '{version}'")
    (tmp_path / name / "distributed.py").touch()
    assert run(tmp_path, f"import hoplite.{name}") == (
        f"ImportError: hoplite {hoplite.__version__} works with {name} {span(name)}, and {name} {version} is "
        f'installed; pip install "hoplite[{name}]" installs one that it works with'
    )


def test_the_extras_install_what_is_supported() -> None:
    extras = tomllib.loads((PYTHON / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (PYTHON.parent / "docs" / "reference" / "versions.md").read_text().lower()
    for name, (oldest, newest) in VERSIONS.items():
        assert f"{name} {span(name)}" in page
        major, minor = map(int, newest.split("."))
        assert extras[name][0].endswith(f">={oldest},<{major}.{minor + 1}")
        for file, version in ("oldest", oldest), ("integrations", newest):
            pinned = (PYTHON / f"requirements-{file}.txt").read_text()
            pin = rf"^{name}(\[\w+\])?=={re.escape(version)}\.\d+$"
            assert re.search(pin, pinned, re.MULTILINE)
