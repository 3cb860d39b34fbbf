"""Runs functions when a module is imported."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Calls `act` in the thread that imports the module, or at once if it is imported. If `act`
    raises, the import fails.
    """
    if name in sys.modules:
        # Another thread may be importing the module.
        importlib.import_module(name)
        act()
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `act` after the module's own loader."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            act, execute = self._act, spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                act()

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
