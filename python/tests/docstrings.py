"""The examples in the docstrings of public names."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hoplite._many import Many

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        item = getattr(module, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            yield name, item
        if inspect.isclass(item):
            own_and_mixed_in = vars(item) | (vars(Many) if Many in item.__bases__ else {})
            for own, member in own_and_mixed_in.items():
                member = (
                    member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                )
                if not own.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property)
                ):
                    yield f"{name}.{own}", member


def examples(module: ModuleType, name: str, item: Any) -> doctest.DocTest | None:
    text = inspect.getdoc(item) or ""
    found = doctest.DocTestParser().get_doctest(text, {}, f"{module.__name__}.{name}", None, None)
    return found if found.examples else None


def run(found: doctest.DocTest, names: dict[str, Any]) -> None:
    found.globs.update(names)
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(found, out=said.append)
    assert failed == 0, "".join(said)
