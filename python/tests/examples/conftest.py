"""The examples, each run as a user does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_runs import Place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Ray takes long to start.
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def place() -> Iterator[Place]:
    # Not pytest's: Ray's sockets lie deep in it, and the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ex-") as directory:
        yield Place(Path(directory))
