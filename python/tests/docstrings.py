"""Examples in the docstrings of public names."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

from hoplite._collectives import Collectives
from hoplite._many import Many
from hoplite._values import Values

MIXED_IN = (Collectives, Many, Values)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        item = getattr(module, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            yield name, item
        if inspect.isclass(item):
            mixed_in = [base for base in item.__bases__ if base in MIXED_IN]
            for own, member in chain.from_iterable(vars(one).items() for one in [item, *mixed_in]):
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
