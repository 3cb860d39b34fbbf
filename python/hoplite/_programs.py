"""Finds and runs the programs of the package."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

DIRECTORY_VARIABLE = "HOPLITE_BINARIES"


def program(name: str) -> str:
    """Finds a program in `$HOPLITE_BINARIES`, the package, or the `PATH`; else raises
    `FileNotFoundError`.
    """
    directories = [os.environ.get(DIRECTORY_VARIABLE), str(Path(__file__).with_name("_bin"))]
    for directory in filter(None, directories):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    # The console script would execute itself.
    if found is not None and not _is_script(found):
        return found
    raise FileNotFoundError(
        f"{name} is not in the package; build it, and set {DIRECTORY_VARIABLE} to its directory"
    )


def hoplite() -> NoReturn:
    _become("hoplite")


def hoplite_store() -> NoReturn:
    _become("hoplite-store")


def hoplite_directory() -> NoReturn:
    _become("hoplite-directory")


def _become(name: str) -> NoReturn:
    try:
        path = program(name)
    except FileNotFoundError as error:
        sys.exit(f"{name}: {error}")
    os.execv(path, [name, *sys.argv[1:]])


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
