from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores import await_that

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PATIENCE = 600.0
PNG = b"\x89PNG\r\n\x1a\n"


def complaints(err: str) -> list[str]:
    return [line for line in err.splitlines() if not re.match(r"\d+ s: \d+ steps", line)]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "TMPDIR": str(directory),
            "XDG_RUNTIME_DIR": str(directory),
        }

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *arguments: str) -> Done:
        with self.start(name, *arguments) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except BaseException:
                process.kill()
                raise
        await_that("all processes have ended", lambda: self.processes() == [])
        assert self.directories() == [], "sockets, or what Ray keeps"
        return Done(process.returncode, out, err)

    def processes(self) -> list[str]:
        mark = f"TMPDIR={self.directory}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # It has ended.
        return found

    def directories(self) -> list[Path]:
        return [*self.directory.glob("hoplite-example-*"), *self.directory.glob("ray-*")]


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(PNG)
