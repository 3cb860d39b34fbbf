from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import hoplite
import hoplite.ray

NODE = {
    "num_cpus": 8,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
RACK = "example.com/rack"
MEMORY = "128MiB"
OPTIONS = ["--no-prefault"]
PATIENCE = 300.0


def eventually(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def processes(path: str | Path) -> dict[int, str]:
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
    return {str(known.id) for known in client.list()}


def on(node: str) -> dict[str, object]:
    return {"num_cpus": 0, "resources": {node: 1}}
