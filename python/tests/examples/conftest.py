from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_runs import Place


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="e") as directory:
        yield Place(Path(directory))
