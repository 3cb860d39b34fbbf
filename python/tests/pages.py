"""Runs the programs and commands of users' pages.

A `python` block that begins with a comment like `# train.py` is a file of that name; the others are
one program. A `console` block has commands after `$ `, each followed by its output; `...` stands
for any lines. A command with `&` runs in the background.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stores import await_that

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "python" / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if "dev" not in path.relative_to(ROOT / "docs").parts
    ),
]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+\.py)\n")
_PATIENCE = 1100.0


@dataclass(frozen=True)
class Page:
    name: str
    files: dict[str, str]
    program: str
    commands: list[tuple[str, str]]

    @property
    def uses_ray(self) -> bool:
        return "import ray" in self.program + "".join(self.files.values())

    @property
    def modules(self) -> set[str]:
        code = "\n".join([self.program, *self.files.values()])
        return set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))


def read(path: Path) -> Page:
    return Page(str(path.relative_to(ROOT)), *parts(path.read_text()))


def parts(text: str) -> tuple[dict[str, str], str, list[tuple[str, str]]]:
    files: dict[str, str] = {}
    program: list[str] = []
    commands: list[tuple[str, str]] = []
    for kind, block in _BLOCK.findall(text):
        if kind == "console":
            commands += _commands(block)
        elif match := _FILE.match(block):
            files[match[1]] = block
        else:
            program.append(block)
    return files, "\n".join(program), commands


def _commands(text: str) -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            commands.append((line[2:].rstrip("\n"), ""))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (f"{commands[-1][0]}\n{line.rstrip()}", "")
        elif commands:
            command, output = commands[-1]
            commands[-1] = (command, output + line)
        else:
            raise ValueError(
                f"a console block begins with a command after a dollar sign, not with {line!r}"
            )
    return commands


def all_pages() -> list[Page]:
    pages = [read(path) for path in PAGES]
    return [page for page in pages if page.program or page.files or page.commands]


def run(page: Page, place: Path, environment: dict[str, str] | None = None) -> None:
    for name, text in page.files.items():
        (place / name).write_text(text)
    if page.program:
        (place / "page.py").write_text(page.program)
    # Unbuffered, programs that print at the same time would mix their lines.
    absent = {"HOPLITE_SOCKET", "PYTHONUNBUFFERED"}
    clean = {name: value for name, value in os.environ.items() if name not in absent}
    settings = {
        **clean,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(place),
        "XDG_RUNTIME_DIR": str(place),
        "XDG_CONFIG_HOME": str(place / "config"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        **(environment or {}),
    }
    (place / "page.sh").write_text(_script(page))
    done = subprocess.run(
        ["bash", "page.sh"],
        cwd=place,
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{page.name} failed with {done.returncode}:\n{done.stdout}"
    said = [done.stdout, *(path.read_text() for path in place.glob("*.err"))]
    assert not any("Traceback (most recent call last)" in text for text in said), (
        f"{page.name}: {said}"
    )
    await_that(f"{page.name} leaves no process", lambda: not _processes(place))
    for index, (command, expected) in enumerate(page.commands):
        found = (place / f"{index}.out").read_text()
        assert _is_like(found, expected), (
            f"{page.name}: {command}\nprints\n{found}\nand not\n{expected}"
        )


def _processes(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(place) in command or (entry / "cwd").readlink() == place:
                found.append(command)
        except OSError:
            continue
    return found


def _script(page: Page) -> str:
    lines = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for index, (command, expected) in enumerate(page.commands):
        out = f"{index}.out"
        if command.endswith("&"):
            last = shlex.quote(expected.splitlines()[-1])
            lines.append(f"{command[:-1]} >{out} 2>&1 &")
            lines.append(
                f"until grep -qxF -- {last} {out}; do kill -0 $! || {{ cat {out}; exit 1; }}; sleep 0.05; done"
            )
        else:
            lines.append(
                f"{{ {command}\n}} >{out} 2>{index}.err || {{ cat {out} {index}.err; exit 1; }}"
            )
    if page.program:
        lines.append(f"{shlex.quote(sys.executable)} page.py")
    return "\n".join(lines) + "\n"


def _is_like(found: str, expected: str) -> bool:
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", expected, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*".join(parts), found) is not None
