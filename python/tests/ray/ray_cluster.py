"""What the tests in this folder share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import hoplite
import hoplite.ray

#: What the nodes of Ray have, which is little.
NODE = {"num_cpus": 8, "object_store_memory": 80 << 20, "include_dashboard": False}
#: The label by which they say in which rack they are.
RACK = "example.com/rack"
#: What the stores of the tests have: none of them needs much.
MEMORY = "128MiB"
OPTIONS = ["--no-prefault"]
#: The seconds that the suite gives to anything that a test waits for: the machine may be swamped. As in `stores`, which
#: Ray's workers do not find.
PATIENCE = 300.0


def eventually(happens: Callable[[], object]) -> None:
    """Waits until `happens` returns something true."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def processes(path: str | Path) -> dict[int, str]:
    """The names of the processes whose command line names a path."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if any(str(path).encode() in argument for argument in command):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def start_stores() -> list[hoplite.ray.Node]:
    return hoplite.ray.start_on_all_nodes(memory=MEMORY, store_options=OPTIONS)


def objects(client: hoplite.Client) -> set[str]:
    """The ids of all objects there are."""
    return {str(known.id) for known in client.list()}


def on(node: str) -> dict[str, object]:
    """The options of a task or an actor that is to be on the node "first" or "second"."""
    return {"num_cpus": 0, "resources": {node: 1}}
