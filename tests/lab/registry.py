"""The labs of this machine, and the removal of leftovers.

A lab is called `hoplite-PID-SERIAL`, and its files are in `/run/hoplite-lab/NAME`. `lab.json` has
the start time of its owner, because process ids recur. A builder first removes ownerless labs.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from . import system
from .errors import LabError

STATE: Final = Path("/run/hoplite-lab")

_NAME: Final = re.compile(r"hoplite-(\d+)-(\d+)")
_MEMBER: Final = re.compile(r"(hoplite-\d+-\d+)-(?:h\d+|switch)")
_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_ALLOWED_BEFORE: Final = STATE / "tcp_allowed_congestion_control"
_KILL_TIMEOUT_S: Final = 20


@contextmanager
def locked() -> Iterator[None]:
    STATE.mkdir(mode=0o755, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def new_name() -> str:
    taken = names()
    return next(
        name for serial in range(10**6) if (name := f"hoplite-{os.getpid()}-{serial}") not in taken
    )


def names() -> list[str]:
    directories = os.listdir(STATE) if STATE.is_dir() else []
    found = {name for name in directories if _NAME.fullmatch(name)}
    members = [_MEMBER.fullmatch(namespace) for namespace in system.network_namespaces()]
    return sorted(found | {match[1] for match in members if match})


def record(name: str, facts: dict[str, object]) -> Path:
    directory = STATE / name
    directory.mkdir(mode=0o755)
    text = json.dumps(
        {"owner": os.getpid(), "owner_started": _started(os.getpid()), **facts}, indent=2
    )
    (directory / "lab.json").write_text(text + "\n")
    return directory


def facts(name: str) -> dict[str, object]:
    try:
        found = json.loads((STATE / name / "lab.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_owned(name: str) -> bool:
    match = _NAME.fullmatch(name)
    started = _started(int(match[1])) if match else None
    return started is not None and facts(name).get("owner_started", started) == started


def remove_leftovers() -> list[str]:
    leftovers = [name for name in names() if not is_owned(name)]
    for name in leftovers:
        remove(name)
    return leftovers


def remove(name: str) -> None:
    members = [
        namespace for namespace in system.network_namespaces() if namespace.startswith(f"{name}-")
    ]
    end_processes(members)
    for namespace in members:
        system.run(["ip", "netns", "delete", namespace])
    shutil.rmtree(STATE / name, ignore_errors=True)
    if not names():
        _restore_congestion_control()


def end_processes(namespaces: list[str]) -> None:
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while pids := [pid for namespace in namespaces for pid in system.processes(namespace)]:
        if time.monotonic() > deadline:
            raise LabError(f"the processes {pids} of {', '.join(namespaces)} do not end")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def allow_congestion_control(name: str) -> bool:
    """Permits a congestion control to namespaces, until the last lab is removed. `True` if the
    machine's list was changed.
    """
    allowed = _ALLOWED.read_text().split()
    if name in allowed:
        return False
    _ALLOWED_BEFORE.write_text(" ".join(allowed))
    try:
        _ALLOWED.write_text(" ".join([*allowed, name]))
    except OSError as error:
        _ALLOWED_BEFORE.unlink()
        raise LabError(f"this kernel has no congestion control called {name!r}") from error
    return True


def _restore_congestion_control() -> None:
    if _ALLOWED_BEFORE.exists():
        _ALLOWED.write_text(_ALLOWED_BEFORE.read_text())
        _ALLOWED_BEFORE.unlink()


def _started(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain any character.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
