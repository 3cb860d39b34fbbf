from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import docstrings
import torch

import hoplite
import hoplite.torch
from hoplite.torch import checkpoint, torchft
from stores import Cluster

WITHOUT = {"RankFailed"}
NAMES = [
    (module, name, item)
    for module in (hoplite.torch, checkpoint, torchft)
    for name, item in docstrings.public(module)
    if "." not in name
]


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Cluster(tmp_path_factory.mktemp("docs"), nodes=1, memory="64MiB") as cluster:
        yield cluster.sockets[0]


@pytest.mark.parametrize(
    ("module", "name", "item"),
    NAMES,
    ids=[f"{module.__name__}.{name}" for module, name, _ in NAMES],
)
def test_example(
    module: Any, name: str, item: Any, socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspect.getdoc(item), f"{name} has no docstring"
    found = docstrings.examples(module, name, item)
    if found is None:
        assert name in WITHOUT, f"the docstring of {name} has no example"
        return
    monkeypatch.setenv("HOPLITE_SOCKET", socket)
    hoplite.shutdown()
    try:
        docstrings.run(found, {"hoplite": hoplite, "torch": torch})
    finally:
        hoplite.shutdown()
        with hoplite.connect(socket) as client:
            client.delete([info.id for info in client.list()])
