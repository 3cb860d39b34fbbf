from __future__ import annotations

import importlib.metadata

import hoplite


def needed(package: str, called: str, what: str, error: ImportError) -> ImportError:
    try:
        found = f"this is {called} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        found = f"{called} is not installed"
    return ImportError(f"hoplite {hoplite.__version__} needs {what}, and {found}: {error}")
