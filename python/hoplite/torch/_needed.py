"""The error for a package that is missing or has another version."""

from __future__ import annotations

import importlib.metadata

import hoplite


def needed(package: str, called: str, what: str, error: ImportError) -> ImportError:
    """Makes the error for importing a part of Hoplite that needs another package.

    Args:
        package: the name for pip.
        called: the package's own name.
        what: the needed part and version.
    """
    try:
        found = f"this is {called} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        found = f"{called} is not installed"
    return ImportError(f"hoplite {hoplite.__version__} needs {what}, and {found}: {error}")
