from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite
import hoplite.ray

sys.path.append(str(Path(__file__).parents[1]))
import docstrings

NAMES = list(docstrings.public(hoplite.ray))


@pytest.mark.parametrize(("name", "item"), NAMES, ids=[name for name, _ in NAMES])
def test_example(name: str, item: Any, stores: list[hoplite.ray.Node]) -> None:
    assert inspect.getdoc(item), f"{name} has no docstring"
    found = docstrings.examples(hoplite.ray, name, item)
    assert found is not None, f"the docstring of {name} has no example"
    docstrings.run(found, {"hoplite": hoplite, "np": np})
    client = hoplite.ray.client()
    client.delete([info.id for info in client.list("ray/")])
