"""Finds and runs the programs of the package. Its console scripts replace themselves with these."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

#: The directory of the programs, if they are not in the package.
DIRECTORY_VARIABLE = "HOPLITE_BINARIES"


def program(name: str) -> str:
    """Returns the path of a program: in `$HOPLITE_BINARIES`, in the package, or on the `PATH`.

    Raises:
        FileNotFoundError: if it is nowhere.
    """
    directories = [os.environ.get(DIRECTORY_VARIABLE), str(Path(__file__).with_name("_bin"))]
    for directory in filter(None, directories):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    # Skips the console script, which would execute itself for ever.
    if found is not None and not _is_script(found):
        return found
    raise FileNotFoundError(
        f"{name} is not in the package; build it, and set {DIRECTORY_VARIABLE} to its directory"
    )


def hoplite() -> NoReturn:
    """Runs the command line."""
    _become("hoplite")


def hoplite_store() -> NoReturn:
    """Runs the daemon of a node."""
    _become("hoplite-store")


def hoplite_directory() -> NoReturn:
    """Runs a directory shard."""
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
