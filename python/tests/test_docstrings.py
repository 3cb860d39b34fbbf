from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import docstrings
import numpy as np
import pytest

import hoplite
import hoplite.aio
import hoplite.errors
from stores import Cluster

MODULES = [hoplite, hoplite.aio]
#: These need another daemon, user or version, or a bug.
WITHOUT = {
    "Draining",
    "InternalError",
    "InvalidMetadata",
    "InvalidName",
    "Malformed",
    "NodeIdInUse",
    "PermissionDenied",
    "ShardListMismatch",
    "ShuttingDown",
    "SizeMismatch",
    "SpillFailed",
    "Superseded",
    "Unavailable",
    "UnknownReference",
    "VersionMismatch",
}
NAMES = [(module, name, item) for module in MODULES for name, item in docstrings.public(module)]


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Cluster(tmp_path_factory.mktemp("docs"), nodes=1, memory="64MiB") as cluster:
        yield cluster.sockets[0]


@pytest.fixture
def names(socket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("HOPLITE_SOCKET", socket)
    hoplite.shutdown()
    yield {"hoplite": hoplite, "np": np, "client": hoplite.init()}
    hoplite.shutdown()
    with hoplite.connect(socket) as client:
        client.delete([info.id for info in client.list()])


@pytest.mark.parametrize(
    ("module", "name", "item"),
    NAMES,
    ids=[f"{module.__name__}.{name}" for module, name, _ in NAMES],
)
def test_example(module: Any, name: str, item: Any, names: dict[str, Any]) -> None:
    assert inspect.getdoc(item), f"{name} has no docstring"
    found = docstrings.examples(module, name, item)
    if found is None:
        assert name in WITHOUT, f"the docstring of {name} has no example"
    else:
        docstrings.run(found, names)


def test_a_wrong_example_is_found(names: dict[str, Any]) -> None:
    def wrong() -> None:
        """Is wrong.

        >>> 1 + 1
        3
        """

    found = docstrings.examples(hoplite, "wrong", wrong)
    assert found is not None
    with pytest.raises(AssertionError, match="Expected"):
        docstrings.run(found, names)
