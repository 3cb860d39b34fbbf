"""Finds or starts the store of this node."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO

from hoplite._client import Client
from hoplite._process import logger
from hoplite._programs import program
from hoplite.errors import ConnectFailed

SOCKET_VARIABLE = "HOPLITE_SOCKET"
LOG_VARIABLE = "HOPLITE_LOG"
TOKEN_VARIABLE = "HOPLITE_TOKEN_FILE"
#: Seconds.
_START_TIMEOUT = 30.0
#: Seconds until a store that does not stop is killed.
_STOP_TIMEOUT = 5.0
_PREFIX = "hoplite-private-"


def init(
    socket: str | os.PathLike[str] | None = None,
    *,
    address: str | os.PathLike[str] | None = None,
    memory: str | int | None = None,
    start: bool = True,
    allow_pickle: bool | None = None,
) -> Client:
    """Connects this process to the store of its node, and returns the client.

    Every call returns the same client, unless it was closed, disconnected or inherited by a fork.
    The store is the one at `socket`, else `$HOPLITE_SOCKET`, else the default socket. If no store
    listens there, and you named none, this starts a private store with a separate cluster, and
    warns with the logger `hoplite`. The private store ends with this process. Child processes find
    it.

    Blocks until the store has answered: some milliseconds, and up to 30 s for a private store.

    Args:
        socket: The store to connect to; then no store is started.
        address: The same as `socket`.
        memory: The size of a private store, in bytes or as in `"2GiB"`; `None` for 30% of the
            machine, taken as needed.
        start: `False` starts no private store.
        allow_pickle: As for `hoplite.connect`; holds until `hoplite.shutdown`.

    Raises:
        ConnectFailed: There is no store, or this process is connected to another one, or with
            another `allow_pickle`.

    Examples:
        >>> hoplite.init() is hoplite.init()
        True
        >>> hoplite.init(start=False).usable
        True
    """
    if address is not None:
        if socket is not None and os.fspath(socket) != os.fspath(address):
            raise TypeError("socket and address are two names of one argument, and differ")
        socket = address
    with _state.lock:
        if _state.client is None or not _state.client.usable:
            socket = _state.socket if socket is None else socket
            allow_pickle = _state.allow_pickle if allow_pickle is None else allow_pickle
            _state.client = _connect(socket, memory, start, allow_pickle)
            _state.socket, _state.allow_pickle = socket, allow_pickle
        elif socket is not None and os.fspath(socket) != _state.client.socket:
            raise ConnectFailed(
                f"hoplite.init() was called before, for another store; use hoplite.connect({socket!r})",
                path=os.fspath(socket),
                reason="Refused",
            )
        elif allow_pickle not in (None, _state.client.allow_pickle):
            raise ConnectFailed(
                f"hoplite.init() was called before, with allow_pickle={_state.client.allow_pickle}",
                path=_state.client.socket,
                reason="Refused",
            )
        return _state.client


def shutdown() -> None:
    """Closes the client of `init`, and ends the private store, if there is one.

    Blocks until the private store has ended, for at most 5 s. Arrays stay readable.

    Examples:
        >>> client = hoplite.init()
        >>> hoplite.shutdown()
        >>> client.usable
        False
    """
    with _state.lock:
        if _state.client is not None:
            _state.client.close()
            _state.client = _state.socket = _state.allow_pickle = None
        if _state.store is not None:
            _state.store.stop()
            _state.store = None


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.client: Client | None = None
        self.socket: str | os.PathLike[str] | None = None
        self.allow_pickle: bool | None = None
        self.store: PrivateStore | None = None


_state = _State()


def _forget() -> None:
    global _state
    socket, allow_pickle = _state.socket, _state.allow_pickle
    _state = _State()
    _state.socket, _state.allow_pickle = socket, allow_pickle


os.register_at_fork(after_in_child=_forget)
atexit.register(shutdown)


def _connect(
    socket: str | os.PathLike[str] | None,
    memory: str | int | None,
    start: bool,
    allow_pickle: bool | None,
) -> Client:
    if _state.store is not None and socket is None:
        try:
            return Client(_state.store.socket, allow_pickle=allow_pickle)
        except ConnectFailed:
            _state.store.stop()
            _state.store = None
    try:
        return Client(socket, allow_pickle=allow_pickle)
    except ConnectFailed as error:
        is_absent = error.reason in ("NoSuchSocket", "NotListening")
        if not start or not is_absent or socket is not None or os.environ.get(SOCKET_VARIABLE):
            raise
        sought = error.path
    _state.store = PrivateStore(memory)
    logger.warning(
        "no store listens at %s: started a private store at %s, with a separate cluster, "
        "for this process and its children",
        sought,
        _state.store.socket,
    )
    return Client(_state.store.socket, allow_pickle=allow_pickle)


class PrivateStore:
    def __init__(self, memory: str | int | None = None) -> None:
        _sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.socket = str(self.directory / "store.sock")
        # Locks before the rename, because other programs delete a directory whose lock is free.
        self._lock = open(self.directory / "lock.new", "w")  # noqa: SIM115
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self._lock.name, self.directory / "lock")
        try:
            self._process = self._start(memory)
        except BaseException:
            self._clean_up()
            raise
        os.environ[SOCKET_VARIABLE] = self.socket

    def _start(self, memory: str | int | None) -> subprocess.Popen[bytes]:
        command = [
            program("hoplite-store"),
            "--socket",
            self.socket,
            "--no-prefault",
            "--print-addresses",
        ]
        command += ["--exit-with-parent", str(os.getpid())]
        # Lets stores recognize handles of other clusters.
        command += ["--cluster", f"private-{secrets.token_hex(8)}"]
        if memory is not None:
            command += ["--memory", str(memory)]
        log = self.directory / "log"
        with open(log, "wb") as out:
            launcher = _Launcher(command, out)
        try:
            launcher.await_ready(_START_TIMEOUT)
        except BaseException as error:
            # Also after Ctrl-C, because no later code can stop the store.
            launcher.kill()
            if not isinstance(error, ValueError):
                raise
            said = " ".join(log.read_text(errors="replace").split()) or "it said nothing"
            raise ConnectFailed(
                f"a private store did not start: {said}", path=self.socket, reason="NotListening"
            ) from None
        return launcher.process

    def stop(self) -> None:
        if os.environ.get(SOCKET_VARIABLE) == self.socket:
            del os.environ[SOCKET_VARIABLE]
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            logger.warning(
                "the private store at %s did not stop in %.0f s: killed it",
                self.socket,
                _STOP_TIMEOUT,
            )
            self._process.kill()
            self._process.wait()
        logger.info("stopped the private store at %s", self.socket)
        self._clean_up()

    def _clean_up(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()


class _Launcher:
    """Starts the private store from a thread that never ends, because the kernel kills the store
    when the thread that started it ends.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, command: list[str], log: IO[bytes]) -> None:
        self._command, self._log = command, log
        self._error: BaseException | None = None
        started = threading.Event()
        threading.Thread(
            target=self._run, args=(started,), name="hoplite-launcher", daemon=True
        ).start()
        try:
            started.wait()
        except BaseException:
            started.wait()
            self.kill()
            raise
        if self._error is not None:
            raise self._error

    def _run(self, started: threading.Event) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in (LOG_VARIABLE, TOKEN_VARIABLE) or not name.startswith("HOPLITE_")
        }
        try:
            self.process = subprocess.Popen(
                self._command,
                env={**environment, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Ctrl-C in the terminal reaches this process only.
                start_new_session=True,
            )
        except BaseException as error:
            self._error = error
            return
        finally:
            started.set()
        # Keeps this thread and thus the store. A wait for the store would race with `stop`.
        threading.Event().wait()

    def kill(self) -> None:
        if self._error is None:
            self.process.kill()
            self.process.wait()

    def await_ready(self, timeout: float) -> None:
        """Waits until the store is ready. Raises `ValueError` if it ends or is too slow."""
        assert self.process.stdout is not None
        timer = threading.Timer(timeout, self.process.kill)
        timer.start()
        try:
            json.loads(self.process.stdout.readline())
            if self.process.stdout.readline() != b"ready\n":
                raise ValueError("it ended before it was ready")
        finally:
            timer.cancel()
            self.process.stdout.close()


def _sweep() -> None:
    """Removes the directories of programs that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another program may remove the directory at the same time.
        with contextlib.suppress(OSError):
            # Other users may have put anything there.
            if directory.lstat().st_uid != os.getuid():
                continue
            with open(directory / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
