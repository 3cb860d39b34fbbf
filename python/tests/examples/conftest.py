"""The examples, each run as a user does."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import Place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Ray takes long to start.
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
