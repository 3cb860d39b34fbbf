"""A pytest plugin that skips tests. `EXCLUDED` of a suite's module or plugin maps patterns to
reasons.
"""

from __future__ import annotations

import re

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        excluded = dict(getattr(item.module, "EXCLUDED", {}))
        for plugin in config.pluginmanager.get_plugins():
            excluded |= getattr(plugin, "EXCLUDED", {})
        for pattern, reason in excluded.items():
            if re.search(pattern, item.name):
                item.add_marker(pytest.mark.skip(reason=f"excluded: {reason}"))
