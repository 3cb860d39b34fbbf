"""Real daemons, and many simulated stores without objects' bytes."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BINARIES = Path(__file__).resolve().parents[2] / "target/debug"
PATIENCE_S = 300.0
TOKEN = "a token of these tests, long enough"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}


class Process:
    def __init__(self, program: str, *arguments: object, **variables: str) -> None:
        self.process = subprocess.Popen(
            [BINARIES / program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment() | variables,
        )

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout is not None
        limit = threading.Timer(PATIENCE_S, self.process.kill)
        limit.start()
        try:
            line = self.process.stdout.readline().strip()
        finally:
            limit.cancel()
        assert line, f"{self.process.args!r} has ended, or said nothing for {PATIENCE_S} s"
        return line

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> None:
        self.say(line)
        answer = self.line()
        assert answer == "done", f"{line}: {answer}"


@contextmanager
def directory_process(*arguments: object) -> Iterator[tuple[Process, dict[str, Any]]]:
    where = ("--listen", "127.0.0.1:0", "--dashboard", "0", "--print-addresses", "--insecure")
    with Process("hoplite-directory", *where, *arguments) as process:
        addresses = json.loads(process.line())
        assert process.line() == "ready"
        yield process, addresses


@contextmanager
def directory(*arguments: object) -> Iterator[dict[str, Any]]:
    with directory_process(*arguments) as (_, addresses):
        yield addresses


@contextmanager
def token_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "token"
        path.touch(mode=0o600)
        path.write_text(TOKEN + "\n")
        yield path


@contextmanager
def store(shard: str, place: Path, name: str, *arguments: object) -> Iterator[Path]:
    socket = place / f"{name}.sock"
    settings = (
        "--directory",
        shard,
        "--socket",
        socket,
        "--node-id",
        name,
        "--memory",
        "64MiB",
        "--no-prefault",
    )
    with Process(
        "hoplite-store", *settings, "--insecure", "--print-addresses", *arguments
    ) as process:
        process.line()
        assert process.line() == "ready"
        yield socket


@contextmanager
def crowd(shard: str, nodes: int, objects: int = 0, receivers: int = 0) -> Iterator[None]:
    with Process("hoplite-test-crowd", shard, nodes, objects, receivers) as process:
        assert process.line() == "ready"
        yield
