"""Doing something when a module is imported that may never be."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Calls `act` right after the module `name` was imported, in the thread that does; now, if it was.

    Of modules whose loader is an ordinary one. If `act` raises, so does the import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        act()
        return
    sys.meta_path.insert(0, _Finder(name, act))


class _Finder(importlib.abc.MetaPathFinder):
    """Has the others find the module, and its loader act afterwards."""

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
            loader, act = spec.loader, self._act
            execute = loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                act()

            loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
