"""What is said of a package that is not there, or not as it was."""

from __future__ import annotations

import importlib.metadata

import hoplite


def needed(package: str, called: str, what: str, error: ImportError) -> ImportError:
    """The error for who imports a part of Hoplite that is made for another package.

    Args:
        package: the name under which it is installed.
        called: what it calls itself.
        what: what of it is needed, and of which version.
    """
    try:
        found = f"this is {called} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        found = f"{called} is not installed"
    return ImportError(f"hoplite {hoplite.__version__} needs {what}, and {found}: {error}")
