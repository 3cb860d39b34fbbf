"""Checks the versions of torch and Ray, because used parts change."""

from __future__ import annotations

from types import ModuleType

import hoplite

#: Oldest and newest, as in the extras of pyproject.toml.
VERSIONS = {"ray": ("2.59", "2.60"), "torch": ("2.14", "2.15")}


def check(package: ModuleType) -> None:
    name, (oldest, newest) = package.__name__, VERSIONS[package.__name__]
    found = str(getattr(package, "__version__", "of no version"))
    if not _number(oldest) <= _number(found) <= _number(newest):
        raise ImportError(
            f"hoplite {hoplite.__version__} works with {name} {span(name)}, and {name} {found} is installed; "
            f'pip install "hoplite[{name}]" installs one that it works with',
            name=name,
        )


def span(name: str) -> str:
    return " to ".join(dict.fromkeys(VERSIONS[name]))


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]
