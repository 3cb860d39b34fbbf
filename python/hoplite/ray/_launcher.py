"""Keeps the daemons of a Ray node running, and stops them when the node ends.

    python _launcher.py DIRECTORY

It is a daemon process, because Ray kills workers' children. It is small, and uses only the standard
library. It ends at SIGTERM or with the node's raylet, and leaves no processes and files. If it is
killed, the kernel kills the node's daemons, and `_supervisor.py` restarts the launcher.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Files: commands; addresses; reason of a failed start; process id; log.
SPEC, READY, FAILED, LOCK, LOG = "spec.json", "ready.json", "failed.txt", "launcher.lock", "log"

#: Seconds.
START_TIMEOUT = 30.0
#: Seconds until a daemon that does not stop is killed.
STOP_TIMEOUT = 10.0
#: Seconds before a restart; the back-off doubles with each failure.
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0
#: Seconds after which a running daemon resets the back-off.
STABLE = 30.0


class StartFailed(Exception):
    """A daemon ended before it printed its addresses."""


class Daemon:
    """A process, restarted when it ends. Its first line of output has its addresses."""

    def __init__(self, command: list[str], environment: dict[str, str], log: int) -> None:
        self.command = command
        self.says = ""
        self._environment, self._log = environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._due = 0.0
        self._pause = FIRST_PAUSE

    def start(self) -> None:
        command = [*self.command, "--exit-with-parent", str(os.getpid())]
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._process, self._started = process, time.monotonic()
        assert process.stdout is not None
        with process.stdout as out:
            is_heard, _, _ = select.select([out], [], [], START_TIMEOUT)
            self.says = out.readline().decode().strip() if is_heard else ""
        if not self.says:
            self.stop()
            raise StartFailed(f"{os.path.basename(self.command[0])} did not start")

    @property
    def directory(self) -> str:
        address: str = json.loads(self.says)["directory"]
        return address

    def tend(self, now: float) -> bool:
        """Restarts an ended daemon after the back-off. `True` if the daemon runs."""
        if self._process is not None:
            if self._process.poll() is None:
                return True
            self._process = None
            if now - self._started > STABLE:
                self._pause = FIRST_PAUSE
            self._due = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
        if now < self._due:
            return False
        try:
            self.start()
        except StartFailed:
            self._due = now + self._pause
            return False
        return True

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Launcher:
    def __init__(self, place: Path, log: int) -> None:
        self._place = place
        spec: dict[str, Any] = json.loads((place / SPEC).read_text())
        self._raylet: int | None = spec["raylet"]
        self._store = Daemon(spec["store"], spec["environment"], log)
        self._directory: Daemon | None = None
        if spec["directory"] is not None:
            self._directory = Daemon(spec["directory"], spec["environment"], log)

    def start(self) -> None:
        if self._directory is not None:
            self._directory.start()
            listen = self._directory.command.index("--listen") + 1
            self._directory.command[listen] = self._directory.directory
            self._remember(self._directory.command)
            self._store.command += ["--directory", self._directory.directory]
        self._store.start()
        self._announce()

    def tend(self, wakeup: int) -> None:
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        raylet = None
        if self._raylet is not None:
            with contextlib.suppress(ProcessLookupError):
                raylet = os.pidfd_open(self._raylet)
            if raylet is None:
                return
            poll.register(raylet, select.POLLIN)
        timeout = None
        while True:
            fired = {fd for fd, _ in poll.poll(timeout)}
            if raylet in fired:
                return
            if wakeup in fired and signal.SIGTERM in os.read(wakeup, 4096):
                return
            now = time.monotonic()
            daemons = [daemon for daemon in (self._directory, self._store) if daemon is not None]
            is_running = all([daemon.tend(now) for daemon in daemons])
            # A daemon's end (SIGCHLD) interrupts the poll.
            timeout = None if is_running else 1000 * FIRST_PAUSE
            self._announce()

    def stop(self) -> None:
        self._store.stop()
        if self._directory is not None:
            self._directory.stop()

    def _remember(self, directory: list[str]) -> None:
        spec = json.loads((self._place / SPEC).read_text())
        write(self._place / SPEC, json.dumps({**spec, "directory": directory}))

    def _announce(self) -> None:
        directory = None if self._directory is None else self._directory.directory
        write(self._place / READY, json.dumps({"directory": directory, "store": self._store.says}))


def write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def launch(place: Path) -> None:
    lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not lock_soon(lock):
        return
    os.pwrite(lock, f"{os.getpid():<10}".encode(), 0)
    log = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 2)
    with contextlib.suppress(PermissionError):
        # Only root may raise the priority, which Ray lowers.
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    wakeup = wake_up_on_signals()
    launcher = Launcher(place, log)
    try:
        launcher.start()
    except (StartFailed, OSError) as error:
        said = (place / LOG).read_text(errors="replace").strip().splitlines()[-5:]
        launcher.stop()
        write(place / FAILED, "\n".join([str(error), *said]))
        return
    launcher.tend(wakeup)
    launcher.stop()
    shutil.rmtree(place, ignore_errors=True)
    for parent in place.parents[:3]:
        with contextlib.suppress(OSError):
            parent.rmdir()


def lock_soon(lock: int) -> bool:
    """Takes the lock, which supervisors briefly test."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.01)
    return False


def wake_up_on_signals() -> int:
    """Returns a descriptor, readable at each SIGTERM and SIGCHLD."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def become_daemon() -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)


if __name__ == "__main__":
    become_daemon()
    launch(Path(sys.argv[1]))
