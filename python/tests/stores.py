from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import hoplite
from hoplite._programs import program

PATIENCE = 300.0
SHORT = 0.2
#: A directory's wait for a lost store.
NODE_GRACE = "200ms"
#: Directories give up a store after a silence of 6 s and this.
LONG_GRACE = "5s"

_T = TypeVar("_T")

DIRECTORY = ["--listen", "127.0.0.1:0", "--print-addresses"]


class Daemon:
    def __init__(self, log: Path, name: str, *arguments: str) -> None:
        command = [program(name), *arguments, "--exit-with-parent", str(os.getpid())]
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().decode().strip()
        assert self.first_line, f"{name} did not start: {log.read_text()}"
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(PATIENCE)


class Cluster:
    def __init__(
        self,
        directory: Path,
        nodes: int,
        memory: str,
        node_grace: str = NODE_GRACE,
        store_arguments: tuple[str, ...] = (),
    ) -> None:
        self._store_arguments = store_arguments
        self._path, self._nodes, self._memory, self._node_grace = (
            directory,
            nodes,
            memory,
            node_grace,
        )
        self.daemons: list[Daemon] = []

    def __enter__(self) -> Self:
        shard = self._start(
            "hoplite-directory", "directory", *DIRECTORY, "--node-grace", self._node_grace
        )
        self.directory = str(json.loads(shard)["directory"])
        for node in range(self._nodes):
            name = f"node-{node}"
            options = [
                "--directory",
                self.directory,
                "--node-id",
                name,
                "--socket",
                self._socket(node),
            ]
            options += ["--memory", self._memory, "--no-prefault", "--print-addresses"]
            options += self._store_arguments
            json.loads(self._start("hoplite-store", name, *options))
        self.sockets = [self._socket(node) for node in range(self._nodes)]
        for socket in self.sockets:
            with hoplite.connect(socket) as client:
                await_that(
                    "the store is ready",
                    lambda client=client: all(s["connected"] for s in client.status()["shards"]),
                )
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.stop()

    def connect(self, node: int = 0) -> hoplite.Client:
        return hoplite.connect(self.sockets[node])

    def store(self, node: int) -> Daemon:
        return self.daemons[1 + node]

    def start_again(self, node: int) -> None:
        store = self.store(node)
        arguments = list(store.process.args)[1:-2]  # type: ignore[arg-type]
        self.daemons[1 + node] = Daemon(store.log, "hoplite-store", *map(str, arguments))

    def restart(self, node: int) -> None:
        self.store(node).kill()
        self.start_again(node)

    def _socket(self, node: int) -> str:
        return str(self._path / f"{node}.sock")

    def _start(self, program: str, name: str, *arguments: str) -> str:
        self.daemons.append(Daemon(self._path / f"{name}.log", program, *arguments))
        return self.daemons[-1].first_line


def retry(call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Repeats a call until the store has a session with the directory."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return call(*arguments, **options)
        except hoplite.Unavailable:
            assert time.monotonic() < ends, "the directory stays unavailable"
        time.sleep(0.005)


def await_that(what: str, condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not retry(condition):
        assert time.monotonic() < ends, f"in vain: {what}"
        time.sleep(0.005)


NOTICES = ("no store listens at ", "the private store at ")


def complaints(errors: str) -> str:
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(NOTICES))


def used_bytes(client: hoplite.Client) -> int:
    status = client.status()
    return int(status["capacity_bytes"] - status["free_bytes"])
