from __future__ import annotations

import importlib.metadata

import hoplite


def needed(package: str, called: str, what: str, error: ImportError) -> ImportError:
    """Makes the error for a missing package: `package` for pip, `called` in messages."""
    try:
        found = f"this is {called} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        found = f"{called} is not installed"
    return ImportError(f"hoplite {hoplite.__version__} needs {what}, and {found}: {error}")
