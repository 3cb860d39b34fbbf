"""Checks the versions of torch and Ray, because used parts change."""

from __future__ import annotations

from types import ModuleType

import hoplite

#: As in the extras of pyproject.toml.
VERSIONS = {"ray": "2.60", "torch": "2.15"}


def check(package: ModuleType) -> None:
    name, supported = package.__name__, VERSIONS[package.__name__]
    found = str(getattr(package, "__version__", "of no version"))
    if found.split(".")[:2] != supported.split("."):
        raise ImportError(
            f"hoplite {hoplite.__version__} works with {name} {supported}, and {name} {found} is installed; "
            f'pip install "hoplite[{name}]" installs the one that it works with',
            name=name,
        )
