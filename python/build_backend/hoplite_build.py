"""Builds the package: maturin builds the extension, and this module adds the three programs.

maturin puts either a library or programs into a wheel (PyO3/maturin#368).

* `HOPLITE_PROFILE`: the profile of Cargo; "release" by default.
* `HOPLITE_EXTENSION`: an extension of the workspace to install in place; maturin would build most
  dependencies again.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import maturin

HERE = Path(__file__).resolve().parent.parent
BINARIES = HERE / "hoplite" / "_bin"
PROGRAMS = {
    "hoplite-cli": "hoplite",
    "hoplite-store": "hoplite-store",
    "hoplite-directory": "hoplite-directory",
}

SOURCES = [
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "clippy.toml",
    "hoplite-*",
    "proto",
    "python",
    "tests/Cargo.toml",
    "tests/src",
]
# Replaced in an sdist.
MOVED = {
    'backend-path = ["build_backend"]': 'backend-path = ["python/build_backend"]',
    'readme = "README.md"': 'readme = "python/README.md"',
    'python-source = "."': 'manifest-path = "python/Cargo.toml"\npython-source = "python"',
    'path = "hoplite/_bin/*"': 'path = "python/hoplite/_bin/*"',
}


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    profile = os.environ.get("HOPLITE_PROFILE", "release")
    _build_programs(profile)
    settings = {"build-args": f"--profile {profile}", **(config_settings or {})}
    try:
        return maturin.build_wheel(wheel_directory, settings, metadata_directory)
    finally:
        shutil.rmtree(BINARIES)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    extension = os.environ.get("HOPLITE_EXTENSION")
    if extension is None:
        return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    # A process may have mapped the old file.
    native = HERE / "hoplite" / "_native.abi3.so"
    native.unlink(missing_ok=True)
    shutil.copy(extension, native)
    with tempfile.TemporaryDirectory() as directory:
        info = Path(directory) / maturin.prepare_metadata_for_build_editable(directory)
        wheel = f"{info.stem}-py3-none-any.whl"
        with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
            archive.writestr("hoplite.pth", f"{HERE}\n")
            archive.writestr(f"{info.name}/RECORD", "")
            for file in info.rglob("*"):
                archive.write(file, file.relative_to(directory))
    return wheel


class UnsupportedOperation(Exception):
    """See PEP 517."""


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    command = ["git", "ls-files", "-z", "--", *SOURCES]
    try:
        listed = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise UnsupportedOperation(
            "which files are sources is known in a checkout with git only"
        ) from None
    with tempfile.TemporaryDirectory() as place:
        information = maturin.prepare_metadata_for_build_wheel(place, config_settings)
        metadata = (Path(place) / information / "METADATA").read_bytes()
    name = information.removesuffix(".dist-info")
    # Front ends look for pyproject.toml at the top.
    settings = (HERE / "pyproject.toml").read_text()
    for ours, theirs in MOVED.items():
        assert settings.count(ours) == 1, ours
        settings = settings.replace(ours, theirs)
    with tarfile.open(
        Path(sdist_directory) / f"{name}.tar.gz",
        "w:gz",
        format=tarfile.PAX_FORMAT,
        dereference=True,
    ) as sdist:
        for path in listed.stdout.decode().split("\0"):
            if path and path != "python/pyproject.toml":
                sdist.add(HERE.parent / path, f"{name}/{path}", filter=_anonymous)
        for path, contents in (("PKG-INFO", metadata), ("pyproject.toml", settings.encode())):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(contents)
            sdist.addfile(entry, io.BytesIO(contents))
    return f"{name}.tar.gz"


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable


def _build_programs(profile: str) -> None:
    command = [
        "cargo",
        "build",
        "--profile",
        profile,
        "--message-format",
        "json-render-diagnostics",
    ]
    for package, program in PROGRAMS.items():
        command += ["--package", package, "--bin", program]
    built = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    shutil.rmtree(BINARIES, ignore_errors=True)
    BINARIES.mkdir()
    for line in built.stdout.splitlines():
        executable = json.loads(line).get("executable")
        if executable is not None:
            _install(Path(executable), BINARIES / Path(executable).name)


def _install(source: Path, target: Path) -> None:
    shutil.copy(source, target)
    if shutil.which("strip") is not None:
        subprocess.run(["strip", str(target)], check=True)
